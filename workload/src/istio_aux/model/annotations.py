"""Every annotation and label that decides something, and the one way from its text to a decision.

Tenants who may create pods write these texts. One text may have 256 KiB, or 2 MB before the API
server validates it. So each key is declared once, with its type, its longest text and, if it is a
list, its most entries. A longer text is a bad value like any other.

`read_overrides` reads the annotations by which the author of a pod overrides how its proxy ends. A
value that cannot be used becomes a `Problem`, and the proxy of that pod is left alone.
`status_port` finds where the agent of a pod's proxy listens, `unread` what is misspelt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import Annotated, Generic, TypeVar

import msgspec

from istio_aux.model import sidecars
from istio_aux.model.findings import Code, Remark
from istio_aux.model.pod import PROXY, Metadata, Pod, Struct
from istio_aux.model.sidecars import How, SidecarRule
from istio_aux.model.text import alternatives, listed, quoted

T = TypeVar("T")
Choice = TypeVar("Choice", bound=StrEnum)
Source = Metadata | Mapping[str, str]

NAME = 63  # Characters of the longest value of a label, and name of a container.
MOST_NAMES = 100  # Names in a list of containers.
NAMES = MOST_NAMES * (NAME + 2)  # Characters of such a list.


class BadValueError(ValueError):
    """A value that cannot be used: its key, the value, and what is allowed, in one line."""


class _Key(Generic[T]):
    """A label or annotation key; `_where` says which of both, as messages have it."""

    _where = ""

    def __init__(
        self,
        name: str,
        read: Callable[[str], T],
        expected: str,
        *,
        longest: int,
        meaning: str = "",
        overrides: str = "",
    ) -> None:
        """Declare the key ``name``.

        ``read`` makes a value of at most ``longest`` characters, or raises ValueError or
        LookupError; ``expected`` says what is allowed. A key for authors of pods has a ``meaning``,
        to which the documents are held, and may name the option that it ``overrides``.
        """
        self.name = name
        self.longest = longest
        self.expected = expected
        self.meaning = meaning
        self.overrides = overrides
        self._read = read

    def on(self, source: Source) -> bool:
        """Whether the key is there, with any value."""
        return self.name in self._texts(source)

    def of(self, source: Source) -> T | None:
        """Read the value; None if it is absent. `BadValueError`: it cannot be used."""
        text = self._texts(source).get(self.name)
        if text is None:
            return None
        bad = f"{self.shown(source)}: expected {self.expected}"
        if len(text) > self.longest:
            raise BadValueError(f"{bad}; it has {len(text)} characters, not at most {self.longest}")
        try:
            return self._read(text)
        except (ValueError, LookupError) as error:
            raise BadValueError(bad) from error

    def get(self, source: Source) -> T | None:
        """Read the value; None if it is absent or cannot be used."""
        try:
            return self.of(source)
        except BadValueError:
            return None

    def shown(self, source: Source) -> str:
        """``annotation KEY: "value"``, shortened, for people."""
        return f"{self._where} {self.name}: {quoted(self._texts(source).get(self.name, ''))}"

    def _texts(self, source: Source) -> Mapping[str, str]:
        if isinstance(source, Metadata):
            return getattr(source, f"{self._where}s") or {}
        return source


class Annotation(_Key[T]):
    """An annotation that decides something."""

    _where = "annotation"


class Label(_Key[T]):
    """A label whose value decides something."""

    _where = "label"


def choice(
    name: str,
    choices: type[Choice],
    meaning: str,
    overrides: str,
) -> Annotation[Choice]:
    """Declare an annotation that overrides an option for its pod."""
    return Annotation(
        name,
        choices,
        alternatives(choices),
        longest=NAME,
        meaning=meaning,
        overrides=overrides,
    )


def mark(name: str) -> Annotation[str]:
    """Declare an annotation whose presence decides; its value is never read."""
    return Annotation(name, str, "anything", longest=0)


def text_label(name: str) -> Label[str]:
    """Declare a label that is compared as a whole."""
    return Label(name, str, f"at most {NAME} characters", longest=NAME)


def names(text: str) -> frozenset[str]:
    """Read names separated by commas; `ValueError` if they are more than `MOST_NAMES`."""
    parts = text.split(",", MOST_NAMES)
    if len(parts) > MOST_NAMES:
        raise ValueError
    return frozenset(filter(None, map(str.strip, parts)))


def matching_prefixes(source: Metadata, beginnings: Iterable[str]) -> list[str]:
    """Return those ``beginnings`` with which at least one annotation key begins."""
    keys = source.annotations or {}
    return [each for each in beginnings if any(key.startswith(each) for key in keys)]


# Keys of annotations, unless the comment says otherwise.
START = "istio-aux.io/start"
STARTED_WITH = "istio-aux.io/started-with"  # We set it on each pod we change: `native` or `hold`.
INJECT = "sidecar.istio.io/inject"  # A label, too; with "false" Istio injects no sidecar.
NATIVE_SIDECAR = "sidecar.istio.io/nativeSidecar"  # With "true" Istio >=1.24 makes it native.
INJECTED = "sidecar.istio.io/status"  # The injector sets it (inject.go SidecarInjectionStatus).
NOT_NATIVE = "istio-aux.io/not-native"  # We set it: why a pod that we hold must not be native.
TEMPLATES = "inject.istio.io/templates"  # Names of Istio's templates, with commas between.
INJECTION = "istio-injection"  # The label of a namespace that the default revision selects.
DATAPLANE = "istio.io/dataplane-mode"  # A label; `ambient` counts where Istio does not inject.
REDIRECTION = "ambient.istio.io/redirection"  # Istio's CNI sets it: `enabled` once captured.
MIRROR = "kubernetes.io/config.mirror"  # The kubelet sets it on a static pod's mirror pod.
# Annotation of each pod of Argo Workflows (3.6 workflow/controller/workflowpod.go).
WORKFLOW_NODE = "workflows.argoproj.io/node-name"
# Argo runs this command in the proxy when the main container ends. Without it, Argo runs
# ``kill -TERM 1``, though its `wait` may still upload (3.6 signal.go). Our command does nothing.
SIGNALLED_WITH = "workflows.argoproj.io/kill-cmd-istio-proxy"
NO_SIGNAL = '["pilot-agent","version"]'
PROXY_CONFIG = "proxy.istio.io/config"  # YAML that overrides the mesh's ProxyConfig.
HOLD = "holdApplicationUntilProxyStarts"  # Field of `PROXY_CONFIG`.
PEERS = "istio-aux.io/peers"
INCLUDED = "traffic.sidecar.istio.io/includeInboundPorts"  # Istio reads it; without it every port.
EXCLUDED = "traffic.sidecar.istio.io/excludeInboundPorts"  # Istio ignores it beside a list.
# Labels of pods whose controller makes a headless Service without ports. The ports that such pods
# declare are in no Service, either, and unreachable: Kubeflow's TrainJobs declare 29500 (jobset
# jobset_controller.go createHeadlessSvcIfNecessary, mpi-operator mpi_job_controller.go newService).
JOBSET = "jobset.sigs.k8s.io/jobset-name"
OPERATOR = "training.kubeflow.org/operator-name"
MPI_OPERATOR = "mpi-operator"

QUIT = "istio-aux.io/quit"
SIDECARS = "istio-aux.io/sidecars"
QUIT_AFTER = "istio-aux.io/quit-after"
QUIT_GRACE = "istio-aux.io/quit-grace"
STATUS_PORT = "status.sidecar.istio.io/port"
DEFAULT_STATUS_PORT = 15020  # Istio pkg/config/mesh/mesh.go.

LONGEST_GRACE = 86400.0  # Seconds: a longer one is a mistake, or cannot be added to a date.

_GRACE = re.compile(r"([0-9]++\.?+[0-9]*+|\.[0-9]++)(s|m)?")
_SECONDS = {None: 1, "s": 1, "m": 60}


_OURS = "istio-aux.io/"
_AUTHORS = (START, PEERS, QUIT, SIDECARS, QUIT_AFTER, QUIT_GRACE)
# Keys by which the author of a pod asks for something.
WISHES = frozenset({*_AUTHORS, INJECT, NATIVE_SIDECAR, PROXY_CONFIG, TEMPLATES})
_ON = {
    "annotation": {*WISHES, STATUS_PORT, INCLUDED, EXCLUDED, STARTED_WITH, NOT_NATIVE},
    "label": {INJECT, DATAPLANE},
}
_LOOKED_AT = 100
_TOLD = 10
_LONGEST_KEY = 50


def unread(metadata: Metadata) -> tuple[Remark, ...]:
    """Name keys that nothing reads, though they look like one of `WISHES`, and what was meant."""
    found = list[Remark]()
    for where, keys in (("annotation", metadata.annotations), ("label", metadata.labels)):
        other = "label" if where == "annotation" else "annotation"
        for key in islice(keys or (), _LOOKED_AT):
            if key in _ON[where]:
                continue
            code = Code.UNREAD
            meant = _near(key)
            if key in _ON[other]:
                code = Code.MISPLACED
                meant = f"{key} as {other}"
            if meant or key.startswith(_OURS):
                hint = f": did you mean {meant}?" if meant else ""
                found.append(Remark(code, f"{where} {quoted(key)}: nothing reads it{hint}"))
    return tuple(found[:_TOLD])


def _near(key: str) -> str:
    """Return the key from which ``key`` differs in one letter, or in case only; or empty."""
    texts = _without_one(key.lower()) if len(key) <= _LONGEST_KEY else ()
    return next((_NEAR[text] for text in texts if text in _NEAR), "")


def _without_one(text: str) -> Iterator[str]:
    yield text
    yield from (text[:at] + text[at + 1 :] for at in range(len(text)))


_NEAR = {text: key for key in (*_ON["annotation"], DATAPLANE) for text in _without_one(key.lower())}


class Problem(Struct, frozen=True):
    """An annotation, by its key, whose value cannot be used, and why, in one line."""

    annotation: str
    why: str


class Overrides(Struct, frozen=True):
    """The annotations by which a pod's author overrides how its proxy ends."""

    opt_out: str | None = None  # Why istio-aux leaves the pod alone.
    sidecars: tuple[SidecarRule, ...] = ()  # The pod's own rules, before the option's by name.
    after: frozenset[str] = frozenset()  # The containers that keep the proxy running; empty: all.
    grace: float | None = None  # Seconds from the end of the payload to the quit.
    status_port: int = DEFAULT_STATUS_PORT  # See `status_port`.
    problems: tuple[Problem, ...] = ()


