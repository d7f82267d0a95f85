"""The charm and the workload read the option `namespace-selector` the same way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.core import selectors

import config
import rules

VALID = [
    "",
    "  ",
    "key",
    "!key",
    "! key",
    "key=value",
    "key==value",
    "key!=value",
    " key = value ",
    "key=",
    "key!=",
    "key in (a)",
    "key in (a,b)",
    "key in(b, a ,a)",
    "key in (,a)",
    "key in (,)",
    "key notin (a,b)",
    "io.datastrophic/istio-aux=enabled",
    "a.b-c.d/Name_1.x",
    "in",
    "notin=in",
    "in in (in)",
    "a=b,c!=d,!e,f,g in (h,i),j notin (k)",
    "a=b,a=c",
    "k" * 63,
    "p" * 253 + "/k",
    "key=" + "v" * 63,
]
INVALID = [
    ",",
    "a,",
    ",a",
    "a,,b",
    "a b",
    "a=b c",
    "a in b",
    "a in ()",
    "a in",
    "a in (b",
    "a in b)",
    "ain(b)",
    "a notin ()",
    "a=b=c",
    "a===b",
    "!",
    "!a=b",
    "!a in (b)",
    "=b",
    "a<1",
    "a>1",
    "-a",
    "a-",
    "/a",
    "a/",
    "a/b/c",
    "A.b/c",
    "a..b/c",
    "ü=a",
    "a=ü",
    "k" * 64,
    "p" * 254 + "/k",
    "key=" + "v" * 64,
    "a=-b",
    "a in (b c)",
    "a\nb",
    "(a)",
]


def requirements(selector: dict[str, Any]) -> set[tuple[str, str, tuple[str, ...]]]:
    """What a LabelSelector demands, however it is written."""
    labels = selector.get("matchLabels", {})
    return {(key, "In", (value,)) for key, value in labels.items()} | {
        (e["key"], e["operator"], tuple(sorted(e.get("values", []))))
        for e in selector.get("matchExpressions", [])
    }


def as_object(selector: selectors.Selector) -> dict[str, Any]:
    """The LabelSelector (meta/v1) of the workload's selector, with `matchLabels` for equality."""
    found: dict[str, Any] = {"matchLabels": {}, "matchExpressions": []}
    for item in selector.requirements:
        if item.operator == "In" and len(item.values) == 1 and item.key not in found["matchLabels"]:
            found["matchLabels"][item.key] = item.values[0]
        else:
            rule = {"key": item.key, "operator": item.operator.value, "values": [*item.values]}
            found["matchExpressions"].append(rule)
    return found


@pytest.mark.parametrize("text", VALID)
def test_both_accept_and_mean_the_same(text: str) -> None:
    ours = config.parse_selector(text)

    assert requirements(dict(ours)) == requirements(as_object(selectors.parse(text)))


@pytest.mark.parametrize("text", INVALID)
def test_both_refuse_in_one_line(text: str) -> None:
    for parse in (config.parse_selector, selectors.parse):
        with pytest.raises(ValueError, match="expected") as refusal:
            parse(text)
        assert len(str(refusal.value).splitlines()) == 1


PIECES = ["a", "b/c", "in", "notin", "=", "==", "!=", "!", "(", ")", ",", " ", "<", "-", "ü"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_both_agree_on_anything(text: str) -> None:
    def outcome(parse: Any) -> set[Any] | None:
        try:
            parsed = parse(text)
        except ValueError:
            return None
        return requirements(parsed if isinstance(parsed, dict) else as_object(parsed))

    assert outcome(config.parse_selector) == outcome(selectors.parse)


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        ("key", {"key": "key", "operator": "Exists"}),
        ("!key", {"key": "key", "operator": "DoesNotExist"}),
        ("key=a", {"key": "key", "operator": "In", "values": ["a"]}),
        ("key!=a", {"key": "key", "operator": "NotIn", "values": ["a"]}),
        ("key in (b,a)", {"key": "key", "operator": "In", "values": ["a", "b"]}),
        ("key notin (a)", {"key": "key", "operator": "NotIn", "values": ["a"]}),
    ],
)
def test_a_requirement_becomes_an_expression(text: str, requirement: dict[str, object]) -> None:
    assert config.parse_selector(text) == {"matchExpressions": [requirement]}


@pytest.mark.parametrize(
    ("text", "cel"),
    [
        ("", "true"),
        ("key", '"key" in l'),
        ("!key", '!("key" in l)'),
        ("key=a", '"key" in l && l["key"] in ["a"]'),
        ("key=", '"key" in l && l["key"] in [""]'),
        ("key!=a", '!("key" in l && l["key"] in ["a"])'),
        ("key in (b,a)", '"key" in l && l["key"] in ["a", "b"]'),
        ("key notin (b,a)", '!("key" in l && l["key"] in ["a", "b"])'),
        ("a.b/c=d,!e", '"a.b/c" in l && l["a.b/c"] in ["d"] && !("e" in l)'),
    ],
)
def test_a_selector_becomes_an_expression_of_cel(text: str, cel: str) -> None:
    """tests/cluster/test_policy_selectors.py has a real API server evaluate them."""
    assert rules.selector_expression(config.parse_selector(text), "l") == cel


@pytest.mark.parametrize("text", VALID)
def test_both_ways_to_write_a_selector_make_the_same_conditions(text: str) -> None:
    """A LabelSelector may have `matchLabels` for equality."""
    ours = rules.selector_expression(config.parse_selector(text), "l")
    theirs = rules.selector_expression(as_object(selectors.parse(text)), "l")

    assert set(ours.split(" && ")) == set(theirs.split(" && "))


def test_an_operator_that_selectors_do_not_have_is_refused() -> None:
    selector = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}

    with pytest.raises(ValueError, match="Gt: expected In, NotIn, Exists or DoesNotExist"):
        rules.selector_expression(selector, "l")


@pytest.mark.parametrize("text", VALID)
def test_kube_system_is_left_out_of_every_selector(text: str) -> None:
    narrowed = selectors.parse(config.but_never_selected(text))
    wanted = selectors.parse(text)

    for name in ("kube-system", "team-a"):
        for labels in ({}, {"key": "value"}, {"key": ""}, {"a": "b", "f": "", "g": "h"}):
            labelled = {**labels, "kubernetes.io/metadata.name": name}
            selected = name != "kube-system" and wanted.matches(labelled)
            assert narrowed.matches(labelled) is selected
