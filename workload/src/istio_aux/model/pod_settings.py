"""What the author of a pod asks: of Istio, `InjectionRequest`, and of istio-aux, `PodSettings`.

To add an annotation: declare its key here, give `PodSettings` a field, and let a rule read that.
A value that cannot be used is one of `problems`: admission warns of it, `explain` has it as a
finding, and its field keeps its default. If it is about the end of the proxy, the proxy is left
alone as well, because what its author meant may need it.

Whether a pod gets a sidecar are Istio's rules: istio pkg/kube/inject/inject.go injectRequired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import structs

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
    Label,
    Source,
    agent_port,
    dataplane,
    inject_annotation,
    inject_label,
    injected,
    mirrors,
    names,
)
from istio_aux.model.applications import Applications, application_of
from istio_aux.model.findings import Code, Remark
from istio_aux.model.names import IGNORED
from istio_aux.model.pod import NO_METADATA, PROXY, Metadata, Pod, Struct
from istio_aux.model.policy import Peers, StartMode
from istio_aux.model.sidecars import How, SidecarRule
from istio_aux.model.text import alternatives, listed, quoted

LONGEST_GRACE = 86400.0  # Seconds: a longer one is a mistake, or cannot be added to a date.
DEFAULT_STATUS_PORT = 15020  # Istio pkg/config/mesh/mesh.go.

_GRACE = re.compile(r"([0-9]++\.?+[0-9]*+|\.[0-9]++)(s|m)?")


class PodSettings(Struct, frozen=True):
    """The annotations by which a pod's author overrides options; an absent one changes nothing."""

    start: StartMode | None = None
    peers: Peers | None = None
    opt_out: str = ""  # Its annotation, if it says that the proxy is never told to exit.
    sidecars: tuple[SidecarRule, ...] = ()  # Its own rules, which override those of the option.
    after: frozenset[str] = frozenset()  # The containers that keep the proxy running; empty: all.
    grace: float | None = None  # Seconds from the end of the payload to the quit.
    status_port: int = DEFAULT_STATUS_PORT  # Where its agent listens; 0: nowhere.
    # Why values cannot be used, by the keys of their annotations, each in one line.
    problems: Mapping[str, str] = {}

    @classmethod
    def of(cls, pod: Pod) -> PodSettings:
        """Read the annotations of a pod."""
        problems = dict[str, str]()
        found = dict[str, Any]()
        for field, key in _KEYS.items():
            try:
                found[field] = key.of(pod.metadata)
            except BadValueError as error:
                problems[key.name] = str(error)
        possible = {container.name for container in pod.containers} - {PROXY}
        if unknown := (found.get("after") or frozenset[str]()) - possible:
            del found["after"]
            problems[QUIT_AFTER] = (
                f"annotation {QUIT_AFTER}: {quoted(', '.join(sorted(unknown)))}: expected"
                f" containers of the pod: {listed(sorted(possible))}"
            )
        return cls(
            **{field: value for field, value in found.items() if value is not None},
            status_port=status_port(pod),
            problems=problems,
        )

    def remarks(self, metadata: Metadata) -> list[Remark]:
        """The findings about values that cannot be used, and about keys that nothing reads."""
        return [
            *(
                Remark(Code.BAD_VALUE, f"{why}; {_INSTEAD.get(key, _LEFT)}")
                for key, why in self.problems.items()
            ),
            *unread(metadata),
        ]

    @property
    def left_alone(self) -> str:
        """Why the proxy is not told to exit, whatever its payload does; empty if it may be."""
        return self.opt_out or next(iter(self.unclear_end.values()), "")

    @property
    def unclear_end(self) -> Mapping[str, str]:
        """The problems for which the proxy is left alone: all but those about the start."""
        return {key: why for key, why in self.problems.items() if key not in {START, PEERS}}


def _seconds(text: str) -> float | None:
    if not text:
        return None
    match = _GRACE.fullmatch(text.strip())
    seconds = float(match[1]) * (60 if match[2] == "m" else 1) if match else LONGEST_GRACE + 1
    if seconds > LONGEST_GRACE:
        raise ValueError
    return seconds


def _own_rules(text: str) -> tuple[SidecarRule, ...]:
    rules = sidecars.parse(text)
    # Only an admin names what is sent to a container.
    if len(rules) > MOST_NAMES or any(rule.how is How.QUIT for rule in rules):
        raise ValueError
    return rules


