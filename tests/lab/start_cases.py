"""One table of pods and how admission changes them. Data only.

`start.plan` is run over it, and the webhook behind a real API server: they do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from istio_aux.model.annotations import (
    DATAPLANE,
    EXCLUDED,
    INCLUDED,
    INJECT,
    INJECTED,
    JOBSET,
    MIRROR,
    MPI_OPERATOR,
    NATIVE_SIDECAR,
    NO_SIGNAL,
    OPERATOR,
    PEERS,
    SIGNALLED_WITH,
    START,
    STARTED_WITH,
    WORKFLOW_NODE,
)
from istio_aux.model.policy import Capability, Peers, StartMode, StartPolicy
from istio_aux.model.selectors import parse
from istio_aux.start.hold import ANNOTATION as CONFIG, HOLD, HOLD_PROTO

from lab.images import BUSYBOX

LINE = f"{HOLD}: true"
BY_HAND = {INJECTED: "{}"}
NATIVE = {NATIVE_SIDECAR: "true", STARTED_WITH: "native"}
HELD = {CONFIG: LINE, STARTED_WITH: "hold"}

MAIN = {"name": "main", "image": BUSYBOX}
PROXY = {"name": "istio-proxy", "image": BUSYBOX}


def holding(*command: str) -> dict[str, Any]:
    """A proxy with this command as its postStart hook."""
    return {**PROXY, "lifecycle": {"postStart": {"exec": {"command": [*command]}}}}


BRIEF = holding("pilot-agent", "wait")  # As Istio writes it: it gives up after 60 s.
HOLDING = holding("pilot-agent", "wait", "--timeoutSeconds=300")
OWN = holding("pilot-agent", "wait", "--timeoutSeconds=90")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pod, and what it is to be afterwards."""

    name: str
    mode: StartMode = StartMode.AUTO  # The start mode that the admin has set.
    capability: Capability = Capability.UNKNOWN  # What cluster and Istio can do.
    peers: Peers = Peers.MESH  # How pods reach each other, as the admin has set it.
    pods: str = ""  # The option `pod-selector`.
    inject: str = ""  # The option `inject-selector`.
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    # Fields of the pod's spec, in place of one container and `restartPolicy: Never`.
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])
    asks: bool = False  # Whether it gets the label that asks Istio for a sidecar.
    # Annotations that it gets, or whose values are replaced.
    added: Mapping[str, str] = field(default_factory=dict[str, str])
    # What its containers are to be, if not as they were.
    containers: Sequence[Mapping[str, Any]] | None = None
    warns: str = ""  # Part of the warning to its author.

    @property
    def setting(self) -> StartPolicy:
        """What the admin has set, and what can be had."""
        return StartPolicy(
            mode=self.mode, capability=self.capability, peers=self.peers, pods=parse(self.pods),
            inject=parse(self.inject) if self.inject else None,
        )  # fmt: skip

    @property
    def pod(self) -> dict[str, Any]:
        """The pod as its author wrote it."""
        metadata: dict[str, Any] = {"generateName": "case-", "labels": dict(self.labels)}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        spec = {"restartPolicy": "Never", "containers": [MAIN], **self.spec}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    @property
    def expected(self) -> Outcome:
        containers = self.pod["spec"]["containers"] if self.containers is None else self.containers
        return outcome({**self.annotations, **self.added}, containers)

    @property
    def labelled(self) -> dict[str, str]:
        return {**self.labels, **({INJECT: "true"} if self.asks else {})}


Outcome = tuple[dict[str, str], list[tuple[str, Any]]]


def outcome(annotations: Mapping[str, str], containers: Sequence[Mapping[str, Any]]) -> Outcome:
    """All that may be changed at a pod: annotations, and its containers' order and hooks."""
    return dict(annotations), [(c["name"], c.get("lifecycle")) for c in containers]


def _text(name: str, text: str, becomes: str = "", *, warns: str = "") -> Case:
    """A case with a text in the annotation `proxy.istio.io/config`; "": the text stays."""
    return Case(
        name=f"a text: {name}",
        annotations={CONFIG: text},
        added={CONFIG: becomes, STARTED_WITH: "hold"} if becomes else {},
        warns=warns,
    )


