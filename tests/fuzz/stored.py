"""Read stored pods, decide about them and show them, as `serve`, `explain` and `audit` do.

Nothing may raise, take long, need much memory, or show what a terminal would obey. What cannot be
read costs that object alone.
"""

from __future__ import annotations

import gc
import io
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from random import Random
from typing import Any

from istio_aux.cli import report
from istio_aux.cli.output import Output
from istio_aux.injector.capture import NodeAgents
from istio_aux.injector.injection import expected, hooks_of
from istio_aux.judge.pods import judge as judge_pod, outside
from istio_aux.kube.errors import KubeError
from istio_aux.kube.events import Events
from istio_aux.kube.objects import read_event, read_page
from istio_aux.model import documents, pod as stored_pods
from istio_aux.model.documents import shallow
from istio_aux.model.found import Found
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod
from istio_aux.model.policy import QuitPolicy, RacePolicy, RepairPolicy
from istio_aux.quit.attempt import PodState, QuitScope
from istio_aux.quit.controller import QuitController
from istio_aux.quit.facts import PodFacts
from istio_aux.repair.controller import RepairController
from istio_aux.telemetry import Telemetry
from soak import MIB, Simulated, memory
from unit.process import Led
from unit.rules.pods import DEFAULT, ENABLED, POLICIES, judged, recorded

from fuzz import bodies
from fuzz.bodies import deepest
from fuzz.play import CORPUS, ENOUGH, GROWTH, least

BUDGET = 0.05
"""Seconds of CPU for a step, for a pod or for each MiB of it."""
DEEP = 500
"""Levels beyond which a text may be too deep for a decoder. It is read again then, in slices of a
millisecond between which other tasks run, so that it costs more, and delays nobody."""
SLICES = 8
"""Times the budget for that."""
MEMORY = 64.0
"""MiB while a pod is handled: what 480,000 texts take as objects of Python, twice."""
KEPT = 0.25
"""MiB that stay for a pod which is followed, with what it leaves in caches."""
NOW = Moment(1000.0, 1_795_000_000.0)
"""Any time after those in the pods."""
NAMESPACES = {"training": ENABLED}
HOOKS = hooks_of([recorded(DEFAULT)])
NEIGHBOUR = bodies.event({"kind": "Pod", "metadata": {"name": "neighbour"}})
_READING = {"watch", "list", "file"}


class Followers:
    """What `serve` keeps about pods."""

    def __init__(self) -> None:
        telemetry = Telemetry()
        client = Simulated()
        events = Events(client, "fuzz")
        self.quit = QuitController(client, {}, telemetry, events, QuitScope(), leadership=Led())
        self.repair = RepairController(
            client, NAMESPACES, telemetry, events, policy=RepairPolicy(race=RacePolicy.RESTART),
            leadership=Led(),
        )  # fmt: skip

    async def read(self, line: bytes) -> Pod | None:
        """The pod in a line of a watch; None if the watch cannot read it."""
        try:
            return (await read_event(line, Pod)).resource
        except KubeError:
            return None

    async def list(self, line: bytes) -> bool:
        """Whether a pod is read from the page that the other one is in, if that is JSON."""
        try:
            page = await read_page(bodies.page([line, NEIGHBOUR]), Pod)
        except KubeError:
            return not _is_json(bodies.pod_of(line))
        return page.items[-1].metadata.name == "neighbour"

    def follow(self, pod: Pod) -> None:
        self.quit.apply(pod)
        self.repair.store.apply(pod)


def explained(pod: Pod) -> report.Explanation:
    return report.explain(pod, judged(pod, NOW))


def audited(pod: Pod) -> tuple[Found, ...]:
    ours = judged(pod, NOW, quit_policy=QuitPolicy(grace=30))
    meshed = partial(expected, hooks=HOOKS, policies=POLICIES)
    return judge_pod(pod, ours, outside(pod, ENABLED, ours, meshed, NodeAgents(), now=NOW.date))


def read_file(body: bytes) -> None:
    """What `explain -f` does."""
    for document in documents.read(body):
        if isinstance(document, documents.Document):
            try:
                pod = stored_pods.decode(document.readable)
            except (ValueError, RecursionError):
                continue
            report.explain(pod, judged(pod))


