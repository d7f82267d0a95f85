"""Attacks by users who may create pods: each harms the attacker alone.

Meanwhile pods of another namespace are reviewed. In the end each of them was admitted and changed,
and the same process holds the Lease.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lab
import lightkube
import pytest
from istio_aux.model.annotations import STATUS_PORT
from istio_aux.start.proxy_config import ANNOTATION as CONFIG
from lab import creation, meshed
from lab.bystanders import Bystanders
from lab.istio import Istio
from lab.kubelet import Via
from lab.scene import Scene
from lab.served import Stages, end
from lab.workload import Workload
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import PodTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.types import PatchType

NATIVE_SIDECARS = "istio-aux.io/native-sidecars"
QUIT_GRACE, QUIT_AFTER = "istio-aux.io/quit-grace", "istio-aux.io/quit-after"
# Proxies that babble at once.
MANY = 4
# Pods as long as etcd stores them, and what a process that meets all of them may take, in MiB.
LARGE, MEMORY = 25, 200
# Levels of an object; the API server stores it.
DEEP = 9000
# Requests at once that change a pod.
CHANGES = 4
COMMAND = "<" * 1_450_000
NAMES = ",".join(f"container-{n}" for n in range(130_000))
SLOW = ("#?" + "\r" * 20) * 700 + "#\na: b"


@pytest.fixture(scope="module")
def attackers(attacked: Workload, stages: Stages) -> Scene:
    """A served namespace in which the attacker may create pods."""
    scene = stages(attacked)
    attacked.await_admission(scene.namespace)
    return scene


@pytest.mark.parametrize(
    ("annotations", "number", "status"),
    [
        pytest.param({CONFIG: SLOW}, 30, 201, id="a text that is slow to read"),
        # The API server looks at the length of annotations only after its webhooks.
        pytest.param({NATIVE_SIDECARS: NAMES}, 60, 422, id="a text as long as a request"),
    ],
)
def test_an_annotation_delays_the_review_of_no_other_pod(
    cluster: lab.Cluster, attackers: Scene, bystanders: Bystanders,
    *, annotations: dict[str, str], number: int, status: int,
):  # fmt: skip
    """Anybody who may create pods may have this one reviewed as often as they like."""
    pod = meshed.nameless(attackers.namespace, sidecar=None, annotations=annotations)

    with bystanders:
        made = creation.create(cluster, *[pod] * number, dry_run=True)

    assert {each.status for each in made} == {status}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(
            {"annotations": {QUIT_GRACE: "9" * 32_000 + "x"}}, id="a grace period of digits"
        ),
        pytest.param({"annotations": {QUIT_AFTER: NAMES[:255_000]}}, id="many names"),
        pytest.param({"payload": ["main", *(f"c{n}" for n in range(3000))]}, id="containers"),
    ],
)
def test_a_stored_pod_that_is_slow_to_judge_delays_no_other(
    cluster: lab.Cluster, attackers: Scene, victims: Scene, bystanders: Bystanders,
    what: dict[str, Any],
):  # fmt: skip
    """Each change of it is judged, and its author changes it as often as he likes."""
    case = secrets.token_hex(4)
    slow = {name: attackers.start(name, **what) for name in (f"slow-{case}-{n}" for n in range(2))}
    honest = victims.start(f"beside-{case}")
    for pod in slow.values():
        attackers.kubelet.finish(pod, "main")

    def change(number: int) -> bool:
        """Change each of them; whether the API server, which takes seconds, had the time."""
        labels = {"metadata": {"labels": {"changed": f"{number}"}}}
        try:
            for name in slow:
                # A strategic merge of 3,000 containers would take much longer.
                attackers.client.patch(
                    Pod, name, labels, namespace=attackers.namespace, patch_type=PatchType.MERGE
                )
        except lightkube.ApiError as error:
            if error.status.code != 504:
                raise
            return False
        return True

    with bystanders, ThreadPoolExecutor(CHANGES) as threads:
        changed = threads.map(change, range(CHANGES))
        victims.kubelet.finish(honest, "main")
        victims.await_phase(honest, "Succeeded")
        assert any(changed)

    for scene in (attackers, victims):
        creation.send(cluster, "DELETE", f"/api/v1/namespaces/{scene.namespace}/pods")


@pytest.mark.parametrize(
    ("way", "annotations"), [("exec", {}), ("port-forward", {STATUS_PORT: "15520"})]
)
def test_an_agent_that_sends_single_bytes_without_end_stalls_nobody(
    attackers: Scene, attacked: Workload, bystanders: Bystanders, way: Via,
    annotations: dict[str, str],
):  # fmt: skip
    """What answers in a pod is the pod's own program. The others' proxies quit all the same."""
    pods = [attackers.start(f"{way}-{n}", annotations=annotations) for n in range(MANY)]
    honest = attackers.start(f"{way}-honest")
    for pod in pods:
        attackers.kubelet.misbehave(pod, "babble", via=way)

    with bystanders:
        for pod in pods:
            attackers.kubelet.finish(pod, "main")
        for pod in pods:
            lab.until(
                lambda pod=pod: attackers.kubelet.execs_of(pod), timeout=30, what="it to babble"
            )
        attackers.kubelet.finish(honest, "main")
        attackers.await_phase(honest, "Succeeded")
        for pod in pods:  # There is another way, and it is taken.
            attackers.await_phase(pod, "Succeeded", timeout=60)


@pytest.fixture
def outside(cluster: lab.Cluster, namespace: str) -> Iterator[str]:
    """A namespace that is not selected; its pods are deleted in the end."""
    yield namespace
    creation.send(cluster, "DELETE", f"/api/v1/namespaces/{namespace}/pods")


def await_honest(victims: Scene, name: str) -> None:
    """Run a pod of the victims, from its start to its end."""
    honest = victims.start(name)
    victims.kubelet.finish(honest, "main")
    victims.await_phase(honest, "Succeeded")


def newcomer(attacked: Workload, unit: str) -> Workload:
    """Another unit, which meets all pods at once when it starts; ready."""
    late = attacked.replica(unit)
    late.start()
    late.await_ready()
    return late


def test_a_pod_that_is_nested_deeply_ends_nothing(
    cluster: lab.Cluster, outside: str, attacked: Workload, victims: Scene, bystanders: Bystanders
):
    pods = f"/api/v1/namespaces/{outside}/pods"
    body = meshed.pod(outside, "deep", sidecar=None).to_dict()
    body["metadata"]["managedFields"] = [
        {"manager": "attacker", "operation": "Update", "apiVersion": "v1",
         "time": "2026-11-22T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": "deep"},
    ]  # fmt: skip
    nested = b'{"f:a":' * DEEP + b"{}" + b"}" * DEEP
    post = json.dumps(body).encode().replace(b'"deep"}]', nested + b"}]")
    requests = {
        201: ("POST", pods, post),
        200: ("PATCH", f"{pods}/deep/status", b'{"status":{"phase":"Running"}}'),
    }

    with bystanders:
        for expected, request in requests.items():
            status, made = creation.send(cluster, *request)
            assert (status, nested in made) == (expected, True), made[:1000]
        await_honest(victims, "beside-deep")
        late = newcomer(attacked, "attacked-deep")

    assert late.status()["unreadable-objects"] == attacked.status()["unreadable-objects"] == []
    end(late)


def test_pods_as_long_as_etcd_stores_them_end_nothing(
    cluster: lab.Cluster, outside: str, attacked: Workload, victims: Scene, bystanders: Bystanders
):
    """The API server sends 8.7 MB for each."""
    pods = f"/api/v1/namespaces/{outside}/pods"
    body = meshed.pod(outside, "large", sidecar=None).to_dict()
    body["spec"]["containers"][0]["command"] = [COMMAND]

    with bystanders:
        for number in range(LARGE):
            body["metadata"]["name"] = f"large-{number}"
            status, made = creation.send(cluster, "POST", pods, json.dumps(body).encode())
            assert (status, len(made) > 8_700_000) == (201, True), made[:1000]
        await_honest(victims, "beside-large")
        late = newcomer(attacked, "attacked-large")

    assert late.status()["unreadable-objects"] == attacked.status()["unreadable-objects"] == []
    assert peak(late) < MEMORY
    end(late)


def peak(workload: Workload) -> float:
    """The most memory that the process had at once, in MiB."""
    lines = Path(f"/proc/{workload.process.pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kib) / 1024


def test_the_name_of_an_owner_that_is_a_path_leads_nowhere(
    client: lightkube.Client, attacked: Workload, bystanders: Bystanders, istio: Istio,
    stages: Stages,
):  # fmt: skip
    """The API server checks no such name, and the garbage collector resolves it as a path."""
    scene = stages(attacked)

    def reason() -> str:
        found = attacked.status()["unmeshed-pods"]
        return next((pod["reason"] for pod in found if pod["name"] == "forged"), "")

    with bystanders:
        template = PodTemplateSpec(spec=meshed.pod(scene.namespace, "none").spec)
        job = client.create(
            Job(
                metadata=ObjectMeta(name="real", namespace=scene.namespace),
                spec=JobSpec(template=template, suspend=True),
            )
        )
        assert job.metadata
        assert job.metadata.uid
        owner = OwnerReference(
            apiVersion="batch/v1", kind="Job", name="../jobs/real", uid=job.metadata.uid,
            controller=True,
        )  # fmt: skip
        scene.start("forged", sidecar=None, owner=owner)
        client.patch(
            Namespace, scene.namespace, {"metadata": {"labels": {"istio-injection": "enabled"}}}
        )
        lab.until(
            lambda: 'name "../jobs/real": no object can have it' in reason(),
            timeout=60,
            what="the pod to be refused a restart",
        )
