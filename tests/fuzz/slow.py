"""Slow bodies: many cheap parts each, close to the limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from unit.rules.starting import reviewed

from fuzz import pods
from fuzz.bodies import INJECT, MUTATE, Ask

CONFIG = "proxy.istio.io/config"
INJECTED = {"sidecar.istio.io/status": "{}"}
_16K = 16 * 1024
_MIB = 1 << 20
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"

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


def asks() -> Iterator[tuple[str, Ask]]:
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
        for name, filling in fillings.items():
            yield f"{size} bytes: {name}", _review({}, junk=filling)
        cut_off = _review({}, junk=fillings["lists"])[:-2]
        yield f"{size} bytes, cut off", cut_off
        yield f"{size} bytes: an annotation", _review({"annotations": {"a": "\x01" * (room // 6)}})
        yield f"{size} bytes: a name", _review({"name": "\x01" * (room // 6)})
        mode = {"istio-aux.io/start": "\x02" * (room // 6)}
        yield f"{size} bytes: a mode", _review({"annotations": mode})
    names = ",".join(f"c{number:x}" for number in range(300_000))
    for key in pods.KEYS:
        for text in ("0" * 2_000_000, "a," * 1_000_000, names):
            yield f"2 MB of {key}: {text:.9}", _review({"annotations": {key: text}})


def _review(metadata: dict[str, Any], spec: dict[str, Any] | None = None, **more: Any) -> bytes:
    """A review as the API server writes it: no blanks, and the uid first."""
    pod = {
        "kind": "Pod",
        "metadata": {"generateName": "mnist-", **metadata},
        "spec": spec or {"containers": []},
    }
    found = reviewed(uid=UID, object=pod, **more)
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()
