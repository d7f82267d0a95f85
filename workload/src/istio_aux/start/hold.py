"""Hold: the payload starts after a classic proxy, as its annotation and its hook say.

Before Istio's injection, hold is added to the text of the annotation ``proxy.istio.io/config``;
after it, the proxy is moved first and gets the postStart hook.

The text is the user's: parsing and dumping it would lose comments and turn ``12:30:45`` into a
number. One key is inserted as text, and the result is used only if its YAML events are those of the
old mapping plus that key. Istio reads the first document with sigs.k8s.io/yaml YAMLToJSON, which
is go-yaml v2. That refuses more texts, such as one with a null as a key; their pods are refused
with our key or without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import yaml

from istio_aux.model.annotations import (
    HOLD,
    NOT_NATIVE,
    PROXY_CONFIG,
    Annotation,
    BadValueError,
    agent_port,
    start_order,
)
from istio_aux.model.documents import LOADER, parse_events
from istio_aux.model.names import TIMEOUT_FLAG, WAIT
from istio_aux.model.pod import PROXY, Container, Pod, Struct
from istio_aux.model.text import listed, one_line, problem
from istio_aux.start import patch

ANNOTATION = PROXY_CONFIG
HOLD_PROTO = "hold_application_until_proxy_starts"  # jsonpb accepts the proto name as well.

HOLD_TIMEOUT = 300
"""Seconds for which the hook of our hold waits for the proxy. Istio's gives up after 60 s: then the
agent ends with 0, is not started again under Never and OnFailure, and the payload runs without
network for good (istio pilot-agent app/wait.go, istio#45627). Until the hook ends, the kubelet does
not end a pod that is deleted (kubernetes#116032): the quit controller has its proxy exit."""

FIRST = "/spec/containers/0"  # JSON Pointer to the first container.
HOOK_COMMAND = f"{FIRST}/lifecycle/postStart/exec/command"
ABSENT = f"no container is called {PROXY}"

# Bounds on what is parsed, so that it delays other reviews little. Real texts are far smaller.
_MAX_LENGTH = 16 * 1024
_MAX_DEPTH = 100  # libyaml's scanner takes time quadratic in the depth.
_MAX_EVENTS = 1000  # An event takes 10 us; 16 KiB may have 16,000, a real text has a hundred.

_config = Annotation(ANNOTATION, str, "YAML", longest=_MAX_LENGTH)

_LINE = f"{HOLD}: true"
_FLOW_ENTRY = f'"{HOLD}": true'  # With quotes, so that JSON stays JSON.
_BOM = "\ufeff"

_Signature = tuple[object, ...]

_TAG = "tag:yaml.org,2002:"
_BOOLEANS = {  # go-yaml v2 resolve.go resolveMapList.
    spelling: meaning
    for meaning, words in ((True, "y yes true on"), (False, "n no false off"))
    for word in words.split()
    for spelling in (word, word.title(), word.upper())
}
_NULLS = {"", "~", "null", "Null", "NULL"}


class Merge(Struct, frozen=True):
    """The result for one text: ``text`` is the new one, or None to keep the old one."""

    text: str | None
    reason: str
    warning: str | None = None
    holds: bool = False  # The resulting text asks Istio for hold.
    refused: bool = False  # Istio refuses the text, and the pod with it.

    @property
    def declined(self) -> bool:
        """Whether the text, or the status port, says no to hold."""
        return self.text is None and self.warning is None and not self.holds


class _TooLongError(yaml.YAMLError):
    """The text may be good YAML, but parsing it would take too long."""


def read(pod: Pod) -> Merge:
    """Do what `merged` does with the annotation of a pod; a text that is too long stays.

    A pod with status port 0 gets no hold: Envoy asks that port for the hook, which fails after a
    minute beside Istio 1.31. Then the proxy ends, and the payload has no network. Only the port's
    annotation sets 0: Istio refuses a text with 0 (istio inject/validate.go validateProxyConfig),
    and a mesh-wide 0 reaches no agent (istio template.go cleanProxyConfig).
    """
    try:
        merge = merged(_config.of(pod.metadata))
    except BadValueError:
        return _left_alone(f"it is longer than {_MAX_LENGTH // 1024} KiB")
    if agent_port.get(pod.metadata) != 0:
        return merge
    why = "its agent has no status port, so nothing would say that it is ready"
    if merge.holds and merge.text is None:
        return _left_alone(f"the hold that it asks for fails: {why}")
    return Merge(text=None, reason=f"no hold: {why}")


def order(
    pod: Pod,
    merge: Merge,
    harm: str = "",
    *,
    warnings: tuple[str, ...] = (),
) -> patch.Step:
    """Ask for hold; ``harm``, if any, is what a native proxy could do to the pod."""
    reason, because = merge.reason, dict[str, str]()
    if harm:
        if before := [each.name for each in pod.regular_init_containers]:
            harm += f"; before the proxy, outside the mesh: {listed(before)}"
        reason, because = f"{reason}; not native: {harm}", {NOT_NATIVE: one_line(harm, 255)}
    text = {} if merge.text is None else {ANNOTATION: merge.text}
    if merge.holds and (text or because):
        return patch.Step(reason, because | text, warnings=warnings, started_with="hold")
    return patch.Step(reason, writes=text, warnings=(*filter(None, [merge.warning]), *warnings))


def after_istio(pod: Pod, merge: Merge) -> patch.Step:
    """Order for an injected pod: only hold is possible, Istio's webhook is not called again."""
    reason = "the sidecar is already injected"
    if pod.has_native_proxy:
        reason += ", as a native one"
        # Our own annotation, from before Istio ran: hold has no effect in a native sidecar.
        asked = start_order.get(pod.metadata) == "hold"
        return patch.Step(reason, started_with="native" if asked else None, native=True)
    if not merge.holds:  # The annotation gets no new text then, either.
        return order(pod, merge)
    ops, held = hook(pod)
    reason += f": {held}"
    text = {} if merge.text is None else {ANNOTATION: merge.text}
    ours = ops or text or start_order.get(pod.metadata) == "hold"
    if ops is None or not ours:
        return patch.Step(reason)
    longer = _longer(pod)
    reason += f", which waits up to {HOLD_TIMEOUT} s" if longer else ""
    if not (ops or text):
        return patch.Step(reason, ops=longer)
    return patch.Step(f"{reason}; {merge.reason}", text, ops + longer, started_with="hold")


def hook(pod: Pod) -> tuple[tuple[patch.Op, ...] | None, str]:
    """Return the operations of hold for an injected pod, None if it cannot work; and the reason.

    The proxy becomes the first container and gets the postStart hook. If the mesh configures a
    lifecycle for the proxy (``global.proxy.lifecycle``), Istio adds no hook, and neither do we.
    """
    names = [container.name for container in pod.containers]
    if PROXY not in names:
        return None, ABSENT
    if len(names) == 1:
        return None, f"{PROXY} is the only container"
    place = names.index(PROXY)
    hook = _hook(pod.containers[place], _wait(pod))
    if hook is None:
        return None, f"hold has no effect: {PROXY} has a lifecycle of its own, without postStart"
    move = (patch.Move(FIRST, f"/spec/containers/{place}"),) if place else ()
    done = [f"moved {PROXY} first"] if place else []
    done += ["added its postStart hook"] if hook else []
    return move + hook, ", ".join(done) or f"{PROXY} holds the payload back already"


def _wait(pod: Pod) -> list[str]:
    """The hook's command. Under restartPolicy Always, a proxy that times out is restarted."""
    if pod.restart_policy == "Always":
        return [*WAIT]
    return [*WAIT, f"{TIMEOUT_FLAG}{HOLD_TIMEOUT}"]


def _hook(proxy: Container, wait: list[str]) -> tuple[patch.Op, ...] | None:
    """Add the hook to the first container; () if it has one, None if it must not get one."""
    lifecycle = proxy.lifecycle
    hook = {"exec": {"command": wait}}
    if lifecycle is None:
        return (patch.Add(f"{FIRST}/lifecycle", {"postStart": hook}),)
    if lifecycle.post_start is not None:
        return ()
    if lifecycle.pre_stop is not None or lifecycle.stop_signal is not None:
        return None
    return (patch.Add(f"{FIRST}/lifecycle/postStart", hook),)


def _longer(pod: Pod) -> tuple[patch.Op, ...]:
    """Make Istio's hook wait as long as ours; the proxy is the first container then."""
    proxy = next(each for each in pod.containers if each.name == PROXY)
    hook = proxy.lifecycle and proxy.lifecycle.post_start
    wait = _wait(pod)
    if not (hook and hook.executes and hook.executes.command == WAIT) or wait == [*WAIT]:
        return ()
    return (patch.Add(HOOK_COMMAND, wait),)  # `add` replaces the member that is there.


def merged(text: str | None) -> Merge:
    """Merge ``holdApplicationUntilProxyStarts: true`` into the annotation's text (None: absent).

    An explicit value, in either spelling, is the user's choice and stays. A text that is no mapping
    stays byte for byte, with a warning; Istio refuses such a pod.
    """
    return _merge(text) if text else _added(_LINE)


def _merge(text: str) -> Merge:
    if _BOM in text:  # Positions in the text do not count it.
        return _left_alone("it has a byte order mark")
    try:
        events = _parse(text)
    except _TooLongError as error:
        return _left_alone(str(error))
    except yaml.YAMLError as error:
        return _left_alone(f"it cannot be read: {problem(error)}", refused=True)
    root = events[2] if len(events) > 2 else None  # After the starts of stream and document.
    if root is None or _is_null(root):
        return _first_proven(
            [_with_line(text, 0), _LINE],
            [_signature(_parse(_LINE))],
        )
    if not isinstance(root, yaml.MappingStartEvent):
        return _left_alone("it is not a mapping", refused=True)
    return _decided(events) or _inserted(text, events)


def _decided(events: list[yaml.Event]) -> Merge | None:
    root = [event for _, event in _at_root(events) if isinstance(event, yaml.NodeEvent)]
    pairs = list(zip(root[::2], root[1::2], strict=True))
    values = {key.value: value for key, value in pairs if isinstance(key, yaml.ScalarEvent)}
    for spelling in (HOLD, HOLD_PROTO):  # If both are there, jsonpb uses the JSON name.
        if value := values.get(spelling):
            shown = value.value if isinstance(value, yaml.ScalarEvent) else "..."
            meant = _boolean(value)
            if meant is None and not _is_null(value):
                return _left_alone(f"{spelling}: {shown}: expected true or false", refused=True)
            return Merge(
                text=None,
                reason=f"{spelling}: {shown} is already there",
                holds=bool(meant),
            )
    indirect = any(isinstance(key, yaml.AliasEvent) or _is_merge(key) for key, _ in pairs)
    if indirect and any(getattr(event, "value", None) in {HOLD, HOLD_PROTO} for event in events):
        return _left_alone(f"a merge key (<<) or an alias may stand for {HOLD}")
    return None


def _inserted(text: str, events: list[yaml.Event]) -> Merge:
    old = _signature(events)
    end = next(i for i, event in _at_root(events) if isinstance(event, yaml.MappingEndEvent))
    entry = _FLOW_ENTRY.join("{}") if getattr(events[2], "flow_style", False) else _LINE
    added = _signature(_parse(entry))[3:5]
    return _first_proven(
        _candidates(text, events),
        [
            old[:3] + added + old[3:],
            old[:end] + added + old[end:],
        ],
    )


def _candidates(text: str, events: list[yaml.Event]) -> Iterator[str]:
    """Texts that may be the old mapping plus our key, the most natural first."""
    root = events[2]
    first = events[3]
    if getattr(root, "flow_style", False):
        cut = text.index("{", root.start_mark.index) + 1  # After tag, anchor and brace.
        comma = "" if isinstance(first, yaml.MappingEndEvent) else ","
        # A comment needs a space before it; an existing gap is wide enough.
        gap = "" if text[cut].isspace() or text[cut] == "}" else " "
        yield f"{text[:cut]}{_FLOW_ENTRY}{comma}{gap}{text[cut:]}"
        return
    cut = first.start_mark.index
    indent = first.start_mark.column
    yield _with_line(text, indent)
    # At the end, a line may become part of a block scalar or a second document; not at the top.
    yield f"{text[:cut]}{_LINE}{_line_end(text)}{' ' * indent}{text[cut:]}"


def _with_line(text: str, indent: int) -> str:
    """``text`` with our line after it; it ends with a newline if the old text does."""
    line = f"{' ' * indent}{_LINE}"
    end = _line_end(text)
    if text.endswith("\n"):
        return f"{text}{line}{end}"
    return f"{text}{end}{line}"


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _first_proven(candidates: Iterable[str], expected: list[list[_Signature]]) -> Merge:
    for candidate in candidates:
        try:
            if _signature(_parse(candidate)) in expected:
                return _added(candidate)
        except yaml.YAMLError:
            continue
    return _left_alone("no place was found where a key can be added safely")


def _added(text: str) -> Merge:
    return Merge(text=text, reason=f"added {HOLD}", holds=True)


def _left_alone(why: str, *, refused: bool = False) -> Merge:
    reason = f"annotation {ANNOTATION} is left alone: {why}"
    return Merge(text=None, reason=reason, warning=reason, refused=refused)


def _parse(text: str) -> list[yaml.Event]:
    """Parse the first document, the only one that Istio reads; raises yaml.YAMLError."""
    events = list[yaml.Event]()
    depth = 0
    for event in parse_events(text, Loader=LOADER):
        events.append(event)
        if len(events) > _MAX_EVENTS:
            raise _TooLongError(f"it has more than {_MAX_EVENTS} keys, values and ends of lists")
        if isinstance(event, yaml.DocumentEndEvent):
            break
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise _TooLongError(f"it is nested more than {_MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return events


def _at_root(events: list[yaml.Event]) -> Iterator[tuple[int, yaml.Event]]:
    """Keys and values of the root mapping, with their index; its end comes last."""
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


def _signature(events: list[yaml.Event]) -> list[_Signature]:
    return [
        (
            type(event).__name__,
            *(getattr(event, name, None) for name in ("anchor", "tag", "implicit", "value")),
        )
        for event in events
    ]


def _is_merge(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value == "<<"


def _is_null(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and _means(event, "null") and event.value in _NULLS


def _boolean(event: yaml.Event) -> bool | None:
    """The value of a scalar as a boolean of YAML 1.1; None for anything else."""
    if isinstance(event, yaml.ScalarEvent) and _means(event, "bool"):
        return _BOOLEANS.get(event.value)
    return None


def _means(event: yaml.ScalarEvent, name: str) -> bool:
    """Whether a scalar has the type ``name``: by its plain text, or by its tag."""
    return event.implicit[0] or event.tag == _TAG + name