def read_overrides(pod: Pod) -> Overrides:
    """Read the annotations of a pod; an empty value counts as absent."""
    problems = list[Problem]()
    annotations = pod.metadata.annotations or {}

    def value(key: Annotation[T]) -> T | None:
        try:
            return key.of(pod.metadata) if annotations.get(key.name) else None
        except BadValueError as error:
            problems.append(Problem(annotation=key.name, why=str(error)))
            return None

    after = value(_after) or frozenset()
    possible = {container.name for container in pod.containers} - {PROXY}
    if unknown := after - possible:
        problems.append(
            Problem(
                annotation=QUIT_AFTER,
                why=f"annotation {QUIT_AFTER}: {quoted(', '.join(sorted(unknown)))}: expected"
                f" containers of the pod: {listed(sorted(possible))}",
            )
        )
    return Overrides(
        opt_out=_opt_out(pod),
        sidecars=value(own_sidecars) or (),
        after=after,
        grace=value(_grace),
        status_port=status_port(pod),
        problems=tuple(problems),
    )


def _opt_out(pod: Pod) -> str | None:
    try:
        return _quit.shown(pod.metadata) if _quit.of(pod.metadata) is False else None
    except BadValueError as error:
        # Any other value means "keep away": a misspelt "false" must not cost a proxy.
        return str(error)