# `tests/data/hold` has all ways to write one.
DEEPER = f"proxyMetadata:\n  {HOLD}: größer\n"
TEXTS = [
    _text("empty", "", LINE),
    _text("null", "null", LINE),
    _text("one line", "concurrency: 2", f"concurrency: 2\n{LINE}"),
    _text("lines that end in CR and LF", "concurrency: 2\r\n", f"concurrency: 2\r\n{LINE}\r\n"),
    _text("JSON", '{"a":{"b":"c"}}', f'{{"{HOLD}": true, "a":{{"b":"c"}}}}'),
    _text("hold in a value, not ASCII", DEEPER, f"{DEEPER}{LINE}\n"),
    _text("hold already", LINE),
    _text("an explicit false, by proto name", f"concurrency: 2\n{HOLD_PROTO}: false"),
    _text("an explicit false in JSON", f'{{"{HOLD}":false}}'),
    # Istio refuses a pod with one of these, and its author is told.
    _text("a list at its root", "- a\n", warns="is left alone"),
    _text("two values in a line", "a: b: c", warns="is left alone"),
    _text("hold, quoted", f'{HOLD}: "true"', warns="is left alone"),
    _text("200 KiB", "a" * (200 << 10), warns="is left alone"),
]

OPT_OUTS = [
    Case(name="inject false by label", labels={INJECT: "false"}),
    Case(name="inject false by annotation", annotations={INJECT: "false"}),
    Case(name="inject true by label beats the annotation", labels={INJECT: "true"},
         annotations={INJECT: "false"}, added=HELD),
    Case(name="inject False is not false", labels={INJECT: "False"}, added=HELD),
    Case(name="an ambient pod", labels={DATAPLANE: "ambient"}),
    Case(name="a pod of another data plane", labels={DATAPLANE: "none"}, added=HELD),
    Case(name="hostNetwork", spec={"hostNetwork": True}),
    Case(name="a mirror pod", annotations={MIRROR: "x"}, spec={"nodeName": "none"}),
    Case(name="start none", annotations={START: "none"}),
]  # fmt: skip

ALWAYS = {"restartPolicy": "Always"}
MODES = [
    Case(name="auto holds a pod that ends", added=HELD),
    Case(name="auto holds a pod that runs on", spec=ALWAYS, added=HELD),
    Case(name="auto by annotation", annotations={START: "auto"}, mode=StartMode.NATIVE, added=HELD),
    Case(name="hold holds", mode=StartMode.HOLD, added=HELD),
    Case(name="hold by annotation", annotations={START: "hold"}, mode=StartMode.NATIVE, added=HELD),
    Case(name="native for a pod that ends", mode=StartMode.NATIVE, added=NATIVE),
    Case(name="native holds a pod that runs on", mode=StartMode.NATIVE, spec=ALWAYS, added=HELD),
    Case(name="native by annotation", annotations={START: "native"}, added=NATIVE),
    Case(name="native by annotation for a pod that runs on", annotations={START: "native"},
         spec=ALWAYS, added=NATIVE),
    Case(name="native keeps a text", mode=StartMode.NATIVE, annotations={CONFIG: "concurrency: 2"},
         added=NATIVE),
    Case(name="native keeps a text that Istio refuses", mode=StartMode.NATIVE,
         annotations={CONFIG: "- a"}, added=NATIVE, warns="it is not a mapping"),
    Case(name="native beside hold", mode=StartMode.NATIVE, annotations={CONFIG: f"{HOLD}: true"},
         added=NATIVE),
    Case(name="an author who says no to hold does not get native either", mode=StartMode.NATIVE,
         annotations={CONFIG: f"{HOLD}: false"}),
    Case(name="native by annotation, though hold is false",
         annotations={START: "native", CONFIG: f"{HOLD}: false"}, added=NATIVE),
    Case(name="native is there", mode=StartMode.NATIVE, annotations={NATIVE_SIDECAR: "true"}),
    Case(name="an author who refuses native is held", mode=StartMode.NATIVE,
         annotations={NATIVE_SIDECAR: "false"}, added=HELD),
    Case(name="an author who wants native is held as well where nobody knows if it can be had",
         annotations={NATIVE_SIDECAR: "true"}, added=HELD),
    Case(name="none", mode=StartMode.NONE),
    Case(name="none by mode, hold by annotation", mode=StartMode.NONE, annotations={START: "hold"},
         added=HELD),
    Case(name="a start that does not exist", annotations={START: "off"}, added=HELD,
         warns="expected auto, native, hold or none"),
    Case(name="a start that does not exist, in mode none", mode=StartMode.NONE,
         annotations={START: ""}, warns="expected auto, native, hold or none"),
]  # fmt: skip

