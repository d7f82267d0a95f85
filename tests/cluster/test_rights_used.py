"""The workload uses every right that it is granted, by the API server's audit log.

`test_rbac.py` shows that it is granted no other. What it uses without a right, it is refused: then
it does not do what the other tests of this tier wait for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import lab
import lab.istio
import lightkube
import pytest
from lab import creation, crowd, images, meshed, served
from lab.crowd import Keeper
from lab.fixtures import await_account
from lab.kubelet import ScriptedKubelet
from lab.served import Programs
from lab.workload import Workload
from lightkube.codecs import from_dict
from lightkube.core.client import LabelValue
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import PodTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Pod

import manifests

NAME = "using"
EVERYTHING = {
    "lease": f"{NAME}/{NAME}",
    "dead-proxy": "delete",
    "race-policy": "restart",
    "restart-jobs": True,
}
# Measured on 2 busy cores: 5 s after it was ready.
ALL_USED = 100.0

TRAINEE: dict[str, LabelValue] = {"batch.kubernetes.io/job-name": "train"}

Right = tuple[str, str]
"""Resource and verb, as in a Role."""

_TRAINING = "no training operator is here: tests/node/test_training_race.py"
_SETS = "neither Trainer nor JobSet is here: tests/node/workloads/test_trainjob.py"
_FIRST_LIST = "comes with the watch where the API server streams lists: test_watch_streaming.py"
_UPGRADE = "needed beside `get` since Kubernetes 1.35 (T24); the log shows the verb of the request"
# What is granted and need not be used here, with the reason.
UNUSED: dict[Right, str] = {
    ("namespaces", "list"): _FIRST_LIST,
    ("mutatingwebhookconfigurations", "list"): _FIRST_LIST,
    ("endpointslices", "list"): _FIRST_LIST,
    ("pods/exec", "create"): _UPGRADE,
    ("pods/portforward", "create"): _UPGRADE,
    ("nodes", "get"): "only for a container's own restart policy: test_quit_restarts.py",
    ("nodes", "list"): "only below Kubernetes 1.32: tests/unit/test_injector_watcher.py",
    **{
        (f"{kind}jobs", verb): _TRAINING
        for kind in ("jax", "mpi", "paddle", "pytorch", "tf", "xgboost")
        for verb in ("get", "list", "patch")
    },
    **{
        (sets, verb): _SETS
        for sets in ("jobsets", "trainjobs")
        for verb in ("get", "list", "patch")
    },
}


def granted(workload: Workload) -> set[Right]:
    """What its roles allow."""
    return {
        (resource, verb)
        for role in (each.to_dict() for each in manifests.render_access(workload.values()))
        if role["kind"] in {"Role", "ClusterRole"}
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(cluster: lab.Cluster) -> set[Right]:
    """What its account has done so far."""
    user = f"system:serviceaccount:{NAME}:{NAME}-workload"
    found: set[Right] = set()
    for event in creation.audited(cluster, about=user):
        what: dict[str, Any] = event.get("objectRef", {})
        if event["user"]["username"] != user or not what:
            continue
        if event["responseStatus"]["code"] not in {401, 403}:
            parts = (what["resource"], what.get("subresource", ""))
            found.add(("/".join(filter(None, parts)), event["verb"]))
    return found


def controller(namespace: str, kind: str, **spec: Any) -> Any:
    """A controller of one pod, which runs."""
    version = {"Job": "batch/v1"}.get(kind, "apps/v1")
    name, labels = kind.lower(), {crowd.KEPT: kind.lower()}
    payload = {"name": "main", "image": images.BUSYBOX}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [payload], **spec}}
    selector = {} if kind == "Job" else {"selector": {"matchLabels": labels}}
    return from_dict(
        {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"template": template, **selector},
        }
    )


@pytest.fixture(scope="module")
def unmeshed(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet
) -> Iterator[None]:
    """Pods that are there before Istio: those of a ReplicaSet and of a Job."""
    name = "before-istio"
    labels = {"istio-injection": "enabled"}
    client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
    await_account(client, name)
    with Keeper(cluster, kubelet, name) as keeper:
        client.create(controller(name, "ReplicaSet"))
        client.create(controller(name, "Job", restartPolicy="Never"))
        lab.until(
            lambda: len([pod for pod in keeper.pods() if meshed.is_ready(pod)]) == 2,
            timeout=60,
            what="both pods to run",
        )
        istio = lab.istio.install(cluster, native="on request")
        yield
        istio.remove()
        client.delete(Namespace, name)


@pytest.fixture(scope="module")
def workload(programs: Programs, unmeshed: None) -> Workload:
    """One that may do everything."""
    return programs(NAME, EVERYTHING)


def test_every_right_is_used(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet, workload: Workload
) -> None:
    with served.stage(client, kubelet, workload) as scene:
        by_exec = scene.start("by-exec")
        elsewhere = {"status.sidecar.istio.io/port": "18020"}
        by_port = scene.start("by-port", annotations=elsewhere)
        for pod in (by_exec, by_port):
            kubelet.finish(pod, "main")
        template = PodTemplateSpec(spec=meshed.pod(scene.namespace, "train").spec)
        metadata = ObjectMeta(name="train", namespace=scene.namespace)
        client.create(Job(metadata=metadata, spec=JobSpec(template=template)))
        (lost,) = lab.until(
            lambda: [*client.list(Pod, namespace=scene.namespace, labels=TRAINEE)],
            timeout=60,
            what="the Job's pod",
        )
        kubelet.run(lost)
        kubelet.finish(lost, meshed.PROXY, 137, reason="OOMKilled")

        def missing() -> set[Right]:
            return granted(workload) - used(cluster) - UNUSED.keys()

        with contextlib.suppress(TimeoutError):  # It is asserted below.
            lab.until(lambda: not missing(), timeout=ALL_USED, what="every right", every=0.5)
    assert not missing()
    assert used(cluster) <= granted(workload)
    assert UNUSED.keys() <= granted(workload)
