"""How hold gets into the text of the annotation ``proxy.istio.io/config``.

Only rules about that text may live here. It is the user's: it is never parsed and dumped, for that
would lose comments and turn ``12:30:45`` into a number. One key is inserted as text, and the result
is used only when parsing it shows the old mapping plus that key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import yaml

from istio_aux.core import yamltext
from istio_aux.core.pod import Struct

ANNOTATION = "proxy.istio.io/config"
HOLD = "holdApplicationUntilProxyStarts"
HOLD_PROTO = "hold_application_until_proxy_starts"
"""The same field by its proto name, which jsonpb takes as well."""

_MAX_LENGTH = 16 * 1024
"""Longer texts are left alone: parsing would hold up other reviews, and no real one comes near."""
_MAX_CACHED = 4 * 1024
"""Longer texts are not cached, so that the cache stays small whatever pods are sent."""

_LINE = f"{HOLD}: true"
_FLOW_ENTRY = f'"{HOLD}": true'
"""With quotes, so that JSON stays JSON."""
_BOM = "\ufeff"


class Merge(Struct, frozen=True):
    """What becomes of the text: ``text`` is the new one, or None to leave the old one as it is."""

    text: str | None
    reason: str
    warning: str | None = None
    holds: bool = False
    """Whether the text that it will be asks Istio for hold."""
    refused: bool = False
    """Whether Istio refuses the text, and the pod with it."""

    @property
    def declined(self) -> bool:
        """Whether its author has said no to hold."""
        return self.text is None and self.warning is None and not self.holds


def hold(text: str | None) -> Merge:
    """Merge ``holdApplicationUntilProxyStarts: true`` into the annotation's text (None: absent).

    An explicit value, in either spelling, is the user's choice and stays. A text that is no mapping
    stays byte for byte, with a warning; Istio itself refuses such a pod.
    """
    if not text:
        return _added(_LINE)
    if len(text) > _MAX_LENGTH:
        return _left_alone(f"it is longer than {_MAX_LENGTH // 1024} KiB")
    if len(text) > _MAX_CACHED:
        return _merge.__wrapped__(text)
    return _merge(text)


@lru_cache(maxsize=256)
def _merge(text: str) -> Merge:
    """Merge into a text that is not empty; cached, for all pods of a Job carry the same text."""
    # Places in the text do not count the mark, and it must stay the first.
    mark, text = (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)
    if _BOM in text:
        return _left_alone("it has a byte order mark in its midst")
    try:
        events = yamltext.parse(text)
    except yamltext.TooLongError as error:
        return _left_alone(str(error))
    except yaml.YAMLError as error:
        return _left_alone(f"it cannot be read: {_one_line(error)}", refused=True)
    root = events[2] if len(events) > 2 else None  # After the starts of stream and document.
    if root is None or yamltext.is_null(root):
        wanted = [yamltext.signature(yamltext.parse(_LINE))]
        return _first_proven([mark + _with_line(text, 0), _LINE], wanted)
    if not isinstance(root, yaml.MappingStartEvent):
        return _left_alone("it is not a mapping", refused=True)
    return _decided(events) or _inserted(mark, text, events)


def _decided(events: list[yaml.Event]) -> Merge | None:
    """What the author has decided; None if there is no decision."""
    keys = _root_keys(events)
    for spelling in (HOLD, HOLD_PROTO):  # Where both are there, jsonpb takes the JSON name.
        if value := keys.get(spelling):
            shown = value.value if isinstance(value, yaml.ScalarEvent) else "..."
            meant = yamltext.boolean(value)
            if meant is None and not yamltext.is_null(value):
                return _left_alone(f"{spelling}: {shown}: expected true or false", refused=True)
            reason = f"{spelling}: {shown} is already there"
            return Merge(text=None, reason=reason, holds=bool(meant))
    if _is_named_indirectly(events):
        return _left_alone(f"a merge key (<<) or an alias may stand for {HOLD}")
    return None


def _inserted(mark: str, text: str, events: list[yaml.Event]) -> Merge:
    """Our key in the root mapping; ``mark`` is what stands before ``text``."""
    old = yamltext.signature(events)
    end = next(
        i for i, event in yamltext.at_root(events) if isinstance(event, yaml.MappingEndEvent)
    )
    entry = _FLOW_ENTRY.join("{}") if getattr(events[2], "flow_style", False) else _LINE
    added = yamltext.signature(yamltext.parse(entry))[3:5]
    first, last = old[:3] + added + old[3:], old[:end] + added + old[end:]
    return _first_proven((mark + text for text in _candidates(text, events)), [first, last])


def _candidates(text: str, events: list[yaml.Event]) -> Iterator[str]:
    """Texts that may be the old mapping plus our key, the most natural first."""
    root, first = events[2], events[3]
    if getattr(root, "flow_style", False):
        cut = text.index("{", root.start_mark.index) + 1  # After tag, anchor and brace.
        comma = "" if isinstance(first, yaml.MappingEndEvent) else ","
        # A comment needs a space before it; where there is a gap already, it is wide enough.
        gap = "" if text[cut].isspace() or text[cut] == "}" else " "
        yield f"{text[:cut]}{_FLOW_ENTRY}{comma}{gap}{text[cut:]}"
        return
    cut, indent = first.start_mark.index, first.start_mark.column
    before = text[:cut].rstrip()
    line = max(before.rfind("\n"), before.rfind("\r")) + 1
    if before.endswith("?") and "#" not in before[line:]:
        # The mark of an explicit key: its column is that of the mapping.
        cut = len(before) - 1
        indent = cut - line
    yield _with_line(text, indent)
    # At the end, a line may fall into a block scalar or a second document; at the top it cannot.
    yield f"{text[:cut]}{_LINE}{_line_end(text)}{' ' * indent}{text[cut:]}"


def _with_line(text: str, indent: int) -> str:
    """``text`` with our line after it; it ends with a newline if the old text does."""
    line, end = f"{' ' * indent}{_LINE}", _line_end(text)
    return f"{text}{line}{end}" if text.endswith("\n") else f"{text}{end}{line}"


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _first_proven(candidates: Iterable[str], expected: list[list[yamltext.Signature]]) -> Merge:
    for candidate in candidates:
        try:
            proven = yamltext.signature(yamltext.parse(candidate)) in expected
        except yaml.YAMLError:
            continue
        if proven:
            return _added(candidate)
    return _left_alone("no place was found where a key can be added safely")


def _root_keys(events: list[yaml.Event]) -> dict[str, yaml.Event]:
    """Scalar keys of the root mapping and the first event of their values; the last one counts."""
    nodes = [event for _, event in yamltext.at_root(events) if isinstance(event, yaml.NodeEvent)]
    return {
        key.value: value
        for key, value in zip(nodes[::2], nodes[1::2], strict=True)
        if isinstance(key, yaml.ScalarEvent)
    }


def _is_named_indirectly(events: list[yaml.Event]) -> bool:
    """Whether the key may be in the mapping although it is not written there."""
    nodes = [event for _, event in yamltext.at_root(events) if isinstance(event, yaml.NodeEvent)]
    indirect = any(isinstance(key, yaml.AliasEvent) or yamltext.is_merge(key) for key in nodes[::2])
    return indirect and any(getattr(event, "value", None) in {HOLD, HOLD_PROTO} for event in events)


def _added(text: str) -> Merge:
    return Merge(text=text, reason=f"added {HOLD}", holds=True)


def _left_alone(why: str, *, refused: bool = False) -> Merge:
    reason = f"annotation {ANNOTATION} is left alone: {why}"
    return Merge(text=None, reason=reason, warning=reason, refused=refused)


def _one_line(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    return f"{problem}, line {mark.line + 1}" if mark else " ".join(problem.split())