CAN, CANNOT = Capability.NATIVE, Capability.CLASSIC
CAPABILITIES = [
    Case(name="auto makes native what ends, where it can be had", capability=CAN, added=NATIVE),
    Case(name="auto holds a pod that runs on, where native can be had", capability=CAN, spec=ALWAYS,
         added=HELD),
    Case(name="auto holds where native cannot be had", capability=CANNOT, added=HELD),
    Case(name="auto by annotation, where native can be had", capability=CAN, mode=StartMode.HOLD,
         annotations={START: "auto"}, added=NATIVE),
    Case(name="a start that does not exist, where native can be had", capability=CAN,
         annotations={START: "later"}, added=NATIVE, warns="expected auto, native, hold or none"),
    Case(name="an author who says no to hold does not get native, where it can be had",
         capability=CAN, annotations={CONFIG: f"{HOLD}: false"}),
    Case(name="an author who refuses native is held, where it can be had", capability=CAN,
         annotations={NATIVE_SIDECAR: "false"}, added=HELD),
    Case(name="an author who wants native has it, where it can be had", capability=CAN,
         annotations={NATIVE_SIDECAR: "true"}),
    Case(name="an author who wants native has it in mode hold, where it can be had", capability=CAN,
         mode=StartMode.HOLD, annotations={NATIVE_SIDECAR: "true"}),
    Case(name="an author who wants native is held where it cannot be had", capability=CANNOT,
         annotations={NATIVE_SIDECAR: "true"}, added=HELD),
    Case(name="injected without hold, where native can be had", capability=CAN,
         annotations=BY_HAND, spec={"containers": [MAIN, PROXY]}, added=HELD,
         containers=[HOLDING, MAIN]),
]  # fmt: skip

BESIDE = {"initContainers": [{**PROXY, "restartPolicy": "Always"}]}
INJECTED_PODS = [
    Case(name="injected by hand, the proxy first, without its hook",
         annotations={**BY_HAND, CONFIG: LINE}, spec={"containers": [PROXY, MAIN]},
         added={STARTED_WITH: "hold"}, containers=[HOLDING, MAIN]),
    Case(name="injected by hand, with an explicit false",
         annotations={**BY_HAND, CONFIG: f"{HOLD}: false"}, spec={"containers": [MAIN, PROXY]}),
    Case(name="injected with hold", annotations={**BY_HAND, **HELD},
         spec={"containers": [BRIEF, MAIN]}, containers=[HOLDING, MAIN]),
    Case(name="injected with hold, and reviewed since", annotations={**BY_HAND, **HELD},
         spec={"containers": [HOLDING, MAIN]}),
    Case(name="injected with hold, the proxy not first", annotations={**BY_HAND, **HELD},
         spec={"containers": [MAIN, BRIEF]}, containers=[HOLDING, MAIN]),
    Case(name="injected with hold, for as long as its author says",
         annotations={**BY_HAND, **HELD}, spec={"containers": [OWN, MAIN]}),
    Case(name="injected with hold, and runs on", annotations={**BY_HAND, **HELD},
         spec={**ALWAYS, "containers": [BRIEF, MAIN]}),
    Case(name="injected with a hold that is not ours", annotations={**BY_HAND, CONFIG: LINE},
         spec={"containers": [BRIEF, MAIN]}),
    Case(name="injected by hand, and runs on", annotations={**BY_HAND, CONFIG: LINE},
         spec={**ALWAYS, "containers": [PROXY, MAIN]}, added={STARTED_WITH: "hold"},
         containers=[BRIEF, MAIN]),
    Case(name="injected natively, with hold", annotations={**BY_HAND, **HELD}, spec=BESIDE,
         added={STARTED_WITH: "native"}),
    Case(name="injected natively", annotations={**BY_HAND, **NATIVE}, mode=StartMode.NATIVE,
         spec=BESIDE),
]  # fmt: skip

NODE = {WORKFLOW_NODE: "two-steps[0].first"}
LEFT = {SIGNALLED_WITH: NO_SIGNAL}
ARGO = [
    Case(name="Argo leaves a proxy to us", annotations=NODE, added={**HELD, **LEFT}),
    Case(name="Argo leaves a proxy beside a text to us",
         annotations={**NODE, CONFIG: "concurrency: 2"},
         added={CONFIG: f"concurrency: 2\n{LINE}", STARTED_WITH: "hold", **LEFT}),
    Case(name="an author who tells Argo what to run", added=HELD,
         annotations={**NODE, SIGNALLED_WITH: "[]"}),
    Case(name="Argo and native", mode=StartMode.NATIVE, annotations=NODE, added=NATIVE),
]  # fmt: skip

