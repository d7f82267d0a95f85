"""Options that name applications and namespaces: what is meant, and what is said of the rest."""

from __future__ import annotations

import json
import re

import pytest
from charms.istio_aux.v0.sidecar import SidecarRequest

import config
from config import (
    NEVER_INJECTED,
    Applications,
    as_file,
    parse_applications,
    parse_namespaces,
    union,
)


@pytest.mark.parametrize("text", ["", "  "])
def test_nothing_names_nobody(text: str) -> None:
    assert parse_applications(text, "kubeflow") == ()
    assert parse_namespaces(text) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensorboard", [Applications("kubeflow", ("tensorboard",))]),
        ("cos/grafana", [Applications("cos", ("grafana",))]),
        (
            "tensorboard, cos/traefik,cos/loki,cos/catalogue,cos/grafana,cos/alertmanager",
            [
                Applications("cos", ("alertmanager", "catalogue", "grafana", "loki", "traefik")),
                Applications("kubeflow", ("tensorboard",)),
            ],
        ),
        ("a,kubeflow/a,a", [Applications("kubeflow", ("a",))]),
        ("*", [Applications("kubeflow", None)]),
        ("cos/*", [Applications("cos", None)]),
        ("a,*,cos/grafana", [Applications("cos", ("grafana",)), Applications("kubeflow", None)]),
    ],
)
def test_applications_are_of_the_charms_own_model_unless_another_is_named(
    text: str, expected: list[Applications]
) -> None:
    assert parse_applications(text, "kubeflow") == tuple(expected)


@pytest.mark.parametrize(
    "entry",
    [
        "A",
        "a b",
        "a_b",
        "-a",
        "a-",
        "/a",
        "a/",
        "/",
        "*/a",
        "*/*",
        "**",
        "a*",
        "a/b/c",
        "a.b",
        "a" * 64,
        "é",
    ],
)
def test_an_entry_that_names_no_application_is_named_with_what_is_allowed(entry: str) -> None:
    said = f"{json.dumps(entry)}: expected {config.EXPECTED_APPLICATIONS}"

    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        parse_applications(f"good,{entry}", "kubeflow")


def test_all_wrong_entries_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r'^"A", "": expected applications '):
        parse_applications("A,a,", "kubeflow")


def test_the_longest_name_is_allowed() -> None:
    assert parse_applications("a" * 63, "kubeflow") == (Applications("kubeflow", ("a" * 63,)),)


@pytest.mark.parametrize("model", NEVER_INJECTED)
def test_an_application_of_a_model_that_istio_ignores_cannot_be_named(model: str) -> None:
    with pytest.raises(
        ValueError, match=f'^"{model}": expected models that Istio does not ignore$'
    ):
        parse_applications(f"good,{model}/a", "kubeflow")


def test_who_is_named_by_several_is_named_once_and_every_application_is_more_than_some() -> None:
    named = [
        Applications("kubeflow", ("b", "c")),
        Applications("cos", ("grafana",)),
        Applications("kubeflow", ("a", "b")),
        Applications("cos", None),
        Applications("cos", ("loki",)),
    ]

    assert union(named) == (Applications("cos", None), Applications("kubeflow", ("a", "b", "c")))


@pytest.mark.parametrize(
    ("text", "lines"),
    [("", []), ("b,a,cos/*", ["cos/*", "kubeflow/a", "kubeflow/b"])],
)
def test_the_workloads_file_has_a_line_for_each_and_is_never_empty(
    text: str, lines: list[str]
) -> None:
    comment, *rest = as_file(parse_applications(text, "kubeflow")).splitlines()

    assert comment.startswith("#")
    assert rest == lines


@pytest.mark.parametrize("name", ["a", "a" * 63, "a" * 64, "A", "a-", "0", "a.b", "*"])
def test_an_application_that_can_be_named_can_ask_for_itself(name: str) -> None:
    asked = SidecarRequest.from_databag({"application": name, "model": "kubeflow"})
    try:
        named = parse_applications(name, "kubeflow")
    except ValueError:
        named = ()

    assert ((Applications("kubeflow", (name,)),) == named) == (asked is not None)


def test_namespaces_are_sorted_and_each_named_once() -> None:
    assert parse_namespaces("team-b, team-a,team-b") == ("team-a", "team-b")


@pytest.mark.parametrize("entry", ["A", "*", "a/b", "a.b", "a=b", "a" * 64, ""])
def test_an_entry_that_names_no_namespace_is_named(entry: str) -> None:
    said = f"{json.dumps(entry)}: expected names of namespaces separated by commas"

    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        parse_namespaces(f"team-a,{entry}")


@pytest.mark.parametrize("namespace", NEVER_INJECTED)
def test_a_namespace_that_istio_ignores_cannot_be_named(namespace: str) -> None:
    with pytest.raises(
        ValueError, match=f'^"{namespace}": expected namespaces that Istio does not'
    ):
        parse_namespaces(f"team-a,{namespace}")
