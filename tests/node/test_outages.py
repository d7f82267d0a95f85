"""A moment of `tox -e chaos -- --minutes 10`: whatever is killed, Jobs end as written."""

from __future__ import annotations

import lab
import lab.istio
import lab.juju
import pytest
from chaos import outages
from chaos.outages import Report, Stage
from chaos.storm import Storm, make

STORMS = [
    # The API server, the unit and Istio's injector.
    pytest.param(make(seed=10, seconds=12, jobs=5), id="short"),
    # Each kind of victim.
    pytest.param(
        make(seed=3, seconds=30, jobs=10), id="long", marks=pytest.mark.nightly("the short one")
    ),
]


@pytest.fixture(params=STORMS)
def storm(request: pytest.FixtureRequest) -> Storm:
    return request.param


@pytest.fixture
def report(
    *,
    storm: Storm,
    cluster: lab.Cluster,
    trainer: None,
    istio: lab.istio.Istio,
    istio_aux: lab.juju.App,
    selected: str,
) -> Report:
    found = outages.play(storm, Stage(cluster, istio_aux, istio, selected))
    istio.await_live()
    # Hooks may fail while the API server is down; they are tried again.
    istio_aux.settle(failing=True)
    return found


def test_every_job_ends_as_without_a_sidecar_whatever_is_killed(
    storm: Storm, report: Report
) -> None:
    assert report.good, report
    assert report.outages.keys() == {outage.victim for outage in storm.outages}
    assert {"api-server", "unit"} <= report.outages.keys()
    assert sum(report.jobs.values()) == len(storm.jobs)
    assert report.meshed > 0