COPIES = [
    Case(name="a pod that has other annotations", annotations={"example.com/a": "b"},
         added=HELD),
    Case(name="written like a pod that was held", annotations=HELD),
    Case(name="says that it was held, and was not", annotations={STARTED_WITH: "hold"}, added=HELD),
    Case(name="nearly 256 KiB", annotations={"large": "a" * (255 << 10)}, added=HELD),
    Case(name="no room", annotations={"large": "a" * ((256 << 10) - 40)}, warns="left alone"),
]  # fmt: skip


def declares(*numbers: int, **fields: Any) -> dict[str, Any]:
    """A container that declares TCP ports, or ports with these fields."""
    return {**MAIN, "ports": [{"containerPort": number, **fields} for number in numbers]}


def with_ports(*numbers: int) -> dict[str, Any]:
    return {"containers": [declares(*numbers)]}


def init(name: str, *numbers: int, **fields: Any) -> dict[str, Any]:
    """An init container that declares TCP ports."""
    return {**declares(*numbers), "name": name, **fields}


DIRECT = {PEERS: "direct"}
BY_OPTION = Peers.DIRECT
PEER_TRAFFIC = [
    Case(name="direct: declared ports stay in the mesh, sorted by number", annotations=DIRECT,
         spec=with_ports(8888, 81, 29500), added={**HELD, INCLUDED: "81,8888,29500"}),
    Case(name="direct: a pod that declares no ports is reached past its proxy", annotations=DIRECT,
         added={**HELD, INCLUDED: ""}),
    Case(name="direct: the ports of all containers, each once", annotations=DIRECT,
         spec={"containers": [declares(80, 81), {**declares(81, 82), "name": "other"}]},
         added={**HELD, INCLUDED: "80,81,82"}),
    Case(name="direct: TCP only", annotations=DIRECT,
         spec={"containers": [declares(53, protocol="UDP"), {**declares(80), "name": "web"},
                              {**declares(132, protocol="SCTP"), "name": "sctp"}]},
         added={**HELD, INCLUDED: "80"}),
    Case(name="direct: native sidecars serve beside the payload, init containers do not",
         annotations=DIRECT,
         spec={**with_ports(80), "initContainers": [
             init("before", 81), init("beside", 82, restartPolicy="Always")]},
         added={**HELD, INCLUDED: "80,82"}),
    Case(name="direct: the proxy's own ports do not go through it", annotations=DIRECT,
         spec={"containers": [declares(80), {**declares(15090), "name": "istio-proxy"}]},
         added={**HELD, INCLUDED: "80"}),
    Case(name="direct: the Service of a JobSet has no ports", annotations=DIRECT,
         labels={JOBSET: "train"}, spec=with_ports(29500), added={**HELD, INCLUDED: ""}),
    Case(name="direct: the Service of an MPIJob has no ports", annotations=DIRECT,
         labels={OPERATOR: MPI_OPERATOR}, spec=with_ports(2222), added={**HELD, INCLUDED: ""}),
    Case(name="direct: the Services of a PyTorchJob have its ports", annotations=DIRECT,
         labels={OPERATOR: "pytorchjob-controller"}, spec=with_ports(23456),
         added={**HELD, INCLUDED: "23456"}),
    Case(name="direct: the ports that the author includes stay",
         annotations={**DIRECT, INCLUDED: "*"}, spec=with_ports(80), added=HELD),
    Case(name="direct: no ports that the author includes stay none",
         annotations={**DIRECT, INCLUDED: ""}, spec=with_ports(80), added=HELD),
    Case(name="direct: a list would undo what the author excludes",
         annotations={**DIRECT, EXCLUDED: "80"}, spec=with_ports(80, 81), added=HELD),
    Case(name="direct by annotation for a pod that runs on", annotations=DIRECT, spec=ALWAYS,
         added={**HELD, INCLUDED: ""}),
    Case(name="direct where native can be had", annotations=DIRECT, capability=CAN,
         spec=with_ports(80), added={**NATIVE, INCLUDED: "80"}),
    Case(name="direct and hold", annotations={**DIRECT, START: "hold"}, capability=CAN,
         added={**HELD, INCLUDED: ""}),
    Case(name="direct beside native of the author's own", capability=CAN,
         annotations={**DIRECT, NATIVE_SIDECAR: "true"}, added={INCLUDED: ""}),
    Case(name="direct in mode none", annotations=DIRECT, mode=StartMode.NONE, spec=with_ports(80),
         added={INCLUDED: "80"}),
    Case(name="direct, start none", annotations={**DIRECT, START: "none"}, added={INCLUDED: ""}),
    Case(name="direct keeps a text", annotations={**DIRECT, CONFIG: f"{HOLD}: false"},
         spec=with_ports(80), added={INCLUDED: "80"}),
    Case(name="direct for a pod without a sidecar", annotations=DIRECT, labels={INJECT: "false"}),
    Case(name="direct for a pod whose annotation refuses a sidecar",
         annotations={**DIRECT, INJECT: "false"}),
    Case(name="direct on the host's network", annotations=DIRECT, spec={"hostNetwork": True}),
    Case(name="direct for a pod that Istio has injected", mode=StartMode.NONE,
         annotations={**BY_HAND, **DIRECT}, spec={"containers": [MAIN, PROXY]}),
    Case(name="written like a pod that is reached directly",
         annotations={**HELD, **DIRECT, INCLUDED: "80"}, spec=with_ports(80)),
    Case(name="an empty value of peers opens no port, whatever the option", annotations={PEERS: ""},
         peers=BY_OPTION, added=HELD, warns="expected mesh or direct"),
    Case(name="direct by option", peers=BY_OPTION, spec=with_ports(80),
         added={**HELD, INCLUDED: "80"}),
    Case(name="direct by option is for pods that end", peers=BY_OPTION,
         spec={**with_ports(80), **ALWAYS}, added=HELD),
    Case(name="mesh by annotation", peers=BY_OPTION, annotations={PEERS: "mesh"}, added=HELD),
    Case(name="direct by option in mode none", peers=BY_OPTION, mode=StartMode.NONE,
         spec=with_ports(80), added={INCLUDED: "80"}),
]  # fmt: skip

