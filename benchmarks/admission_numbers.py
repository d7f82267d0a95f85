"""What the admission benchmark measured, and its targets: data and arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.numbers import Numbers, Verdict
from benchmarks.processes import Usage

OURS, CONTROLLER, LEAN = "istio-aux", "controller-runtime", "leanest Go"
WEBHOOKS = (OURS, CONTROLLER, LEAN)
SMALL, LARGE = "6 KB", "25 KB"
SAME, DISTINCT = "6 KB, same configuration", "6 KB, each its own configuration"

BUSY, BUSIER = "16 connections", "64 connections"
STEADY, NEW = "100 a second", "64 at once, each on a new connection"

NEITHER, WEBHOOK = FORMS = ("neither", "webhook")

TARGETS = (
    (SMALL, CONTROLLER, 0.25),
    (LARGE, CONTROLLER, 0.07),
)
"""CPU for a review under full load, ours as a part of a yardstick's. The rest is reported only."""


class Sizes(Numbers, frozen=True, kw_only=True):
    """How much of everything.

    Attributes:
        rounds: how often all of it is done.
        seconds: of load for each webhook, body and number of connections in a round.
        scheduled: the same for 100 reviews a second.
        warm: reviews on each connection before anything counts.
        blocks: of pods that are created of each form in a round, dry ones and as many real ones.
        creations: of pods in a block.
        troubled: creations for each trouble.
        patience: whether troubles are measured that last until the API server gives up.
    """

    rounds: int
    seconds: float
    scheduled: float
    warm: int
    blocks: int
    creations: int
    troubled: int
    patience: bool


class Round(Numbers, frozen=True, kw_only=True):
    """One stretch of load. CPU is in microseconds a review, latencies in milliseconds.

    Attributes:
        reviews: how many were answered, every one as it should be.
        cpu: of the webhook's process.
        rate: reviews a second.
        generator: the part of its core that the load generator used.
        latencies: all of them, ascending, where reviews came on a schedule; else none.
    """

    reviews: int
    cpu: float
    rate: float
    p50: float
    p99: float
    generator: float
    latencies: list[float]


class Load(Numbers, frozen=True, kw_only=True):
    """What a webhook did with one kind of review under one kind of load, in each round."""

    webhook: str
    body: str
    size: int
    load: str
    rounds: list[Round]

    def of(self, what: str) -> float:
        """The median over the rounds of an attribute of `Round`."""
        return median(getattr(one, what) for one in self.rounds)


class Creations(Numbers, frozen=True, kw_only=True):
    """The creation of pods, by who changes them, in the order of creation.

    Attributes:
        milliseconds: that each pod took.
        cpu: milliseconds of CPU of the API server for a pod, by block.
    """

    form: str
    dry_run: bool
    milliseconds: list[float]
    cpu: list[float]


class Trouble(Numbers, frozen=True, kw_only=True):
    """Milliseconds that pods took while the webhook was in trouble, and how many were changed."""

    what: str
    milliseconds: list[float]
    changed: int


class Results(Numbers, frozen=True, kw_only=True):
    """Everything of one run."""

    sizes: Sizes
    machine: dict[str, str]
    loads: list[Load]
    used: dict[str, Usage]
    creations: list[Creations]
    troubles: list[Trouble]

    def load(self, webhook: str, body: str, load: str) -> Load:
        """The one of these names."""
        asked = (webhook, body, load)
        return next(one for one in self.loads if (one.webhook, one.body, one.load) == asked)

    def ratio(self, body: str, yardstick: str) -> float:
        """CPU for a review of 16 connections, ours as a part of the yardstick's.

        The median of the rounds' ratios: what is compared was measured within seconds.
        """
        ours, other = (self.load(name, body, BUSY).rounds for name in (OURS, yardstick))
        return median(one.cpu / two.cpu for one, two in zip(ours, other, strict=True))

    def verdicts(self) -> Iterator[Verdict]:
        """Each target with what was measured."""
        for body, yardstick, target in TARGETS:
            measured = self.ratio(body, yardstick)
            yield Verdict(
                what=f"CPU for a review of {body}, beside {yardstick}",
                measured=f"{measured:.3f}x",
                target=f"at most {target:g}x",
                met=measured <= target,
            )

    def created(self, form: str, *, dry_run: bool) -> Creations:
        """The creations of pods of this form."""
        asked = (form, dry_run)
        return next(one for one in self.creations if (one.form, one.dry_run) == asked)
