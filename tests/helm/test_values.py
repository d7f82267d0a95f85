"""What each value of the chart does to the manifests."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml
from cryptography import x509
from lab.release import CHART
from lightkube import codecs

from helm import readme
from helm.charts import APP, IMAGE, MODEL, Document, render

MINE = "registry.example-of-mine.net:5000"
VALUES = (CHART / "values.yaml").read_text()
PEERS = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
SPREAD = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
POD = "Deployment spec template spec"
MAIN = f"{POD} containers 0"
HOOK = "MutatingWebhookConfiguration webhooks 0"
OURS = {"app.kubernetes.io/instance": APP, "app.kubernetes.io/name": APP}
LAST = "matchExpressions -1"


def validity(documents: Sequence[Document]) -> tuple[float, float]:
    """Since when the certificate is valid, and until when."""
    data = look(documents, "Secret data tls.crt")
    leaf = x509.load_pem_x509_certificate(base64.b64decode(data))
    return leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()


def days(documents: Sequence[Document]) -> int:
    """How long the certificate is valid."""
    begins, ends = validity(documents)
    return round((ends - begins) / 86400)


def revisions(documents: Sequence[Document]) -> bool:
    """Whether the workload may read the injection policy of the revision canary."""
    names = [rule.get("resourceNames", ()) for each in documents for rule in each.get("rules", ())]
    return "istio-sidecar-injector-canary" in {*itertools.chain(*names)}


class Row(NamedTuple):
    """A value, where to look (kind, then keys), what is there, and other values that it needs."""

    value: Any
    where: str | Callable[[Sequence[Document]], Any]
    wanted: Any
    beside: Mapping[str, Any] = MappingProxyType({})


# Settings are in test_rendered.py.
ROWS = {
    "nameOverride": Row("aux", "Service spec selector app.kubernetes.io/name", "aux"),
    "fullnameOverride": Row("ours", "Service metadata name", "ours"),
    "commonLabels": Row({"team": "a"}, "Deployment spec template metadata labels team", "a"),
    "commonAnnotations": Row({"team": "a"}, "ClusterRole metadata annotations team", "a"),
    "imagePullSecrets": Row([{"name": "r"}], f"{POD} imagePullSecrets", [{"name": "r"}]),
    "image.repository": Row(f"{MINE}/aux", f"{MAIN} image", f"{MINE}/aux:0.1.0"),
    "image.tag": Row("2", f"{MAIN} image", f"{IMAGE['image.repository']}:2"),
    "image.digest": Row(
        f"sha256:{'0' * 64}",
        f"{MAIN} image",
        f"{IMAGE['image.repository']}@sha256:{'0' * 64}",
    ),
    "image.pullPolicy": Row("Always", f"{MAIN} imagePullPolicy", "Always"),
    "replicaCount": Row(3, "Deployment spec replicas", 3),
    "injectApplications": Row(
        ["team/web"], "MutatingWebhookConfiguration webhooks 2 clientConfig service path", "/inject"
    ),
    "injectNamespaces": Row(
        ["team"],
        "MutatingWebhookConfiguration webhooks 2 namespaceSelector matchExpressions 0 values",
        ["team"],
    ),
    "istioRevisions": Row(["canary"], revisions, True),
    "webhook.securePort": Row(10250, f"{MAIN} ports 0 containerPort", 10250),
    "webhook.hostNetwork": Row(True, f"{POD} dnsPolicy", "ClusterFirstWithHostNet"),
    "webhook.timeoutSeconds": Row(5, f"{HOOK} timeoutSeconds", 5),
    "webhook.namespaceSelector": Row(
        {"matchLabels": {"tier": "gpu"}},
        f"{HOOK} namespaceSelector {LAST}",
        {"key": "tier", "operator": "In", "values": ["gpu"]},
    ),
    "webhook.objectSelector": Row(
        {"matchExpressions": [{"key": "job-name", "operator": "Exists"}]},
        f"{HOOK} objectSelector {LAST}",
        {"key": "job-name", "operator": "Exists"},
    ),
    "webhook.serviceIPFamilyPolicy": Row(
        "PreferDualStack",
        "Service spec ipFamilyPolicy",
        "PreferDualStack",
    ),
    "webhook.serviceIPFamilies": Row(["IPv6", "IPv4"], "Service spec ipFamilies", ["IPv6", "IPv4"]),
    "statusPort": Row(9090, f"{MAIN} ports 1 containerPort", 9090),
    "certificates.from": Row("cert-manager", "Certificate kind", "Certificate"),
    "certificates.days": Row(7, days, 7),
    "certificates.issuerRef": Row(
        {"name": "ours"},
        "Certificate spec issuerRef name",
        "ours",
        {"certificates.from": "cert-manager"},
    ),
    "podDisruptionBudget.enabled": Row(False, "PodDisruptionBudget", None),
    "networkPolicy.enabled": Row(
        True, "NetworkPolicy spec ingress 0", {"ports": [{"port": "webhook"}]}
    ),
    "networkPolicy.webhookFrom": Row(
        PEERS,
        "NetworkPolicy spec ingress 0 from",
        PEERS,
        {"networkPolicy.enabled": True},
    ),
    "networkPolicy.statusFrom": Row(
        PEERS,
        "NetworkPolicy spec ingress 1 from",
        PEERS,
        {"networkPolicy.enabled": True},
    ),
    "podMonitor.enabled": Row(True, "PodMonitor spec jobLabel", "app.kubernetes.io/instance"),
    "podMonitor.labels": Row(
        {"release": "prometheus"},
        "PodMonitor metadata labels release",
        "prometheus",
        {"podMonitor.enabled": True},
    ),
    "prometheusRule.enabled": Row(
        True,
        "PrometheusRule spec groups 0 name",
        f"{MODEL}-{APP}-jobs",
    ),
    "prometheusRule.labels": Row(
        {"release": "prometheus"},
        "PrometheusRule metadata labels release",
        "prometheus",
        {"prometheusRule.enabled": True},
    ),
    "grafanaDashboard.enabled": Row(
        True,
        f"ConfigMap/{APP}-dashboard metadata labels grafana_dashboard",
        "1",
    ),
    "grafanaDashboard.labels": Row(
        {"mine": "1"},
        f"ConfigMap/{APP}-dashboard metadata labels mine",
        "1",
        {"grafanaDashboard.enabled": True},
    ),
    "serviceAccount.create": Row(False, "ServiceAccount", None, {"serviceAccount.name": "theirs"}),
    "serviceAccount.name": Row("theirs", "ClusterRoleBinding subjects 0 name", "theirs"),
    "serviceAccount.annotations": Row({"a": "b"}, "ServiceAccount metadata annotations a", "b"),
    "podSecurityContext": Row({"runAsUser": 7}, f"{POD} securityContext runAsUser", 7),
    "securityContext": Row({"runAsUser": 7}, f"{MAIN} securityContext runAsUser", 7),
    "resources": Row({"limits": {"cpu": 1}}, f"{MAIN} resources limits cpu", 1),
    "podLabels": Row({"a": "b"}, "Deployment spec template metadata labels a", "b"),
    "podAnnotations": Row({"a": "b"}, "Deployment spec template metadata annotations a", "b"),
    "nodeSelector": Row({"a": "b"}, f"{POD} nodeSelector", {"a": "b"}),
    "tolerations": Row([{"key": "a"}], f"{POD} tolerations", [{"key": "a"}]),
    "affinity": Row({"nodeAffinity": {}}, f"{POD} affinity", {"nodeAffinity": {}}),
    "topologySpreadConstraints": Row(
        [SPREAD],
        f"{POD} topologySpreadConstraints",
        [{**SPREAD, "labelSelector": {"matchLabels": OURS}}],
    ),
    "priorityClassName": Row("high", f"{POD} priorityClassName", "high"),
}
# An upgrade shows it: tests/helm/test_installed.py.
UPGRADED = {"certificates.renewAfterDays"}


def look(documents: Sequence[Document], where: str) -> Any:
    """What the first object of a kind has there; None if there is no such object or key."""
    kind, *keys = where.split()
    kind, _, name = kind.partition("/")
    found: Any = next(
        (d for d in documents if d["kind"] == kind and name in ("", d["metadata"]["name"])), None
    )
    for key in keys:
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (IndexError, KeyError, TypeError):
            return None
    return found


@pytest.mark.parametrize("name", ROWS)
def test_a_value_changes_what_it_names(home: Path, name: str) -> None:
    row = ROWS[name]

    def seen(values: Mapping[str, Any]) -> Any:
        documents = render(home, {**row.beside, **values})
        return row.where(documents) if callable(row.where) else look(documents, row.where)

    assert seen({}) != row.wanted
    assert seen({name: row.value}) == row.wanted


def test_every_value_has_a_comment_and_a_row() -> None:
    comments = readme.comments(VALUES)
    leaves = {*readme.leaves(yaml.safe_load(VALUES), comments)}

    assert leaves - comments.keys() == set()
    settings = {name for name in leaves if name.startswith("settings.")}
    assert leaves - settings == ROWS.keys() | UPGRADED


EVERYTHING: dict[str, Any] = {
    "settings.start-mode": "hold",
    "settings.race-policy": "restart",
    "networkPolicy.enabled": True,
    "podMonitor.enabled": True,
    "prometheusRule.enabled": True,
    "grafanaDashboard.enabled": True,
}


@pytest.mark.parametrize("issuer", ["helm", "cert-manager"])
def test_every_object_has_the_labels_and_annotations_of_all(home: Path, issuer: str) -> None:
    values = {**EVERYTHING, "certificates.from": issuer}
    made = "istio-aux.io/made"  # When a certificate was made.
    common = {"commonLabels": {"team": "a"}, "commonAnnotations": {"note": "b"}}
    plain, marked = render(home, values), render(home, values | common)

    assert len(marked) > 15
    for before, after in zip(plain, marked, strict=True):
        metadata = after["metadata"]
        assert metadata["labels"].pop("team") == "a"
        assert metadata["annotations"].pop("note") == "b"
        assert metadata["labels"] == before["metadata"]["labels"]
        assert metadata["labels"]["app.kubernetes.io/instance"] == APP
        annotations = before["metadata"].get("annotations", {})
        assert {**metadata["annotations"], made: ""} == {**annotations, made: ""}
        if after["kind"].startswith(("Validating", "Mutating")) and "spec" in after:
            assert after["spec"] == before["spec"]


def test_a_release_of_another_name_leaves_its_own_pods_alone(home: Path) -> None:
    values = {"nameOverride": "aux", "fullnameOverride": "ours"}
    documents = render(home, values)
    labels = look(documents, "Deployment spec template metadata labels")
    files = look(documents, "ConfigMap data config.yaml")
    [own] = [
        each["values"]
        for each in look(documents, f"{HOOK} objectSelector matchExpressions")
        if each["key"] == "app.kubernetes.io/name"
    ]

    assert own == [labels["app.kubernetes.io/name"]] == ["aux"]
    assert yaml.safe_load(files)["application"] == f"{MODEL}/aux"
    assert look(documents, f"{HOOK} clientConfig service name") == "ours"


def test_pods_on_the_network_of_their_node_need_not_start_beside_their_predecessor(
    home: Path,
) -> None:
    values = {"webhook.hostNetwork": True, "webhook.securePort": 10260, "statusPort": 10261}
    documents = render(home, values)
    settings = yaml.safe_load(look(documents, "ConfigMap data config.yaml"))

    assert look(documents, "Deployment spec strategy rollingUpdate maxSurge") == 0
    assert settings["webhook-address"] == ":10260"
    assert settings["status-address"] == ":10261"
    assert look(documents, "Service spec ports 0 targetPort") == "webhook"


def test_the_pods_ask_for_no_user_and_may_run_where_pod_security_is_restricted(home: Path) -> None:
    spec = look(render(home), POD)
    [container] = spec["containers"]

    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("life", [730, 20])
def test_an_alert_tells_before_the_certificate_of_helm_expires(home: Path, life: int) -> None:
    """A twentieth of its life before. cert-manager has alerts of its own."""
    documents = render(home, EVERYTHING | {"certificates.days": life})
    by_others = render(home, EVERYTHING | {"certificates.from": "cert-manager"})
    *_, group = look(documents, "PrometheusRule spec groups")
    [rule] = group["rules"]
    _, ends = validity(documents)
    when = int(rule["expr"].removeprefix("vector(time()) > "))

    assert rule["alert"] == "IstioAuxCertificateExpires"
    assert round((ends - when) / 86400, 2) == life / 20
    assert [*look(by_others, "PrometheusRule spec groups"), group] == look(
        documents, "PrometheusRule spec groups"
    )


def test_rules_and_dashboard_are_about_the_labels_of_the_pod_monitor(home: Path) -> None:
    documents = render(home, EVERYTHING)
    alerts = str(look(documents, "PrometheusRule"))
    dashboard = look(documents, f"ConfigMap/{APP}-dashboard data istio-aux.json")

    assert f'namespace="{MODEL}", job="{APP}"' in alerts
    assert "@" not in alerts
    assert 'namespace=~\\"$namespace\\", job=~\\"$job\\"' in dashboard
    assert "juju" not in dashboard
    assert codecs.from_dict(look(documents, "NetworkPolicy"))
