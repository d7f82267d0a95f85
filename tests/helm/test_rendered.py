"""The chart renders the objects of the charm, and names a bad value in one line."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.x509 import verification
from istio_aux import settings
from istio_aux.model import selectors
from istio_aux.model.names import SETTINGS
from lab.release import CHART, HelmError
from lab.selector_cases import VALID
from lab.workload import rendered_from

import config
import manifests
from helm import charts, generate
from helm.charts import APP, MODEL, by_name, render
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
            for each in manifests.render(charts.trusting(values, webhook))
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
    names = x509.DNSName(f"{APP}.{MODEL}.svc")
    verifier = (
        verification.PolicyBuilder()
        .store(verification.Store([authority]))
        .build_server_verifier(names)
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
