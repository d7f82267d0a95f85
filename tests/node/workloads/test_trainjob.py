"""TrainJobs and JobSets with their real controllers: beside a sidecar, and without one.

A pod belongs to a batch Job, that to a JobSet, and that to a TrainJob.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from istio_aux.model.annotations import INCLUDED, PEERS
from lab import upstream, workloads
from lab.workloads import Seen, Workload, container, job_set, template, train_job

OK, FAIL = "sleep 1", "sleep 1; exit 3"
CONTROLLERS = upstream.install_jobsets
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


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_nobody_can_tell_from_its_end_that_it_had_a_sidecar(
    ends: Mapping[str, tuple[Seen, Seen]], workload: Workload
) -> None:
    """Same conditions, counts, phases, exit codes and restarts.

    uds-core#687, kuma#2848, kruise#1285.
    """
    without, beside = ends[workload.name]

    assert workloads.describes(workload, without.outcome), without.outcome
    assert (beside.outcome, beside.proxies) == (without.outcome, beside.freed)


def test_what_a_patch_of_its_runtime_asks_for_its_pods_get(
    ends: Mapping[str, tuple[Seen, Seen]],
) -> None:
    """A TrainJob has no pod template (Trainer 2.3 trainjob_types.go RuntimePatches)."""
    _, beside = ends[WORKLOADS[0].name]

    assert [pod["metadata"]["annotations"][INCLUDED] for pod in beside.pods] == ["", ""]
