"""What istio-aux promises, as checks of what happened: each is kept or broken, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from demo.story import JobStory, PodStory


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the promise; `why` states the facts it was judged by."""

    name: str
    kept: bool
    why: str


@dataclass(frozen=True, slots=True)
class Performance:
    """The job without and with istio-aux, and a status to show.

    `native` is the job once Istio makes sidecars native on request.
    `worlds` has one row for each kind of Istio: how a pod of the second namespace is started there,
    and one for a pod that was there before its istiod.
    """

    without: JobStory
    helped: JobStory
    native: JobStory
    status: str
    worlds: tuple[Check, ...] = ()

    @property
    def jobs(self) -> tuple[JobStory, JobStory, JobStory]:
        return self.without, self.helped, self.native


def judge(without: JobStory, *helped: JobStory) -> tuple[Check, ...]:
    """Judge the same job in a namespace without istio-aux and in others with it."""
    rules = (_succeeded, _workers_succeeded, _first_try, _after_proxy, _proxy_exit)
    checks = [rule(job) for job in helped for rule in rules]
    return (_not_succeeded(without), _sidecar_to_blame(without), *checks)


def _not_succeeded(job: JobStory) -> Check:
    state = job.condition or "not over"
    return Check(
        f"{job.setting}, the {job.kind} does not succeed",
        bool(job.pods) and not job.succeeded,
        f"{job.namespace}/{job.name} is {state} after {job.seconds(job.until):.0f} s",
    )


def _sidecar_to_blame(job: JobStory) -> Check:
    """A job that never ran at all does not succeed either, and would prove nothing."""

    def one(pod: PodStory) -> tuple[bool, str]:
        run = pod.last_try
        ended = run is not None and run.finished is not None
        payload = f"payload exit code {run.exit_code}" if run and ended else "payload not over"
        return pod.hangs, f"{payload}, pod {pod.result}"

    return _each(f"{job.setting}, every payload ends and its proxy runs on", job, one)


def _succeeded(job: JobStory) -> Check:
    return Check(
        f"{job.setting}, the {job.kind} succeeds",
        job.succeeded,
        f"{job.namespace}/{job.name} is {job.condition or 'not over'}",
    )


def _workers_succeeded(job: JobStory) -> Check:
    return _each(
        f"{job.setting}, all {job.workers} workers succeed",
        job,
        lambda pod: (pod.phase == "Succeeded", pod.result),
    )


def _first_try(job: JobStory) -> Check:
    def one(pod: PodStory) -> tuple[bool, str]:
        codes = [run.exit_code for run in pod.payload]
        return codes == [0], f"exit codes {codes}"

    return _each(f"{job.setting}, every payload runs once and exits 0", job, one)


def _after_proxy(job: JobStory) -> Check:
    return _each(f"{job.setting}, no payload starts before its proxy is ready", job, _started_after)


def _started_after(pod: PodStory) -> tuple[bool, str]:
    """Compare in whole seconds, as Kubernetes reports them, and by the payload's first logged line.

    Either alone proves that the payload came too early; a start within the proxy's own second is
    settled by the log.
    """
    if not pod.payload or pod.proxy_ready is None:
        return False, "payload or proxy never started" if not pod.payload else "proxy never ready"
    started, ready = pod.payload[0].started, pod.proxy_ready
    spoke_early = pod.first_word is not None and pod.first_word < ready
    kept = started.replace(microsecond=0) >= ready.replace(microsecond=0) and not spoke_early
    gap = (started - ready).total_seconds()
    # The API's whole second of the start may lie before a ready time that the log gives exactly.
    if kept and gap < 0:
        return True, "in the same second"
    return kept, f"{abs(gap):.1f} s {'after' if gap >= 0 else 'before'} it"


def _proxy_exit(job: JobStory) -> Check:
    def one(pod: PodStory) -> tuple[bool, str]:
        run = pod.proxy_run
        if run is None:
            return False, "no proxy"
        if run.finished is None:
            return False, "still running"
        return run.exit_code == 0, f"exit code {run.exit_code}"

    return _each(f"{job.setting}, every proxy exits 0", job, one)


def _each(name: str, job: JobStory, one: Callable[[PodStory], tuple[bool, str]]) -> Check:
    """One check over all pods; `one` says whether a pod keeps it, and the fact it goes by."""
    verdicts = [(pod.name, *one(pod)) for pod in job.pods]
    missing = job.workers - len(verdicts)
    facts = [f"{pod}: {why}" for pod, _, why in verdicts]
    if missing > 0:
        facts.append(f"{missing} of {job.workers} pods were never seen")
    return Check(name, missing <= 0 and all(kept for _, kept, _ in verdicts), "; ".join(facts))
