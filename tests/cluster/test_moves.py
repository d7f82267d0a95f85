"""The ways of docs/how-to/to-native.md, to native sidecars and to an ambient mesh, step by step.

Istio is real, and what `juju status` says is made by the charm of what a workload says. The lab has
no ambient data plane: only labels and injectors change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import lab
import lab.istio
import lightkube
import msgspec
import ops
import pytest
from istio_aux.model.annotations import REDIRECTION
from istio_aux.model.answers import ProcessStatus
from lab import crowd
from lab.crowd import Keeper, Kind
from lab.kubelet import ScriptedKubelet
from lab.meshed import PROXY, has_sidecar, is_ready
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

WHO = "moving"
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


@pytest.fixture(
    params=[1, pytest.param(10, marks=pytest.mark.nightly("one workload of each kind"))]
)
def each(request: pytest.FixtureRequest) -> int:
    """How many workloads there are of each kind."""
    return request.param


Scene = tuple[Workload, Keeper]
Sets = Callable[[bool], AbstractContextManager[Scene]]


@pytest.fixture
def scene(
    cluster: lab.Cluster, kubelet: ScriptedKubelet, namespace: str, tmp_path: Path, each: int
) -> Sets:
    """Makes the workloads beside Istio, with our webhook or without; each has a sidecar."""

    @contextmanager
    def begun(publish: bool) -> Iterator[Scene]:
        client, name = cluster.client(), f"{WHO}-{namespace}"
        with (
            program(cluster, tmp_path, name, {}, publish=publish) as workload,
            Keeper(cluster, kubelet, namespace) as keeper,
        ):
            relabel(client, namespace, {"istio-injection": "enabled"})
            workload.select(namespace)
            if publish:
                workload.await_admission(namespace)
            for owner in OWNERS:
                make(client, namespace, owner, each)
            lab.until(
                lambda: sum(has_sidecar(p) and is_ready(p) for p in keeper.pods()) == 5 * each,
                what="all pods to run beside a sidecar",
            )
            counted = partial(sidecars, workload)
            lab.until(lambda: counted() == 5 * each, what="their count")
            now = juju_says(workload, PILOT)
            assert isinstance(now, ops.ActiveStatus)
            assert " a sidecar" not in now.message, "it would be no news"
            yield workload, keeper
            states = ("stuck", "blocked", "lost")
            assert [workload.status()[f"{state}-total"] for state in states] == [0, 0, 0]

    return begun


def make(client: lightkube.Client, namespace: str, owner: str, count: int, name: str = "") -> None:
    for number in range(count):
        called = f"{name or owner.lower()}-{number}"
        # In a second a native proxy would be killed, so a Job's would not be native.
        for document in crowd.controlled(namespace, called, Kind(owner, 1, grace=30)):
            client.create(document)


def sidecars(workload: Workload) -> int | None:
    found = workload.status()["sidecars"]
    return found and found["pods"]


def end(kubelet: ScriptedKubelet, keeper: Keeper, name: str) -> None:
    """Let the payloads of Jobs of this name end."""
    for pod in keeper.pods():
        if str(pod.metadata and pod.metadata.name).startswith(name) and is_ready(pod):
            kubelet.finish(pod, "main")


def await_completed(client: lightkube.Client, namespace: str, count: int) -> None:
    def completed() -> int:
        jobs = client.list(Job, namespace=namespace)
        return sum(bool(job.status and job.status.completionTime) for job in jobs)

    lab.until(lambda: completed() == count, what=f"{count} Jobs to be complete")


def native(pod: Pod) -> bool:
    assert pod.spec
    return PROXY in {container.name for container in pod.spec.initContainers or ()}


def replace(
    client: lightkube.Client, keeper: Keeper, count: int, what: Callable[[Pod], bool]
) -> None:
    """Delete all pods, until so many run again, and each is like this."""
    client.deletecollection(Pod, namespace=keeper.namespace)
    lab.until(
        lambda: [what(pod) for pod in keeper.pods() if is_ready(pod)] == [True] * count,
        what="all servers to run again",
    )


@pytest.fixture
def install(cluster: lab.Cluster) -> Iterator[Callable[..., lab.istio.Istio]]:
    """Installs an Istio; what the test has not removed goes with it."""
    made = list[lab.istio.Istio]()

    def install(*namespace: str) -> lab.istio.Istio:
        made.append(lab.istio.install(cluster, *namespace))
        return made[-1]

    yield install
    for istio in made:
        if istio.process.running:
            istio.remove()


def test_to_an_ambient_mesh_each_workload_comes_through(
    cluster: lab.Cluster,
    kubelet: ScriptedKubelet,
    namespace: str,
    *,
    scene: Sets,
    each: int,
    install: Callable[..., lab.istio.Istio],
) -> None:
    """Jobs end though Istio is gone, servers are replaced, and nothing needs istio-aux then."""
    client, servers = cluster.client(), 4 * each
    istio = install()
    with scene(False) as (workload, keeper):
        istio.remove()
        await_said(workload, ops.WaitingStatus, have(5 * each))
        assert juju_says(workload).message.startswith(WAITS)
        end(kubelet, keeper, "job-")
        await_said(workload, ops.WaitingStatus, have(servers))
        await_completed(client, namespace, each)

        install("istio-ambient")
        await_said(workload, ops.ActiveStatus, "1 namespace selected", PILOT, METADATA)
        relabel(client, namespace, {"istio-injection": None, "istio.io/dataplane-mode": "ambient"})
        await_said(workload, ops.ActiveStatus, have(servers), METADATA)
        replace(client, keeper, servers, lambda pod: not has_sidecar(pod))
        for pod in keeper.pods():  # As Istio's CNI does.
            assert pod.metadata
            captured = {"metadata": {"annotations": {REDIRECTION: "enabled"}}}
            client.patch(Pod, str(pod.metadata.name), captured, namespace=namespace)
        gone = "no pod of the selected namespaces has a sidecar: this application may go"
        await_said(workload, ops.ActiveStatus, gone, METADATA)


def test_to_native_sidecars_each_workload_comes_through(
    cluster: lab.Cluster,
    kubelet: ScriptedKubelet,
    namespace: str,
    *,
    scene: Sets,
    each: int,
    install: Callable[..., lab.istio.Istio],
) -> None:
    """Istio is upgraded; Jobs that run end as before, and new ones have a native sidecar."""
    client, servers = cluster.client(), 4 * each
    istio = install()
    with scene(True) as (workload, keeper):
        held = "pods are held, not native: "
        lab.until(lambda: held in juju_says(workload, PILOT).message, what=held)
        istio.become("on request")
        workload.await_capability("native")
        assert held not in juju_says(workload, PILOT).message

        end(kubelet, keeper, "job-")
        await_completed(client, namespace, each)
        replace(client, keeper, servers, has_sidecar)
        make(client, namespace, "Job", each, "later")
        lab.until(lambda: sidecars(workload) == 5 * each, what="all to have a sidecar again")
        lab.until(lambda: sum(map(is_ready, keeper.pods())) == 5 * each, what="the new Jobs to run")
        assert sorted(map(native, keeper.pods())) == [False] * servers + [True] * each
        end(kubelet, keeper, "later-")
        await_completed(client, namespace, 2 * each)
