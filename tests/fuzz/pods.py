"""Pods: random ones, as a review or a watch brings them, and some built to be slow. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from unit.declared import ANNOTATIONS

from fuzz import texts

_KIB = 1024
LARGEST = 256 * _KIB
"""Characters of all annotations of a stored pod."""
ETCD = 1_450_000
"""Bytes of the largest pod that etcd takes, about."""

KEYS = [key.name for key in ANNOTATIONS]
"""Annotations that decide something."""

UNITS = [
    "0", "9", "1.", "a,", ",", "main,", " ", "-", "\n", "{", '{"a":', "<", "é", "\x9b", "\u202e",
    "a0-", "0s", "*,", "15020,", "a: b\n", "[", "💥",
]  # fmt: skip
"""What a text repeats to be slow to read."""

MANY = ",".join(f"c{number:x}" for number in range(42_000))
"""As many different names as an annotation has place for."""

_LABELS = {
    "job-name": ["mnist", ""],
    "sidecar.istio.io/inject": ["true", "false", "yes"],
    "istio.io/dataplane-mode": ["ambient", "none"],
    "app.kubernetes.io/name": ["mnist", "modeloperator"],
    "jobset.sigs.k8s.io/jobset-name": ["a"],
    "training.kubeflow.org/operator-name": ["mpi-operator", "tfjob-controller"],
    "model.juju.is/disable-webhook": ["true"],
    "kueue.x-k8s.io/podset": ["main"],
}
_VALUES = ["true", "false", "auto", "native", "hold", "direct", "none", "off", "30", "2.5s", "main",
           "main,log", "*", "0", "15021", "65536", "", "maybe", "{}", "vault-agent", "log=ignore",
           "log=native", "sidecar", "sidecar,custom", "gateway", "é"]  # fmt: skip
_NAMES = ["main", "log", "istio-proxy", "vault-agent", "metrics-logger-and-collector", "istio-init",
          "é"]  # fmt: skip
_STATES: list[dict[str, Any]] = [
    {"running": {"startedAt": "2026-11-20T07:00:00Z"}},
    {"terminated": {"exitCode": 0, "finishedAt": "2026-11-20T07:12:00Z", "reason": "Completed"}},
    {"terminated": {"exitCode": 1, "finishedAt": "2026-11-20T07:13:00Z", "reason": "Error"}},
    {"terminated": {"exitCode": 137, "reason": "RestartingAllContainers"}},
    {"waiting": {"reason": "CrashLoopBackOff"}},
    {},
]
_RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1, 7]}}]
_ARGS = [["--statusPort", "15020"], ["--statusPort=0"], ["sh", "train && echo completed > /x"],
         ["-w", "false"], ["scuttle", "é"], ["sh", "-c", "curl -XPOST :15020/quitquitquit"],
         ["kill", "envoy"], ["--quitquitquit"], []]  # fmt: skip
_LIFECYCLES = [None, {}, {"postStart": None}, {"postStart": {"exec": {}}}, {"preStop": {}}]
_QUANTITIES = ["1", "100Mi", "2Gi", "many", 0.1, 2, "9" * 60]
_CONFIGS = ['{"statusPort":15020}', '{"statusPort":"a"}', '{"a":1}', "{", ""]
_OWNERS: list[dict[str, Any]] = [
    {"apiVersion": "batch/v1", "kind": "Job", "name": "mnist", "uid": "o-1", "controller": True},
    {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "a", "uid": "o-2", "controller": True},
    {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "name": "a",
        "uid": "o-3",
        "controller": True,
    },
]


def slow() -> Iterator[tuple[str, bytes]]:
    """Pods that are slow to read, decide about or show, each with its name."""
    for key in KEYS:
        for unit in UNITS:
            yield f"{key}: {unit!r}", event(_annotated({key: unit * (LARGEST // len(unit))}))
        yield f"{key}: {len(MANY)} characters of names", event(_annotated({key: MANY}))
    every = {key: "0" * (LARGEST // len(KEYS)) + "s" for key in KEYS}
    yield "each annotation at once", event(_annotated(every))
    yield "annotations", event(_annotated({f"a{n}": "" for n in range(40_000)}))
    for count in (300, 3_000):
        for name, containers, statuses in _many(count):
            more = {"istio-aux.io/quit-after": ",".join(f"c{n}" for n in range(0, count, 2))}
            for notes in ({}, more):
                pod = _pod(containers, statuses, annotations=notes)
                yield f"{count} containers: {name}, {len(notes)} annotations", event(pod)
    for name, pod in _siblings(480_000):
        yield f"480,000 siblings: {name}", event(pod)
        yield f"480,000 siblings, one deep: {name}", event(pod, deep=1_500)
    escaped = event(_container(command=["<" * ETCD])).replace(b"<", b"\\u003c")
    yield "8.7 MB", escaped
    yield (
        "8.7 MB of arguments",
        event(_container(args=["<" * 9] * 120_000)).replace(b"<", b"\\u003c"),
    )
    for depth in (60, 990, 1_500, 9_990):
        yield f"{depth} levels of managedFields", event(_annotated({}), deep=depth)
        yield f"{depth} levels of a field", event(_annotated({}), deep=depth, under="nodeSelector")


def make(dice: Random) -> bytes:
    """A random pod, as a line of a watch."""
    pod = _random(dice)
    if dice.random() < 0.15:
        texts.mistype(dice, pod, 0.2)
    depth = dice.choice([40, 500, 1_100, 5_000]) if dice.random() < 0.02 else 0
    body = event(pod, dice.choice(["ADDED", "MODIFIED"]), deep=depth)
    return texts.damage(dice, body) if dice.random() < 0.1 else body


def event(pod: dict[str, Any], kind: str = "MODIFIED", *, deep: int = 0, under: str = "") -> bytes:
    """A line of a watch; ``deep`` levels of managedFields, or of a field of the spec ``under``."""
    if deep:
        parent = pod.get("spec" if under else "metadata")
        if isinstance(parent, dict):
            parent[under or "managedFields"] = ["@"]
    text = json.dumps({"type": kind, "object": pod}, separators=(",", ":"), ensure_ascii=False)
    if deep:
        text = text.replace('"@"', '{"f:a":' * deep + "{}" + "}" * deep, 1)
    return text.encode(errors="replace") + b"\n"


def pod_of(line: bytes) -> bytes:
    return line.partition(b'"object":')[2].removesuffix(b"}\n")


def page(lines: list[bytes]) -> bytes:
    items = b",".join(map(pod_of, lines))
    meta = b'"metadata":{"resourceVersion":"7"}'
    return b'{"kind":"PodList","apiVersion":"v1",' + meta + b',"items":[' + items + b"]}"


def _pod(
    containers: list[dict[str, Any]], statuses: list[dict[str, Any]], **metadata: Any
) -> dict[str, Any]:
    meta = {"name": "a", "namespace": "training", "uid": "u", "resourceVersion": "5", **metadata}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": meta,
        "spec": {"restartPolicy": "Never", "containers": containers},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


def _annotated(annotations: dict[str, str]) -> dict[str, Any]:
    states = [{"name": "main", "state": _STATES[1]}, {"name": "istio-proxy", "state": _STATES[0]}]
    return _pod([{"name": "main"}, {"name": "istio-proxy"}], states, annotations=annotations)


def _container(**fields: Any) -> dict[str, Any]:
    pod = _annotated({})
    pod["spec"]["containers"][1].update(fields)
    return pod


def _many(count: int) -> Iterator[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]:
    names = [*(f"c{n}" for n in range(count - 1)), "istio-proxy"]
    plain = [{"name": name, "image": "registry.example/app:1"} for name in names]
    proxy = {"name": "istio-proxy", "state": _STATES[0]}
    for name, state in (("ended", _STATES[1]), ("running", _STATES[0]), ("without a state", {})):
        yield name, plain, [*({"name": each, "state": state} for each in names[:-1]), proxy]
    yield "without a status", plain, [proxy]
    half = [{"name": n, "state": _STATES[at % 2]} for at, n in enumerate(names[:-1])]
    yield "every second one ended", plain, [*half, proxy]
    collectors = [{**each, "args": ["echo completed > /x"]} for each in plain]
    yield "of Katib", collectors, [*half, proxy]
    rules = [{**each, "restartPolicy": "Never", "restartPolicyRules": _RULES} for each in plain]
    yield "with rules", rules, [*half, proxy]
    twice = [{"name": n, "state": _STATES[1]} for n in names for _ in range(2)]
    yield "with two statuses each", plain, twice
    ports = [
        {**e, "ports": [{"containerPort": 1 + at, "name": f"p{at}"}]} for at, e in enumerate(plain)
    ]
    yield "with ports", ports, [*half, proxy]
    long = "n" * 63
    wide = [{"name": f"{long[len(str(at)) :]}{at}"} for at in range(count)]
    yield (
        "with long names",
        wide,
        [{"name": e["name"], "state": _STATES[at % 2]} for at, e in enumerate(wide)],
    )


def _siblings(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    fields = {
        "lists": [[]] * count,
        "lists of three levels": [[[[]]]] * (count // 3),
        "objects": [{}] * count,
        "texts": [""] * count,
        "numbers": [0] * count,
    }
    for name, values in fields.items():
        pod = _annotated({})
        pod["spec"]["nodeSelector"] = values
        yield name, pod
    pod = _annotated({})
    pod["spec"]["nodeSelector"] = {f"{n:x}": 0 for n in range(count // 4)}
    yield "keys", pod
    yield "arguments", _container(args=[""] * count)
    yield "variables", _container(env=[{"name": ""}] * (count // 4))
    yield "ports", _container(ports=[{"containerPort": 1}] * (count // 6))
    yield "labels", _pod([], [], labels={f"{n:x}": "" for n in range(count // 4)})
    # All four fields are required (apimachinery ValidateOwnerReferences).
    owner = dict.fromkeys(("apiVersion", "kind", "name", "uid"), "a")
    yield "owners", _pod([], [], ownerReferences=[owner] * (count // 16))


def submitted(dice: Random) -> dict[str, Any]:
    """A random pod as its author wrote it, without some of what it may have."""
    pod = _random(dice, config=0.5)
    del pod["status"]
    if dice.random() < 0.01:
        pod["metadata"]["annotations"]["note"] = "x" * dice.choice([262_000, 262_100, 300_000])
    pod["spec"] |= {
        "hostNetwork": dice.choice([True, False, False, None]),
        "terminationGracePeriodSeconds": dice.choice([0, 5, 30, None]),
    }
    for fields in (pod["metadata"], pod["spec"], *pod["spec"]["containers"]):
        for key in [key for key in fields if dice.random() < 0.15]:
            if dice.random() < 0.3 and isinstance(fields[key], dict):
                fields[key] = None
            else:
                del fields[key]
    return pod


def some_annotations(dice: Random, *, config: float) -> dict[str, str]:
    """Some annotations, with this chance among them a configuration of the proxy."""
    found = {key: _text(dice) for key in dice.choices(KEYS, k=dice.choice([0, 0, 1, 2, 4, 8]))}
    if dice.random() < config:
        found["proxy.istio.io/config"] = texts.make(dice)
    return found


def _random(dice: Random, *, config: float = 0.05) -> dict[str, Any]:
    names = dice.sample(_NAMES, dice.randint(1, 5))
    labels = {key: dice.choice(values) for key, values in _LABELS.items() if dice.random() < 0.15}
    owners = [dice.choice(_OWNERS)] if dice.random() < 0.5 else None
    number = dice.randrange(50)
    pod = _pod(
        [_some_container(dice, name) for name in names],
        [
            {"name": dice.choice(names) if dice.random() < 0.1 else name}
            | {"state": dice.choice(_STATES)}
            for name in names
            if dice.random() < 0.9
        ],
        uid=f"u-{number}", name=f"mnist-{number}", labels=labels,
        annotations=some_annotations(dice, config=config),
        resourceVersion=str(dice.randrange(10**6)), ownerReferences=owners,
    )  # fmt: skip
    pod["spec"]["restartPolicy"] = dice.choice(["Never", "OnFailure", "Always", None])
    if dice.random() < 0.3:
        pod["spec"]["initContainers"] = [
            _some_container(dice, name) for name in dice.sample(_NAMES, dice.randint(1, 3))
        ]
    if dice.random() < 0.1:
        pod["spec"]["shareProcessNamespace"] = True
    pod["status"]["phase"] = dice.choice(
        ["Running"] * 7 + ["Pending", "Unknown", "Succeeded", None]
    )
    if dice.random() < 0.1:
        pod["metadata"]["deletionTimestamp"] = "2026-11-20T08:00:00Z"
    return pod


def _some_container(dice: Random, name: str) -> dict[str, Any]:
    port = {"containerPort": dice.choice([80, 15020, -1]), "name": "http"}
    quantity = dice.choice(_QUANTITIES)
    some: list[tuple[float, dict[str, Any]]] = [
        (0.2, {"restartPolicy": dice.choice(["Always", "Never"])}),
        (0.1, {"restartPolicyRules": _RULES}),
        (0.2, {"args": dice.choice(_ARGS)}),
        (0.1, {"command": dice.choice(_ARGS)}),
        (0.2, {"env": [{"name": "PROXY_CONFIG", "value": dice.choice(_CONFIGS)}]}),
        (0.2, {"ports": [port]}),
        (0.2, {"lifecycle": dice.choice(_LIFECYCLES)}),
        (0.3, {"resources": {"requests": {"cpu": quantity, "a/gpu": "1"}}}),
        (0.1, {"resources": {"limits": {"memory": quantity}}}),
    ]
    found: dict[str, Any] = {"name": name, "image": "a"}
    for chance, fields in some:
        if dice.random() < chance:
            found |= fields
    return found


def _text(dice: Random) -> str:
    if dice.random() < 0.5:
        return dice.choice(_VALUES)
    unit, end = dice.choice(UNITS), dice.choice(["", "x", "s", "!"])
    return unit * dice.choice([1, 5, 40, 300, 2_000]) + end
