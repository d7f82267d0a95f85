"""The chart renders the objects of the charm, and names a bad value in one line.

`ROWS` has what each value of the chart does to the manifests.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml
from cryptography import x509
from cryptography.x509 import verification
from istio_aux import settings
from istio_aux.model import selectors
from istio_aux.model.names import SETTINGS
from lab.selector_cases import VALID
from lab.workload import rendered_from
from lightkube import codecs

import config
import manifests
from helm import generate
from helm.charts import APP, CHART, IMAGE, MODEL, Document, HelmError, by_name, render, trusting
from manifests import Values

UNSET = yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"]
INJECTS = "cert-manager.io/inject-ca-from"
BY_LABEL = {"matchLabels": {"team": "a"}}
EXISTS = {"matchExpressions": [{"key": "b", "operator": "Exists"}]}
BAD_KEYS = ["", "-a", "a-", "/a", "a/", "a/b/c", "A.b/c", "a..b/c", "ü", "k" * 64, "a b"]
BAD_VALUES = ["ü", "v" * 64, "-b", "b c", "a\n"]
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "start": {"start-mode": "native", "peers": "direct", "sidecars": "otel=native,web=ignore"},
    "selectors": {
        "namespace-selectors": "here,!legacy , team in (b, a),tier!=gold,x/y==z; b ;a=1;b",
        "pod-selector": "app notin (web,db),job-name",
        "inject-selector": "queue=gpu,!web",
    },
    "everything selected": {"namespace-selectors": "", "inject-selector": "a"},
    "dry run": {"quit": "dry-run", "dead-proxy": "delete"},
    "deletes": {"dead-proxy": "delete"},
    "sidecars": {"sidecars": "otel=native, vault-agent=quit,web=80/quit"},
    "restarts": {"race-policy": "restart"},
    "applications": {
        "inject-applications": f"team/web,team/db,other/*,{MODEL}/*,other/one",
        "inject-namespaces": "z-meshed,y-also",
    },
    "our own application": {"inject-applications": f"{MODEL}/{APP},{MODEL}/web"},
    "only ourselves": {"inject-applications": f"{MODEL}/{APP}"},
}


def as_values(options: dict[str, Any]) -> dict[str, Any]:
    """Options of the charm as values of the chart."""
    own = {
        "inject-applications": "injectApplications",
        "inject-namespaces": "injectNamespaces",
    }
    values: dict[str, Any] = {}
    for name, value in options.items():
        values[own.get(name, f"settings.{name}")] = value.split(",") if name in own else value
        if name == "namespace-selectors":
            values[f"settings.{name}"] = config.parse_namespaces_selected(value) if value else []
        elif name.endswith("-selector"):
            values[f"settings.{name}"] = config.parse_selector(value)
    return values


def spaced(document: Any) -> Any:
    """The same without the spaces that JSON has in CEL, where Python writes it, not Go."""
    match document:
        case dict():
            return {key: spaced(value) for key, value in document.items()}
        case list():
            return [spaced(value) for value in document]
        case str():
            return re.sub(r'(?<=[,:]) (?=["\[{])', "", document)
        case _:
            return document


@pytest.mark.parametrize("case", CASES)
def test_the_chart_has_the_objects_of_the_charm(home: Path, case: str) -> None:
    options = CASES[case]
    rendered = by_name(render(home, as_values(options)))
    values = rendered_from(APP, MODEL, options)
    webhook = rendered["MutatingWebhookConfiguration", f"istio-aux-{MODEL}.{APP}"]
    wanted = by_name(
        [
            each.to_dict()
            for each in manifests.render(trusting(values, webhook))
            if each.kind != "PeerAuthentication"
        ]
    )

    assert {name: spaced(rendered.get(name)) for name in wanted} == spaced(wanted)
    assert {kind for kind, _ in rendered.keys() - wanted.keys()} == {
        "ConfigMap",
        "Deployment",
        "Lease",
        "PodDisruptionBudget",
        "Secret",
        "Service",
    }


def test_a_kubernetes_without_admission_policies_gets_no_right_that_one_would_narrow(
    home: Path,
) -> None:
    kinds = {each["kind"]: each for each in render(home, None, "--kube-version=1.29")}
    creates = [rule for rule in kinds["ClusterRole"]["rules"] if rule["verbs"] == ["create"]]

    assert "ValidatingAdmissionPolicy" not in kinds
    assert [rule["resources"] for rule in creates] == [["events"]]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"settings.start-mode": "later"}, "start-mode"),
        ({"settings.quit": False}, "quit"),
        ({"settings.quit-grace": -1}, "quit-grace"),
        ({"settings.lease": "a/b"}, "lease"),
        *(
            ({"settings.sidecars": f"a=ignore,{bad}"}, "sidecars")
            for bad in (
                "a",
                "a=quit",
                "a=stop",
                "a=/bin/kill 1",
                "a=1/b\nc",
                "istio-proxy=ignore",
                "A=native",
            )
        ),
        ({"admission": "policy"}, "admission"),
        ({"injectApplications": ["web"]}, "injectApplications"),
        ({"replicaCount": 0}, "replicaCount"),
        ({"settings.namespace-selectors": "team=a"}, "/settings/namespace-selectors"),
        ({"settings.namespace-selectors": [{}]}, "/settings/namespace-selectors/0"),
        ({"settings.namespace-selectors": [BY_LABEL] * 17}, "/settings/namespace-selectors"),
        (
            {
                "settings.namespace-selectors": [
                    {"matchLabels": {f"k{n}": "v" * 60 for n in range(40)}}
                ]
            },
            "expected a shorter selector",
        ),
        ({"serviceAccount.create": False}, "/serviceAccount/name"),
        ({"image.repository": UNSET}, "/image/repository': value must be 'where your nodes"),
        *(
            # Otherwise it waits five minutes for an image that is nowhere.
            ({"image.repository": f"{example}/istio-aux"}, "load or push what `make image` writes")
            for example in ("registry.example.com", "registry.example:5000", "example.org", "")
        ),
        ({"injectNamespaces": ["kube-system"]}, "kube-system: expected a namespace that Istio"),
    ],
)
def test_a_bad_value_is_named(home: Path, values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmError, match=re.escape(told)):
        render(home, values)


@pytest.mark.parametrize("text", VALID)
def test_webhook_policy_and_workload_have_the_same_selector(home: Path, text: str) -> None:
    parsed = config.parse_selector(text)
    short = generate.selector(selectors.parse(text))
    documents = render(home, {"settings.pod-selector": short, "settings.inject-selector": parsed})
    rendered = by_name(documents)
    [files] = [each for each in documents if each["kind"] == "ConfigMap"]
    told = yaml.safe_load(files["data"]["config.yaml"])
    assert config.parse_selector(told["pod-selector"]) == parsed
    assert config.parse_selector(told["inject-selector"]) == parsed
    webhook = rendered["MutatingWebhookConfiguration", f"istio-aux-{MODEL}.{APP}"]
    policy = rendered["ValidatingAdmissionPolicy", f"istio-aux-{MODEL}.{APP}"]
    [chosen] = [each for each in policy["spec"]["variables"] if each["name"] == "chosen"]
    wanted = [*manifests.start_webhooks(Values(APP, MODEL, pod_selector=parsed))]

    selector = wanted[0]["matches"]["objectSelector"]
    # The charm sorts requirements.
    assert in_any_order(webhook["webhooks"][0]["objectSelector"]) == in_any_order(selector)
    expression = manifests.selector_expression(parsed, "variables.podLabels")
    assert {*chosen["expression"].split(" && ")} == {*expression.split(" && ")}


def in_any_order(selector: dict[str, Any]) -> set[str]:
    return {json.dumps(each, sort_keys=True) for each in selector["matchExpressions"]}


@pytest.mark.parametrize(
    "selector",
    [
        "team=a",
        {"matchlabels": {"a": "b"}},
        *({"matchLabels": {key: "a"}} for key in BAD_KEYS),
        *({"matchLabels": {"a": value}} for value in BAD_VALUES),
        *(
            {"matchExpressions": [{"key": "a", **wrong}]}
            for wrong in (
                {"operator": "Is"},
                {"operator": "In"},
                {"operator": "NotIn", "values": []},
                {"operator": "Exists", "values": ["a"]},
                {"operator": "In", "values": ["-a"]},
                {"operator": "Exists", "value": "a"},
            )
        ),
    ],
    ids=str,
)
def test_what_the_api_refuses_as_a_selector_is_refused(home: Path, selector: object) -> None:
    with pytest.raises(HelmError, match="/settings/inject-selector"):
        render(home, {"settings.inject-selector": selector})


def test_every_setting_reaches_the_workload_and_is_one_that_it_takes(
    home: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "settings.namespace-selectors": [BY_LABEL, EXISTS],
        "settings.pod-selector": EXISTS,
        "settings.inject-selector": BY_LABEL,
        "settings.start-mode": "hold",
        "settings.peers": "direct",
        "settings.sidecars": "otel=native, vault-agent=quit,a=ignore,b=9000/stop",
        "settings.quit": "dry-run",
        "settings.quit-grace": 3,
        "settings.dead-proxy": "delete",
        "settings.race-policy": "restart",
        "settings.root-namespace": "mesh",
        "settings.log-level": "debug",
    }
    assert {name.partition(".")[2] for name in given} == {*generate.SETTINGS}
    [files] = [d for d in render(home, given) if d["kind"] == "ConfigMap"]
    file = tmp_path / "config.yaml"
    file.write_text(files["data"]["config.yaml"])
    written = yaml.safe_load(files["data"]["config.yaml"])

    loaded = settings.load(file)

    assert written.keys() == settings.OPTIONS.keys() - {
        "kubeconfig",
        "pebble-socket",
        "unknown-keys",
    }
    selected = {"namespace-selectors": "team=a;b", "pod-selector": "b", "inject-selector": "team=a"}
    for name, value in given.items():
        setting = name.partition(".")[2]
        assert written[setting] == selected.get(setting, value)
    assert loaded.lease == (MODEL, APP)


def test_a_changed_setting_rolls_the_pods_and_a_changed_switch_does_not(home: Path) -> None:
    def template(values: dict[str, Any]) -> Any:
        [deployment] = [d for d in render(home, values) if d["kind"] == "Deployment"]
        return deployment["spec"]["template"]

    assert template({"settings.quit-grace": 1}) != template({})
    assert template({"networkPolicy.enabled": True}) == template({})


def test_the_certificate_is_for_the_service_and_what_the_api_server_trusts_has_signed_it(
    home: Path,
) -> None:
    rendered = by_name(render(home))
    secret = rendered["Secret", f"{APP}-certificate"]["data"]
    webhook = rendered["MutatingWebhookConfiguration", f"istio-aux-{MODEL}.{APP}"]

    def certificate(data: str) -> x509.Certificate:
        return x509.load_pem_x509_certificate(base64.b64decode(data))

    authority = certificate(webhook["webhooks"][0]["clientConfig"]["caBundle"])
    verifier = (
        verification.PolicyBuilder()
        .store(verification.Store([authority]))
        .build_server_verifier(x509.DNSName(f"{APP}.{MODEL}.svc"))
    )
    assert verifier.verify(certificate(secret["tls.crt"]), [])


def test_with_cert_manager_no_key_is_in_the_manifests(home: Path) -> None:
    rendered = render(home, {"certificates.from": "cert-manager"})
    kinds = [document["kind"] for document in rendered]
    [webhook] = [d for d in rendered if d["kind"] == "MutatingWebhookConfiguration"]

    assert "Secret" not in kinds
    assert kinds.count("Certificate") == 2
    assert webhook["metadata"]["annotations"].keys() == {SETTINGS, INJECTS}
    assert webhook["metadata"]["annotations"][INJECTS] == f"{MODEL}/{APP}-certificate"


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
    leaf = x509.load_pem_x509_certificate(base64.b64decode(look(documents, "Secret data tls.crt")))
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


# Settings are in `CASES`.
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
    comments = generate.comments(VALUES)
    leaves = {*generate.leaves(yaml.safe_load(VALUES), comments)}

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
    documents = render(home, {"nameOverride": "aux", "fullnameOverride": "ours"})
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
    documents = render(
        home, {"webhook.hostNetwork": True, "webhook.securePort": 10260, "statusPort": 10261}
    )
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
