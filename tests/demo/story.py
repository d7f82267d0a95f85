"""What happened to the pods of a job, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one container, from its start to its end; `finished` is None while it runs."""

    started: datetime
    finished: datetime | None = None
    exit_code: int | None = None

    @property
    def succeeded(self) -> bool:
        return self.finished is not None and self.exit_code == 0

    @property
    def failed(self) -> bool:
        return self.finished is not None and self.exit_code != 0


@dataclass(frozen=True, slots=True)
class PodStory:
    """One pod: every run of its payload container and of its proxy, oldest first.

    `proxy_ready` is when the proxy itself said so, or when its readiness was first seen.
    `first_word` is the first line that the payload's last run logged: it started no later.
    `native` says whether the proxy is a native sidecar, which the kubelet ends itself.
    """

    namespace: str
    name: str
    phase: str
    payload: tuple[Run, ...] = ()
    proxy: tuple[Run, ...] = ()
    proxy_ready: datetime | None = None
    first_word: datetime | None = None
    native: bool = False

    @property
    def last_try(self) -> Run | None:
        return self.payload[-1] if self.payload else None

    @property
    def failed_tries(self) -> tuple[Run, ...]:
        return tuple(run for run in self.payload if run.failed)

    @property
    def proxy_run(self) -> Run | None:
        """The newest run of the proxy; None when the pod has no sidecar."""
        return self.proxy[-1] if self.proxy else None

    @property
    def hangs(self) -> bool:
        """Whether the payload is over, the proxy is not, and so the pod never ends."""
        payload, proxy = self.last_try, self.proxy_run
        return (
            self.phase == "Running"
            and payload is not None
            and payload.finished is not None
            and proxy is not None
            and proxy.finished is None
        )

    @property
    def result(self) -> str:
        if self.hangs:
            return "hangs"
        return {
            "Succeeded": "succeeded",
            "Failed": "failed",
            "Running": "still running",
            "Pending": "never started",
        }.get(self.phase, f"unknown (phase {self.phase or 'missing'})")


@dataclass(frozen=True, slots=True)
class JobStory:
    """One job in one namespace, with its pods, from its creation until it was looked at last.

    `condition` is the newest condition that is true, such as Running or Succeeded, or empty.
    `helped` says whether istio-aux looks after the namespace.
    """

    kind: str
    namespace: str
    name: str
    helped: bool
    workers: int
    created: datetime
    until: datetime
    condition: str = ""
    pods: tuple[PodStory, ...] = ()

    @property
    def native(self) -> bool:
        return bool(self.pods) and all(pod.native for pod in self.pods)

    @property
    def setting(self) -> str:
        """What tells the job from the others, as a sentence begins."""
        if not self.helped:
            return "without istio-aux"
        return "with istio-aux, native sidecars" if self.native else "with istio-aux"

    @property
    def succeeded(self) -> bool:
        return self.condition in ("Succeeded", "Complete")

    def seconds(self, moment: datetime) -> float:
        return (moment - self.created).total_seconds()
