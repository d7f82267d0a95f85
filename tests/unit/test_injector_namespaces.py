"""Namespaces and their labels, as a watch of all of them tells."""

from __future__ import annotations

import pytest
from istio_aux.injector.watcher import Namespaces
from istio_aux.kube.objects import Key
from istio_aux.model.pod import Metadata
from istio_aux.model.webhooks import Namespace


def namespace(name: str, uid: str = "1", **labels: str) -> Namespace:
    return Namespace(metadata=Metadata(name=name, uid=uid, labels=labels or None))


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def namespaces(told: list[str]) -> Namespaces:
    return Namespaces(told.append)


def test_labels_are_known_by_name(namespaces: Namespaces) -> None:
    namespaces.apply(namespace("a", mesh="yes"))
    namespaces.apply(namespace("b"))

    assert dict(namespaces) == {"a": {"mesh": "yes"}, "b": {}}
    assert (len(namespaces), namespaces.get("c")) == (2, None)


def test_each_change_is_reported_once(namespaces: Namespaces, told: list[str]) -> None:
    for labels in ({"mesh": "yes"}, {"mesh": "yes"}, {"mesh": "no"}, {}):
        namespaces.apply(namespace("a", **labels))
    namespaces.delete(Key("", "a", "1"), None)

    assert told == ["a"] * 4
    assert dict(namespaces) == {}


def test_the_end_of_an_old_namespace_does_not_take_a_new_one_of_its_name(
    namespaces: Namespaces, told: list[str]
) -> None:
    namespaces.apply(namespace("a", uid="1"))
    namespaces.apply(namespace("a", uid="2"))

    namespaces.delete(Key("", "a", "1"), None)
    namespaces.delete(Key("", "z", "9"), None)

    assert list(namespaces) == ["a"]
    assert told == ["a"]
