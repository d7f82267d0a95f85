"""The five endpoints for the observability stack, on a collector; nothing of Istio is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jubilant
import pytest
from helpers import APP, await_active, deploy

COLLECTOR, CERTIFICATES = "opentelemetry-collector-k8s", "self-signed-certificates"
# An endpoint of istio-aux, that of the collector, and a key that istio-aux writes for it.
DATA = [
    ("metrics-endpoint", "metrics-endpoint", "scrape_jobs"),
    ("metrics-endpoint", "metrics-endpoint", "alert_rules"),
    ("grafana-dashboard", "grafana-dashboards-consumer", "dashboards"),
    ("charm-tracing", "receive-traces", "receivers"),
]
RELATIONS = {
    f"{APP}:metrics-endpoint": f"{COLLECTOR}:metrics-endpoint",
    f"{APP}:grafana-dashboard": f"{COLLECTOR}:grafana-dashboards-consumer",
    f"{APP}:logging": f"{COLLECTOR}:receive-loki-logs",
    f"{APP}:charm-tracing": f"{COLLECTOR}:receive-traces",
    f"{APP}:receive-ca-cert": f"{CERTIFICATES}:send-ca-cert",
}


@pytest.fixture(scope="module", autouse=True)
def related(juju: jubilant.Juju, charm: Path, image: str) -> None:
    """All five relations; the collector has nowhere to send to, and blocks."""
    deploy(juju, charm, image)
    juju.deploy(COLLECTOR, channel="2/stable", trust=True)
    juju.deploy(CERTIFICATES, channel="1/stable")
    await_active(juju, APP, CERTIFICATES)
    for ours, theirs in RELATIONS.items():
        juju.integrate(ours, theirs)
    juju.wait(
        lambda status: (
            jubilant.all_active(status, APP)
            and jubilant.all_agents_idle(status, APP, COLLECTOR, CERTIFICATES)
        ),
        error=lambda status: jubilant.any_error(status, APP),
    )


def received(juju: jubilant.Juju, endpoint: str) -> dict[str, Any]:
    """What istio-aux wrote for this endpoint of the collector."""
    found = juju.show_unit(f"{COLLECTOR}/0").relation_info
    return next(each.app_data for each in found if each.endpoint == endpoint)


@pytest.mark.parametrize(("ours", "theirs", "key"), DATA)
def test_the_collector_gets_what_it_needs(
    juju: jubilant.Juju, ours: str, theirs: str, key: str
) -> None:
    assert received(juju, theirs)[key], ours


def test_pebble_sends_the_log_to_the_collector(juju: jubilant.Juju) -> None:
    plan = juju.ssh(f"{APP}/0", "pebble plan", container=APP)
    assert "log-targets:" in plan
    assert "/loki/api/v1/push" in plan


def test_the_charm_has_the_certificate_of_the_authority(juju: jubilant.Juju) -> None:
    found = juju.show_unit(f"{APP}/0").relation_info
    (relation,) = (each for each in found if each.endpoint == "receive-ca-cert")
    data = [relation.app_data, *(unit.data for unit in relation.related_units.values())]
    assert "BEGIN CERTIFICATE" in str(data)
    await_active(juju)
