"""Random bodies: reviews that are valid, nearly valid or invalid, and slow ones. Pure.

Their pods are as a review or a watch brings them, with texts of `proxy.istio.io/config` that are
odd and hostile, or damaged; slow bodies have many cheap parts each, close to the limits.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from unit.declared import ANNOTATIONS
from unit.rules.pods import reviewed

_HOLD = "holdApplicationUntilProxyStarts"
_PROTO = "hold_application_until_proxy_starts"
_BEFORE = ["", "", "", "---\n", "--- ", "# c\n", "\ufeff", "%YAML 1.1\n---\n", "\n\n", "\t", "&r\n"]
_AFTER = ["", "", "\n", "\n...\n", "\n---\na: b", "\n# end", "\n  ", " ", "\r\n", "\n...", "#x"]
_KEYS = [
    "concurrency", "proxyMetadata", _HOLD, _PROTO, f'"{_HOLD}"', "'b'", "? a\n", "[x]", "<<", "*x",
    "&y k", "!!str t", "~", "é", "a b", "- ", '"holdApplication\\u0055ntilProxyStarts"',
]  # fmt: skip
_SCALARS = [
    "true", "off", "~", "", '"true"', "12:30:45", "&x 1", "*x", "!!bool true", "{a: b}", "[1, 2]",
    "{a: [b, {c: d}]}", "{}", "|\n  text\n  more", ">-\n  t", "x # c", "'q\n\n  r'", "\n  k: v",
    "\n- s\n- t", ".inf", "text\n  continued", "@x", "`x", "&x [*x]", f"\n  {_HOLD}: false",
    "\x00", "\ud7ff", "💥",
]  # fmt: skip
_HOSTILE = [
    "[" * 9000, "{a: " * 3000, "? " * 8000, "- " * 8000, "a:\n" * 5000, "&a " * 5000, "#" * 16000,
    "a: '" + "x\n" * 7000, "!" * 16000, "a: &x [" + "*x," * 5000, "\n" * 16000, "a: " + "b" * 20000,
    "\n".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9) if n else 'lol'}]" for n in range(40)),
]  # fmt: skip
ODD = [
    None, True, 0, -1, 1.5, 1e300, 10**400, "", "\x00", "\u2028", "💥", "\ud800", "x" * 5000, [],
    {}, [None], {"a": None}, [[[[]]]], {"uid": "other"}, "1e999999999", "9" * 5000,
]  # fmt: skip
"""Values that no field expects."""
JUNK = [
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b"\\", b"{", b"]", b"NaN",
    b"1e999", b"-", b"\\ud800", b"null", b'"uid":7,', b"\n", b"\xc3",
]  # fmt: skip
"""Bytes that damage JSON."""


def make_text(dice: Random) -> str:
    if dice.random() < 0.02:
        return dice.choice(_HOSTILE)
    if dice.random() < 0.5:
        indent = dice.choice(["", "", "  "])
        text = "\n".join(indent + entry.replace("\n", f"\n{indent}") for entry in _entries(dice))
    else:
        text = "{" + dice.choice([", ", ",", ",\n"]).join(_entries(dice)) + dice.choice("}}}}}]")
    text = dice.choice(_BEFORE) + text + dice.choice(_AFTER)
    return text.replace("\n", "\r\n") if dice.random() < 0.1 else text


def _entries(dice: Random) -> list[str]:
    return [
        f"{dice.choice(_KEYS) if dice.random() < 0.3 else f'k{n}'}: {dice.choice(_SCALARS)}"
        for n in range(dice.randint(0, 4))
    ]


def mistype(dice: Random, found: Any, stop: float) -> bool:
    """Replace a value somewhere in ``found`` by an odd one, or remove it; whether it was removed.

    Containers on the way are copied, because templates share them.
    """
    while True:
        key: Any = dice.choice(list(found) if isinstance(found, dict) else range(len(found)))
        if not isinstance(found[key], dict | list) or not found[key] or dice.random() < stop:
            break
        found[key] = found[key].copy()
        found = found[key]
    found[key] = copy.deepcopy(dice.choice(ODD))
    if removed := isinstance(found, dict) and dice.random() < 0.3:
        found.pop(key)
    return removed


def damage(dice: Random, body: bytes) -> bytes:
    """The body with bytes that are missing, changed or repeated."""
    found = bytearray(body)
    at = dice.randrange(len(found) + 1)
    until = at + dice.choice([0, 0, 1, 5, 100, len(found)])
    found[at:until] = dice.choice([b"", dice.choice(JUNK), dice.randbytes(3), found[at:until] * 2])
    return bytes(found)


_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_OTHERS = bytes(code for code in range(256) if code not in _STEPS)


def deepest(body: bytes) -> int:
    """Levels of nesting, or more if texts have brackets; 0 if there cannot be hundreds."""
    brackets = body.translate(None, _OTHERS)
    return max(accumulate(map(_STEPS.__getitem__, brackets))) if len(brackets) > 300 else 0


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


def slow_pods() -> Iterator[tuple[str, bytes]]:
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
    yield "8.7 MB", event(_container(command=["<" * ETCD])).replace(b"<", b"\\u003c")
    yield (
        "8.7 MB of arguments",
        event(_container(args=["<" * 9] * 120_000)).replace(b"<", b"\\u003c"),
    )
    for depth in (60, 990, 1_500, 9_990):
        yield f"{depth} levels of managedFields", event(_annotated({}), deep=depth)
        yield f"{depth} levels of a field", event(_annotated({}), deep=depth, under="nodeSelector")


def make_pod(dice: Random) -> bytes:
    """A random pod, as a line of a watch."""
    pod = _random(dice)
    if dice.random() < 0.15:
        mistype(dice, pod, 0.2)
    depth = dice.choice([40, 500, 1_100, 5_000]) if dice.random() < 0.02 else 0
    body = event(pod, dice.choice(["ADDED", "MODIFIED"]), deep=depth)
    return damage(dice, body) if dice.random() < 0.1 else body


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
    yield "of Katib", [{**each, "args": ["echo completed > /x"]} for each in plain], [*half, proxy]
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
        found["proxy.istio.io/config"] = make_text(dice)
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


MUTATE, INJECT = "/mutate", "/inject"
_FILES = sorted(Path(__file__).parents[1].glob("data/istio/inject-*.json"))
_RECORDED = [json.loads(file.read_text())["request"] for file in _FILES]


@dataclass(frozen=True)
class Ask:
    """A request: its body, and where it goes."""

    body: bytes
    path: str = MUTATE


def make(dice: Random) -> bytes:
    return dice.choices(_MAKERS, _SHARES)[0](dice)


def review(dice: Random) -> dict[str, Any]:
    """A valid review of a random pod."""
    if dice.random() < 0.1:
        found = copy.deepcopy(dice.choice(_RECORDED))
        found["request"]["object"]["metadata"]["annotations"] = some_annotations(dice, config=0.5)
        return found
    return reviewed(
        uid=f"{dice.getrandbits(64):x}",
        namespace=dice.choice(["training", "", "é"]),
        operation=dice.choice(["CREATE"] * 9 + ["UPDATE"]),
        dryRun=dice.choice([True, False, None]),
        object=submitted(dice),
    )


def _valid(dice: Random) -> bytes:
    return json.dumps(review(dice), ensure_ascii=dice.random() < 0.5).encode()


def _mistyped(dice: Random) -> bytes:
    """A review with values of other types, or without some of its keys."""
    found = review(dice)
    for _ in range(dice.randint(1, 3)):
        if mistype(dice, found, 0.3):
            break
    return json.dumps(found).encode()


def _damaged(dice: Random) -> bytes:
    found = _valid(dice)
    for _ in range(dice.randint(1, 4)):
        found = damage(dice, found)
    return found


def _doubled(dice: Random) -> bytes:
    """A review with a key twice."""
    found = _valid(dice)
    key, value = dice.choice([
        ("uid", '"other"'), ("uid", "7"), ("uid", '""'), ("request", "{}"), ("request", "null"),
        ("object", "{}"), ("object", "null"), ("metadata", "{}"), ("annotations", "null"),
        ("annotations", '{"a":"b"}'), ("containers", "[]"), ("kind", '"Pod"'), ("spec", "{}"),
    ])  # fmt: skip
    mark = f'"{key}": '.encode()
    return found.replace(mark, f'"{key}": {value}, "{key}": '.encode(), 1)


def _noise(dice: Random) -> bytes:
    return dice.choice([
        dice.randbytes(dice.randint(0, 200)),
        b"".join(dice.choices(JUNK, k=dice.randint(0, 20))),
        json.dumps(dice.choice(ODD)).encode(),
        b'{"request": {"uid": "705ab4f5"}}',
        json.dumps({"request": {"uid": "705ab4f5", "object": dice.choice(ODD)}}).encode(),
    ])  # fmt: skip


_MAKERS: list[Callable[[Random], bytes]] = [
    _valid, _mistyped, _damaged, _doubled, _noise,
]  # fmt: skip
_SHARES = [48, 20, 20, 5, 7]


CONFIG = "proxy.istio.io/config"
INJECTED = {"sidecar.istio.io/status": "{}"}
_16K = 16 * 1024
_MIB = 1 << 20
SLOW_UID = "705ab4f5-6393-11e8-b7cc-42010a800002"

TEXTS = {
    "a comment and a question": ("#?" + "\r" * 20) * 700 + "#\na: b",
    "blanks": " " * (_16K - 4) + "a: b",
    "line ends": "\r\n" * 8000 + "a: b",
    "comments": "#\n" * 8000 + "a: b",
    "explicit keys": "? a\n" * 4000,
    "keys without values": "\n".join(f"k{n}:" for n in range(2000)),
    "as many keys as may be": "\n".join(f"k{n}: {'v' * 24}" for n in range(495)),
    "as many keys in braces": "{" + ", ".join(f"k{n}: {'v' * 22}" for n in range(495)) + "}",
    "as many aliases": "x: &x 1\na: [" + ", ".join(["*x"] * 985) + "]",
    "numbers": "a: [" + "1," * 8000 + "]",
    "lists": "a: [" + "[]," * 5000 + "]",
    "lists in lists": "a: [" + ",".join(["[" * 96 + "]" * 96] * 80) + "]",
    "levels": "\n".join(" " * n + "a:" for n in range(99)) + " b",
    "levels that never end": "[" * _16K,
    "braces that never end": "{a: " * 4000,
    "tags": "a: [" + "!a b," * 3200 + "]",
    "anchors": "".join(f"a{n}: &a{n} 1\n" for n in range(1000)),
    "words": "a: " + "b " * 8000,
    "colons": "a: b" + ":c" * 8000,
    "escapes": 'a: "' + "\\u0041" * 2700 + '"',
    "quotes": "a: '" + "''" * 8000 + "'",
    "four bytes each": "a: " + "💥" * 16_000,
    "a block": "a: |\n" + " x\n" * 5000,
    "a long key": "k" * 16_000 + ": v",
    "a key that is none": "{" + "k " * 8000 + ": v}",
}  # fmt: skip
"""Texts of the annotation that is parsed."""


def slow_asks() -> Iterator[tuple[str, Ask]]:
    for name, text in TEXTS.items():
        for more in ({}, INJECTED):
            metadata = {"annotations": {CONFIG: text, **more}}
            spec = {"containers": [{"name": "main"}, {"name": "istio-proxy"}]}
            yield f"text: {name}", Ask(_review(metadata, spec))
    for number, (name, body) in enumerate(_bodies()):
        yield f"body: {name}", Ask(body, INJECT if number % 4 == 0 else MUTATE)


def _bodies() -> Iterator[tuple[str, bytes]]:
    for count in (14_000, 100_000):
        strings = {f"a{n}": "b" for n in range(count)}
        yield f"{count} annotations", _review({"annotations": strings})
        yield f"{count} labels", _review({"labels": strings})
    for count in (16_000, 49_000):
        for what in ({}, {"name": "c"}, {"lifecycle": {"postStart": {}}}):
            spec = {"containers": [what] * count}
            yield f"{count} containers", _review({}, spec)
            spec = {"containers": [what] * (count // 3) + [{"name": "istio-proxy"}]}
            yield f"{count} injected containers", _review({"annotations": INJECTED}, spec)
    for word in (
        "x",
        "quitquitqui ",
        "--quitquitquit ",
        ":9091/quitquitquit ",
        "kill enovy -envoy.",
    ):
        spec = {"containers": [{"args": [word * (130_000 // len(word))]}], "restartPolicy": "Never"}
        yield f"arguments: {word}", _review({}, spec)
        spec = {"containers": [{"args": [word]}] * 10_000, "restartPolicy": "Never"}
        yield f"containers with arguments: {word}", _review({}, spec)
    for count in (199, 5000):
        kinds = ("limits", "requests")
        needs = [
            {k: dict.fromkeys(("cpu", "memory"), f"{n}.5Mi") for k in kinds} for n in range(count)
        ]
        spec = {"initContainers": [{"resources": each} for each in needs], "restartPolicy": "Never"}
        yield f"{count} init containers with resources", _review({}, spec)
    yield "managedFields", _review({"managedFields": [{"f": []}] * 40_000})
    for depth in (900, 5000, 300_000):
        deep = "[" * depth + "]" * depth
        yield f"{depth} levels", _review({}).replace(b'"spec"', f'"x":{deep},"spec"'.encode())
        yield f"{depth} levels that never end", _review({})[:-1] + b',"x":' + b"[" * depth
    for size in (2 * _MIB, 4 * _MIB):
        room = size - 1000
        fillings: dict[str, Any] = {
            "one string": "x" * room,
            "line ends": "\n" * (room // 2),
            "accents": "é" * (room // 2),
            "lists": [[]] * (room // 3),
            "objects": [{"a": 1}] * (room // 8),
            "numbers": [1.5e300] * (room // 9),
            "strings": ["x"] * (room // 4),
        }
        yield from ((f"{size} bytes: {n}", _review({}, junk=it)) for n, it in fillings.items())
        yield f"{size} bytes, cut off", _review({}, junk=fillings["lists"])[:-2]
        yield f"{size} bytes: an annotation", _review({"annotations": {"a": "\x01" * (room // 6)}})
        yield f"{size} bytes: a name", _review({"name": "\x01" * (room // 6)})
        mode = {"istio-aux.io/start": "\x02" * (room // 6)}
        yield f"{size} bytes: a mode", _review({"annotations": mode})
    names = ",".join(f"c{number:x}" for number in range(300_000))
    for key in KEYS:
        for text in ("0" * 2_000_000, "a," * 1_000_000, names):
            yield f"2 MB of {key}: {text:.9}", _review({"annotations": {key: text}})


def _review(metadata: dict[str, Any], spec: dict[str, Any] | None = None, **more: Any) -> bytes:
    """A review as the API server writes it: no blanks, and the uid first."""
    pod = {
        "kind": "Pod",
        "metadata": {"generateName": "mnist-", **metadata},
        "spec": spec or {"containers": []},
    }
    found = reviewed(uid=SLOW_UID, object=pod, **more)
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()
