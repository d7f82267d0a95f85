"""What `/status` shows of pods without a sidecar, and of applications that ask for sidecars."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from istio_aux.model.answers import ApplicationMesh, in_order
from istio_aux.model.applications import ALL_PODS, EVERY, LABEL, Application, Applications, parse
from istio_aux.model.documents import Cooperative
from istio_aux.model.found import Found
from istio_aux.model.owners import workload
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.text import listed
from istio_aux.repair.rollout import Defer, Sidecar, Stop
from istio_aux.repair.rules import Candidate, ReportUnmeshed, Restart
from istio_aux.repair.store import PodStore, StoredPod

_log = logging.getLogger(__name__)

POLL = 2.0  # Seconds between two reads of the file.
_NAMED = 3  # Pods that a reason names; the others are counted.


async def follow_applications(
    path: Path, changed: Callable[[Applications], None], interval: float = POLL
) -> None:
    """Pass the applications that the file names to ``changed``, now and after each change.

    A file that does not exist names none. A file that cannot be read changes nothing.
    """
    known: str | None = ""
    before = Applications()
    while True:
        text = _read(path, report=known is not None)
        if text is not None and text != known:
            applications, problems = parse(text)
            for problem in problems:
                _log.error("%s: %s", path, problem, extra={"event": "applications"})
            if applications != before:
                before = applications
                changed(applications)
        known = text
        await asyncio.sleep(interval)


def _read(path: Path, *, report: bool) -> str | None:
    """The text of the file; None if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        if report:
            _log.error("%s", error, extra={"event": "applications", "outcome": "kept"})
        return None


def application_status(store: PodStore, unlisted: str = "") -> list[ApplicationMesh]:
    """Report on each named application, and once on all of a model (`EVERY`), sorted.

    ``unlisted`` says why the pods are not known; empty if they are.
    """
    asking = sorted(
        (each for each in store.applications.named if each.name != ALL_PODS),
        key=lambda each: (each.namespace, each.name),
    )
    pods = defaultdict[Application, list[StoredPod]](list)
    for pod in store.pods.values() if asking else ():
        if pod.application and not pod.deleting:
            for name in (pod.application, EVERY):
                pods[Application(pod.key.namespace, name)].append(pod)
    return [_status(store, each, pods[each], unlisted) for each in asking]


def _status(
    store: PodStore, asking: Application, pods: Sequence[StoredPod], unlisted: str
) -> ApplicationMesh:
    expectation = store.expect(
        InjectionRequest(
            namespace=asking.namespace,
            labels={LABEL: asking.name},
            namespace_labels=store.namespaces.get(asking.namespace, {}),
        ).admitted(store.applications)
    )
    live = expectation.expected
    why = expectation.reason
    if live:
        live = store.control_planes.live(expectation.configuration)
        why = next(
            (
                each.why
                for each in store.control_planes.injectors
                if each.configuration == expectation.configuration
            ),
            "its injector is not among those that are watched",
        )
    meshed, meshed_why = (None, unlisted) if unlisted else _meshed(pods)
    return ApplicationMesh(
        namespace=asking.namespace,
        name=asking.name,
        live=live,
        live_reason=why,
        revision=expectation.control_plane.revision,
        root_namespace=expectation.control_plane.namespace,
        meshed=meshed,
        meshed_reason=meshed_why,
    )


def _meshed(pods: Sequence[StoredPod]) -> tuple[bool | None, str]:
    without = sorted(pod.key.name for pod in pods if pod.sidecar is not Sidecar.PRESENT)
    if without:
        return False, f"without a sidecar: {listed(without, most=_NAMED)}"
    if not any(pod.running for pod in pods):
        return None, "it has no pod that runs"
    return True, f"{len(pods)} of {len(pods)} pods have a sidecar"


def oldest(pods: Iterable[StoredPod], limit: int | None = None) -> Cooperative[list[Found]]:
    """Return so many of the pods, the oldest first, as ``/status`` shows them."""
    # Pods without a candidate have changed meanwhile.
    shown = (_unmeshed(pod, read) for pod in pods if (read := pod.candidate))
    found = yield from in_order(shown, lambda each: (each.since, each.namespace, each.name))
    return found[:limit]


def _unmeshed(pod: StoredPod, read: Candidate) -> Found:
    owner = pod.owner
    reason = pod.action.reason
    if owner and isinstance(owner.step, Defer | Stop) and pod.replica.restart:
        reason = f"{reason}; {owner.step.reason}"
    found = pod.action if isinstance(pod.action, ReportUnmeshed | Restart) else None
    return Found(
        **pod.key._asdict(),
        state="unmeshed",
        owner=workload(read.owner, read.injection.labels),
        reason=reason,
        since=datetime.fromtimestamp(read.created, UTC),
        code=found.code if found else "",
    )