def _seconds(text: str) -> float:
    match = _GRACE.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else LONGEST_GRACE + 1
    if seconds > LONGEST_GRACE:
        raise ValueError
    return seconds


def _sidecars(text: str) -> tuple[SidecarRule, ...]:
    rules = sidecars.parse(text)
    # Only an admin names what is sent to a container.
    if len(rules) > MOST_NAMES or any(rule.how is How.QUIT for rule in rules):
        raise ValueError
    return rules


_quit = Annotation(
    QUIT,
    {"true": True, "false": False, "": None}.__getitem__,
    "true or false",
    longest=5,
    meaning="with `false` the proxy is never told to exit",
)
own_sidecars = Annotation(
    SIDECARS,
    _sidecars,
    f"NAME=native or NAME=ignore separated by commas, at most {MOST_NAMES}, each name once and not"
    f" {PROXY}; or none",
    longest=MOST_NAMES * (NAME + len("=native, ")),
    meaning="containers that become native sidecars, or never keep the proxy running, name by"
    " name; with `none` what istio-aux knows of the others does not count; a bad value changes no"
    " container and leaves the proxy alone",
    overrides="sidecars",
)
_after = Annotation(
    QUIT_AFTER,
    names,
    f"container names separated by commas, at most {MOST_NAMES}",
    longest=NAMES,
    meaning="the only containers that keep the proxy running",
)
_grace = Annotation(
    QUIT_GRACE,
    _seconds,
    "seconds, at most a day, like 30, 2.5s or 1m",
    longest=32,
    meaning="how long the proxy runs on after the payload was first seen finished",
    overrides="quit-grace",
)


