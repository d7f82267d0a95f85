"""Containers that wait for the proxy while the proxy waits for them, and what frees their pods.

In Katib's trials the metrics collector waits for the first process of every other container, also
for pilot-agent, and needs the network afterwards (katib#1638, katib#2614). So the proxy must stay,
and only Katib's configuration can keep the collector from waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from istio_aux.model.findings import Code
from istio_aux.model.pod import PROXY, ContainerState, Pod
from istio_aux.model.sidecars import ENDS_LAST

# The setting is there in Katib 0.16 to 0.19 (katib pkg/apis/config/v1beta1/types.go).
KATIB_FIX = (
    "Katib's metrics collector waits for istio-proxy: set waitAllProcesses: false "
    "in ConfigMap katib-config, runtime.metricsCollectors, for new trials"
)

# This frees a mounter that no row of `known_sidecars` matches, or that `sidecars` keeps as it is.
GCSFUSE_FIX = (
    "the mounter of GCS FUSE waits for istio-proxy: set gke-gcsfuse-sidecar=ignore "
    "in option sidecars or annotation istio-aux.io/sidecars"
)

# Names of collectors: of stdout and files; of TensorFlow events (katib common/const.go).
KATIB_COLLECTORS = frozenset({"metrics-logger-and-collector", "metrics-collector"})
KATIB_MARK = "echo completed > "  # Ends the training container's command (katib pod/utils.go).


def _katib(pod: Pod) -> tuple[frozenset[str], frozenset[str]]:
    """The training containers, and the collectors that wait for the proxy.

    Only what Katib's webhook writes counts: another container may have the name of a collector.
    Without `waitAllProcesses` in its configuration, Katib writes no ``-w``, and waits for all.
    """
    running = {name for name, state in pod.states.items() if state.running}
    if pod.spec.share_process_namespace is not True or PROXY not in running:
        return frozenset(), frozenset()
    arguments = {container.name: container.args or () for container in pod.containers}
    training = {n for n, words in arguments.items() if any(KATIB_MARK in word for word in words)}
    waiting = {n for n, words in arguments.items() if ("-w", "false") not in pairwise(words)}
    return frozenset(training), KATIB_COLLECTORS & waiting & running


def _gcsfuse(pod: Pod) -> tuple[frozenset[str], frozenset[str]]:
    """The payload, and the mounter, which ends after all regular containers."""
    states = {each.name: pod.states.get(each.name, ContainerState()) for each in pod.containers}
    running = {name for name, state in states.items() if state.running}
    waits = ENDS_LAST & running if PROXY in running else frozenset[str]()
    return frozenset({*states} - ENDS_LAST - {PROXY}), waits


Waiting = Callable[[Pod], tuple[frozenset[str], frozenset[str]]]
# By code: what frees the pod, and a function that returns the payload and the containers that wait
# for the proxy alone once the payload has ended.
PAIRS: Mapping[Code, tuple[str, Waiting]] = {
    Code.KATIB: (KATIB_FIX, _katib),
    Code.GCSFUSE: (GCSFUSE_FIX, _gcsfuse),
}
