"""Jobs beside each sidecar that needs no option end in a mesh as their payload ends alone.

The programs are stand-ins, which end as the table says of them (`lab.images.STAND_IN`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import lab
import lab.istio
import lab.juju
import pytest
from istio_aux.model.known_sidecars import KNOWN, Known
from lab import images, workloads
from lab.fixtures import await_marks, await_root, await_selected, list_stuck, new_namespaces
from lab.meshed import PROXY
from lab.workload import program
from lab.workloads import Seen, Workload, a_job, await_end, container, look, pod
from lightkube import Client
from lightkube.resources.core_v1 import Namespace

NAME = "known"
ENOUGH: dict[str, Any] = {"terminationGracePeriodSeconds": 5}
PROBE = Workload("probe", pod(container("true"), **ENOUGH))
pytestmark = pytest.mark.nightly(
    "unit/rules/test_quit_annotations.py has all; cluster/test_quit.py"
)


def rows(known: Iterable[Known]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "row", [pytest.param(row, id=row.names.split()[0]) for row in known]
    )


def image(row: Known) -> str:
    return f"istio-aux.lab/{row.images.split()[0]}:stand-in"


def signalled(row: Known) -> int:
    """What it exits with at SIGTERM."""
    return 143 if "143" in row.note else 0


def words(row: Known) -> list[str]:
    """The behaviour of its stand-in."""
    told = [f"{row.port}", row.path] if row.port else ["last"] * row.ends_last
    return [f"{signalled(row)}", *told]


def job(row: Known, *, alone: bool = False) -> Workload:
    """A Job whose payload fails where its sidecar exits with 143, and the sidecar."""
    code, name = signalled(row), row.names.split()[0]
    sidecar = {"name": name, "image": image(row)}
    payload = container(f"sleep 3; exit {3 if code else 0}")
    ends = ("Failed", (3,)) if code else ("Complete", (0,))
    return a_job(name, *ends, payload, *([] if alone else [sidecar]), **ENOUGH)


@pytest.fixture(scope="module")
def places(
    cluster: lab.Cluster,
    client: Client,
    istio_aux: lab.juju.App,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, str]]:
    """A plain namespace; one with classic sidecars; one whose sidecars are native on request. All
    Jobs are there, side by side. GKE injects its mounter as a native sidecar itself there."""
    istio = lab.istio.install(cluster, NAME, revision=NAME, native="on request")
    folder, settings = tmp_path_factory.mktemp(NAME), {"root-namespace": NAME}
    for row in KNOWN:
        cluster.load(images.stand_in(image(row), *words(row)))
    with (
        program(cluster, folder, NAME, settings, publish=True, revisions=(NAME,)) as workload,
        new_namespaces(client, "plain", "classic", "native") as names,
    ):
        workload.await_capability("native")
        await_selected(client, names["classic"])
        labels = {"istio.io/rev": NAME, f"lab.test/{NAME}": "yes"}
        client.patch(Namespace, names["native"], {"metadata": {"labels": labels}})
        await_root(client, names["native"])
        await_marks(client, names["native"], PROXY, "nativeSidecar", probe=PROBE)
        for row in KNOWN:
            client.create(job(row, alone=True).in_namespace(names["plain"]))
            client.create(job(row).in_namespace(names["classic"]))
            if not row.ends_last:
                client.create(job(row).in_namespace(names["native"]))
        yield names
    istio.remove()


def end(seen: Seen) -> tuple[Any, ...]:
    """Conditions and counts of the Job, phases of its pods, and how their payload ended."""
    found = seen.outcome
    pods = [(pod.phase, each) for pod in found.pods for each in pod.payload if each.name == "main"]
    return found.conditions, found.counts, pods


@rows(row for row in KNOWN if not row.ends_last)
def test_beside_a_native_proxy_it_ends_as_its_payload_alone(
    client: Client, places: Mapping[str, str], row: Known
) -> None:
    """cloud-sql-proxy#1803: 143 of a native sidecar is no failure, and no success either."""
    without, beside = (await_end(client, job(row), places[place]) for place in ("plain", "native"))

    assert workloads.describes(job(row), without.outcome), without.outcome
    assert end(beside) == end(without)
    assert beside.proxies == [(0, 0)]
    [made] = beside.pods
    inits = {each["name"] for each in made["spec"]["initContainers"]}
    assert (row.names.split()[0] in inits) is row.native


@rows(KNOWN)
def test_beside_a_classic_proxy_it_ends_alike_if_it_can_be_told_and_else_is_named(
    client: Client, istio_aux: lab.juju.App, places: Mapping[str, str], row: Known
) -> None:
    """One that only a signal ends keeps its proxy: it may still send what it has."""
    if row.port or row.ends_last:
        without, beside = (
            await_end(client, job(row), places[place]) for place in ("plain", "classic")
        )
        assert (end(beside), beside.proxies) == (end(without), [(0, 0)])
        return
    name = row.names.split()[0]

    def named() -> list[dict[str, str]]:
        found = json.loads(list_stuck(istio_aux)["json"])
        ours = (each for each in found if each["namespace"] == places["classic"])
        return [each for each in ours if each["name"].startswith(f"{name}-")]

    [found] = lab.until(named, what=f"{name} to be listed")
    assert f"not finished: {name} (running)" in found["reason"]
    [left] = look(client, job(row), places["classic"]).pods
    states = {each["name"]: [*each["state"]] for each in left["status"]["containerStatuses"]}
    assert states == {"main": ["terminated"], name: ["running"], PROXY: ["running"]}
