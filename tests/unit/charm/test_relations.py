"""The relations with Istio and with the observability stack.

Istio says where the control plane is, which workload and user learn. Prometheus, Grafana and Loki
read and get what is theirs. The databags of Istio are recorded; `tests/data/relations/README.md`
says how.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import lzma
import re
import socket
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from ops import testing, tracing

from relations.istio import parse

from .conftest import METADATA, PILOT, Unit, active, injector, recorded
from .test_actions import LIVE, run_check

WEBHOOK = "MutatingWebhookConfiguration"
VERSIONS = {"_supported_versions": "- v1\n"}


SILENT = testing.Relation("istio-metadata")


@pytest.mark.parametrize(
    ("relations", "namespace"),
    [
        ([PILOT], "kubeflow"),
        ([METADATA], "istio-system"),
        ([PILOT, SILENT], "kubeflow"),
        ([SILENT], None),
        ([PILOT, METADATA], None),
    ],
    ids=["istio-pilot", "istio-metadata", "one is silent", "silent", "disagreeing"],
)
def test_the_workload_learns_where_the_control_plane_is(
    relations: list[testing.Relation], namespace: str | None, new_unit: Unit
) -> None:
    new_unit.relate(*relations)

    assert new_unit.settings.get("root-namespace") == namespace


WHEN = "since 2026-11-21 19:40Z"
NO_ENDPOINT = injector("no-endpoint", "Service istiod has no ready endpoint")
ABSENT = injector("absent", "there is no webhook configuration of Istio's injector", name="")
DEACTIVATED = injector("deactivated", "no webhook is called", name="istio-old")
TROUBLE = f"istio-sidecar-injector: Service istiod has no ready endpoint, {WHEN}"
NONE = "no pod of the selected namespaces has a sidecar"
GONE = f"{NONE}: this application may go"


@pytest.mark.parametrize(
    ("relation", "injectors", "injects", "waits", "said"),
    [
        (PILOT, [NO_ENDPOINT], False, True, TROUBLE),
        (None, [NO_ENDPOINT], False, True, TROUBLE),
        (None, [DEACTIVATED], False, False, f"istio-old: no webhook is called, {WHEN}; {GONE}"),
        (PILOT, [], None, True, "not known yet whether Istio injects"),
        (
            None, [ABSENT], False, False,
            f"Istio: there is no webhook configuration of Istio's injector, {WHEN}; {GONE}",
        ),
        (
            SILENT, [injector(), injector("no-ca-bundle", "no caBundle", name="istio-old")], True,
            False,
            (
                "istio-metadata: the root namespace is not set yet;"
                f" istio-sidecar-injector live {WHEN}, istio-old: no caBundle, {WHEN}"
            ),
        ),
    ],
    ids=[
        "a relation waits", "so does a mesh without one", "one that is off", "unknown", "no Istio",
        "one live injector is enough",
    ],
)  # fmt: skip
def test_the_status_names_the_injectors(
    unit: Unit,
    *,
    relation: testing.Relation | None,
    injectors: list[dict[str, str]],
    injects: bool | None,
    waits: bool,
    said: str,
) -> None:
    unit.process.injectors, unit.process.injects = injectors, injects
    relations = {*unit.state.relations, *([relation] if relation else [])}

    status = unit.run(relations=relations)

    facts = f"2 namespaces selected; {said}"
    assert status == (
        testing.WaitingStatus(f"waiting for Istio; {facts}")
        if waits
        else testing.ActiveStatus(facts)
    )


BEACON = testing.Relation("service-mesh", remote_app_name="istio-beacon-k8s")
ASKING = {"name": "mlmd", "namespace": "team-a", "live": True, "live-reason": "", "revision": "",
    "root-namespace": "", "meshed": None, "meshed-reason": ""}  # fmt: skip
SOME = "37 pods in 4 namespaces still have a sidecar"
HAVE = {"sidecars": {"pods": 37, "namespaces": 4, "most": {"team-a": 30}}}
AMBIENT = {"selected-total": 2, "ambient-total": 2}
WAITS, ISTIO = "waiting for pods with a sidecar to end", "waiting for Istio"


@pytest.mark.parametrize(
    ("relations", "answer", "said"),
    [
        ([PILOT], HAVE, []),
        ([], HAVE, []),
        ([PILOT, METADATA], HAVE, [SOME]),
        ([], {"injectors": [ABSENT], **HAVE}, [WAITS, SOME]),
        ([BEACON], {"injectors": [DEACTIVATED], **HAVE}, [WAITS, SOME]),
        ([PILOT], {"injectors": [ABSENT], **HAVE}, [ISTIO]),
        ([PILOT], {"injectors": [ABSENT]}, [ISTIO]),
        (
            [], {"injectors": [ABSENT], "sidecars": None},
            ["not known how many pods still have a sidecar"],
        ),
        ([], {"injectors": [ABSENT], "selected-namespaces": []}, []),
        ([], {"injectors": [ABSENT], "applications": [ASKING]}, [NONE]),
        ([METADATA, BEACON], HAVE, [SOME]),
        ([METADATA], AMBIENT | {"ambient-total": 1}, [NONE]),
        (
            [METADATA], AMBIENT | {"sidecars": {"pods": 1, "namespaces": 1, "most": {}}},
            ["1 pod in 1 namespace still has a sidecar"],
        ),
        ([METADATA], AMBIENT, [GONE]),
        ([METADATA], AMBIENT | {"injectors": [ABSENT]}, [GONE]),
        ([METADATA], AMBIENT | {"applications": [ASKING]}, [NONE]),
        ([METADATA], AMBIENT | {"unmeshed-total": 2}, [NONE]),
    ],
    ids=[
        "a mesh with sidecars", "and without a relation", "two control planes",
        "istio-pilot is gone", "the beacon is there", "a relation waits", "in a new cluster",
        "an image that does not count", "nothing is selected", "an application asks",
        "a beacon", "one of two namespaces", "the last pod", "all are ambient",
        "no injector at all", "an application asks in an ambient mesh",
        "two pods are outside it",
    ],
)  # fmt: skip
def test_the_way_to_an_ambient_mesh_is_told_until_no_pod_has_a_sidecar(
    unit: Unit, relations: list[testing.Relation], answer: dict[str, Any], said: list[str]
) -> None:
    """Charmed Kubeflow's guide removes istio-pilot first; istio-k8s has an injector, too."""
    unit.process.injects = "injectors" not in answer
    unit.process.more = answer

    status = unit.run(relations={*unit.state.relations, *relations})

    told = status.message.split("; ")
    assert [each for each in told if " a sidecar" in each or "waiting" in each] == said
    waits = bool({*said} & {WAITS, ISTIO})
    assert isinstance(status, testing.WaitingStatus if waits else testing.ActiveStatus)


