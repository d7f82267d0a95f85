"""Every query of the alert rules and the dashboard asks for metrics that the workload exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from unit.process import metrics

SRC = Path(__file__).parents[2] / "src"
RULES = [*SRC.glob("prometheus_alert_rules/*.rules")]

# What the collector adds to each series.
COLLECTED = {"juju_model", "juju_model_uuid", "juju_application", "juju_charm", "juju_unit"}
COLLECTED |= {"instance", "job"}


def rules() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard that show something."""
    every = json.loads((SRC / "grafana_dashboards/istio-aux.json").read_text())["panels"]
    return [panel for panel in every if panel["type"] != "row"]


def queries() -> dict[str, str]:
    """Every query, by the alert or panel that has it."""
    alerts = {rule["alert"]: rule["expr"] for rule in rules()}
    shown = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in panels()
        for target in panel["targets"]
    }
    return alerts | shown


def parsed(query: str) -> promql_parser.Expr:
    """The query as Prometheus gets it."""
    text = query.replace("%%juju_topology%%", 'juju_application="istio-aux"')
    return promql_parser.parse(text.replace("$__rate_interval", "5m").replace("$__range", "6h"))


def nodes(query: str) -> list[promql_parser.Expr]:
    """Every part of the query."""
    found: list[promql_parser.Expr] = []
    promql_parser.walk(parsed(query), found.append)
    return found


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    """Every choice of series in the query."""
    return [node for node in nodes(query) if isinstance(node, promql_parser.VectorSelector)]


@pytest.fixture(scope="module")
def exported() -> dict[str, dict[str, set[str]]]:
    """The labels of each metric that the workload exports, with their values."""
    series: dict[str, dict[str, set[str]]] = {"up": {}}
    for family in text_string_to_metric_families(metrics()):
        # Histograms without labels, and those of the process.
        series.setdefault(family.name, {})
        for sample in family.samples:
            labels = series.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return series


@pytest.mark.parametrize("name", queries())
def test_a_query_is_about_series_that_exist(
    name: str, exported: dict[str, dict[str, set[str]]]
) -> None:
    """And of one application. Else an alert never fires, and a panel stays empty."""
    found = selectors(queries()[name])
    assert found
    for selector in found:
        assert "juju_application" in [matcher.name for matcher in selector.matchers.matchers]
        assert selector.name in exported
        labels = exported[selector.name]
        for matcher in selector.matchers.matchers:
            if matcher.name in COLLECTED:
                continue
            for value in matcher.value.split("|"):
                assert value in labels.get(matcher.name, set()), f"{selector.name}: {matcher.name}"


def kept_labels(query: str) -> set[str]:
    """The labels that the result of a query has."""
    kept: set[str] | None = None
    for node in nodes(query):
        if isinstance(node, promql_parser.AggregateExpr):
            assert node.modifier, "without `by` no label is left"
            kept = {*node.modifier.labels} if kept is None else kept & {*node.modifier.labels}
    return COLLECTED if kept is None else kept


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do_and_shows_only_labels_that_it_has(rule: dict[str, Any]) -> None:
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    shown = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
    assert set(shown) <= kept_labels(rule["expr"])
    # A summary is one line of a notification.
    assert len(rule["annotations"]["summary"]) < 130


def test_every_state_of_trouble_that_is_counted_has_an_alert(
    exported: dict[str, dict[str, set[str]]],
) -> None:
    alerted = {selector.name for rule in rules() for selector in selectors(rule["expr"])}
    troubles = {
        name for name in exported if re.fullmatch(r"istio_aux_\w+_(pods|jobs|errors_total)", name)
    }
    assert "istio_aux_stuck_pods" in troubles
    assert troubles - {"istio_aux_watched_pods", "istio_aux_would_quit_pods"} <= alerted


def test_the_dashboard_shows_every_metric_of_ours(
    exported: dict[str, dict[str, set[str]]],
) -> None:
    shown = {
        selector.name or ""
        for panel in panels()
        for t in panel["targets"]
        for selector in selectors(t["expr"])
    }
    ours = {
        name
        for name in exported
        if name.startswith("istio_aux_") and not name.endswith(("_created", "_sum", "_count"))
    }
    families = {name.removesuffix("_bucket").removesuffix("_total") for name in shown}
    left_out = {"istio_aux_watched_pods", "istio_aux_configurations_called_before_ours"}
    assert {
        name.removesuffix("_bucket").removesuffix("_total") for name in ours
    } - families == left_out
