"""The way to an ambient mesh, step by step as docs/how-to/to-native.md has it, beside a real Istio.

What `juju status` says is made by the charm of what a workload says. The lab has no ambient data
plane: only labels and injectors change.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import lab
import lab.istio
import lightkube
import msgspec
import ops
import pytest
from istio_aux.model.answers import ProcessStatus
from lab import crowd
from lab.crowd import Keeper, Kind
from lab.kubelet import ScriptedKubelet
from lab.meshed import has_sidecar, is_ready
from lab.options import configured
from lab.served import program
from lab.workload import Workload
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Pod

import status
from certificates import Issuers
from inputs import Inputs
from probe import Answer
from relations.istio import METADATA, PILOT, ControlPlane

WHO = "leaving"
OWNERS = ("Job", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
WAITS = "waiting for pods with a sidecar to end; "


def juju_says(workload: Workload, *relations: str) -> ops.StatusBase:
    """What the charm says of a unit whose application has these relations."""
    answer = msgspec.json.decode(workload.get("/status")[1], type=ProcessStatus)
    inputs = Inputs(
        WHO, WHO, True, datetime.now(UTC), configured(WHO), "", Issuers(),
        answer=Answer("", answer),
        control_planes=tuple(ControlPlane("istio-system", each) for each in relations),
    )  # fmt: skip
    return status.of_unit(inputs, None, status.Notes())


def await_said(workload: Workload, kind: type[ops.StatusBase], said: str, *relations: str) -> None:
    def is_said() -> bool:
        now = juju_says(workload, *relations)
        return isinstance(now, kind) and f"; {said};" in f"; {now.message};"

    lab.until(is_said, what=f"{kind.__name__}: {said}")


def have(pods: int) -> str:
    are = "pod in 1 namespace still has" if pods == 1 else "pods in 1 namespace still have"
    return f"{pods} {are} a sidecar"


def relabel(client: lightkube.Client, namespace: str, labels: dict[str, str | None]) -> None:
    client.patch(Namespace, namespace, {"metadata": {"labels": labels}})


@pytest.mark.parametrize(
    "each", [1, pytest.param(10, marks=pytest.mark.nightly("one workload of each kind"))]
)
def test_each_workload_comes_through_and_the_status_says_each_step(
    each: int,
    cluster: lab.Cluster,
    kubelet: ScriptedKubelet,
    namespace: str,
    tmp_path: Path,
) -> None:
    """Jobs end though Istio is gone, servers are replaced, and nothing needs istio-aux then."""
    client = cluster.client()
    relabel(client, namespace, {"istio-injection": "enabled"})
    istio = lab.istio.install(cluster)
    workloads = [(f"{owner.lower()}-{n}", Kind(owner, 1)) for owner in OWNERS for n in range(each)]
    servers = len(workloads) - each
    with (
        program(cluster, tmp_path, f"{WHO}-{each}", {}) as workload,
        Keeper(cluster, kubelet, namespace) as keeper,
    ):
        workload.select(namespace)
        for name, kind in workloads:
            for document in crowd.controlled(namespace, name, kind):
                client.create(document)
        lab.until(
            lambda: sum(has_sidecar(p) and is_ready(p) for p in keeper.pods()) == len(workloads),
            what="all pods to run beside a sidecar",
        )
        lab.until(
            lambda: workload.status()["sidecars"]["pods"] == len(workloads), what="their count"
        )
        before = juju_says(workload, PILOT)
        assert isinstance(before, ops.ActiveStatus)
        assert "a sidecar" not in before.message, "it would be no news"

        istio.remove()
        await_said(workload, ops.WaitingStatus, have(len(workloads)))
        assert juju_says(workload).message.startswith(WAITS)

        for pod in keeper.pods():
            if "job-" in str(pod.metadata and pod.metadata.name):
                kubelet.finish(pod, "main")
        await_said(workload, ops.WaitingStatus, have(servers))
        lab.until(lambda: completed(client, namespace) == each, what="the Jobs to be complete")

        ambient = lab.istio.install(cluster, "istio-ambient")
        await_said(workload, ops.ActiveStatus, "1 namespace selected", PILOT, METADATA)
        relabel(client, namespace, {"istio-injection": None, "istio.io/dataplane-mode": "ambient"})
        await_said(workload, ops.ActiveStatus, have(servers), METADATA)

        client.deletecollection(Pod, namespace=namespace)
        lab.until(
            lambda: [has_sidecar(p) for p in keeper.pods() if is_ready(p)] == [False] * servers,
            what="all servers to run without a sidecar",
        )
        gone = "no pod of the selected namespaces has a sidecar: this application may go"
        await_said(workload, ops.ActiveStatus, gone, METADATA)

        left = workload.status()
        assert [left[f"{state}-total"] for state in ("stuck", "blocked", "lost")] == [0, 0, 0]
        assert completed(client, namespace) == each
        ambient.remove()


def completed(client: lightkube.Client, namespace: str) -> int:
    found = client.list(Job, namespace=namespace)
    return sum(bool(job.status and job.status.completionTime) for job in found)