def test_the_check_lists_the_namespaces_whose_pods_have_a_sidecar(unit: Unit) -> None:
    """As many as fit, those with most pods first."""
    most = {f"team-{number}": 900 - number for number in range(500)}
    unit.process.more = {"sidecars": {"pods": 99999, "namespaces": 700, "most": most}}
    lines = run_check(unit, LIVE)["findings"].splitlines()
    (said,) = (line for line in lines if "sidecars" in line)
    assert said.startswith(
        "ok: sidecars: 99999 pods in 700 namespaces have a sidecar: team-0 900, team-1 899, "
    )
    assert said.endswith(", team-99 801 and 600 more")


def test_the_workload_may_read_the_policies_of_all_revisions(unit: Unit) -> None:
    base = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    for name, revision in {"a": "1-28", "tag": "1-29", "default": "default", "no": ""}.items():
        labels = {"istio.io/rev": revision} if revision else {}
        configuration = {"kind": WEBHOOK, "metadata": {"name": name, "uid": "1", "labels": labels}}
        unit.api.objects[f"{base}/{name}"] = configuration

    unit.run()

    named = [
        rule["resourceNames"]
        for rule in unit.api.one("ClusterRole")["rules"]
        if rule["resources"] == ["configmaps"]
    ]
    assert named == [
        [
            "istio-cni-config",
            "istio-sidecar-injector",
            "istio-sidecar-injector-1-28",
            "istio-sidecar-injector-1-29",
        ]
    ]


