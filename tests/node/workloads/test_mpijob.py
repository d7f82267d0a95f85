"""MPIJobs with their real operator: a launcher that ends, and workers that never do by themselves.

The operator deletes the workers once the launcher's Job has succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from lab import mpijobs, outcome
from lab.deployed import SELECTED
from lab.outcome import Seen, await_end, await_payload
from lab.workloads import Workload
from lightkube import Client
from lightkube.resources.core_v1 import Namespace

CONTROLLERS = mpijobs.install
WORKLOADS = (
    Workload("an-mpijob-succeeds", mpijobs.mpi_job(), "Succeeded", (0,)),
    Workload("an-mpijob-fails", mpijobs.mpi_job(f"{mpijobs.LAUNCH}; exit 3"), "Failed", (3,)),
)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_nobody_can_tell_from_its_end_that_an_mpijob_had_sidecars(
    ends: Mapping[str, tuple[Seen, Seen]], workload: Workload
) -> None:
    """Its workers are deleted, and the proxy of its launcher ended with 0.

    uds-core#687, argo-workflows#1282, kuma#2848, kruise#1285.
    """
    without, beside = ends[workload.name]

    assert outcome.describes(workload, without.outcome), without.outcome
    assert (beside.outcome, beside.proxies) == (without.outcome, [(0, 0)])


def test_an_mpijob_keeps_its_workers_beside_sidecars_until_istio_aux_frees_the_launcher(
    client: Client, namespaces: tuple[str, str, str], ends: Mapping[str, tuple[Seen, Seen]]
) -> None:
    """kuma#10085: the launcher ended long ago, and the workers wait for the operator."""
    [workload, *_], alone = WORKLOADS, namespaces[2]

    hanging = await_payload(client, workload, alone)
    assert not hanging.over
    assert [pod["status"]["phase"] for pod in hanging.pods] == ["Running"] * 3

    client.patch(Namespace, alone, {"metadata": {"labels": SELECTED}})

    assert await_end(client, workload, alone).outcome == ends[workload.name][0].outcome
