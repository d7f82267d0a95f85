"""A moment of `tox -e chaos`: whatever is killed, Jobs end as written."""

from __future__ import annotations

import lab
import lab.istio
import lab.juju
from chaos import outages
from chaos.outages import Stage
from chaos.storm import make

STORM = make(seed=0, seconds=16, jobs=5)


def test_every_job_ends_as_without_a_sidecar_whatever_is_killed(
    cluster: lab.Cluster,
    trainer: None,
    istio: lab.istio.Istio,
    istio_aux: lab.juju.App,
    selected: str,
) -> None:
    """T26: also what finishes while the workload or its unit is away."""
    report = outages.play(STORM, Stage(cluster, istio_aux, istio, selected))
    # Hooks may fail while the API server is down; they are tried again.
    istio_aux.settle(failing=True)

    assert report.good, report
    assert report.outages.keys() == {"unit", "pebble", "api-server", "workload"}
    assert sum(report.jobs.values()) == len(STORM.jobs)
    assert report.meshed > 0
    assert istio_aux.status()[0] == "active", istio_aux.status()
