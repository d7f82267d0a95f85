"""Pods for tables of tests: a row says only what differs from a Job's pod on a classic sidecar."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from istio_aux.injector.capture import NodeAgents
from istio_aux.injector.injection import Expectation
from istio_aux.judge.installation import Installation, Installations, Judgement
from istio_aux.judge.pods import judge, outside
from istio_aux.model import pod as pods
from istio_aux.model.found import Found
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod
from istio_aux.model.resources import Requests
from istio_aux.settings import DEFAULTS
from msgspec.structs import replace

RECORDS = Path(__file__).parents[2] / "data" / "demo"
"""Recordings of a real cluster; tests/data/README.md says of which."""


def moment(date: datetime, after: float = 0) -> Moment:
    """So many seconds after a date, in a process that began in 1970 and whose clock is right."""
    seconds = (date + timedelta(seconds=after)).timestamp()
    return Moment(seconds, seconds)


ENDED = datetime(2026, 11, 21, 8, 16, 29, tzinfo=UTC)
"""When every container of these pods ended that has ended, unless a row says otherwise."""
JOB = ("batch/v1", "Job")
"""The apiVersion and the kind of a pod's controller."""

State = dict[str, Any] | None
"""A container's state as JSON; None leaves its status out."""

RUNNING: State = {"running": {"startedAt": "2026-11-21T08:16:26Z"}}
MISSING: State = None
EMPTY: State = {}


def exited(code: int, reason: str = "", *, at: str = "2026-11-21T08:16:29Z") -> State:
    """The state of a container that ended with ``code`` at a time in RFC 3339."""
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}


def waiting(reason: str) -> State:
    """The state of a container that waits for its first or its next start."""
    return {"waiting": {"reason": reason}}


def ruled(action: str, operator: str, *codes: int, policy: str = "Never") -> dict[str, Any]:
    """Details of a container with one restart rule."""
    rule = {"action": action, "exitCodes": {"operator": operator, "values": list(codes)}}
    return {"restartPolicy": policy, "restartPolicyRules": [rule]}


def document(
    containers: Mapping[str, State],
    *,
    sidecars: Mapping[str, State] | None = None,
    restart: str | None = "Never",
    phase: str | None = "Running",
    spec: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    details: Mapping[str, Mapping[str, Any]] | None = None,
    conditions: list[dict[str, str]] | None = None,
    status: Mapping[str, Any] | None = None,
    owner: tuple[str, str] | None = None,
    deleting: bool = False,
    gone_by: str = "2026-11-21T08:17:00Z",
    grace: int = 30,
) -> dict[str, Any]:
    """A pod as JSON: ``containers`` and native ``sidecars`` map names, in order, to states.

    ``details`` adds fields to the spec of a container, by its name; ``spec`` and ``status`` add
    fields to theirs. ``owner`` is the apiVersion and the kind of the controller. ``grace`` is what
    is left of the grace period of one that is ``deleting``, and ``gone_by`` its end.
    """
    more = details or {}
    metadata: dict[str, Any] = {"name": "job-x7k2p", "namespace": "training", "uid": "u-1"}
    if "istio-proxy" in {*containers, *(sidecars or {})}:
        annotations = {"sidecar.istio.io/status": "{}", **(annotations or {})}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    if owner is not None:
        version, kind = owner
        metadata["ownerReferences"] = [{"apiVersion": version, "kind": kind, "controller": True}]
    if deleting:
        metadata["deletionTimestamp"] = gone_by
        metadata["deletionGracePeriodSeconds"] = grace
    inits = sidecars or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": restart,
            "containers": [{"name": name, **more.get(name, {})} for name in containers],
            "initContainers": [
                {"name": name, "restartPolicy": "Always", **more.get(name, {})} for name in inits
            ],
            **(spec or {}),
        },
        "status": {
            "phase": phase,
            "conditions": conditions or [],
            "containerStatuses": statuses(containers),
            "initContainerStatuses": statuses(inits),
            **(status or {}),
        },
    }


def statuses(states: Mapping[str, State]) -> list[dict[str, Any]]:
    """Container statuses as JSON, without those that are missing."""
    return [{"name": name, "state": state} for name, state in states.items() if state is not None]


def job(containers: Mapping[str, State], **fields: Any) -> Pod:
    """The same as a `Pod`."""
    return pods.convert(document(containers, **fields))


def judged(pod: Pod, now: Moment | None = None, **settings: Any) -> Judgement:
    """What an installation with these settings does about a pod of a selected namespace."""
    ours = Installation(settings=replace(DEFAULTS, **settings))
    return Installations((ours,)).judge(pod, None, now)


def held(
    *by: str,
    since: datetime | None = None,
    requests: Requests | None = None,
    fix: str = "",
) -> Found:
    """A pod that these containers hold."""
    return Found(
        namespace="training", name="job", uid="u-1", since=since, by=by, requests=requests, fix=fix
    )


def recorded(name: str) -> Pod:
    """A pod as a real cluster reported it."""
    return pods.decode((RECORDS / name).read_bytes())


def listed(pod: Pod, judgement: Judgement, now: datetime) -> Any:
    """What `audit` lists of a pod that Istio would inject; None if nothing."""
    meshed = outside(pod, None, judgement, lambda _: Expectation(True, ""), NodeAgents(), now=now)
    return next((it for it in judge(pod, judgement, meshed) if it.state), None)
