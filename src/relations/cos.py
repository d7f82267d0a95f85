"""The relations with the Canonical Observability Stack: metrics, alerts, a dashboard and logs.

The formats are those of the charm libraries prometheus_scrape v0, grafana_dashboard v0 and
loki_push_api v1 (docs/decisions/0006-libraries-of-interfaces.md).
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import lzma
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import ops
import yaml
from istio_aux.model.names import STATUS_PORT
from istio_aux.model.text import quoted

from cluster import UNREADABLE
from container import PEBBLE_FAILS, answers
from relations import active, write

METRICS: Final = "metrics-endpoint"
DASHBOARD: Final = "grafana-dashboard"
LOGGING: Final = "logging"
# ops itself serves these two.
TRACING: Final = "charm-tracing"
CA: Final = "receive-ca-cert"
ENDPOINTS: Final = (METRICS, DASHBOARD, LOGGING)

_ROOT: Final = Path(__file__).parents[1]
# Placeholder in the rules' expressions, for matchers of the charm's own application.
_TOPOLOGY: Final = "%%juju_topology%%"
_LAYER: Final = "log-forwarding"
_TARGET: Final[ops.pebble.LogTargetDict] = {"override": "replace", "type": "loki"}
# Brackets allowed in a text from Tempo: Python reads JSON of up to some 1,000 levels.
_MOST_NESTED: Final = 500

logger = logging.getLogger(__name__)


def _topology(charm: ops.CharmBase) -> dict[str, str]:
    """Return the Juju topology, which labels metrics, alerts, dashboards and logs."""
    return {
        "model": charm.model.name,
        "model_uuid": charm.model.uuid,
        "application": charm.app.name,
        "unit": charm.unit.name,
    }


def labels(topology: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a unit's series and log lines."""
    return {f"juju_{key}": value for key, value in topology.items()}


def trace(charm: ops.CharmBase) -> ops.Object | None:
    """Return the object that sends traces of the charm's events to Tempo; the charm keeps it.

    None while ops.tracing would fail each hook: it writes to a relation that may be gone, fails
    at an error without arguments, and cannot read JSON that is nested too deeply.
    """
    assert ops.tracing  # The extra `tracing` of ops.
    related = [each for endpoint in (TRACING, CA) for each in active(charm.model, endpoint)]
    texts = (
        text
        for relation in related
        for entity in (relation.app, *relation.units)
        for text in relation.data[entity].values()
    )
    if any(text.count("[") + text.count("{") > _MOST_NESTED for text in texts):
        logger.warning("%s: no traces: its JSON may be nested too deeply", TRACING)
        return None
    try:
        return ops.tracing.Tracing(charm, TRACING, ca_relation_name=CA)
    except (ops.ModelError, IndexError) as error:
        logger.warning("%s: no traces: %r", TRACING, error)
        return None


def publish(charm: ops.CharmBase) -> None:
    """Write what the related charms read; the leader also writes what all units share."""
    topology = _topology(charm)
    name = charm.meta.name
    # Kubernetes writes the name of a pod into its /etc/hosts. It outlives the address.
    address = socket.getfqdn()
    place = {
        "prometheus_scrape_unit_address": address,
        "prometheus_scrape_unit_name": charm.unit.name,
    }
    metrics = active(charm.model, METRICS)
    for relation in metrics:
        write(relation, charm.unit, place)
    if not charm.unit.is_leader():
        return
    metadata = json.dumps(topology | {"charm_name": name})
    targets = {"metrics_path": "/metrics", "static_configs": [{"targets": [f"*:{STATUS_PORT}"]}]}
    for relation in metrics:
        write(
            relation,
            charm.app,
            {
                "scrape_jobs": json.dumps([targets]),
                "scrape_metadata": metadata,
                "alert_rules": json.dumps(alert_rules(topology, name)),
            },
        )
    for relation in active(charm.model, DASHBOARD):
        write(relation, charm.app, {"dashboards": _dashboards(topology, name)})
    for relation in active(charm.model, LOGGING):
        write(relation, charm.app, {"metadata": metadata, "alert_rules": "{}"})


def forward_logs(charm: ops.CharmBase, container: ops.Container) -> None:
    """Have Pebble send the workload's log to each related Loki, and to no other one."""
    if not answers(container):
        return
    about = {
        "product": "Juju",
        "charm": charm.meta.name,
        **labels(_topology(charm)),
    }
    wanted: dict[str, ops.pebble.LogTargetDict] = {
        unit.name: {**_TARGET, "location": url, "services": ["all"], "labels": about}
        for relation in active(charm.model, LOGGING)
        for unit in relation.units
        if (url := _url(unit.name, relation.data[unit].get("endpoint")))
    }
    try:
        present = container.get_plan().log_targets
        # Layers cannot be deleted. A target without services gets nothing.
        for name in present.keys() - wanted.keys():
            wanted[name] = {
                **_TARGET,
                "location": present[name].location,
                "services": ["-all"],
            }
        changed = {name: it for name, it in wanted.items() if present.get(name) != it}
        if changed:
            container.add_layer(_LAYER, {"log-targets": changed}, combine=True)
            logger.info("logs: forwarding changed for %s", ", ".join(sorted(changed)))
    except PEBBLE_FAILS as error:
        logger.warning("logs: not forwarded: %s", error)


def alert_rules(topology: Mapping[str, str], charm: str) -> dict[str, Any]:
    """Return the alert rules about this application of a charm, as Prometheus reads them."""
    about = labels(topology)
    # Rules are about all units.
    del about["juju_unit"]
    matchers = ", ".join(f'{label}="{value}"' for label, value in about.items())
    prefix = f"{topology['model']}_{topology['model_uuid'][:8]}_{topology['application']}"
    groups: list[dict[str, Any]] = []
    for path in sorted((_ROOT / "prometheus_alert_rules").glob("*.rules")):
        for group in yaml.safe_load(path.read_text().replace(_TOPOLOGY, matchers))["groups"]:
            for rule in group["rules"]:
                rule["labels"] |= {**about, "juju_charm": charm}
            groups.append({**group, "name": f"{prefix}_{group['name']}_alerts"})
    return {"groups": groups}


def _dashboards(topology: Mapping[str, str], charm: str) -> str:
    templates: dict[str, Any] = {}
    for path in sorted((_ROOT / "grafana_dashboards").glob("*.json")):
        key = f"file:{path.stem}"
        templates[key] = {
            "charm": charm,
            "content": base64.b64encode(lzma.compress(path.read_bytes())).decode(),
            "juju_topology": topology,
            "inject_dropdowns": True,
            "dashboard_alt_uid": hashlib.shake_256(f"{charm}-{key}".encode()).hexdigest(8),
        }
    # A new value tells Grafana's charm that the dashboards have changed.
    digest = hashlib.sha256(json.dumps(templates, sort_keys=True).encode()).hexdigest()
    return json.dumps({"templates": templates, "uuid": digest[:32]})


def _url(unit: str, text: str | None) -> str:
    """Return where a unit of Loki takes logs; empty if `text` has no URL."""
    if not text:
        return ""
    try:
        url = str(json.loads(text)["url"])
        parts = urlsplit(url)
        if url.isprintable() and parts.scheme in {"http", "https"} and parts.hostname:
            return url
    except UNREADABLE:
        pass
    logger.warning("%s: endpoint %s: expected a URL", unit, quoted(text))
    return ""
