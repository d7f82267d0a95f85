"""Whether the pods of a controller are still those that the watch has shown.

A watch may be silent for a minute before anybody notices. A restart must not begin beside one of
somebody else, and a pod that was made before it must not count as its result. So the pods are
listed right before a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import LateError
from istio_aux.model import owners
from istio_aux.model.pod import Pod
from istio_aux.repair.store import PodOwner

FRESH = 1.0  # Seconds from a request to the restart that rests on its answer.
READS = 3

_EACH_ITS_OWN = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
        "controller-revision-hash",
        "statefulset.kubernetes.io/pod-name",
        "training.kubeflow.org/job-role",
        "training.kubeflow.org/replica-index",
        "training.kubeflow.org/replica-type",
    }
)
"""Labels by which pods of one controller differ (k8s@1.36 pkg/controller/statefulset
stateful_set_utils.go, pkg/controller/job; training-operator 1.9 common_types.go)."""


async def changed(
    client: Client, owner: PodOwner, pod: Pod, save: Callable[[], Awaitable[None]]
) -> str:
    """Return why the pods of ``owner`` are not those that are stored; empty if they are.

    ``pod`` is one of them; the others have its labels. ``save`` tells the next leader that it is
    being replaced. That is done only if nothing has changed, and then the pods are listed again.
    Raises KubeError: the pods are not known, or the answer came so late that it may be out of date.
    """
    if why := await _compared(client, owner, pod):
        return why
    await save()
    clock = asyncio.get_running_loop().time
    for _ in range(READS):
        begun = clock()
        why = await _compared(client, owner, pod)
        if clock() <= begun + FRESH:
            return why
    raise LateError(f"the pods of its controller cannot be read within {FRESH:g} s")


async def _compared(client: Client, owner: PodOwner, pod: Pod) -> str:
    labels = (each for each in pod.labels.items() if each[0] not in _EACH_ITS_OWN)
    selection = {**actions.NOT_TERMINAL, "labelSelector": ",".join(map("=".join, labels))}
    path = actions.collection("v1", "pods", owner.namespace)
    known = {each.key.uid: each for each in owner.pods}
    replacing = owner.rollout.replacing
    ending = replacing.ending if replacing else frozenset[str]()
    found = set[str]()
    for each in await actions.list_all(client, path, Pod, selection):
        reference, uid = owners.controller(each), each.metadata.uid
        if reference is None or reference.uid != owner.reference.uid:
            continue
        if uid not in known:
            return f"its controller has made {each.metadata.name}"
        if each.metadata.deletion_timestamp and uid not in ending:
            return f"{each.metadata.name} of its controller is being deleted"
        found.add(uid)
    # A pod that has other labels is not listed.
    for stored in [stored for uid, stored in known.items() if uid not in found]:
        if await actions.read_pod(client, stored.key) is None:
            return f"{stored.key.name} of its controller is gone"
    return ""
