"""A moment of `tox -e chaos`: whatever is killed, Jobs end as written."""

from __future__ import annotations

import lab.istio
import lab.juju
import pytest
from chaos import outages
from chaos.outages import Stage, make

pytestmark = pytest.mark.nightly("cluster/test_serve.py, test_istiod_away.py")
# The API server restarts, then the only unit is killed.
STORM = make(seed=156, seconds=8, jobs=3)


@pytest.mark.usefixtures("trainer")
def test_every_job_ends_as_without_a_sidecar_whatever_is_killed(
    cluster: lab.Cluster,
    istio: lab.istio.Istio,
    istio_aux: lab.juju.App,
    selected: str,
) -> None:
    """kuma#10085: also what finishes while the workload or its unit is away."""
    report = outages.play(STORM, Stage(cluster, istio_aux, istio, selected))
    # Hooks may fail while the API server is down; they are tried again.
    istio_aux.settle(failing=True)

    assert report.good, report
    assert report.outages.keys() >= {"api-server", "unit"}
    assert sum(report.jobs.values()) == len(STORM.jobs)
    assert report.meshed > 0
    assert istio_aux.status()[0] == "active", istio_aux.status()
