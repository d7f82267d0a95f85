"""What the author of a pod asks of istio-aux, read in one place.

To add an annotation: declare its key here, give `PodSettings` a field, and let a rule read that.
A value that cannot be used is a `Problem`: admission warns of it, `explain` has it as a finding,
and its field keeps its default. If it is about the end of the proxy, the proxy is left alone as
well, because what its author meant may need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any

import msgspec

from istio_aux.model import sidecars
from istio_aux.model.annotations import (
    DATAPLANE,
    EXCLUDED,
    INCLUDED,
    INJECT,
    MOST_NAMES,
    NAME,
    NAMES,
    NATIVE_SIDECAR,
    NOT_NATIVE,
    PEERS,
    PROXY_CONFIG,
    QUIT,
    QUIT_AFTER,
    QUIT_GRACE,
    SIDECARS,
    START,
    STARTED_WITH,
    STATUS_PORT,
    TEMPLATES,
    Annotation,
    BadValueError,
    agent_port,
    choice,
    names,
)
from istio_aux.model.findings import Code, Remark
from istio_aux.model.pod import PROXY, Metadata, Pod, Struct
from istio_aux.model.policy import Peers, StartMode
from istio_aux.model.sidecars import How, SidecarRule
from istio_aux.model.text import listed, quoted

LONGEST_GRACE = 86400.0  # Seconds: a longer one is a mistake, or cannot be added to a date.
DEFAULT_STATUS_PORT = 15020  # Istio pkg/config/mesh/mesh.go.

_GRACE = re.compile(r"([0-9]++\.?+[0-9]*+|\.[0-9]++)(s|m)?")
_SECONDS = {None: 1, "s": 1, "m": 60}


class Problem(Struct, frozen=True):
    """An annotation, by its key, whose value cannot be used, and why, in one line."""

    annotation: str
    why: str

    @property
    def remark(self) -> Remark:
        """The finding about it, with what follows."""
        return Remark(Code.BAD_VALUE, f"{self.why}; {_INSTEAD.get(self.annotation, _LEFT)}")


class PodSettings(Struct, frozen=True):
    """The annotations by which a pod's author overrides options; an absent one changes nothing."""

    start: StartMode | None = None
    peers: Peers | None = None
    opt_out: str = ""  # Its annotation, if it says that the proxy is never told to exit.
    sidecars: tuple[SidecarRule, ...] = ()  # Its own rules, which override those of the option.
    after: frozenset[str] = frozenset()  # The containers that keep the proxy running; empty: all.
    grace: float | None = None  # Seconds from the end of the payload to the quit.
    status_port: int = DEFAULT_STATUS_PORT  # Where its agent listens; 0: nowhere.
    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, pod: Pod) -> PodSettings:
        """Read the annotations of a pod."""
        problems = list[Problem]()
        found = dict[str, Any]()
        for field, key in _KEYS.items():
            try:
                value = key.of(pod.metadata)
            except BadValueError as error:
                problems.append(Problem(key.name, str(error)))
                continue
            if value is not None:
                found[field] = value
        possible = {container.name for container in pod.containers} - {PROXY}
        if unknown := found.get("after", frozenset()) - possible:
            del found["after"]
            why = (
                f"annotation {QUIT_AFTER}: {quoted(', '.join(sorted(unknown)))}: expected"
                f" containers of the pod: {listed(sorted(possible))}"
            )
            problems.append(Problem(QUIT_AFTER, why))
        opts_out = found.pop("quits", True) is False
        return cls(
            **found,
            opt_out=_quits.shown(pod.metadata) if opts_out else "",
            status_port=status_port(pod),
            problems=tuple(problems),
        )

    def problem(self, annotation: str) -> str:
        """Why the value of an annotation cannot be used; empty if it can."""
        return next((it.why for it in self.problems if it.annotation == annotation), "")

    @property
    def left_alone(self) -> str:
        """Why the proxy is not told to exit, whatever its payload does; empty if it may be."""
        return self.opt_out or next((each.why for each in self.unclear_end), "")

    @property
    def unclear_end(self) -> tuple[Problem, ...]:
        """The problems for which the proxy is left alone."""
        return tuple(each for each in self.problems if each.annotation not in _OF_THE_START)


def _seconds(text: str) -> float | None:
    if not text:
        return None
    match = _GRACE.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else LONGEST_GRACE + 1
    if seconds > LONGEST_GRACE:
        raise ValueError
    return seconds


def _own_rules(text: str) -> tuple[SidecarRule, ...]:
    rules = sidecars.parse(text)
    # Only an admin names what is sent to a container.
    if len(rules) > MOST_NAMES or any(rule.how is How.QUIT for rule in rules):
        raise ValueError
    return rules


_start = choice(START, StartMode, "how the payload starts after its proxy", overrides="start-mode")
_peers = choice(
    PEERS,
    Peers,
    "whether its peers reach its undeclared ports directly; a bad value opens no port",
    overrides="peers",
)
_quits = Annotation(
    QUIT,
    {"true": True, "false": False, "": None}.__getitem__,
    "true or false",
    longest=5,
    meaning="with `false` the proxy is never told to exit",
)
_sidecars = Annotation(
    SIDECARS,
    _own_rules,
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
_KEYS: dict[str, Annotation[Any]] = {
    "start": _start,
    "peers": _peers,
    "quits": _quits,
    "sidecars": _sidecars,
    "after": _after,
    "grace": _grace,
}
"""The key of each field of `PodSettings`; of ``quits`` is made ``opt_out``."""

_LEFT = "the proxy is left alone"
_OF_THE_START = {START: "ignored", PEERS: "no port is opened"}
# What follows from a bad value, if not just `_LEFT`.
_INSTEAD = {**_OF_THE_START, SIDECARS: f"no container is changed, and {_LEFT}"}

_OURS = "istio-aux.io/"
# Keys by which the author of a pod asks for something.
WISHES = frozenset(
    {*(key.name for key in _KEYS.values()), INJECT, NATIVE_SIDECAR, PROXY_CONFIG, TEMPLATES}
)
_ON = {
    "annotation": {*WISHES, STATUS_PORT, INCLUDED, EXCLUDED, STARTED_WITH, NOT_NATIVE},
    "label": {INJECT, DATAPLANE},
}
_LOOKED_AT = 100
_TOLD = 10
_LONGEST_KEY = 50


def unread(metadata: Metadata) -> tuple[Remark, ...]:
    """Name keys of ours, or like one that is read, that nothing reads, and what was meant."""
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
