"""Label selectors: kubectl's syntax in, two forms out; the options that choose pods by them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.cli import main
from istio_aux.model.applications import PodOptions
from istio_aux.model.applications import parse as applications
from istio_aux.model.selectors import (
    LabelSelector,
    NamespaceSelectors,
    Operator,
    Requirement,
    Selector,
    convert,
    parse,
    parse_namespaces,
)
from lab.selector_cases import INVALID, VALID
from unit import repairing
from unit.rules.pods import ENABLED, INJECT, REPORT, RUNNING, document, exited

# Label selectors: kubectl's syntax in, two forms out, one line for each mistake.

ALL = "a=b,c!=d,e in (x,y),f notin (w,z),g,!h"


def test_every_operator_is_understood_with_whatever_space() -> None:
    spaced = " a == b , c!= d,e  in(y , x),f notin(z,w) ,g, ! h "
    assert str(parse(spaced)) == str(parse(ALL)) == ALL


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("!a,b!=c", {}),
        ("a in (x,y),b,c=z", {"a": "x", "b": "true", "c": "z"}),
        ("a,a=x", {"a": "x"}),
        ("a=x,!a", None),
    ],
)
def test_labels_that_are_selected_are_found(text: str, expected: dict[str, str] | None) -> None:
    assert parse(text).sample() == expected


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("", {"a": "b"}, True),
        ("  ", {}, True),
        ("a=b,a=c", {"a": "c"}, False),
        ("a=b", {"a": "c"}, False),
        ("a=b", {}, False),
        ("a=", {"a": ""}, True),
        ("a in (b,c)", {"a": "c"}, True),
        ("a in (b,c)", {"a": "d"}, False),
        ("a in (,c)", {"a": ""}, True),
        ("a notin (b,c)", {"a": "c"}, False),
        ("a notin (b,c)", {}, True),
        ("a", {"a": ""}, True),
        ("a", {"b": "a"}, False),
        ("!a", {}, True),
        ("!a", {"a": ""}, False),
        ("a=b,!c", {"a": "b", "c": "d"}, False),
        ("in in (in),notin", {"in": "in", "notin": ""}, True),
        ("io.datastrophic/istio-aux=enabled", {"io.datastrophic/istio-aux": "enabled"}, True),
    ],
)
def test_matching(text: str, labels: dict[str, str], expected: bool) -> None:
    assert parse(text).matches(labels) is expected


FORMS = "expected KEY, !KEY, KEY=VALUE, KEY!=VALUE, KEY in (VALUES) or KEY notin (VALUES)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a in b", f'"a in b": {FORMS}, found "a in b"'),
        ("a in ()", '"a in ()": expected at least one value after "in"'),
        ("a,b in (c", f'"a,b in (c": {FORMS}, found "b in (c"'),
        ("a in (b c)", '"a in (b c)": label value "b c": expected at most 63 letters'),
        ("a,", f'"a,": {FORMS}, found the end'),
        ("!", f'"!": {FORMS}, found "!"'),
        ("a=b c", f'"a=b c": {FORMS}, found "a=b c"'),
        ("a>1", f'"a>1": {FORMS}, found "a>1"'),
        ("a\nb", f'"a\\nb": {FORMS}, found "a\\nb"'),
        ("A/b=c", "\"A/b=c\": label key \"A/b\": expected a DNS subdomain before the '/'"),
        ("a." * 126 + "bc/d", "expected a DNS subdomain before the '/'"),
        ("/b", "\"/b\": label key \"/b\": expected a DNS subdomain before the '/'"),
        ("-a", '"-a": label key "-a": expected at most 63 letters'),
        ("a" * 64, 'expected at most 63 letters'),
        ("a=b!", f'"a=b!": {FORMS}, found "a=b!"'),
        ("a=é", 'label value "é": expected at most 63 letters'),
    ],
)  # fmt: skip
def test_a_mistake_gives_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


DEFAULT = (
    "io.datastrophic/istio-aux=enabled; "
    "app.kubernetes.io/part-of=kubeflow-profile,!io.datastrophic/istio-aux"
)


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a;b=c", {"a": ""}, True),
        ("a;b=c", {"b": "c"}, True),
        ("a ; b=c", {"b": "d"}, False),
        ("", {}, True),
        (DEFAULT, {"app.kubernetes.io/part-of": "kubeflow-profile"}, True),
        (DEFAULT, {"io.datastrophic/istio-aux": "enabled"}, True),
        (DEFAULT, {"istio-injection": "enabled"}, False),
    ],
)
def test_one_of_the_selectors_of_namespaces_must_match(
    text: str, labels: dict[str, str], expected: bool
) -> None:
    assert parse_namespaces(text).matches(labels) is expected


@pytest.mark.parametrize("text", INVALID)
def test_a_text_that_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(text)


@pytest.mark.parametrize("text", VALID)
def test_no_selector_selects_kube_system(text: str) -> None:
    found = parse_namespaces(text)

    for labels in ({}, {"key": "value"}, {"key": ""}, {"a": "b", "f": "", "g": "h"}):
        assert found.matches(labels) is parse(text).matches(labels)
        assert not found.matches({**labels, "kubernetes.io/metadata.name": "kube-system"})


def test_selectors_of_namespaces_are_written_as_they_are_read_and_each_counts_once() -> None:
    assert str(parse_namespaces(f"{DEFAULT};io.datastrophic/istio-aux == enabled")) == DEFAULT
    assert str(parse_namespaces(" ")) == ""
    assert parse_namespaces("") == NamespaceSelectors()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a;b in c", f'"b in c": {FORMS}, found "b in c"'),
        ("a;;b", '"a;;b": expected a selector on both sides of each ";"'),
        ("a;", '"a;": expected a selector on both sides of each ";"'),
        (";", '";": expected a selector on both sides of each ";"'),
        (";".join("a" * 17), f'"{"a;" * 16}a": expected 16 selectors at most'),
        (f"a;{'b,' * 1000}b", f'"{"b," * 30}…": expected 2000 characters at most'),
    ],
)
def test_a_mistake_in_selectors_of_namespaces_is_named_with_what_is_allowed(
    text: str, message: str
) -> None:
    """An empty selector would select every namespace."""
    with pytest.raises(ValueError, match="expected") as caught:
        parse_namespaces(text)
    assert str(caught.value) == message


NAMES = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,4}[A-Za-z0-9])?", fullmatch=True)
REQUIREMENTS = st.one_of(
    st.builds(
        Requirement,
        key=NAMES,
        operator=st.sampled_from([Operator.IN, Operator.NOT_IN]),
        values=st.sets(NAMES | st.just(""), min_size=1).map(lambda found: tuple(sorted(found))),
    ),
    st.builds(
        Requirement,
        key=NAMES,
        operator=st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST]),
    ),
)


@given(st.sets(REQUIREMENTS, max_size=4))
def test_the_canonical_text_means_the_same(requirements: set[Requirement]) -> None:
    selector = Selector(tuple(sorted(requirements)))
    assert parse(str(selector)) == selector


def test_an_object_with_nothing_in_it_selects_everything() -> None:
    """The API server sends null for empty maps and lists."""
    empty = msgspec.json.decode(b'{"matchLabels":null,"matchExpressions":null}', type=LabelSelector)
    assert convert(empty) == convert(LabelSelector()) == Selector()


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        *(
            ({"matchExpressions": [{"key": "a"} | expression]}, message)
            for expression, message in (
                ({"operator": "Like", "values": ["b"]},
                 "expected one of: In, NotIn, Exists, DoesNotExist"),
                ({"operator": "In"}, "expected at least one value with In, for a"),
                ({"operator": "Exists", "values": ["b"]}, "expected no values with Exists, for a"),
                ({"key": "-a", "operator": "Exists"},
                 'label key "-a": expected at most 63 letters'),
                ({"operator": "In", "values": ["b c"]},
                 'label value "b c": expected at most 63 letters'),
            )
        ),
        ({"matchLabels": {"-a": "b"}}, 'label key "-a": expected at most 63 letters'),
        ({"matchLabels": {"a": "b c"}}, 'label value "b c": expected at most 63 letters'),
    ],
)  # fmt: skip
def test_an_object_that_kubernetes_would_not_take_gives_one_clear_line(
    wire: dict[str, object], message: str
) -> None:
    """apimachinery LabelSelectorAsSelector and labels.NewRequirement."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        convert(msgspec.convert(wire, LabelSelector))

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(st.sampled_from("ab=!,() in\n<é"), max_size=12))
def test_no_text_breaks_it(text: str) -> None:
    try:
        selector = parse(text)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert parse(str(selector)) == selector


