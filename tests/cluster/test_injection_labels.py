"""Istio's label on namespaces: server-side apply keeps the account of what the charm has set."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import lightkube
import pytest
import yaml
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace
from lightkube.types import PatchType

import config
import injectionlabels
from certificates import Leaf
from cluster import Found
from inputs import Inputs
from issuers import Issuers

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL, APP = "m" * 63, "a" * 63
NO_ISSUERS = Issuers("", {}, False, None, None, Leaf("", ""), "")
OURS = {"istio-injection": "enabled", "istio-aux.io/injection": f"{MODEL}/{APP}"}


def naming(*namespaces: str) -> Inputs:
    """The leader, whose option names these."""
    described = yaml.safe_load((REPOSITORY / "config.yaml").read_text())["options"]
    defaults = {name: option["default"] for name, option in described.items()}
    options = config.load({**defaults, "inject-namespaces": ",".join(namespaces)}, MODEL)
    return Inputs(APP, MODEL, True, datetime.now(UTC), options, "", True, None, NO_ISSUERS, None)


def labels(client: lightkube.Client, namespace: str) -> dict[str, str]:
    """Istio's label, and the annotation that says who set it."""
    metadata = client.get(Namespace, namespace).metadata
    assert metadata
    said = {**(metadata.labels or {}), **(metadata.annotations or {})}
    return {key: said[key] for key in OURS if key in said}


def label(client: lightkube.Client, namespace: str, value: str | None) -> None:
    """What `kubectl label --overwrite` does."""
    patch = {"metadata": {"labels": {"istio-injection": value}}}
    client.patch(Namespace, namespace, patch, patch_type=PatchType.MERGE)


def test_what_was_set_is_taken_back_and_a_second_time_changes_nothing(
    client: lightkube.Client, namespace: str
):
    assert injectionlabels.ensure(client, naming(namespace), live=True) == ()
    assert labels(client, namespace) == OURS

    before = client.get(Namespace, namespace)
    assert injectionlabels.ensure(client, naming(namespace), live=True) == ()
    assert client.get(Namespace, namespace) == before

    assert injectionlabels.ensure(client, naming(), live=True) == ()
    assert labels(client, namespace) == {}


def test_a_label_that_somebody_else_has_set_too_stays(client: lightkube.Client, namespace: str):
    injectionlabels.ensure(client, naming(namespace), live=True)
    theirs = ObjectMeta(name=namespace, labels={"istio-injection": "enabled"})
    client.apply(Namespace(metadata=theirs), field_manager="gitops")

    injectionlabels.take_back(client, MODEL, APP)

    assert labels(client, namespace) == {"istio-injection": "enabled"}


def test_a_label_that_somebody_has_changed_is_theirs(client: lightkube.Client, namespace: str):
    injectionlabels.ensure(client, naming(namespace), live=True)
    label(client, namespace, "disabled")

    said = injectionlabels.ensure(client, naming(namespace), live=True)
    injectionlabels.take_back(client, MODEL, APP)

    assert said == (f"{namespace}: has istio-injection=disabled",)
    assert labels(client, namespace) == {"istio-injection": "disabled"}


def test_a_label_that_comes_between_look_and_act_is_not_overwritten(
    client: lightkube.Client, namespace: str
):
    metadata = client.get(Namespace, namespace).metadata
    assert metadata
    seen = Found(namespace, metadata.uid or "", {}, {})
    label(client, namespace, "disabled")

    said = injectionlabels._label(client, seen, f"{MODEL}/{APP}", live=True)

    assert "conflict" in said
    assert labels(client, namespace) == {"istio-injection": "disabled"}


def test_a_namespace_that_goes_between_look_and_act_is_not_made(client: lightkube.Client):
    gone = Found("gone", "8f1c2a5e-0000-4000-8000-000000000000", {}, {})

    said = injectionlabels._label(client, gone, f"{MODEL}/{APP}", live=True)

    assert said
    with pytest.raises(lightkube.ApiError, match="not found"):
        client.get(Namespace, "gone")
