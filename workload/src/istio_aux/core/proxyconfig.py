"""How hold gets into the text of the annotation ``proxy.istio.io/config``.

Only rules about that text may live here. It is the user's: it is never parsed and dumped, for that
would lose comments and turn ``12:30:45`` into a number. One key is inserted as text, and the result
is used only when parsing it shows the old mapping plus that key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TypeGuard, cast

import yaml

from istio_aux.core.pod import Struct

ANNOTATION = "proxy.istio.io/config"
HOLD = "holdApplicationUntilProxyStarts"
HOLD_PROTO = "hold_application_until_proxy_starts"
"""The same field by its proto name, which jsonpb takes as well."""

_MAX_LENGTH = 64 * 1024
"""Longer texts are left alone: parsing would hold up other reviews, and no real one comes near."""
_MAX_DEPTH = 100
"""Deeper texts are left alone: libyaml's scanner takes time quadratic in the depth."""

# go-yaml v2 resolve.go resolveMapList.
_BOOLEANS = {
    spelt: meant
    for meant, words in ((True, "y yes true on"), (False, "n no false off"))
    for word in words.split()
    for spelt in (word, word.title(), word.upper())
}
_LINE = f"{HOLD}: true"
_FLOW_ENTRY = f'"{HOLD}": true'
"""With quotes, so that JSON stays JSON."""
_Signature = tuple[object, ...]
_MEANING = ("anchor", "tag", "implicit", "value")

