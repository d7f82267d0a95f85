"""TrainJobs and JobSets with their real controllers: beside a sidecar, and made before it could be.

A pod belongs to a batch Job, that to a JobSet, and that to a TrainJob.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import lab
import lab.istio
import lab.juju
import pytest
from istio_aux.model.annotations import INCLUDED, PEERS
from istio_aux.repair.suspension import MARK
from lab import jobsets, outcome, served
from lab.fixtures import make_namespace
from lab.istio import PROXY
from lab.outcome import Seen, await_end, look
from lab.workloads import TRAIN, Workload, container, job_set, template, train_job
from lightkube import Client
from lightkube.resources.core_v1 import Namespace

OK, FAIL = "sleep 1", "sleep 1; exit 3"
CONTROLLERS = jobsets.install
WORKLOADS = (
    Workload(
        "a-trainjob-succeeds",
        train_job(OK, nodes=2, annotations={PEERS: "direct"}),
        "Complete",
        (0, 0),
    ),
    Workload("a-trainjob-fails", train_job(FAIL), "Failed", (3,)),
    Workload(
        "a-jobset-with-a-driver-and-workers-succeeds",
        job_set(driver=(1, template(container("sleep 3"))), workers=(2, template(container(OK)))),
        "Completed",
        (0, 0, 0),
    ),
)
EARLY = (
    Workload("early-trainjob", train_job(TRAIN, nodes=2), "Complete", (0, 0)),
    Workload(
        "early-jobset",
        job_set(first=(1, template(container(OK))), second=(2, template(container(TRAIN)))),
        "Completed",
        (0, 0, 0),
    ),
)
LATE, REVISION = "late-for-sets", "late-sets"


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_nobody_can_tell_from_its_end_that_it_had_a_sidecar(
    ends: Mapping[str, tuple[Seen, Seen]], workload: Workload
) -> None:
    """Same conditions, counts, phases, exit codes and restarts.

    uds-core#687, kuma#2848, kruise#1285.
    """
    without, beside = ends[workload.name]

    assert outcome.describes(workload, without.outcome), without.outcome
    assert (beside.outcome, beside.proxies) == (without.outcome, beside.freed)


def test_what_a_patch_of_its_runtime_asks_for_its_pods_get(
    ends: Mapping[str, tuple[Seen, Seen]],
) -> None:
    """A TrainJob has no pod template (Trainer 2.3 trainjob_types.go RuntimePatches)."""
    _, beside = ends[WORKLOADS[0].name]

    assert [pod["metadata"]["annotations"][INCLUDED] for pod in beside.pods] == ["", ""]


@pytest.fixture(scope="module")
def early(cluster: lab.Cluster, client: Client) -> Iterator[Mapping[str, Seen]]:
    """Workloads whose pods run before Istio can inject; one Job of a set has succeeded by then."""
    labels = {"istio.io/rev": REVISION, f"lab.test/{LATE}": "yes"}
    make_namespace(client, LATE, labels)
    for workload in EARLY:
        client.create(workload.in_namespace(LATE))

    def running() -> dict[str, Seen]:
        seen = {w.name: look(client, w, LATE) for w in EARLY}
        counts = [(len(s.uids(finished=True)), len(s.uids(finished=False))) for s in seen.values()]
        there = counts == [(0, 2), (1, 2)] and all(s.running for s in seen.values())
        return seen if there else {}

    yield lab.until(running, what="their pods to run")
    client.delete(Namespace, LATE)


@pytest.fixture(scope="module")
def repaired(
    cluster: lab.Cluster,
    client: Client,
    early: Mapping[str, Seen],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Seen]]:
    """The same at their end, once Istio is live and Jobs may be restarted."""
    with served.late_istio(cluster, tmp_path_factory.mktemp(LATE), LATE, REVISION):
        yield {w.name: await_end(client, w, LATE) for w in EARLY}


@pytest.mark.parametrize("workload", EARLY, ids=lambda workload: workload.name)
def test_pods_that_were_early_are_replaced_by_suspending_the_owner_at_the_top(
    early: Mapping[str, Seen], repaired: Mapping[str, Seen], workload: Workload
) -> None:
    """istio#3716, istio#15873: what has succeeded stays, nothing fails and nothing starts again."""
    before, after = early[workload.name], repaired[workload.name]

    assert outcome.describes(workload, after.outcome), after.outcome
    assert before.uids(finished=True) <= after.uids(finished=True)
    assert not before.uids(finished=False) & after.uids(finished=True)
    kept = before.uids(finished=True)
    made = [pod for pod in after.pods if pod["metadata"]["uid"] not in kept]
    assert len(outcome.proxies(made)) == len(made) == 2
    assert MARK not in (after.owner["metadata"].get("labels") or {})
    assert not after.owner["spec"].get("suspend")
    assert not (after.owner.get("status") or {}).get("restarts")
    assert {proxy.name for proxy in outcome.proxies(made)} == {PROXY}
