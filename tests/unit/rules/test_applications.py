"""Which applications ask for sidecars: the file that names them, and whom that means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.model.applications import Application, Applications, parse
from istio_aux.model.pod_settings import InjectionRequest
from unit.rules.pods import INJECT, pod

NAME = "app.kubernetes.io/name"
FILE = """\
# Written by the charm.
shop/web   # on request

  bank/*
"""


def test_a_file_names_applications_and_whole_models() -> None:
    found, problems = parse(FILE)
    named = {Application("shop", "web"), Application("bank", "*")}
    assert found == Applications(frozenset(named))
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
    counted = len(found.named) + len(problems)
    assert bool(counted) is bool(entries)
    assert counted <= entries


@pytest.mark.parametrize(
    ("namespace", "name", "asks", "covered"),
    [
        ("shop", "web", True, True),
        ("shop", "db", False, False),
        ("bank", "web", True, True),
        ("bank", "", False, False),
        ("team", "web", False, True),
        ("team", "", False, True),
        ("other", "web", False, False),
        ("kube-system", "web", False, False),
    ],
)
def test_who_asks_for_a_sidecar_and_who_gets_one_by_us(
    namespace: str, name: str, asks: bool, covered: bool
) -> None:
    """Those of a model, but not Juju's own pods; none in the namespaces that Istio ignores."""
    found, problems = parse(f"{FILE}\nteam/**\nkube-system/**")
    assert problems == ()
    assert (found.asks(namespace, name), found.covers(namespace, name)) == (asks, covered)


def test_a_pod_is_judged_as_admission_would_make_it() -> None:
    found, _ = parse(FILE)
    judged = InjectionRequest.of(pod({NAME: "web"}, namespace="shop")).admitted(found)
    assert judged.labels == {NAME: "web", INJECT: "true"}
    own = InjectionRequest.of(pod({NAME: "web"}, {INJECT: "maybe"}, namespace="shop"))
    assert own.admitted(found) is own, "it says itself what it wants"
