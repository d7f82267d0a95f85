"""What a kubelet concludes from container states: pure functions of a spec and its containers.

Written from the rules of Kubernetes 1.36 (``ContainerShouldRestart``, ``getPhase``), without the
workload's ``istio_aux.quit.facts``: a test must not judge code by that same code.
"""

from __future__ import annotations

from collections.abc import Mapping

from lab.kubelet.api import Object
from lab.kubelet.containers import Container, Running, Terminated, Waiting

TERMINAL = ("Succeeded", "Failed")


def native(container: Object) -> bool:
    """Whether an init container is a sidecar (``restartPolicy: Always``)."""
    return container.get("restartPolicy") == "Always"


def should_restart(container: Object, spec: Object, exit_code: int) -> bool:
    """Whether the kubelet starts the container again after this exit code.

    Asked in the order of ``ContainerShouldRestart``: the container's rules and policy, the pod's.
    """
    policy = spec.get("restartPolicy", "Always")
    if "restartPolicy" in container:
        if any(_applies(rule, exit_code) for rule in container.get("restartPolicyRules", [])):
            return True
        policy = container["restartPolicy"]
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def unfinished(spec: Object, containers: Mapping[str, Container]) -> list[str]:
    """The regular containers that run, have not started, or will be started again, by name.

    All of them while one that ended restarts all (``RestartAllContainers``, KEP-5532).
    """
    regular = [(c["name"], c, containers.get(c["name"])) for c in spec["containers"]]
    ends = [(c, s.state) for _, c, s in regular if s and isinstance(s.state, Terminated)]
    if any(_restarts_all(c, end.exit_code) for c, end in ends):
        return [name for name, *_ in regular]
    done = [c["name"] for c, end in ends if not should_restart(c, spec, end.exit_code)]
    return [name for name, *_ in regular if name not in done]


def _restarts_all(container: Object, exit_code: int) -> bool:
    matching = (r for r in container.get("restartPolicyRules", []) if _applies(r, exit_code))
    return next(matching, {}).get("action") == "RestartAllContainers"


def _applies(rule: Object, exit_code: int) -> bool:
    # Both actions that exist, Restart and RestartAllContainers, mean "will run again".
    if "exitCodes" not in rule:
        return False
    listed = exit_code in rule["exitCodes"].get("values", [])
    return listed if rule["exitCodes"]["operator"] == "In" else not listed


def phase(spec: Object, containers: Mapping[str, Container]) -> str:
    """The phase of a pod that is initialised, as ``getPhase`` has it.

    A container that is absent from ``containers`` has no status yet: the pod is Pending.
    Restartable init containers count while they run; their exit codes never count.
    """
    regular = [(c, containers.get(c["name"])) for c in spec["containers"]]
    sidecars = [containers.get(c["name"]) for c in spec.get("initContainers", []) if native(c)]
    observed = [state for _, state in regular] + sidecars
    if any(c is None or (isinstance(c.state, Waiting) and c.last is None) for c in observed):
        return "Pending"
    if any(c is not None and isinstance(c.state, Running) for c in observed):
        return "Running"
    ends = [(c, end) for c, state in regular if (end := _end(state)) is not None]
    if any(should_restart(c, spec, end.exit_code) for c, end in ends):
        return "Running"
    succeeded = all(
        state is not None and isinstance(state.state, Terminated) and state.state.exit_code == 0
        for _, state in regular
    )
    return "Succeeded" if succeeded else "Failed"


def _end(container: Container | None) -> Terminated | None:
    if container is None:
        return None
    if isinstance(container.state, Terminated):
        return container.state
    return container.last