@pytest.mark.parametrize(
    "service", ["istiod.mesh", "istiod.mesh.svc", "istiod-1-29.mesh.svc.cluster.local"]
)
def test_the_namespace_is_the_second_part_of_the_services_name(service: str) -> None:
    databag = VERSIONS | {"data": f"service-name: {service}"}

    assert parse("istio-pilot", databag).root_namespace == "mesh"


@pytest.mark.parametrize(
    ("endpoint", "databag", "why"),
    [
        *(
            ("istio-pilot", databag, why)
            for databag, why in (
                (recorded("istio-pilot-before-our-versions"), "the root namespace is not set yet"),
                (
                    # Another format under the same name of an interface.
                    recorded("k8s-service-info"),
                    'keys "name, port": expected _supported_versions and data, as istio-pilot',
                ),
                (VERSIONS | {"data": "{"}, 'data "{": expected a service-name'),
                (
                    VERSIONS | {"data": "service-name: [a]"},
                    'data "service-name: [a]": expected a service-',
                ),
                (VERSIONS | {"data": "[" * 1000}, f'data "{"[" * 60}…": expected a service-name'),
                (
                    VERSIONS | {"data": "service-name: istiod.example.com"},
                    'data "service-name: istiod.example.com": expected a service-name, <service>.<',
                ),
                (
                    VERSIONS | {"data": "service-name: istiod.Mesh.svc"},
                    '"Mesh": expected the name of a namespace',
                ),
            )
        ),
        ("istio-metadata", {}, "the root namespace is not set yet"),
        (
            "istio-metadata", {"root_namespace": "a\nb"},
            '"a\\nb": expected the name of a namespace',
        ),
    ],
)  # fmt: skip
def test_a_bad_databag_is_named(endpoint: str, databag: dict[str, str], why: str) -> None:
    told = parse(endpoint, databag)

    assert told.root_namespace is None
    assert told.reason.startswith(f"{endpoint}: {why}")


ANYTHING = st.text(alphabet="-:[]{}&*!|>'\"%@`\n\t #,?.a1\0é")


@settings(max_examples=60, deadline=None)
@given(ANYTHING)
def test_no_databag_raises(text: str) -> None:
    assert parse("istio-pilot", VERSIONS | {"data": text}).reason
    assert parse("istio-metadata", {"root_namespace": text}).reason


MESH = testing.Relation(
    "service-mesh",
    remote_app_name="istio-beacon-k8s",
    remote_app_data={"labels": '{"istio.io/dataplane-mode": "ambient"}', "mesh_type": '"istio"'},
)
SAID = "; no pod of the selected namespaces has a sidecar"


def policies(unit: Unit) -> list[dict[str, Any]]:
    return [o for o in unit.api.objects.values() if o["kind"] == "AuthorizationPolicy"]


def test_an_ambient_mesh_lets_everybody_reach_both_ports_of_the_units_and_no_other(
    unit: Unit,
) -> None:
    """notebooks#652: the API server is in no mesh, so no identity of its own can be named."""
    unit.relate(MESH)

    (policy,) = policies(unit)
    assert policy["metadata"]["namespace"] == "kubeflow"
    assert policy["spec"] == {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "istio-aux"}},
        "action": "ALLOW",
        "rules": [{"to": [{"operation": {"ports": ["8443", "8080"]}}]}],
    }
    # Istiod tells ztunnel of ports that are PERMISSIVE alone, not of those with DISABLE.
    assert unit.api.one("PeerAuthentication")["spec"] == {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "istio-aux"}},
        "portLevelMtls": {"8443": {"mode": "PERMISSIVE"}, "8080": {"mode": "PERMISSIVE"}},
    }
    # A hung istiod, whose validator is asked, costs an event three seconds at most.
    patience = [it for call, it in unit.api.patience.items() if call.startswith("PATCH /apis/sec")]
    assert {*patience} == {3.0}


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
    assert json.loads(lzma.decompress(base64.b64decode(template["content"])))["panels"]


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
    monkeypatch.setattr(tracing, "set_destination", lambda url, **_: sent_to.append(url))
    receivers = '[{"protocol": {"name": "otlp_http", "type": "http"}, "url": "http://tempo:4318"}]'

    unit.relate(testing.Relation("charm-tracing", remote_app_data={"receivers": receivers}))

    assert sent_to == ["http://tempo:4318/v1/traces"]
