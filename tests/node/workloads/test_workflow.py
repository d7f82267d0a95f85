"""Workflows of Argo with their real controller and executor: beside a sidecar, and without one.

A pod has `main`, the step, and `wait`, which uploads and reports what the step left. A step of
Kubeflow Pipelines is such a pod, whose annotation says that it wants no sidecar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import lab.istio
import lab.juju
import pytest
from istio_aux.model.annotations import INJECT, SIGNALLED_WITH
from lab import upstream, workloads
from lab.fixtures import SELECTED, await_marks, await_selected, new_namespaces
from lab.meshed import PROXY
from lab.workloads import Seen, Workload, await_end
from lightkube import Client

CONTROLLERS = upstream.install_argo
# A revision whose proxies have a shell, in which Argo's controller can send its signals.
SHELL = "with-shell"
OURS = {"io.datastrophic/istio-aux": "enabled"}
PLACES = {
    "plain": {},
    "meshed": SELECTED,
    "meshed-with-shell": {"istio.io/rev": SHELL, **OURS},
}
MESHED = ("meshed", "meshed-with-shell")
STEP = {"pipelines.kubeflow.org/v2_component": "true"}


def uploads(store: str, place: str) -> Workload:
    """A step that succeeds before its artifact is uploaded, to a path that names the place."""
    script = "echo 7 >/tmp/result; echo weights >/tmp/model"
    made = upstream.workflow(script, upload=f"http://{store}:{upstream.STORE_PORT}/{place}")
    return Workload("a-step-succeeds-and-uploads", made, "Succeeded", (0, 0))


FAILS = Workload(
    "a-step-fails", upstream.workflow("echo 3 >/tmp/result; sleep 1; exit 3"), "Failed", (0, 3)
)
# It needs a sidecar, as a step does that talks to services under STRICT.
ASK = "wget -qO- 127.0.0.1:15021/healthz/ready || exit 3; echo 5 >/tmp/result"


# As Kubeflow Pipelines writes it (pipelines argocompiler/argo.go).
REFUSED = {"labels": STEP, "annotations": {INJECT: "false"}}
PIPELINE = Workload("a-pipeline", upstream.workflow(ASK, metadata=REFUSED), "Succeeded", (0, 0))


@pytest.fixture(scope="module")
def places(
    cluster: lab.Cluster, client: Client, istio_aux: lab.juju.App
) -> Iterator[Mapping[str, str]]:
    """A namespace for each kind, whose pods are injected already where they are to be."""
    shell = lab.istio.install(cluster, f"istio-{SHELL}", revision=SHELL, shell=True)
    with new_namespaces(client, *PLACES) as names:
        for name in names.values():
            upstream.allow_results(client, name)
        for place in MESHED:
            await_selected(client, names[place], PLACES[place])
        yield names
    shell.remove()


@pytest.fixture(scope="module")
def store(client: Client, places: Mapping[str, str]) -> str:
    return workloads.await_address(client, Workload("store", upstream.store()), places["plain"])


@pytest.fixture(scope="module")
def ends(client: Client, places: Mapping[str, str], store: str) -> Mapping[str, Mapping[str, Seen]]:
    """Each Workflow at its end, by its name and its place."""
    for place, namespace in places.items():
        client.create(uploads(store, place).in_namespace(namespace))
        client.create(FAILS.in_namespace(namespace))
    # The pod of a single step has the name of its Workflow.
    injected = {(places[place], uploads("", "").name) for place in MESHED}
    lab.until(
        lambda: injected <= upstream.signalled(client, PROXY),
        what="Argo to signal each proxy during its upload",
    )
    client.create(Workload("release", upstream.release_store(store)).in_namespace(places["plain"]))
    return {
        workload.name: {
            place: await_end(client, workload, namespace) for place, namespace in places.items()
        }
        for workload in (uploads(store, ""), FAILS)
    }


def uploaded(client: Client, places: Mapping[str, str]) -> str:
    return "".join(client.log("store", namespace=places["plain"]))


@pytest.mark.parametrize("place", MESHED)
@pytest.mark.parametrize("workload", [uploads("", ""), FAILS], ids=lambda workload: workload.name)
def test_nobody_can_tell_from_its_end_that_a_step_had_a_sidecar(
    ends: Mapping[str, Mapping[str, Seen]], workload: Workload, place: str
) -> None:
    """Same phases, exit codes and restarts, and the same result in the Workflow.

    uds-core#687, argo-workflows#1282, kuma#2848.
    """
    plain, beside = ends[workload.name]["plain"], ends[workload.name][place]

    assert workloads.describes(workload, plain.outcome), plain.outcome
    assert beside.outcome == plain.outcome
    assert upstream.results(beside.owner) == upstream.results(plain.owner) != []


@pytest.mark.parametrize("place", MESHED)
def test_its_proxy_ends_after_the_upload_whatever_argo_does_when_the_step_ends(
    client: Client, places: Mapping[str, str], ends: Mapping[str, Mapping[str, Seen]], place: str
) -> None:
    """Argo's controller signals all containers that still run when `main` has ended.

    argo-workflows#1282, kruise#1285.
    """
    seen = ends[uploads("", "").name][place]
    [pod] = seen.pods
    ended = {
        status["name"]: status["state"]["terminated"]["finishedAt"]
        for status in pod["status"]["containerStatuses"]
    }
    [proxy] = workloads.proxies(seen.pods)

    assert f"/{place}: " in uploaded(client, places)
    assert ended["main"] < ended["wait"] <= ended[PROXY]
    assert (proxy.exit_code, proxy.restarts) == (0, 0)
    assert SIGNALLED_WITH in pod["metadata"]["annotations"]


@pytest.fixture
def chosen(
    client: Client, places: Mapping[str, str], istio_aux: lab.juju.App
) -> Iterator[Mapping[str, str]]:
    """Steps of Kubeflow Pipelines get a sidecar."""
    [(key, value)] = STEP.items()
    istio_aux.configure(inject_selector=f"{key}={value}")
    probe = Workload("probe", {**workloads.pod(workloads.container("true")), "metadata": REFUSED})
    await_marks(client, places["meshed"], PROXY, probe=probe)
    yield places
    istio_aux.configure(inject_selector="")


def test_a_step_of_kubeflow_pipelines_that_is_selected_completes_beside_its_sidecar(
    client: Client, chosen: Mapping[str, str]
) -> None:
    """argo-workflows#1282: it starts after its proxy, which ends after `wait` has reported."""
    client.create(PIPELINE.in_namespace(chosen["meshed"]))

    ended = await_end(client, PIPELINE, chosen["meshed"])

    assert workloads.describes(PIPELINE, ended.outcome), ended.outcome
    assert upstream.results(ended.owner) == ["5"]
    assert ended.proxies == [(0, 0)]