_LONGEST_CONFIG = 64 * 1024  # Characters of ``PROXY_CONFIG``; the injector writes about a hundred.


def status_port(pod: Pod) -> int:
    """Find the TCP port of the status server of the pod's agent; 0: it is off.

    The annotation wins (istio pkg/bootstrap applyAnnotations), then ``statusPort`` of the
    ProxyConfig, which the injector leaves as JSON in the container's variable ``PROXY_CONFIG``.
    A value that is no port is skipped.
    """
    if (port := agent_port.get(pod.metadata)) is not None:
        return port
    text = pod.proxy_config
    if len(text) <= _LONGEST_CONFIG and "statusPort" in text:
        # The proxy cannot have started with a text that cannot be read.
        with suppress(ValueError, RecursionError):
            return msgspec.json.decode(text, type=_ProxyConfig).status_port
    return DEFAULT_STATUS_PORT


class _ProxyConfig(Struct, frozen=True):
    status_port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = DEFAULT_STATUS_PORT


def _read_port(text: str) -> int:
    # The length is checked because int() refuses to read very long numbers.
    if not (len(text) <= 5 and text.isascii() and text.isdecimal() and int(text) < 65536):
        raise ValueError
    return int(text)


agent_port = Annotation(STATUS_PORT, _read_port, "a TCP port", longest=5)


# How values of flags are read. Istio ignores any other value of `INJECT`.
_flag = {"true": True, "false": False}.__getitem__
start_order = Annotation(
    STARTED_WITH,
    {"native": "native", "hold": "hold"}.__getitem__,
    "native or hold",
    longest=16,
)
inject_label = Label(INJECT, _flag, "true or false", longest=5)
inject_annotation = Annotation(INJECT, _flag, "true or false", longest=5)
dataplane = Label(DATAPLANE, str, "ambient or none", longest=16)
redirection = Annotation(REDIRECTION, str, "enabled or pending", longest=16)
native_asked = Annotation(NATIVE_SIDECAR, _flag, "true or false", longest=5)
not_native_because = Annotation(NOT_NATIVE, str, "a reason", longest=256)
templates = Annotation(TEMPLATES, names, f"at most {MOST_NAMES} names", longest=NAMES)

injected = mark(INJECTED)
mirrors = mark(MIRROR)
workflow_node = mark(WORKFLOW_NODE)
