"""Random bodies: reviews that are valid, nearly valid or invalid. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from unit.rules.starting import reviewed

from fuzz import pods, texts

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
        found["request"]["object"]["metadata"]["annotations"] = pods.some_annotations(
            dice, config=0.5
        )
        return found
    return reviewed(
        uid=f"{dice.getrandbits(64):x}",
        namespace=dice.choice(["training", "", "é"]),
        operation=dice.choice(["CREATE"] * 9 + ["UPDATE"]),
        dryRun=dice.choice([True, False, None]),
        object=pods.submitted(dice),
    )


def _valid(dice: Random) -> bytes:
    return json.dumps(review(dice), ensure_ascii=dice.random() < 0.5).encode()


def _mistyped(dice: Random) -> bytes:
    """A review with values of other types, or without some of its keys."""
    found = review(dice)
    for _ in range(dice.randint(1, 3)):
        if texts.mistype(dice, found, 0.3):
            break
    return json.dumps(found).encode()


def _damaged(dice: Random) -> bytes:
    found = _valid(dice)
    for _ in range(dice.randint(1, 4)):
        found = texts.damage(dice, found)
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


def _noise(dice: Random) -> bytes:
    return dice.choice([
        dice.randbytes(dice.randint(0, 200)),
        b"".join(dice.choices(texts.JUNK, k=dice.randint(0, 20))),
        json.dumps(dice.choice(texts.ODD)).encode(),
        b'{"request": {"uid": "705ab4f5"}}',
        json.dumps({"request": {"uid": "705ab4f5", "object": dice.choice(texts.ODD)}}).encode(),
    ])  # fmt: skip


_MAKERS: list[Callable[[Random], bytes]] = [
    _valid, _mistyped, _damaged, _doubled, _noise,
]  # fmt: skip
_SHARES = [48, 20, 20, 5, 7]
