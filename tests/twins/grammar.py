"""The values of a pair, each drawn from a seed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

Values = Mapping[str, str]

# Weights in percent. The usual value comes first: with two or three unusual ones in a pod it is
# still plain which of them matters. What fails without istio-aux and with it says little.
GRAMMAR: Mapping[str, Mapping[str, int]] = {
    "restart": {"Never": 50, "OnFailure": 50},
    "backoff": {"3": 75, "0": 25},
    "failure policy": {"none": 82, "exit codes": 9, "exit codes of main": 9},
    "init": {
        "none": 33, "true": 10, "fetches at once": 9, "fetches for 20 s": 13,
        "fetches if it can": 13, "fails": 5, "several": 9, "is the work": 8,
    },
    "resources": {
        "none": 66, "init above main": 12, "main above init": 8, "only limits": 8, "of the pod": 6,
    },
    "grace": {"30": 62, "2": 20, "0": 18},
    "ends the proxy": {
        "nobody": 68, "arguments": 8, "ConfigMap": 8, "wrapper": 8, "kill": 8,
    },
    "other sidecar": {"none": 76, "known": 9, "unknown": 6, "native": 9},
    "payload": {
        "short": 38, "20 s": 20, "fails first": 14, "serves a peer": 14, "ignores SIGTERM": 14,
    },
    "probe": {"none": 79, "readiness": 7, "liveness": 7, "startup": 7},
    "templates": {"sidecar": 91, "custom": 9},
    "proxy config": {"none": 76, "drain": 8, "hold": 8, "no hold": 8},
    "annotation": {
        "none": 65, "quit: false": 7, "quit-after: main": 7, "start: none": 7, "start: hold": 7,
        "start: native": 7,
    },
    "quota": {"none": 86, "roomy": 7, "tight": 7},
    "limit range": {"none": 86, "defaults": 7, "of pods": 7},
    "pod security": {"none": 94, "baseline": 6},
    "peers": {"PERMISSIVE": 80, "STRICT": 20},
    "egress": {"any": 84, "REGISTRY_ONLY": 16},
}  # fmt: skip
"""Each dimension of a pair, with its values and how often each of them comes."""


@dataclass(frozen=True)
class Moment:
    """What all pairs of a batch have in common."""

    quit: str = "enabled"  # The option.
    istiod: int = 0  # Seconds for which istiod is away while the pods start.
    workload: str = "stays"  # Or `killed`, and started again later.

    @property
    def values(self) -> dict[str, str]:
        return {
            "option quit": self.quit,
            "istiod is away": f"{self.istiod} s",
            "the workload": self.workload,
        }


USUAL = Moment()
MOMENTS = (
    USUAL,
    Moment(istiod=100),
    Moment(quit="dry-run"),
    Moment(workload="killed"),
    Moment(istiod=40),
    Moment(quit="disabled"),
    USUAL,
    Moment(istiod=40, workload="killed"),
)
"""The batches of a run have them in turn; the seed says which comes first."""

WORLDS = ("unasked", "on-request", "never", "revision")
"""When Istio makes sidecars native; `revision` is one that does so unasked, selected by its tag,
beside another one that never does."""


def draw(seed: int, world: str, number: int) -> dict[str, str]:
    """Draw the values of a pair: always the same for the same arguments."""
    dice = Random(f"{seed}:{world}:{number}")
    values = {
        dimension: dice.choices([*weights], [*weights.values()])[0]
        for dimension, weights in GRAMMAR.items()
    }
    if values["failure policy"] != "none":
        values["restart"] = "Never"  # The API server wants it so.
    return values


def moment(seed: int, world: str, batch: int) -> Moment:
    """Return what the batch of this number has in common."""
    # A run of 400 pairs has three batches in each world.
    return MOMENTS[(seed + 3 * WORLDS.index(world) + batch) % len(MOMENTS)]
