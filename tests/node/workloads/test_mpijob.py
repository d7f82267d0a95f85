"""MPIJobs with their real operator: a launcher that ends, and workers that never do by themselves.

The operator deletes the workers once the launcher's Job has succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from lab import upstream, workloads
from lab.workloads import Seen, Workload

CONTROLLERS = upstream.install_mpi_operator
WORKLOADS = (
    Workload("an-mpijob-succeeds", upstream.mpi_job(), "Succeeded", (0,)),
    Workload("an-mpijob-fails", upstream.mpi_job(f"{upstream.MPI_LAUNCH}; exit 3"), "Failed", (3,)),
)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_nobody_can_tell_from_its_end_that_an_mpijob_had_sidecars(
    ends: Mapping[str, tuple[Seen, Seen]], workload: Workload
) -> None:
    """Its workers are deleted, and the proxy of its launcher ended with 0.

    uds-core#687, argo-workflows#1282, kuma#2848, kruise#1285.
    """
    without, beside = ends[workload.name]

    assert workloads.describes(workload, without.outcome), without.outcome
    assert (beside.outcome, beside.proxies) == (without.outcome, [(0, 0)])