# libyaml's scanner is the one that go-yaml v2, hence Istio, descends from; it is also ten times
# faster. PyYAML's wheels have it; the pure one only serves source installations without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The stubs of PyYAML leave yaml.parse without annotations.
_parse_events = cast("Callable[..., Iterator[yaml.Event]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]


class Merge(Struct, frozen=True):
    """What becomes of the text: ``text`` is the new one, or None to leave the old one as it is."""

    text: str | None
    reason: str
    warning: str | None = None
    holds: bool = False
    """Whether the text that it will be asks Istio for hold."""


def hold(text: str | None) -> Merge:
    """Merge ``holdApplicationUntilProxyStarts: true`` into the annotation's text (None: absent).

    An explicit value, in either spelling, is the user's choice and stays. A text that is no mapping
    stays byte for byte, with a warning; Istio itself refuses such a pod.
    """
    if text is None or not text.strip():
        return _added(_LINE)
    if len(text) > _MAX_LENGTH:
        return _left_alone(f"it is longer than {_MAX_LENGTH // 1024} KiB")
    return _merge(text)


@lru_cache(maxsize=256)
def _merge(text: str) -> Merge:
    """Merge into a text that is not blank; cached, for all pods of a Job carry the same text."""
    try:
        events = _parse(text)
    except yaml.YAMLError as error:
        return _left_alone(f"it is not YAML: {_one_line(error)}")
    root = events[2] if len(events) > 2 else None  # After the starts of stream and document.
    if root is None or _is_null(root):
        return _first_proven([_with_line(text, 0), _LINE], [_signature(_parse(_LINE))])
    if not isinstance(root, yaml.MappingStartEvent):
        return _left_alone("it is not a mapping")
    keys = _root_keys(events)
    for spelling in (HOLD, HOLD_PROTO):  # Where both are there, jsonpb takes the JSON name.
        if spelling in keys:
            return _decided(spelling, keys[spelling])
    if "<<" in keys:
        return _left_alone("it has a merge key (<<)")
    old = _signature(events)
    end = next(i for i, event in _at_root(events) if isinstance(event, yaml.MappingEndEvent))
    added = _signature(_parse(_FLOW_ENTRY.join("{}") if root.flow_style else _LINE))[3:5]
    first, last = old[:3] + added + old[3:], old[:end] + added + old[end:]
    return _first_proven(_candidates(text, events), [first, last])


def _candidates(text: str, events: list[yaml.Event]) -> Iterator[str]:
    """Texts that may be the old mapping plus our key, the most natural first."""
    root, first = events[2], events[3]
    if getattr(root, "flow_style", False):
        cut = root.start_mark.index + 1  # After the brace.
        comma = "" if isinstance(first, yaml.MappingEndEvent) else ", "
        yield f"{text[:cut]}{_FLOW_ENTRY}{comma}{text[cut:]}"
        return
    cut, indent = first.start_mark.index, first.start_mark.column
    yield _with_line(text, indent)
    # At the end, a line may fall into a block scalar or a second document; at the top it cannot.
    yield f"{text[:cut]}{_LINE}\n{' ' * indent}{text[cut:]}"


def _with_line(text: str, indent: int) -> str:
    """``text`` with our line after it; it ends with a newline if the old text does."""
    end = "\n" if text.endswith("\n") else ""
    return f"{text}{'' if end else chr(10)}{' ' * indent}{_LINE}{end}"


def _first_proven(candidates: Iterable[str], expected: list[list[_Signature]]) -> Merge:
    for candidate in candidates:
        try:
            proven = _signature(_parse(candidate)) in expected
        except yaml.YAMLError:
            continue
        if proven:
            return _added(candidate)
    return _left_alone("no place was found where a key can be added safely")


def _parse(text: str) -> list[yaml.Event]:
    """Parse to events: aliases are not expanded, so a small text cannot become a big one.

    Raises:
        yaml.YAMLError: the text is not YAML, names an unknown anchor, or is nested too deeply.
    """
    events: list[yaml.Event] = []
    anchors: set[str] = set()
    depth = 0
    for event in _parse_events(text, Loader=_LOADER):
        events.append(event)
        if isinstance(event, yaml.AliasEvent) and event.anchor not in anchors:
            raise yaml.YAMLError(f"alias *{event.anchor} has no anchor")
        if isinstance(event, yaml.NodeEvent) and event.anchor:
            anchors.add(event.anchor)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {_MAX_DEPTH} levels deep")
    return events


def _at_root(events: list[yaml.Event]) -> Iterator[tuple[int, yaml.Event]]:
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


def _root_keys(events: list[yaml.Event]) -> dict[str, yaml.Event]:
    """Scalar keys of the root mapping and the first event of their values; the last one counts."""
    nodes = [event for _, event in _at_root(events) if isinstance(event, yaml.NodeEvent)]
    return {
        key.value: value
        for key, value in zip(nodes[::2], nodes[1::2], strict=True)
        if isinstance(key, yaml.ScalarEvent)
    }


def _is_plain(event: yaml.Event) -> TypeGuard[yaml.ScalarEvent]:
    """Whether its text decides what it is: no quotes, no tag."""
    return isinstance(event, yaml.ScalarEvent) and event.implicit[0]


def _is_null(event: yaml.Event) -> bool:
    return _is_plain(event) and event.value in {"", "~", "null", "Null", "NULL"}


def _signature(events: list[yaml.Event]) -> list[_Signature]:
    """What two texts with the same meaning have in common: no comments, no styles, no positions."""
    return [
        (type(event).__name__, *(getattr(event, name, None) for name in _MEANING))
        for event in events
    ]


def _added(text: str) -> Merge:
    return Merge(text=text, reason=f"added {HOLD}", holds=True)


def _decided(spelling: str, value: yaml.Event) -> Merge:
    """The author has decided; nobody else may."""
    shown = value.value if isinstance(value, yaml.ScalarEvent) else "..."
    reason = f"{spelling}: {shown} is already there"
    boolean = _BOOLEANS.get(shown) if _is_plain(value) else None
    if boolean is None and not _is_null(value):
        return _left_alone(f"{spelling}: {shown}: expected true or false")
    return Merge(text=None, reason=reason, holds=bool(boolean))


def _left_alone(why: str) -> Merge:
    reason = f"annotation {ANNOTATION} is left alone: {why}"
    return Merge(text=None, reason=reason, warning=reason)


def _one_line(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    return f"{problem}, line {mark.line + 1}" if mark else " ".join(problem.split())
