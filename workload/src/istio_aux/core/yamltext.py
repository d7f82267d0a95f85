"""YAML as events, read as Istio reads it: the first document, by the rules of go-yaml v2.

Only reading may live here. Nothing is loaded: an event keeps its place in the text, aliases are not
expanded, and a scalar stays as it is spelt. sigs.k8s.io/yaml YAMLToJSON, which Istio calls, is the
source of what is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import yaml

MAX_DEPTH = 100
"""Deeper texts are refused: libyaml's scanner takes time quadratic in the depth."""

MAX_EVENTS = 1000
"""Texts of more are refused: each costs ten microseconds, and a text of 16 KiB may have 16,000. A
real one has a hundred or so."""

Signature = tuple[object, ...]
_MEANING = ("anchor", "tag", "implicit", "value")

# libyaml's scanner is the one that go-yaml v2 descends from; it is also ten times faster.
# PyYAML's wheels have it; the pure one only serves source installations without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The stubs of PyYAML leave yaml.parse without annotations.
_parse_events = cast("Callable[..., Iterator[yaml.Event]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]

_TAG = "tag:yaml.org,2002:"
# go-yaml v2 resolve.go resolveMapList.
_BOOLEANS = {
    spelt: meant
    for meant, words in ((True, "y yes true on"), (False, "n no false off"))
    for word in words.split()
    for spelt in (word, word.title(), word.upper())
}
_NULLS = {"", "~", "null", "Null", "NULL"}
# They are numbers, and JSON has no way to write them.
_INFINITE = {sign + spelt for sign in ("", "+", "-") for spelt in (".inf", ".Inf", ".INF")} | {
    ".nan",
    ".NaN",
    ".NAN",
}


class TooLongError(yaml.YAMLError):
    """It may be good YAML, but to find out would take too long."""


def parse(text: str) -> list[yaml.Event]:
    """Parse the first document; what follows it is not looked at, which Istio does not either.

    Raises:
        TooLongError: there are more than `MAX_EVENTS` events, or more than `MAX_DEPTH` levels.
        yaml.YAMLError: the text is not YAML, or nothing that can be read as JSON.
    """
    events: list[yaml.Event] = []
    anchors: dict[str, yaml.NodeEvent] = {}
    open_anchors: list[str | None] = []
    for event in _parse_events(text, Loader=_LOADER):
        events.append(event)
        if len(events) > MAX_EVENTS:
            raise TooLongError(f"it has more than {MAX_EVENTS} keys, values and ends of lists")
        if isinstance(event, yaml.DocumentEndEvent):
            break
        if isinstance(event, yaml.DocumentStartEvent) and event.version not in {None, (1, 1)}:
            raise yaml.YAMLError("its version is not 1.1")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise yaml.YAMLError(f"alias *{event.anchor} has no anchor")
            if event.anchor in open_anchors:
                raise yaml.YAMLError(f"anchor &{event.anchor} contains itself")
        elif isinstance(event, yaml.NodeEvent) and event.anchor:
            anchors[event.anchor] = event
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            if len(open_anchors) > MAX_DEPTH:
                raise TooLongError(f"it is nested more than {MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            open_anchors.pop()
    _refuse_what_json_cannot_say(events, anchors)
    return events


def _refuse_what_json_cannot_say(
    events: list[yaml.Event], anchors: dict[str, yaml.NodeEvent]
) -> None:
    keys: list[yaml.NodeEvent | None] = []
    """For each open collection, the key whose value comes next; for lists it never ends."""
    in_mapping: list[bool] = []
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            keys.pop()
            in_mapping.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        _refuse_scalar(event)
        if in_mapping and in_mapping[-1]:
            if keys[-1] is None:
                keys[-1] = event
                _refuse_key(anchors[event.anchor] if isinstance(event, yaml.AliasEvent) else event)
            else:
                if is_merge(keys[-1]) and isinstance(event, yaml.ScalarEvent):
                    raise yaml.YAMLError("a merge key (<<) has no mapping")
                keys[-1] = None
        if isinstance(event, yaml.CollectionStartEvent):
            keys.append(None)
            in_mapping.append(isinstance(event, yaml.MappingStartEvent))


def _refuse_key(key: yaml.NodeEvent) -> None:
    if isinstance(key, yaml.CollectionStartEvent):
        raise yaml.YAMLError("a key is a mapping or a list")
    if is_null(key):
        raise yaml.YAMLError("a key is null")


def _refuse_scalar(event: yaml.NodeEvent) -> None:
    if not isinstance(event, yaml.ScalarEvent):
        return
    if event.implicit[0] and event.value in _INFINITE:
        raise yaml.YAMLError(f"{event.value} is no number in JSON")
    for name, allowed in (("null", _NULLS), ("bool", _BOOLEANS)):
        if event.tag == _TAG + name and event.value not in allowed:
            raise yaml.YAMLError(f"!!{name} is no tag for such a value")


def at_root(events: list[yaml.Event]) -> Iterator[tuple[int, yaml.Event]]:
    """Keys and values directly in the root mapping, with their index; its end comes last."""
    depth = 0
    for index, event in enumerate(events[3:], start=3):
        if depth == 0:
            yield index, event
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            if depth < 0:
                return


def signature(events: list[yaml.Event]) -> list[Signature]:
    """What two texts with the same meaning have in common: no comments, no styles, no places."""
    return [
        (type(event).__name__, *(getattr(event, name, None) for name in _MEANING))
        for event in events
    ]


def is_merge(event: yaml.Event | None) -> bool:
    """Whether it is the key ``<<``, whose mapping's keys become those of the mapping around it."""
    return isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value == "<<"


def is_null(event: yaml.Event) -> bool:
    """Whether it is a scalar that means null."""
    return isinstance(event, yaml.ScalarEvent) and _means(event, "null") and event.value in _NULLS


def boolean(event: yaml.Event) -> bool | None:
    """What a scalar means as a boolean of YAML 1.1; None for anything that is none."""
    if isinstance(event, yaml.ScalarEvent) and _means(event, "bool"):
        return _BOOLEANS.get(event.value)
    return None


def _means(event: yaml.ScalarEvent, name: str) -> bool:
    """Whether its text decides what it is (no quotes, no tag), or its tag says so."""
    return event.implicit[0] or event.tag == _TAG + name