TEAMS = "team in (a,b),!hands-off"
CHOSEN = [
    Case(name="pod-selector matches", pods=TEAMS, labels={"team": "a"}, added=HELD),
    Case(name="pod-selector has another value", pods=TEAMS, labels={"team": "c"}),
    Case(name="pod-selector matches but for one label", pods=TEAMS,
         labels={"team": "a", "hands-off": ""}),
    Case(name="pod-selector does not match a pod without labels", pods=TEAMS),
]  # fmt: skip

NO = {INJECT: "false"}
# It matches a pod without labels.
STEPS = "step notin (b),!plain"
OPT_INS = [
    Case(name="inject-selector matches a pod whose annotation says no", inject=STEPS,
         annotations=NO, asks=True, added=HELD),
    Case(name="inject-selector matches a pod with labels", inject=STEPS, annotations=NO,
         labels={"step": "a"}, asks=True, added=HELD),
    Case(name="inject-selector matches a pod that says nothing", inject=STEPS, asks=True,
         added=HELD),
    Case(name="inject-selector does not match a pod whose annotation says no", inject=STEPS,
         annotations=NO, labels={"plain": ""}),
    Case(name="inject-selector does not match a pod that says nothing", inject=STEPS,
         labels={"step": "b"}, added=HELD),
    Case(name="inject-selector matches, the label says no", inject=STEPS, labels=NO),
    Case(name="inject-selector matches, the label says yes", inject=STEPS, annotations=NO,
         labels={INJECT: "true"}, added=HELD),
    Case(name="inject-selector matches, start none", inject=STEPS,
         annotations={**NO, START: "none"}, asks=True),
    Case(name="inject-selector matches, a start that does not exist", inject=STEPS,
         annotations={**NO, START: "later"}, asks=True, added=HELD,
         warns="expected auto, native, hold or none"),
    Case(name="inject-selector matches, hostNetwork", inject=STEPS, annotations=NO,
         spec={"hostNetwork": True}),
    Case(name="inject-selector matches an ambient pod", inject=STEPS, annotations=NO,
         labels={DATAPLANE: "ambient"}),
    Case(name="inject-selector matches what is injected already", inject=STEPS,
         annotations={**NO, **BY_HAND}, spec={"containers": [MAIN, PROXY]}),
    Case(name="inject-selector matches in mode none", inject=STEPS, mode=StartMode.NONE,
         annotations=NO, asks=True),
]  # fmt: skip

CASES = [
    *OPT_OUTS, *CHOSEN, *OPT_INS, *MODES, *CAPABILITIES, *TEXTS, *INJECTED_PODS, *ARGO, *COPIES,
    *PEER_TRAFFIC,
]  # fmt: skip
