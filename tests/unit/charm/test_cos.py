"""The relations with the observability stack: what Prometheus, Grafana and Loki read and get."""

from __future__ import annotations

import base64
import dataclasses
import json
import lzma
import re
import socket
from typing import Any

import ops
import pytest
from ops import testing

from .conftest import Unit, active

METRICS = testing.Relation("metrics-endpoint", remote_app_name="prometheus")
DASHBOARD = testing.Relation("grafana-dashboard", remote_app_name="grafana")
URL = "http://loki-0.loki-endpoints.cos.svc.cluster.local:3100/loki/api/v1/push"


def at(units: dict[int, str]) -> Any:
    """The databags of Loki's units, by number and URL."""
    return {number: {"endpoint": json.dumps({"url": url})} for number, url in units.items()}


def loki(units: dict[int, str], app: str = "loki") -> testing.Relation:
    return testing.Relation("logging", remote_app_name=app, remote_units_data=at(units))


def app_data(unit: Unit, relation: testing.Relation) -> dict[str, Any]:
    """What the charm wrote for the application, decoded."""
    data = unit.state.get_relation(relation.id).local_app_data
    return {key: json.loads(value) for key, value in data.items()}


def logs_to(unit: Unit) -> dict[str, str]:
    """Which targets get the workload's log, and where they are."""
    targets = unit.container.plan.log_targets
    return {name: target.location for name, target in targets.items() if "all" in target.services}


def test_prometheus_learns_where_the_metrics_are_and_whose_they_are(unit: Unit) -> None:
    """As the interface prometheus_scrape v0 has it."""
    unit.relate(METRICS)

    told = app_data(unit, METRICS)
    assert told["scrape_jobs"] == [
        {"metrics_path": "/metrics", "static_configs": [{"targets": ["*:8080"]}]}
    ]
    assert told["scrape_metadata"] == {
        "model": "kubeflow",
        "model_uuid": unit.state.model.uuid,
        "application": "istio-aux",
        "unit": "istio-aux/0",
        "charm_name": "istio-aux",
    }
    assert unit.state.get_relation(METRICS.id).local_unit_data.items() >= {
        ("prometheus_scrape_unit_address", socket.getfqdn()),
        ("prometheus_scrape_unit_name", "istio-aux/0"),
    }