class Judge:
    """Runs the steps of one pod, and collects findings."""

    def __init__(self, name: str, line: bytes) -> None:
        self.name, self.findings = name, list[str]()
        self._allowed = BUDGET * max(1.0, len(line) / MIB)
        self._slices = deepest(line) > DEEP

    async def step(self, what: str, work: Callable[[], Any]) -> Any:
        """Return what ``work``, a function or a coroutine function, returns; None if it raises."""
        allowed = self._allowed * (SLICES if self._slices and what in _READING else 1)
        try:
            seconds, found = await least(work, time.thread_time, allowed)
        except Exception as error:  # Anything is a finding.
            self.add(f"{what}: {error!r:.300}")
            return None
        if seconds > allowed:
            self.add(f"{what}: {seconds * 1000:.0f} ms of CPU, {allowed * 1000:.0f} allowed")
        return found

    def add(self, what: str) -> None:
        self.findings.append(f"{self.name}: {what}")


async def judge(name: str, line: bytes, followers: Followers) -> list[str]:
    judge = Judge(name, line)
    pod = await judge.step("watch", lambda: followers.read(line))
    if await judge.step("list", lambda: followers.list(line)) is False:
        judge.add("its neighbour is lost")
    await judge.step("file", lambda: read_file(bodies.pod_of(line)))
    if not isinstance(pod, Pod):
        return judge.findings
    state, scope = PodState(pod.metadata.key), QuitScope()
    await judge.step("decide", lambda: state.decide_on(PodFacts(pod, QuitPolicy()), scope, NOW))
    await judge.step("store", lambda: followers.follow(pod))
    answers = [
        await judge.step("explain", lambda: explained(pod)),
        await judge.step("audit", lambda: audited(pod)),
    ]
    if not line.isascii() or b"\\u" in line:
        for line_ in _shown(answers):
            if not line_.isprintable():
                judge.add(f"shown: {line_!r:.300}")
    return judge.findings


async def weighed(name: str, line: bytes) -> list[str]:
    """Findings about the memory that one pod takes, while it is handled and afterwards."""
    followers = Followers()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    if pod := await followers.read(line):
        followers.follow(pod)
        explained(pod)
        audited(pod)
    _, peak = tracemalloc.get_traced_memory()
    del pod
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    found = (("while it is handled", peak, MEMORY), ("afterwards", kept, KEPT))
    return [
        f"{name}: {(bytes_ - before) / MIB:.1f} MiB {when}, {most:g} allowed"
        for when, bytes_, most in found
        if bytes_ - before > most * MIB
    ]


def _is_json(body: bytes) -> bool:
    """Whether the API server could have written it, as deep as it is.

    Go writes U+FFFD for half a surrogate pair, so a text with one cannot be encoded here.
    """
    try:
        json.dumps(json.loads(shallow(body)), ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


def _shown(answers: list[Any]) -> Iterator[str]:
    """Lines that `explain` and `audit` print."""
    explanation, found = answers
    for output in ("json", "text"):
        with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as stream:
            if explanation:
                Output(output).show([explanation], report.explain_text)
            for finding in found or ():
                Output(output).show(
                    [finding], report.audit_text, audit=report.Audit([finding], 1), now=NOW.date
                )
        yield from stream.buffer.getvalue().decode().split("\n")


async def play(
    count: int, seed: int, tell: Callable[[str], object] = lambda _: None, *, nth: int = 1
) -> list[str]:
    """Judge what was kept, every ``nth`` of the slow pods, and ``count`` random ones of a seed."""
    followers, findings = Followers(), list[str]()
    for file in sorted(CORPUS.glob("*.pod")):
        findings += await judge(file.name, file.read_bytes(), followers)
    for number, (name, line) in enumerate(bodies.slow_pods()):
        if number % nth == 0:
            findings += await judge(name, line, followers)
            findings += await weighed(name, line)
    tell(f"slow pods: {len(findings)} findings")
    before = 0
    for number in range(count):
        name, line = f"{seed}-{number}", bodies.make_pod(Random(f"{seed}:{number}"))
        if found := await judge(name, line, followers):
            (CORPUS / f"{name}.pod").write_bytes(line)
            findings += found
            break
        if number in {count // 5, count - 1}:
            gc.collect()
            grown, before = memory() - before, memory()
            tell(f"{number + 1} pods: {before:.1f} MiB")
            if number == count - 1 and count >= ENOUGH and grown > GROWTH:
                findings.append(f"memory grew by {grown:.1f} MiB, at most {GROWTH:.0f} are allowed")
    return findings
