"""Attacks by users who may create pods, or who reach a port: each harms the attacker alone.

Meanwhile pods of another namespace are created. In the end each of them was created and changed,
and the same process holds the Lease.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import secrets
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lab
import lightkube
import pytest
from istio_aux.serving import raise_descriptors
from lab import creation, meshed
from lab.accounts import PODS, administrator
from lab.creation import Stream
from lab.istio import Istio
from lab.kubelet import ScriptedKubelet, Via
from lab.scene import Scene
from lab.served import end, program, stage
from lab.workload import Workload
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import PodTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.batch_v1 import Job
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.rbac_authorization_v1 import ClusterRoleBinding
from lightkube.types import PatchType

import manifests

# Creations a second. The API server opens a connection for each review above 25 at once.
RATE = 25
HELD = b"holdApplicationUntilProxyStarts"
CONFIG = "proxy.istio.io/config"
STATUS_PORT = "status.sidecar.istio.io/port"
NATIVE_SIDECARS = "istio-aux.io/native-sidecars"
QUIT_GRACE, QUIT_AFTER = "istio-aux.io/quit-grace", "istio-aux.io/quit-after"
# Proxies that babble at once.
MANY = 4
# Connections: many times what either port has room for.
SILENT = 8300
DESCRIPTORS = 8192
# Pods as long as etcd stores them, and what a process that meets all of them may take, in MiB.
LARGE, MEMORY = 25, 200
# Requests at once that change a pod.
CHANGES = 4
COMMAND = "<" * 1_450_000
NAMES = ",".join(f"container-{n}" for n in range(130_000))

Bystanders = Callable[[], AbstractContextManager[Stream]]


@dataclasses.dataclass(frozen=True)
class Leadership:
    """Who leads, how often that has changed, and since when it has been so."""

    holder: str | None
    transitions: int | None
    since: object


@pytest.fixture(scope="module")
def attacked(cluster: lab.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    """The process under attack: it leads, and answers all reviews.

    Its heir answers none, but would lead as soon as the Lease is not renewed in time.
    """
    settings = {"lease": "attacked/attacked", "race-policy": "restart", "restart-jobs": True}
    with program(cluster, tmp_path_factory.mktemp("attacked"), "attacked", settings) as leader:
        # As many as many a container has, and fewer than who attacks it.
        resource.prlimit(leader.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        lab.until(lambda: leader.status().get("leader"), timeout=30, what="it to lead")
        heir = leader.replica("attacked-1")
        heir.start()
        heir.await_ready()
        leader.publish()
        yield leader
        leader.withdraw()
        end(heir)


@pytest.fixture(scope="module")
def victims(
    client: lightkube.Client, kubelet: ScriptedKubelet, attacked: Workload
) -> Iterator[Scene]:
    """A namespace that is served, and attacks nobody."""
    with stage(client, kubelet, attacked) as scene:
        attacked.await_admission(scene.namespace)
        yield scene


@pytest.fixture(scope="module")
def attackers(
    client: lightkube.Client, kubelet: ScriptedKubelet, attacked: Workload
) -> Iterator[Scene]:
    """Another one that is served, in which the attacker may create pods."""
    with stage(client, kubelet, attacked) as scene:
        attacked.await_admission(scene.namespace)
        yield scene


@pytest.fixture
def bystanders(cluster: lab.Cluster, attacked: Workload, victims: Scene) -> Bystanders:
    """``with bystanders() as pods:`` creates pods beside the attack in its block, and judges."""

    @contextmanager
    def beside() -> Iterator[Stream]:
        before = leadership(victims.client)
        nameless = meshed.nameless(victims.namespace, sidecar=None)
        with Stream(cluster, nameless, rate=RATE) as pods:
            pods.await_more(RATE)
            yield pods
            pods.await_more(RATE)
        assert [made.body for made in pods.creations if made.status != 201] == []
        unchanged = [made for made in pods.creations if HELD not in made.body]
        assert len(unchanged) == 0, f"{len(unchanged)} of {len(pods.creations)} are unchanged"
        attacked.process.check()
        assert leadership(victims.client) == before
        assert attacked.status()["leader"]

    return beside


def leadership(client: lightkube.Client) -> Leadership:
    spec = client.get(Lease, "attacked", namespace="attacked").spec
    assert spec
    return Leadership(spec.holderIdentity, spec.leaseTransitions, spec.acquireTime)


def test_a_text_that_is_slow_to_read_delays_no_other_pod(
    cluster: lab.Cluster, attackers: Scene, bystanders: Bystanders
):
    """Anybody who may create pods may have this one reviewed as often as they like."""
    slow = ("#?" + "\r" * 20) * 700 + "#\na: b"
    pod = meshed.nameless(attackers.namespace, sidecar=None, annotations={CONFIG: slow})

    with bystanders():
        creation.create(cluster, *[pod] * 30, dry_run=True)


def test_an_annotation_as_long_as_a_request_delays_no_other_pod(
    cluster: lab.Cluster, attackers: Scene, bystanders: Bystanders
):
    """The API server looks at the length of annotations only after its webhooks."""
    long = {NATIVE_SIDECARS: NAMES}
    pod = meshed.nameless(attackers.namespace, sidecar=None, annotations=long)

    with bystanders():
        made = creation.create(cluster, *[pod] * 60, dry_run=True)

    assert {one.status for one in made} == {422}, "they are refused for their length"


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
    cluster: lab.Cluster,
    attackers: Scene,
    victims: Scene,
    bystanders: Bystanders,
    what: dict[str, Any],
):
    """Each change of it is judged, and its author changes it as often as he likes."""
    case = secrets.token_hex(4)
    slow = {name: attackers.start(name, **what) for name in (f"slow-{case}-{n}" for n in range(3))}
    honest = victims.start(f"beside-{case}")
    for pod in slow.values():
        attackers.kubelet.finish(pod, "main")

    def change(number: int) -> None:
        labels = {"metadata": {"labels": {"changed": f"{number}"}}}
        for name in slow:
            # A strategic merge of 3,000 containers would take the API server seconds.
            attackers.client.patch(
                Pod, name, labels, namespace=attackers.namespace, patch_type=PatchType.MERGE
            )

    with bystanders(), ThreadPoolExecutor(CHANGES) as threads:
        changed = threads.map(change, range(2 * CHANGES))
        victims.kubelet.finish(honest, "main")
        victims.await_phase(honest, "Succeeded")
        list(changed)

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

    with bystanders():
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


@pytest.mark.parametrize(
    ("port", "address"),
    [
        pytest.param("webhook", "127.0.0.1", id="webhook, from the API server's address"),
        pytest.param("webhook", "127.0.0.2", id="webhook, from another address"),
        pytest.param("status", "127.0.0.1", id="status"),
    ],
)
def test_silent_connections_keep_no_other_client_out(
    cluster: lab.Cluster, attacked: Workload, victims: Scene, bystanders: Bystanders,
    *, port: str, address: str,
):  # fmt: skip
    """Also from the API server's own address, as where all clients' addresses are translated."""
    raise_descriptors()
    where = (cluster.host, attacked.webhook_port if port == "webhook" else attacked.status_port)
    # More at once than the API server has connections.
    burst = [meshed.nameless(victims.namespace, sidecar=None)] * 60

    with bystanders(), ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(socket.create_connection(where, 30, (address, 0)))
        made = creation.create(cluster, *burst, dry_run=True)
        alive = attacked.get("/livez")

    assert [one.body for one in made if HELD not in one.body] == []
    assert alive == (200, "ok\n")
    log = attacked.process.log.read_text()
    assert "Traceback" not in log


@pytest.fixture
def outside(cluster: lab.Cluster, namespace: str) -> Iterator[str]:
    """A namespace that is not selected; its pods are deleted in the end."""
    yield namespace
    creation.send(cluster, "DELETE", f"/api/v1/namespaces/{namespace}/pods")


@pytest.mark.parametrize("levels", [1500, 9000])
def test_a_pod_that_is_nested_deeply_ends_nothing(
    cluster: lab.Cluster, outside: str, attacked: Workload, victims: Scene,
    bystanders: Bystanders, *, levels: int,
):  # fmt: skip
    """The API server stores it, and every unit meets it again when it starts."""
    pods = f"/api/v1/namespaces/{outside}/pods"
    body = meshed.pod(outside, "deep", sidecar=None).to_dict()
    body["metadata"]["managedFields"] = [
        {"manager": "attacker", "operation": "Update", "apiVersion": "v1",
         "time": "2026-11-22T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": "deep"},
    ]  # fmt: skip
    nested = b'{"f:a":' * levels + b"{}" + b"}" * levels

    with bystanders():
        status, made = creation.send(
            cluster, "POST", pods, json.dumps(body).encode().replace(b'"deep"}]', nested + b"}]")
        )
        assert (status, nested in made) == (201, True), made[:1000]
        status, made = creation.send(
            cluster, "PATCH", f"{pods}/deep/status", b'{"status":{"phase":"Running"}}'
        )
        assert (status, nested in made) == (200, True), made[:1000]
        honest = victims.start(f"beside-{levels}")
        victims.kubelet.finish(honest, "main")
        victims.await_phase(honest, "Succeeded")
        late = attacked.replica(f"attacked-{levels}")
        late.start()
        late.await_ready()

    assert late.status()["unreadable-objects"] == attacked.status()["unreadable-objects"] == []
    end(late)


def test_pods_as_long_as_etcd_stores_them_end_nothing(
    cluster: lab.Cluster, outside: str, attacked: Workload, victims: Scene, bystanders: Bystanders
):
    """The API server sends 8.7 MB for each, to a unit that starts also all of them at once."""
    pods = f"/api/v1/namespaces/{outside}/pods"
    body = meshed.pod(outside, "large", sidecar=None).to_dict()
    body["spec"]["containers"][0]["command"] = [COMMAND]

    with bystanders():
        for number in range(LARGE):
            body["metadata"]["name"] = f"large-{number}"
            status, made = creation.send(cluster, "POST", pods, json.dumps(body).encode())
            assert (status, len(made) > 8_700_000) == (201, True), made[:1000]
        honest = victims.start("beside-large")
        victims.kubelet.finish(honest, "main")
        victims.await_phase(honest, "Succeeded")
        late = attacked.replica("attacked-large")
        late.start()
        late.await_ready()

    assert late.status()["unreadable-objects"] == attacked.status()["unreadable-objects"] == []
    assert peak(late) < MEMORY
    end(late)


def peak(workload: Workload) -> float:
    """The most memory that the process had at once, in MiB."""
    lines = Path(f"/proc/{workload.process.pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kib) / 1024


def test_the_workloads_account_changes_no_pod_and_makes_no_other_lease_even_as_administrator(
    cluster: lab.Cluster, client: lightkube.Client, attackers: Scene, bystanders: Bystanders
):
    """Somebody has its token, and a role that lets it do anything."""
    model, service_account = "attacked", manifests.service_account("attacked")
    attackers.start("target")
    where = f"{attackers.namespace}/target"
    path = f"{PODS.format(attackers.namespace)}/target"
    intruder = {"spec": {"ephemeralContainers": [{"name": "intruder", "image": "none"}]}}
    account = administrator(cluster, model, service_account)

    with bystanders():
        refusals = {
            "ephemeral container": account.patch(f"{path}/ephemeralcontainers", intruder),
            "pod": account.patch(path, {"metadata": {"labels": {"a": "b"}}}),
            "proxy": account.connect("proxy", where),
            "attach": account.connect("attach", where),
            "lease": account.create_lease(model, {"name": "another-controller"}),
            "lease elsewhere": account.create_lease("kube-system", {"name": "kube-scheduler"}),
        }

    account.close()
    client.delete(ClusterRoleBinding, f"{model}-{service_account}-is-an-administrator")
    allowed = {what for what, refusal in refusals.items() if "denied request" not in refusal}
    assert allowed == set(), refusals


def test_the_name_of_an_owner_that_is_a_path_leads_nowhere(
    client: lightkube.Client, kubelet: ScriptedKubelet, attacked: Workload,
    bystanders: Bystanders, istio: Istio,
):  # fmt: skip
    """The API server checks no such name, and the garbage collector resolves it as a path."""

    def reason() -> str:
        found = attacked.status()["unmeshed-pods"]
        return next((pod["reason"] for pod in found if pod["name"] == "forged"), "")

    with stage(client, kubelet, attacked) as scene, bystanders():
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