# The key of each field of `PodSettings`.
_KEYS: dict[str, Annotation[Any]] = {
    "start": Annotation(
        START,
        StartMode,
        alternatives(StartMode),
        longest=NAME,
        meaning="how the payload starts after its proxy",
        overrides="start-mode",
    ),
    "peers": Annotation(
        PEERS,
        Peers,
        alternatives(Peers),
        longest=NAME,
        meaning="whether its peers reach its undeclared ports directly; a bad value opens no port",
        overrides="peers",
    ),
    "opt_out": Annotation(
        QUIT,
        {"true": "", "false": f'annotation {QUIT}: "false"', "": ""}.__getitem__,
        "true or false",
        longest=5,
        meaning="with `false` the proxy is never told to exit",
    ),
    "sidecars": Annotation(
        SIDECARS,
        _own_rules,
        f"NAME=native or NAME=ignore separated by commas, at most {MOST_NAMES}, each name once and"
        f" not {PROXY}; or none",
        longest=MOST_NAMES * (NAME + len("=native, ")),
        meaning="containers that become native sidecars, or never keep the proxy running, name by"
        " name; with `none` what istio-aux knows of the others does not count; a bad value changes"
        " no container and leaves the proxy alone",
        overrides="sidecars",
    ),
    "after": Annotation(
        QUIT_AFTER,
        names,
        f"container names separated by commas, at most {MOST_NAMES}",
        longest=NAMES,
        meaning="the only containers that keep the proxy running",
    ),
    "grace": Annotation(
        QUIT_GRACE,
        _seconds,
        "seconds, at most a day, like 30, 2.5s or 1m",
        longest=32,
        meaning="how long the proxy runs on after the payload was first seen finished",
        overrides="quit-grace",
    ),
}

_LEFT = "the proxy is left alone"
# What follows from a bad value, if not just `_LEFT`.
_INSTEAD = {
    START: "ignored",
    PEERS: "no port is opened",
    SIDECARS: f"no container is changed, and {_LEFT}",
}

# Keys by which the author of a pod asks for something.
WISHES = frozenset(
    {*(key.name for key in _KEYS.values()), INJECT, NATIVE_SIDECAR, PROXY_CONFIG, TEMPLATES}
)
_ON = {
    "annotation": {*WISHES, STATUS_PORT, INCLUDED, EXCLUDED, STARTED_WITH, NOT_NATIVE},
    "label": {INJECT, DATAPLANE},
}


def unread(metadata: Metadata) -> tuple[Remark, ...]:
    """Name keys of ours, or like one that is read, that nothing reads, and what was meant.

    Only the first 100 keys of each kind are looked at, and at most ten are named.
    """
    found = list[Remark]()
    for where, keys in (("annotation", metadata.annotations), ("label", metadata.labels)):
        other = "label" if where == "annotation" else "annotation"
        for key in islice(keys or (), 100):
            misplaced = key in _ON[other]
            meant = f"{key} as {other}" if misplaced else _near(key)
            if key not in _ON[where] and (meant or key.startswith("istio-aux.io/")):
                hint = f": did you mean {meant}?" if meant else ""
                code = Code.MISPLACED if misplaced else Code.UNREAD
                found.append(Remark(code, f"{where} {quoted(key)}: nothing reads it{hint}"))
    return tuple(found[:10])


def _near(key: str) -> str:
    """Return the key from which ``key`` differs in one letter, or in case only; or empty."""
    texts = _without_one(key.lower()) if len(key) <= 50 else ()
    return next((_NEAR[text] for text in texts if text in _NEAR), "")


def _without_one(text: str) -> Iterator[str]:
    yield text
    yield from (text[:at] + text[at + 1 :] for at in range(len(text)))


_NEAR = {text: key for key in (*_ON["annotation"], DATAPLANE) for text in _without_one(key.lower())}


def status_port(pod: Pod) -> int:
    """Find the TCP port of the status server of the pod's agent; 0: it is off.

    The annotation wins (istio pkg/bootstrap applyAnnotations), then ``statusPort`` of the
    ProxyConfig, which the injector leaves as JSON in the container's variable ``PROXY_CONFIG``.
    A value that is no port is skipped.
    """
    if (port := agent_port.get(pod.metadata)) is not None:
        return port
    text = pod.proxy_config  # The injector writes about a hundred characters.
    if len(text) <= 64 * 1024 and "statusPort" in text:
        # The proxy cannot have started with a text that cannot be read.
        with suppress(ValueError, RecursionError):
            return msgspec.json.decode(text, type=_ProxyConfig).status_port
    return DEFAULT_STATUS_PORT


class _ProxyConfig(Struct, frozen=True):
    status_port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = DEFAULT_STATUS_PORT


