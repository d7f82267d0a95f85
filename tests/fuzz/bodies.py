"""Random bodies: reviews that are valid, nearly valid or invalid. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fuzz import texts

MUTATE, INJECT = "/mutate", "/inject"
_FILES = sorted(Path(__file__).parents[1].glob("data/istio/inject-*.json"))
_RECORDED = [json.loads(file.read_text())["request"] for file in _FILES]
_SWITCHES = {
    "istio-aux.io/start": ["auto", "native", "hold", "none", "off", ""],
    "istio-aux.io/started-with": ["native", "hold"],
    "sidecar.istio.io/nativeSidecar": ["true", "false", "yes"],
    "sidecar.istio.io/inject": ["true", "false"],
    "sidecar.istio.io/status": ["{}", ""],
    "inject.istio.io/templates": ["sidecar", "sidecar,custom", "gateway", ""],
    "status.sidecar.istio.io/port": ["0", "15020", "é"],
    "kubernetes.io/config.mirror": ["x"],
    "istio.io/dataplane-mode": ["ambient", "none"],
    "a/b~c": ["d"],
}
_COMMANDS = [
    [],
    ["scuttle", "é"],
    ["sh", "-c", "curl -XPOST :15020/quitquitquit"],
    ["kill", "envoy"],
]
_QUANTITIES = ["1", "100Mi", "2Gi", "many", 0.1, "9" * 50]
_LIFECYCLES = [None, {}, {"postStart": None}, {"postStart": {"exec": {}}}, {"preStop": {}}]
_ODD = [
    None, True, 0, -1, 1.5, 1e300, 10**400, "", "\x00", "\u2028", "💥", "\ud800", "x" * 5000, [],
    {}, [None], {"a": None}, [[[[]]]], {"uid": "other"}, "705ab4f5",
]  # fmt: skip
JUNK = [
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b"\\", b"{", b"]", b"NaN",
    b"1e999", b"-", b"\\ud800", b"null", b'"uid":7,', b"\n", b"\xc3",
]  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """A request: its body, and where it goes."""

    body: bytes
    path: str = MUTATE


def make(dice: Random) -> bytes:
    """One body."""
    return dice.choices(_MAKERS, _SHARES)[0](dice)


def review(dice: Random) -> dict[str, Any]:
    """A valid review of a random pod."""
    if dice.random() < 0.1:
        found = copy.deepcopy(dice.choice(_RECORDED))
        found["request"]["object"]["metadata"]["annotations"] = _strings(dice)
        return found
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": f"{dice.getrandbits(64):x}",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": dice.choice(["training", "", "é"]),
            "operation": dice.choice(["CREATE"] * 9 + ["UPDATE"]),
            "dryRun": dice.choice([True, False, None]),
            "object": _pod(dice),
        },
    }


def _pod(dice: Random) -> dict[str, Any]:
    metadata = _some(
        dice,
        name="mnist-worker-0",
        generateName="mnist-",
        labels=_strings(dice),
        annotations=_strings(dice),
    )
    spec = _some(
        dice,
        restartPolicy=dice.choice(["Always", "OnFailure", "Never", None, "é"]),
        hostNetwork=dice.choice([True, False, False, None]),
        shareProcessNamespace=dice.choice([True, None]),
        terminationGracePeriodSeconds=dice.choice([0, 5, 30, None]),
        containers=_containers(dice),
        initContainers=_containers(dice),
    )
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _some(dice: Random, **fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if dice.random() < 0.8}


def _strings(dice: Random) -> dict[str, str] | None:
    chance = dice.choice([0.05, 0.3])
    found = {
        key: dice.choice(values) for key, values in _SWITCHES.items() if dice.random() < chance
    }
    if dice.random() < 0.5:
        found["proxy.istio.io/config"] = texts.make(dice)
    if dice.random() < 0.01:
        found["note"] = "x" * dice.choice([262_000, 262_100, 300_000])
    return found or dice.choice([None, {}])


def _containers(dice: Random) -> list[dict[str, Any]] | None:
    names = dice.sample(["main", "aux", "istio-proxy", "vault", "é"], dice.randint(0, 4))
    return [
        _some(
            dice,
            name=name,
            image="x",
            restartPolicy=dice.choice(["Always", None]),
            lifecycle=copy.deepcopy(dice.choice(_LIFECYCLES)),
            command=dice.choice(_COMMANDS),
            args=dice.choice([None, ["--quitquitquit"]]),
            resources={dice.choice(["limits", "requests"]): {"memory": dice.choice(_QUANTITIES)}},
            env=[{"name": f"V{n}", "value": "x" * 30} for n in range(dice.randint(0, 30))],
        )
        for name in names
    ] or dice.choice([None, []])


def _valid(dice: Random) -> bytes:
    return json.dumps(review(dice), ensure_ascii=dice.random() < 0.5).encode()


def _mistyped(dice: Random) -> bytes:
    """A review with values of other types, or without some of its keys."""
    found = review(dice)
    for _ in range(dice.randint(1, 3)):
        if texts.mistype(dice, found, _ODD, 0.3):
            break
    return json.dumps(found).encode()


def _damaged(dice: Random) -> bytes:
    found = _valid(dice)
    for _ in range(dice.randint(1, 4)):
        found = texts.damage(dice, found, JUNK)
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
    twice = f'"{key}": {value}, "{key}": '.encode()
    return found.replace(mark, twice, 1)


def _deep(dice: Random) -> bytes:
    depth = dice.choice([50, 500, 1000, 5000, 50_000])
    opened, closed = dice.choice([("[", "]"), ('{"a":', "}")])
    nest = f"{opened * depth}{'' if dice.random() < 0.2 else 'null'}{closed * depth}"
    where = dice.choice(['"request"', '"uid"', '"object"', '"annotations"', '"x"', '"spec"'])
    mark = f"{where}: "
    return _valid(dice).decode().replace(mark, f'"y": {nest}, {mark}', 1).encode()


def _noise(dice: Random) -> bytes:
    return dice.choice([
        dice.randbytes(dice.randint(0, 200)),
        b"".join(dice.choices(JUNK, k=dice.randint(0, 20))),
        json.dumps(dice.choice(_ODD)).encode(),
        b'{"request": {"uid": "705ab4f5"}}',
        json.dumps({"request": {"uid": "705ab4f5", "object": dice.choice(_ODD)}}).encode(),
    ])  # fmt: skip


def _huge(dice: Random) -> bytes:
    """A large review; one in twenty is as large as anything that the API server sends."""
    found = review(dice)
    size = dice.choice([1, 2, 3]) << 20 if dice.random() < 0.05 else 50_000
    found["request"]["oldObject"] = "x" * size
    return json.dumps(found).encode()


_MAKERS: list[Callable[[Random], bytes]] = [
    _valid, _mistyped, _damaged, _doubled, _deep, _noise, _huge,
]  # fmt: skip
_SHARES = [46, 20, 20, 5, 2, 6, 1]
