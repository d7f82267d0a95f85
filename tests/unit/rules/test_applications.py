"""Which applications ask for sidecars: the file that names them, and whom that means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.model.applications import Applications, parse
from istio_aux.model.policy import Application
from istio_aux.start.plan import admitted
from unit.rules.mesh import INJECT, pod

NAME = "app.kubernetes.io/name"
FILE = """\
# Written by the charm.
shop/web   # on request

  bank/*
"""


def test_a_file_names_applications_and_whole_models() -> None:
    found, problems = parse(FILE)
    assert found == Applications(frozenset({Application("shop", "web")}), frozenset({"bank"}))
    assert problems == ()


@pytest.mark.parametrize(
    "entry", ["web", "shop/", "/web", "shop/web/0", "Shop/web", "shop/we*", "*/web", "shop web"]
)
def test_an_invalid_entry_is_reported_and_the_others_count(entry: str) -> None:
    found, problems = parse(f"shop/a\n{entry}\nshop/b")
    assert {each.name for each in found.named} == {"a", "b"}
    expected = "expected model/app, model/* for all its applications, or namespace/** for all pods"
    assert problems == (f'line 2: "{entry}": {expected}',)


@given(st.text() | st.text(st.sampled_from("ab*/#- \n")))
def test_any_text_can_be_read(text: str) -> None:
    """An entry is understood, or it is a problem; no entry is lost."""
    found, problems = parse(text)
    assert all("\n" not in problem for problem in problems)
    entries = sum(bool(line.partition("#")[0].strip()) for line in text.splitlines())
    counted = len(found.named) + len(found.models) + len(found.namespaces) + len(problems)
    assert bool(counted) is bool(entries)
    assert counted <= entries


@pytest.mark.parametrize(
    ("namespace", "name", "asks"),
    [
        ("shop", "web", True),
        ("shop", "db", False),
        ("bank", "web", True),
        ("bank", None, False),
        ("other", "web", False),
    ],
)
def test_a_pod_asks_by_its_namespace_and_its_application(
    namespace: str, name: str | None, asks: bool
) -> None:
    """All of a model means all its applications: Juju's own pods there have no such label."""
    found, _ = parse(FILE)
    labels = {NAME: name} if name else {}
    assert found.asks(namespace, labels.get(NAME, "")) is asks


@pytest.mark.parametrize(
    ("namespace", "name", "covered"),
    [
        ("shop", "web", True),
        ("shop", "db", False),
        ("bank", "web", True),
        ("bank", "", False),
        ("team", "web", True),
        ("team", "", True),
        ("other", "web", False),
        ("kube-system", "web", False),
    ],
)
def test_who_gets_a_sidecar_by_us_is_covered(namespace: str, name: str, covered: bool) -> None:
    """Istio injects nothing into its ignored namespaces, whatever the file says."""
    found, problems = parse(f"{FILE}\nteam/**\nkube-system/**")
    assert problems == ()
    assert found.covers(namespace, name) is covered


def test_a_pod_of_a_namespace_that_is_injected_does_not_ask_by_label() -> None:
    found, _ = parse("team/**")
    assert not found.asks("team", "web")


def test_a_pod_is_judged_as_admission_would_make_it() -> None:
    found, _ = parse(FILE)
    judged = admitted(pod({NAME: "web"}, namespace="shop"), found)
    assert judged.labels == {NAME: "web", INJECT: "true"}


@pytest.mark.parametrize("value", ["true", "false", "maybe", ""])
@pytest.mark.parametrize("where", ["label", "annotation"])
def test_a_pod_that_says_itself_what_it_wants_is_left_so(where: str, value: str) -> None:
    found, _ = parse(FILE)
    said = {INJECT: value}
    own = pod({NAME: "web", **said}, namespace="shop")
    if where == "annotation":
        own = pod({NAME: "web"}, said, namespace="shop")
    assert admitted(own, found) is own
