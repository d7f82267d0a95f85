"""Trials of Katib whose metrics collector waits for Istio's proxy, and so never ends.

The collector reports what the training container wrote, once that has ended. By default it waits
for the first process of every other container: Katib makes the pod share its processes, so
pilot-agent is one of them, in a classic or in a native sidecar (katib#1638, katib#2614). The
sidecar in turn ends after the collector; if it is told to exit earlier, the collector has no
network for its report. So nothing may be done about the pod: the collector must not wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from istio_aux.core.pod import PROXY, Container, Pod

COLLECTORS = frozenset({"metrics-logger-and-collector", "metrics-collector"})
"""Names of collectors: of stdout and files; of TensorFlow events (katib common/const.go)."""

FIX = (
    "Katib's metrics collector waits for istio-proxy: set waitAllProcesses: false "
    "in ConfigMap katib-config, runtime.metricsCollectors, for new trials"
)
"""The setting is there in Katib 0.16 to 0.19 (katib pkg/apis/config/v1beta1/types.go)."""

_MARK = "echo completed > "  # The end of the training container's command (katib pod/utils.go).


def fix(pod: Pod, unfinished: Iterable[str]) -> str:
    """Return `FIX` if the pod's collector waits for its proxy although the training has ended.

    ``unfinished`` are the containers that may still run. Only what Katib's webhook writes counts:
    other containers of these names are none of its collectors.
    """
    if pod.spec.share_process_namespace is not True or not pod.runs(PROXY):
        return ""
    trained = [container.name for container in pod.containers if _is_training(container)]
    running = frozenset(unfinished)
    if not trained or not running.isdisjoint(trained):
        return ""
    waiting = (
        container.name in COLLECTORS
        and container.name in running
        and pod.runs(container.name)
        and _waits_for_all(container)
        for container in pod.containers
    )
    return FIX if any(waiting) else ""


def _is_training(container: Container) -> bool:
    return any(_MARK in argument for argument in container.args or ())


def _waits_for_all(container: Container) -> bool:
    """Without `waitAllProcesses` in its configuration, Katib writes no ``-w`` and true counts."""
    return ("-w", "false") not in pairwise(container.args or ())