def test_each_alert_is_about_this_application_alone(unit: Unit) -> None:
    unit.relate(METRICS)

    uuid = unit.state.model.uuid
    groups = app_data(unit, METRICS)["alert_rules"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    matchers = f'juju_model="kubeflow", juju_model_uuid="{uuid}", juju_application="istio-aux"'
    for rule in rules:
        assert matchers in rule["expr"]
        assert "%%" not in rule["expr"]
        assert rule["labels"].pop("severity") in {"critical", "warning", "info"}
        assert re.fullmatch(r"IA\d{4}", rule["labels"].pop("code"))
        assert rule["labels"] == {
            "juju_model": "kubeflow",
            "juju_model_uuid": uuid,
            "juju_application": "istio-aux",
            "juju_charm": "istio-aux",
        }
    assert [group["name"] for group in groups] == [
        f"kubeflow_{uuid[:8]}_istio-aux_{name}_alerts"
        for name in ("jobs", "mesh", "admission", "units")
    ]


def test_every_unit_is_scraped_and_only_the_leader_speaks_for_all(unit: Unit) -> None:
    unit.relate(METRICS, DASHBOARD, loki({0: URL}), leader=False)

    scraped = unit.state.get_relation(METRICS.id).local_unit_data
    assert scraped["prometheus_scrape_unit_name"] == "istio-aux/0"
    others = [one for one in unit.state.relations if one.endpoint != "peers"]
    assert [one.local_app_data for one in others] == [{}, {}, {}]
    assert logs_to(unit) == {"loki/0": URL}


def test_grafana_gets_the_dashboard_packed(unit: Unit) -> None:
    unit.relate(DASHBOARD)

    (key, template), *others = app_data(unit, DASHBOARD)["dashboards"]["templates"].items()
    assert (key, others) == ("file:istio-aux", [])
    assert template["charm"] == "istio-aux"
    assert template["inject_dropdowns"] is True
    assert template["juju_topology"]["model_uuid"] == unit.state.model.uuid
    assert len(bytes.fromhex(template["dashboard_alt_uid"])) == 8
    dashboard = json.loads(lzma.decompress(base64.b64decode(template["content"])))
    assert dashboard["panels"]


def test_pebble_sends_the_log_to_every_unit_of_loki(unit: Unit) -> None:
    unit.relate(loki({0: URL, 1: URL}), loki({0: "https://logs.example/push"}, "collector"))

    assert logs_to(unit) == {
        "loki/0": URL,
        "loki/1": URL,
        "collector/0": "https://logs.example/push",
    }
    target = unit.container.plan.log_targets["loki/0"]
    assert target.type == "loki"
    assert target.labels == {
        "product": "Juju",
        "charm": "istio-aux",
        "juju_model": "kubeflow",
        "juju_model_uuid": unit.state.model.uuid,
        "juju_application": "istio-aux",
        "juju_unit": "istio-aux/0",
    }


def test_the_log_follows_a_loki_that_moves(unit: Unit) -> None:
    relation = loki({0: URL})
    unit.relate(relation)
    moved = dataclasses.replace(
        unit.state.get_relation(relation.id), remote_units_data=at({0: "http://elsewhere/push"})
    )

    unit.run(unit.on.relation_changed(moved), relations={*unit.state.get_relations("peers"), moved})

    assert logs_to(unit) == {"loki/0": "http://elsewhere/push"}


@pytest.mark.parametrize(
    "endpoint",
    ["", "{", "[]", '{"url": 3100}', '{"url": "file:///etc/passwd"}', '{"url": "http://"}',
     '{"url": "http://[::1"}', '{"url": "http://loki/\\n"}', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_url_gets_no_log_and_stops_nothing(endpoint: str, unit: Unit) -> None:
    hostile = testing.Relation(
        "logging", remote_app_name="hostile", remote_units_data={0: {"endpoint": endpoint}}
    )

    assert unit.relate(hostile, loki({0: URL})) == active()

    assert logs_to(unit) == {"loki/0": URL}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ops_tracing")
@pytest.mark.parametrize(
    ("endpoint", "databag", "written"),
    [
        ("charm-tracing", {}, {"receivers": ["otlp_http"]}),
        ("charm-tracing", {"receivers": "{"}, {"receivers": ["otlp_http"]}),
        ("charm-tracing", {"receivers": "[" * 100_000}, {}),
        ("receive-ca-cert", {"certificates": "[" * 100_000, "version": "1"}, {}),
        ("receive-ca-cert", {"certificates": "{", "version": "1"}, {}),
        ("receive-ca-cert", {"certificates": '{"certificates": "no PEM"}', "version": "1"}, {}),
    ],
)
def test_whatever_tempo_and_its_authority_answer_to_ops_nothing_stops(
    endpoint: str, databag: dict[str, str], written: dict[str, Any], unit: Unit
) -> None:
    """Interface tracing v2. Which URL comes is the business of ops."""
    relation = testing.Relation(
        endpoint, remote_app_name="it", remote_app_data=databag, remote_units_data={0: databag}
    )

    assert unit.relate(relation) == active()

    assert app_data(unit, relation) == written


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ops_tracing")
def test_traces_go_where_tempo_says(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The charm keeps the library's object: Python forgets one that nobody keeps."""
    sent_to: list[str] = []
    monkeypatch.setattr(ops.tracing, "set_destination", lambda url, **_: sent_to.append(url))
    receivers = '[{"protocol": {"name": "otlp_http", "type": "http"}, "url": "http://tempo:4318"}]'

    unit.relate(testing.Relation("charm-tracing", remote_app_data={"receivers": receivers}))

    assert sent_to == ["http://tempo:4318/v1/traces"]
