"""What breaks first: one knob is turned until something gives; README.md says how.

Ours alone, one unit, beside the pods of `scale`. Two cores: what gives first may be the lab's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks import document, machine, units
from benchmarks.conversation import MeasurementError
from benchmarks.crowd import Crowd, crowded, say
from benchmarks.driver import Where
from benchmarks.numbers import MIB, OURS, Numbers, Verdict, percentile
from benchmarks.processes import Meter, usage
from benchmarks.scale import Scenes, sized, within

LADDERS: dict[str, tuple[int, ...]] = {
    "pods": (1_000, 10_000, 50_000, 100_000),
    "namespaces": (100, 1_000, 2_000, 5_000, 10_000, 20_000),
    "events": (50, 100, 200, 400, 800, 1_600),
    "quits": (10, 25, 50, 75, 100, 150, 200),
    "hostile": (5, 10, 20, 40, 80, 160),
}
"""The values of each knob: numbers of objects, or a second."""
BASE = 5_000  # Pods, while another knob is turned.
LATE, SLOW, BEHIND, FULL = 1.0, 5.0, 0.9, 512
"""What counts as giving: p99 from status to quit, and the answer of `/status`, in seconds; the
first quit after a start, in seconds; events that are stored, of those wanted; the memory limit of
the chart, in MiB."""
SECONDS = 5.0


class Step(Numbers, frozen=True, kw_only=True):
    """A value of the knob, what was measured, and what gave, if anything."""

    value: int
    numbers: dict[str, float]
    gave: str


class Turned(Numbers, frozen=True, kw_only=True):
    """A knob, turned until something gave, or to the end of its ladder."""

    knob: str
    machine: dict[str, str]
    steps: list[Step]

    def verdicts(self) -> Iterator[Verdict]:
        """None: a limit is no goal."""
        yield from ()


def main(knob: str, results: Path | None, *, quick: bool = False) -> None:
    """Turn it, print the table, and keep ``scale-<knob>.md`` and ``.json`` in ``results``.

    Raises MeasurementError, TimeoutError, ChildProcessError: it could not be measured.
    """
    on = machine.describe()
    ladder = LADDERS[knob][:2] if quick else LADDERS[knob]
    base = ladder[0] if knob == "pods" else 200 if quick else BASE
    steps: list[Step] = []
    with crowded(sized(base)) as crowd:
        workload = crowd.deploy(None)
        (unit,) = units.ours(workload, 1, None)
        turn = _Turn(crowd, Scenes(crowd, OURS, [unit], workload, None), unit)
        for value in ladder:
            say(f"{knob}: {value:,}")
            try:
                with within(900, f"{knob} {value}"):
                    numbers = getattr(turn, knob)(value)
                gave = _gave(numbers)
            except (MeasurementError, TimeoutError, OSError) as error:
                numbers, gave = {}, str(error)
            steps.append(Step(value=value, numbers=numbers, gave=gave))
            if gave:
                break
    turned = Turned(knob=knob, machine=on, steps=steps)
    print(markdown(turned))
    if results:
        document.write(results, f"scale-{knob}", turned, markdown(turned))


def markdown(turned: Turned) -> str:
    """A line for each value."""
    keys = dict.fromkeys(key for step in turned.steps for key in step.numbers)
    lines = [
        (
            f"{step.value:,}",
            *(f"{step.numbers[key]:.2f}" if key in step.numbers else "-" for key in keys),
            step.gave or "nothing",
        )
        for step in turned.steps
    ]
    return "\n\n".join(
        [
            f"# Scale benchmark: {turned.knob}",
            ", ".join(f"{name} {value}" for name, value in turned.machine.items()),
            document.table((turned.knob, *keys, "what gave"), lines),
        ]
    )


def _gave(numbers: dict[str, float]) -> str:
    reasons = {
        "the next quit comes late": numbers.get(P99, 0) > LATE,
        "/status answers late": numbers.get(STATUS, 0) > LATE,
        "the first quit comes late": numbers.get(FIRST, 0) > SLOW,
        "the API server does not take as many": numbers.get(TAKEN, 1) < BEHIND,
        "memory": numbers.get(PEAK, 0) > FULL,
    }
    return ", ".join(what for what, true in reasons.items() if true)


P99, STATUS, FIRST = "status to quit, p99 s", "/status, most s", "start to first quit, s"
TAKEN, PEAK, RSS = "taken by the API server", "most MiB", "resident MiB"
CPU, EVENT = "CPU, share of a core", "CPU of an event, µs"


class _Turn:
    """The knobs, by the name of the method."""

    def __init__(self, crowd: Crowd, scenes: Scenes, unit: units.Unit) -> None:
        self._crowd, self._scenes, self._unit = crowd, scenes, unit
        self._namespaces = crowd.sizes.namespaces + 4
        self._pods = crowd.sizes.pods

    def pods(self, value: int) -> dict[str, float]:
        """More pods, in the namespaces that there are."""
        if value > self._pods:
            self._crowd.fill(sized(value - self._pods))
            self._pods = value
        return self._fresh()

    def namespaces(self, value: int) -> dict[str, float]:
        """More namespaces, that are selected and injected and have no pods."""
        if (more := value - self._namespaces) > 0:
            self._crowd.driver.namespaces("mesh", Where(self._namespaces, more))
            self._namespaces = value
        return self._fresh()

    def events(self, value: int) -> dict[str, float]:
        """More events of pods with a proxy."""
        return self._beside("touched", value, whole=False)

    def hostile(self, value: int) -> dict[str, float]:
        """More updates of the largest annotation."""
        return self._beside("hostile", value, whole=True)

    def quits(self, value: int) -> dict[str, float]:
        """More pods that finish."""
        self._started()
        return self._finishing(round(value * SECONDS), value)

    def _fresh(self) -> dict[str, float]:
        """What a new process needs for what there is now."""
        scenes = self._scenes
        if self._running:
            self._unit.stop()
        scenes.start()
        scenes.events()
        took = [self._unit.seconds("/status") for _ in range(5)]
        numbers, used = scenes.numbers, usage(self._unit.process.pid)
        return {
            FIRST: numbers["first-quit"],
            "start to ready, s": numbers["ready"],
            "CPU of the start, s": numbers["start-cpu"],
            RSS: numbers["rss"] / MIB,
            PEAK: used.peak / MIB,
            EVENT: numbers[f"event-job-{self._crowd.sizes.rates[0]}"] * 1e6,
            STATUS: max(took),
        }

    @property
    def _running(self) -> bool:
        return hasattr(self._unit, "process") and self._unit.process.running

    def _started(self) -> None:
        if not self._running:
            self._scenes.start()

    def _beside(self, body: str, rate: int, *, whole: bool) -> dict[str, float]:
        """Pods finish, five a second, beside so many updates of other pods."""
        self._started()
        crowd, taken = self._crowd, list[float]()
        with crowd.driver.twin() as twin:

            def run() -> None:
                with suppress(MeasurementError):
                    times = twin.patch(
                        "job", crowd.sizes.jobs, body, events=round(rate * SECONDS), rate=rate,
                        whole=whole, where=crowd.mesh,
                    )  # fmt: skip
                    taken.append(max(times["stored"]) - min(times["sent"]))

            thread = threading.Thread(target=run)
            meter = Meter({"cpu": self._unit.process.pid})
            numbers = self._finishing(round(5 * SECONDS), 5, before=thread.start)
            thread.join()
        spent = meter.read()
        numbers[TAKEN] = SECONDS / taken[0] if taken else 0
        return {**numbers, CPU: spent["cpu"] / spent["elapsed"]}

    def _finishing(
        self, count: int, rate: float, before: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        crowd, prefix = self._crowd, self._crowd.prefix()
        crowd.driver.create(prefix, count, "running", pod="job", where=crowd.mesh)
        time.sleep(1)  # The watch has them.
        before()
        meter = Meter({"cpu": self._unit.process.pid})
        times = crowd.driver.patch(prefix, count, "finish", rate=rate, where=crowd.mesh)
        told = crowd.driver.await_exits(prefix, count, crowd.sizes.limit, where=crowd.mesh)["told"]
        spent = meter.read()
        took = [end - start for start, end in zip(times["sent"], told, strict=True)]
        lasted = max(times["stored"]) - min(times["sent"])
        return {
            "status to quit, p50 s": percentile(took, 50),
            P99: percentile(took, 99),
            TAKEN: min(1.0, (count / rate) / lasted),
            CPU: spent["cpu"] / spent["elapsed"],
            RSS: usage(self._unit.process.pid).rss / MIB,
        }