class InjectionRequest(Struct, frozen=True):
    """What decides whether a pod gets a sidecar when it is created; `of` reads it."""

    namespace: str = ""
    labels: Mapping[str, str] = {}
    annotation: str | None = None  # The text of `INJECT`.
    namespace_labels: Mapping[str, str] | None = (
        None  # The labels of its namespace; None: not known.
    )
    host_network: bool = False
    injected: bool = False  # Whether Istio has injected the pod.
    mirrors: bool = False  # Whether it is the mirror pod of a static pod.
    bare: bool = False  # Whether the pod has no metadata.

    @classmethod
    def of(cls, pod: Pod, namespace_labels: Mapping[str, str] | None = None) -> InjectionRequest:
        """Read a pod; without ``namespace_labels`` those are not known."""
        return cls(
            namespace=pod.metadata.namespace,
            labels=pod.labels,
            annotation=(pod.metadata.annotations or {}).get(INJECT),
            namespace_labels=namespace_labels,
            host_network=bool(pod.spec.host_network),
            injected=injected.on(pod.metadata),
            mirrors=mirrors.on(pod.metadata),
            bare=pod.metadata is NO_METADATA,
        )

    @property
    def asks(self) -> bool | None:
        """Whether the pod asks for a sidecar; False: it refuses one; None: neither."""
        key, texts = self._said()
        return key.get(texts)

    @property
    def said(self) -> str:
        """The label or annotation that decides `asks`, for people."""
        key, texts = self._said()
        return key.shown(texts)

    @property
    def application(self) -> str:
        """The application of the pod; empty if it names none."""
        return application_of(self.labels)

    @property
    def ambient(self) -> str:
        """Why the pod is in an ambient mesh, if it is; see `ambient_by`."""
        return ambient_by(self.labels, self.namespace_labels or {})

    def refusals(self) -> Iterator[str]:
        """Yield why the pod gets no sidecar, whichever webhook is called."""
        yield from self.exclusions()
        if self.asks is False:
            yield self.said

    def labelled(self) -> InjectionRequest:
        """The request with the label that asks for a sidecar."""
        return structs.replace(self, labels={**self.labels, INJECT: "true"})

    def admitted(self, applications: Applications, *, wanted: bool = False) -> InjectionRequest:
        """Return the request as our admission makes it: with the label if the application asks.

        The pod gets the label, too, if it is ``wanted``: the option ``inject-selector`` matches it.
        Returns the same object if admission would not change it.
        """
        requested = applications.asks(self.namespace, self.application)
        return self.with_label(wanted=wanted, requested=requested)[0]

    def with_label(self, *, wanted: bool, requested: bool) -> tuple[InjectionRequest, str]:
        """Do what `admitted` does, and say why a pod that should get the label does not."""
        if not (wanted or requested):
            return self, ""
        why = next(self._label_obstacles(despite_annotation=wanted), "")
        return self if why else self.labelled(), why

    def _label_obstacles(self, *, despite_annotation: bool) -> Iterator[str]:
        """Yield why our admission does not add the label that asks for a sidecar.

        A pod that has the label or the annotation keeps it, whatever the value. The label overrides
        the annotation, so it is added beside one only ``despite_annotation``: an admin wants that.
        """
        annotated = self.annotation is not None and not despite_annotation
        if annotated or inject_label.on(self.labels):
            yield self.said
        if self.injected:
            yield "the sidecar is already injected"
        if ambient := self.ambient:
            yield ambient
        yield from self.exclusions()

    def exclusions(self) -> Iterator[str]:
        """Yield why the pod can have no sidecar, whatever it asks for."""
        if self.host_network:
            yield "hostNetwork: Istio gives it no sidecar"
        if self.namespace in IGNORED:
            yield f"namespace {self.namespace}: Istio gives its pods no sidecar"
        if self.mirrors:
            yield "the pod mirrors a static pod"
        if self.bare:
            yield "the object has no metadata"

    def _said(self) -> tuple[Label[bool] | Annotation[bool], Mapping[str, str]]:
        """Return the label if the pod has it, else the annotation, with the texts it is in."""
        if inject_label.on(self.labels):
            return inject_label, self.labels
        return inject_annotation, {} if self.annotation is None else {INJECT: self.annotation}


def ambient_by(pod: Source, namespace: Mapping[str, str] = {}) -> str:
    """The label, on a pod or its namespace, that puts the pod into an ambient mesh; or empty.

    The label of the pod decides before that of its namespace. Injection wins: Istio's injector does
    not look at that label (istio inject.go injectRequired), and its CNI leaves a pod with a sidecar
    alone (istio cni/pkg/util/enablement_selector.go Matches, istio-cni values.yaml
    enablementSelectors).
    """
    if dataplane.get(namespace) == "ambient" and dataplane.get(pod) != "none":
        return f"namespace {dataplane.shown(namespace)}"
    return dataplane.shown(pod) if dataplane.get(pod) == "ambient" else ""
