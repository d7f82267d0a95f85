"""Options that name applications, namespaces and selectors, and what an invalid one is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial

import pytest
from charmlibs.interfaces.istio_sidecar import SidecarRequest
from istio_aux.model.names import IGNORED

import config
from config import (
    Applications,
    as_file,
    parse_applications,
    parse_namespaces,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  ", []),
        (
            "tensorboard, cos/traefik,cos/loki,cos/catalogue,cos/grafana,cos/alertmanager",
            [
                Applications("cos", ("alertmanager", "catalogue", "grafana", "loki", "traefik")),
                Applications("kubeflow", ("tensorboard",)),
            ],
        ),
        ("a,kubeflow/a,a", [Applications("kubeflow", ("a",))]),
        ("a,*,cos/grafana", [Applications("cos", ("grafana",)), Applications("kubeflow", ("*",))]),
    ],
)
def test_applications_are_of_the_charms_own_model_unless_another_is_named(
    text: str, expected: list[Applications]
) -> None:
    assert parse_applications(text, "kubeflow") == tuple(expected)


@pytest.mark.parametrize(
    ("parse", "entry", "expected"),
    [
        *(
            (partial(parse_applications, model="kubeflow"), entry, config.EXPECTED_APPLICATIONS)
            for entry in (
                "A", "a b", "a_b", "-a", "a-", "/a", "a/", "/", "*/a", "*/*", "**", "a*", "a/b/c",
                "a.b", "a" * 64, "é",
            )
        ),
        *(
            (parse_namespaces, entry, "names of namespaces separated by commas")
            for entry in ("A", "*", "a/b", "a.b", "a=b", "a" * 64, "")
        ),
    ],
)  # fmt: skip
def test_a_bad_entry_is_named_with_what_is_allowed(
    parse: Callable[[str], object], entry: str, expected: str
) -> None:
    said = f"{json.dumps(entry)}: expected {expected}"

    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        parse(f"good,{entry}")


@pytest.mark.parametrize(
    ("text", "lines"),
    [("", []), ("b,a,cos/*", ["cos/*", "kubeflow/a", "kubeflow/b"])],
)
def test_the_workloads_file_has_a_line_for_each_application_and_is_never_empty(
    text: str, lines: list[str]
) -> None:
    comment, *rest = as_file(parse_applications(text, "kubeflow")).splitlines()

    assert comment.startswith("#")
    assert rest == lines


@pytest.mark.parametrize("name", ["a", "a" * 63, "a" * 64, "A", "a-", "0", "a.b"])
def test_option_and_relation_accept_the_same_names(name: str) -> None:
    asked = SidecarRequest.from_databag({"application": name, "model": "kubeflow"})
    try:
        named = parse_applications(name, "kubeflow")
    except ValueError:
        named = ()

    assert ((Applications("kubeflow", (name,)),) == named) == (asked is not None)


def test_namespaces_are_sorted_and_each_named_once() -> None:
    assert parse_namespaces("team-b, team-a,team-b") == ("team-a", "team-b")


@pytest.mark.parametrize("name", IGNORED)
def test_models_and_namespaces_that_istio_ignores_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f'^"{name}": expected models that Istio does not ignore$'):
        parse_applications(f"good,{name}/a", "kubeflow")
    with pytest.raises(ValueError, match=f'^"{name}": expected namespaces that Istio does not'):
        parse_namespaces(f"team-a,{name}")
