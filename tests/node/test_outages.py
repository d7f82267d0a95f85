"""Half a minute of `tox -e chaos -- --minutes 10`: whatever is killed, Jobs end as written.

Every part is killed once at least while Jobs run beside their proxies.
"""

from __future__ import annotations

import lab
import lab.istio
import lab.juju
import pytest
from chaos import outages
from chaos.outages import Report, Stage
from chaos.storm import make
from lab.deployed import await_selected

SEED, SECONDS, JOBS = 3, 30, 10


@pytest.fixture
def report(
    cluster: lab.Cluster,
    trainer: None,
    istio: lab.istio.Istio,
    istio_aux: lab.juju.App,
    namespace: str,
) -> Report:
    with cluster.client() as client:
        await_selected(client, namespace)
    found = outages.play(make(SEED, SECONDS, JOBS), Stage(cluster, istio_aux, istio, namespace))
    istio.await_live()
    # Hooks may fail while the API server is down; they are tried again.
    istio_aux.settle(failing=True)
    return found


def test_every_job_ends_as_without_a_sidecar_whatever_is_killed(report: Report) -> None:
    assert report.good, report
    assert (len(report.outages), sum(report.jobs.values())) == (5, JOBS)
    assert report.meshed > 0