# Options `pod-selector` and `inject-selector`: which pods start, quit and repair are for.

CHOOSE = ("--pod-selector", "team in (a,b),!hands-off")
OTHER: Mapping[str, str] = {"team": "c"}
WEB: Mapping[str, str] = {"app.kubernetes.io/name": "web"}
LABEL = "kubectl label{} pod job-x7k2p -n training team=a"
WHY = "pod-selector !hands-off,team in (a,b) does not match the pod's labels"
AUTHOR = f"{WHY}: its author labels the pod"


@pytest.mark.parametrize(
    ("labels", "asked", "expected"),
    [
        ({"team": "a"}, "", ("quit", None, None)),
        (OTHER, "", ("ignore", AUTHOR, LABEL.format(" --overwrite"))),
        ({}, "", ("ignore", AUTHOR, LABEL.format(""))),
        (WEB, "training/web", ("quit", None, None)),
    ],
    ids=["matched", "other labels", "no labels", "an injected application's"],
)
def test_explain_says_that_it_does_not_match(
    labels: dict[str, str],
    asked: str,
    expected: tuple[str, str | None, str | None],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "applications").write_text(asked)
    config = tmp_path / "config.yaml"
    config.write_text(f"pod-selector: {CHOOSE[1]!r}\napplications: {tmp_path}/applications\n")
    pod = document({"main": exited(0), "istio-proxy": RUNNING}, labels=labels)

    assert main(["explain", *as_file(tmp_path, pod), "--config", str(config), "-o", "json"]) == 0

    found = json.loads(capfd.readouterr().out)
    assert (found["action"], found.get("left_out"), found.get("change")) == expected
    assert found["containers"]["main"]["finished"]


