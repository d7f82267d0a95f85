"""A check for each kind of Istio: how `start-mode: auto` starts a pod."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import lab.istio
from lab import worlds
from lab.worlds import EXPECTED, Shape

from demo.promise import Check
from demo.steps import Steps

SAID = {
    "never": "where Istio makes no native sidecars, a pod is held",
    "on request": "where Istio makes them on request, a pod gets one",
    "default": "where Istio makes them by default, a pod gets one",
}

Made = Callable[[lab.istio.World], tuple[Shape, str]]
"""Makes a pod in that world; returns its shape, and how it ended."""


def play(
    istio: lab.istio.Istio, namespace: str, made: Made, steps: Steps
) -> Iterator[tuple[lab.istio.World, Check]]:
    """Let Istio be each of the worlds in turn, and make a pod in it; it still is when that is said.

    The first world is the one in which Istio is installed.
    """
    for world, expected in EXPECTED.items():
        worlds.become(istio, world, namespace)
        shape, why = made(world)
        sidecar = "a native sidecar" if shape.native else "a classic sidecar"
        why = f"{sidecar}, started with {shape.started_with}, {why}"
        steps.done(f"{namespace}: Istio {world}: {why}")
        yield world, Check(f"with the label, {SAID[world]}", shape == expected, why)
