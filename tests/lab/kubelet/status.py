"""How a pod's status shows what the kubelet believes: phase, conditions, containers, addresses."""

from __future__ import annotations

from lab.kubelet import rules
from lab.kubelet.api import Object
from lab.kubelet.containers import Running, now, statuses
from lab.kubelet.record import Record


def status(record: Record) -> Object:
    """The pod's status as the kubelet would write it now."""
    states = record.containers
    regular = [record.containers.get(c["name"]) for c in record.spec["containers"]]
    done = record.phase in rules.TERMINAL
    ready = not done and all(c is not None and isinstance(c.state, Running) for c in regular)
    facts = {
        "PodReadyToStartContainers": not done,
        "Initialized": bool(record.containers),
        "ContainersReady": ready,
        "Ready": ready,
        "PodScheduled": True,
    }
    if record.stopped or "AllContainersRestarting" in record.transitions:
        facts["AllContainersRestarting"] = record.stopped
    return {
        "phase": record.phase,
        "conditions": [_condition(record, kind, true=true) for kind, true in facts.items()],
        "containerStatuses": statuses(record.spec["containers"], states, record.uid),
        "initContainerStatuses": statuses(record.init_containers, states, record.uid),
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": record.ip,
        "podIPs": [{"ip": record.ip}],
        "startTime": record.started_at,
    }


def _condition(record: Record, kind: str, *, true: bool) -> Object:
    value = "True" if true else "False"
    known, since = record.transitions.get(kind, ("", ""))
    if known != value:
        since = now()
        record.transitions[kind] = (value, since)
    return {"type": kind, "status": value, "lastTransitionTime": since}