def test_mutate_leaves_a_pod_that_it_does_not_match_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pod = document({"main": None}, labels=OTHER)
    argv = as_file(tmp_path, pod)

    assert main(["mutate", "-o", "json", *argv, *CHOOSE]) == 0

    out, err = capfd.readouterr()
    assert json.loads(out) == pod
    assert err == f"{argv[1]}:1: left alone: {WHY}\n"


def as_file(folder: Path, pod: dict[str, Any]) -> list[str]:
    """The arguments for a file with the pod."""
    file = folder / "pod.json"
    file.write_text(json.dumps(pod))
    return ["-f", str(file)]


# Option `inject-selector`: pods that get a sidecar although their annotation says no.

STEP = {"step": "train"}
NO = {INJECT: "false"}
STEPS = PodOptions(namespaces=parse_namespaces("team"), inject=parse("step"))
SELECTED = {**ENABLED, "team": "a"}


async def test_inject_selector_counts_where_the_namespace_or_the_application_is_selected() -> None:
    async with repairing.cluster(policy=REPORT, options=STEPS) as world:
        await world.pod("step", labels=STEP, annotations=NO)
        await world.pod("says-nothing")
        await world.known(2)
        await world.found("says-nothing")
        await world.relabel("shop", SELECTED)
        await world.found("step", "says-nothing")
        await world.relabel("shop", ENABLED)
        await world.found("says-nothing")
        await world.pod("web-0", labels={**STEP, **WEB}, annotations=NO)
        world.repair.store.set_applications(applications("shop/web")[0])
        await world.found("says-nothing", "web-0")


@pytest.mark.parametrize(("selector", "value"), [("step", "true"), ("", None), ("!step", None)])
def test_mutate_shows_the_label_that_it_gives(
    selector: str, value: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = as_file(tmp_path, document({"main": None}, labels=STEP, annotations=NO))
    assert main(["mutate", "-o", "json", *file, "--inject-selector", selector]) == 0
    metadata = json.loads(capfd.readouterr().out)["metadata"]
    assert metadata["labels"].get(INJECT) == value
    assert ("istio-aux.io/started-with" in metadata["annotations"]) is (value == "true")
