"""The objects as Kubernetes gets them."""

from __future__ import annotations

import base64
from typing import Any, Literal

import pytest
from istio_aux.core import quit as quitting

import manifests
from config import Applications
from manifests import Values

# As `istioctl install` and Charmed Kubeflow name Istio's (reference: istio-discovery chart).
ISTIO = [
    "istio-revision-tag-default",
    "istio-revision-tag-default-kubeflow",
    "istio-sidecar-injector",
    "istio-sidecar-injector-1-28",
    "istio-sidecar-injector-kubeflow",
]


@pytest.mark.parametrize(("app", "model"), [("istio-aux", "kubeflow"), ("z" * 63, "z" * 63)])
def test_the_configuration_sorts_before_every_one_of_istio(app: str, model: str) -> None:
    ours = manifests.webhook_configuration(app, model)

    assert min(*ISTIO, ours, key=str.encode) == ours


def test_the_webhook_costs_a_pod_three_seconds_at_most_and_changes_nothing_else() -> None:
    inject = (Applications("kubeflow", None), Applications("team", ("a", "b")))
    values = Values("a", "m", inject=inject, inject_namespaces=("meshed",))
    (configuration,) = manifests.render_webhook(values)

    webhooks = configuration.to_dict()["webhooks"]

    assert [webhook["name"] for webhook in webhooks] == [
        "start.istio-aux.io",
        "injected.start.istio-aux.io",
        "kubeflow.inject.istio-aux.io",
        "team.inject.istio-aux.io",
    ]
    for webhook in webhooks:
        (rule,) = webhook["rules"]
        assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
        assert webhook["timeoutSeconds"] == 3
        assert webhook["failurePolicy"] == "Ignore"
        assert webhook["reinvocationPolicy"] == "IfNeeded"
        assert webhook["sideEffects"] == "None"
        assert webhook["matchConditions"]


def test_kube_system_is_never_selected() -> None:
    webhook = manifests.render_webhook(Values("a", "m"))[0].to_dict()["webhooks"][0]

    assert {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": ["kube-system"],
    } in webhook["namespaceSelector"]["matchExpressions"]


def test_a_selector_keeps_its_own_expressions() -> None:
    own = {"key": "team", "operator": "Exists"}
    selector = {"matchLabels": {"a": "b"}, "matchExpressions": [own]}

    webhook = manifests.render_webhook(Values("a", "m", namespace_selector=selector))[0]
    rendered = webhook.to_dict()["webhooks"][0]["namespaceSelector"]

    assert rendered["matchLabels"] == {"a": "b"}
    assert own in rendered["matchExpressions"]


def test_istiod_and_istioctl_do_not_take_it_for_an_injector() -> None:
    configuration = manifests.render_webhook(Values("a", "m"))[0].to_dict()

    assert "istio.io/rev" not in configuration["metadata"]["labels"]
    assert configuration["metadata"]["labels"].get("app") != "sidecar-injector"
    assert not configuration["webhooks"][0]["name"].endswith((".istio.io", "/istio.io"))


@pytest.mark.parametrize("odd", ['quote"', "colon: x", "{{ braces }}", "yes", "null", "#"])
def test_label_values_reach_the_object_unchanged(odd: str) -> None:
    selector = {"matchLabels": {"key": odd}}

    webhook = manifests.render_webhook(Values("a", "m", namespace_selector=selector))[0]

    assert webhook.to_dict()["webhooks"][0]["namespaceSelector"]["matchLabels"] == {"key": odd}


def test_names_that_look_like_something_else_stay_names() -> None:
    access = [resource.to_dict() for resource in manifests.render_access(Values("null", "1234"))]

    assert access[0]["metadata"]["namespace"] == "1234"
    assert access[0]["metadata"]["labels"]["istio-aux.io/application"] == "null"
    subjects = [a["subjects"][0]["namespace"] for a in access if "subjects" in a]
    assert {*subjects} == {"1234"}


def rights(values: Values) -> set[tuple[str, str]]:
    """Resource and verb of all that the ClusterRole allows."""
    (role,) = [r.to_dict() for r in manifests.render_access(values) if r.kind == "ClusterRole"]
    return {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


READS = {
    *((resource, verb) for resource in ("pods", "namespaces") for verb in ("get", "list", "watch")),
    *(("mutatingwebhookconfigurations", verb) for verb in ("list", "watch")),
    ("nodes", "list"),
    *(("endpointslices", verb) for verb in ("list", "watch")),
    ("configmaps", "get"),
    ("events", "create"),
}
ASKS = {("pods", "create")}
STREAMS = {(f"pods/{way}", verb) for way in ("exec", "portforward") for verb in ("get", "create")}
DELETES = {("pods", "delete")}
EVICTS = {("pods/eviction", "create"), ("jobs", "get")}
SUSPENDS = {
    (f"{kind}jobs", verb)
    for kind in ("", "jax", "mpi", "paddle", "pytorch", "tf", "xgboost")
    for verb in ("get", "list", "patch")
}


@pytest.mark.parametrize(
    ("what", "granted"),
    [
        ({}, READS | ASKS | STREAMS),
        ({"deletes": True}, READS | ASKS | STREAMS | DELETES),
        ({"acts": False}, READS | ASKS),
        ({"acts": False, "deletes": True}, READS | ASKS),
        ({"repairs": True}, READS | ASKS | STREAMS | EVICTS),
        ({"acts": False, "repairs": True}, READS | ASKS | EVICTS),
        ({"repairs": True, "repairs_jobs": True}, READS | ASKS | STREAMS | EVICTS | SUSPENDS),
        ({"repairs_jobs": True}, READS | ASKS | STREAMS | SUSPENDS),
        ({"dry_runs": False}, READS | STREAMS),
        (
            {"deletes": True, "repairs": True, "repairs_jobs": True},
            READS | ASKS | STREAMS | DELETES | EVICTS | SUSPENDS,
        ),
    ],
    # A set has another order in each process, and several run the tests.
    ids=lambda value: str(value) if isinstance(value, dict) else f"{len(value)} rights",
)
def test_the_workload_may_do_what_its_options_need(
    what: dict[str, Any], granted: set[tuple[str, str]]
) -> None:
    assert rights(Values("a", "m", **what)) == granted


@pytest.mark.parametrize(
    ("revisions", "names"),
    [
        ((), ["istio-sidecar-injector"]),
        (("default", ""), ["istio-sidecar-injector"]),
        (("b", "a", "b"), ["istio-sidecar-injector" + end for end in ("", "-a", "-b")]),
    ],
)
def test_the_injection_policies_of_the_revisions_may_be_read_and_no_other_configmap(
    revisions: tuple[str, ...], names: list[str]
) -> None:
    access = manifests.render_access(Values("a", "m", revisions=revisions))

    (role,) = [r.to_dict() for r in access if r.kind == "ClusterRole"]
    (rule,) = [rule for rule in role["rules"] if "configmaps" in rule["resources"]]
    assert rule["resourceNames"] == names


def test_the_account_is_narrowed_before_it_gets_its_roles() -> None:
    values = Values("a", "m", repairs=True, repairs_jobs=True)
    kinds = [resource.kind for resource in manifests.render_access(values)]

    assert kinds.count("ValidatingAdmissionPolicyBinding") == 2
    narrowed = len(kinds) - kinds[::-1].index("ValidatingAdmissionPolicyBinding")
    assert narrowed < kinds.index("ClusterRoleBinding")
    assert narrowed < kinds.index("RoleBinding")


def test_the_policy_allows_every_command_of_the_workload_and_no_other() -> None:
    ports = (*range(14990, 15100), 0, 8080)
    commands = {
        quitting.command(rung, port)
        for port in ports
        for rung in quitting.rungs(port)
        if rung is not quitting.Rung.PORT_FORWARD
    }

    assert set(manifests.QUIT_COMMANDS) == commands


def test_the_policy_follows_the_selector() -> None:
    selector = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}

    access = manifests.render_access(Values("a", "m", namespace_selector=selector))

    (policy,) = [r.to_dict() for r in access if r.kind == "ValidatingAdmissionPolicy"]
    assert {
        "name": "selected",
        "expression": '"team" in variables.labels && !("kubernetes.io/metadata.name" in'
        ' variables.labels && variables.labels["kubernetes.io/metadata.name"] in ["kube-system"])',
    } in policy["spec"]["variables"]


def test_the_bundle_of_authorities_is_what_was_given() -> None:
    webhook = manifests.render_webhook(Values("a", "m", ca_bundle="one\ntwo\n"))[0]

    bundle = webhook.to_dict()["webhooks"][0]["clientConfig"]["caBundle"]
    assert base64.b64decode(bundle) == b"one\ntwo\n"


AMBIENT = {"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["ambient"]}


def by_policy(**what: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The policy and the webhook beside it."""
    values = Values("a", "m", admission="policy", **what)
    policy, binding = (resource.to_dict() for resource in manifests.render_start_policy(values))
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    return policy, manifests.render_webhook(values)[0].to_dict()


def test_both_forms_of_admission_choose_the_same_pods() -> None:
    """T34: those of ambient namespaces are none of them."""
    policy, configuration = by_policy(namespace_selector={"matchLabels": {"team": "x"}})

    (webhook,) = configuration["webhooks"]
    constraints = policy["spec"]["matchConstraints"]
    assert constraints.pop("resourceRules") == webhook["rules"]
    done = {"key": "istio-aux.io/started-by", "operator": "DoesNotExist"}
    webhook["objectSelector"]["matchExpressions"].remove(done)
    assert constraints == {field: webhook[field] for field in constraints}
    assert constraints["namespaceSelector"]["matchLabels"] == {"team": "x"}
    assert AMBIENT in constraints["namespaceSelector"]["matchExpressions"]


def test_what_the_policy_does_not_look_at_the_webhook_is_not_shown_either() -> None:
    policy, configuration = by_policy()

    conditions = configuration["webhooks"][0]["matchConditions"]
    (mutation,) = policy["spec"]["mutations"]
    expression = mutation["jsonPatch"]["expression"]
    assert [c["name"] for c in conditions if c["expression"] not in expression] == [
        "left-by-the-policy"
    ]


@pytest.mark.parametrize("mode", ["auto", "native", "hold", "off"])
def test_the_api_server_converts_a_pod_that_changes_for_the_policy_only_once(
    mode: Literal["auto", "native", "hold", "off"],
) -> None:
    """Match conditions and a second run convert it again. In mode `off` few pods change."""
    policy, _ = by_policy(start_mode=mode)

    assert policy["spec"]["reinvocationPolicy"] == "Never"
    assert bool(policy["spec"]["matchConditions"]) is (mode == "off")


def test_without_a_policy_nothing_is_left_by_it() -> None:
    values = Values("a", "m")

    (webhook,) = manifests.render_webhook(values)[0].to_dict()["webhooks"]

    assert manifests.render_start_policy(values) == []
    assert [c["name"] for c in webhook["matchConditions"]] == ["may-have-a-sidecar"]


@pytest.mark.parametrize("failure_policy", ["Ignore", "Fail"])
def test_both_forms_fail_alike(failure_policy: Literal["Ignore", "Fail"]) -> None:
    policy, configuration = by_policy(failure_policy=failure_policy)

    assert policy["spec"]["failurePolicy"] == failure_policy
    assert configuration["webhooks"][0]["failurePolicy"] == failure_policy


def test_the_policy_goes_by_the_name_of_the_webhook_configuration() -> None:
    policy, configuration = by_policy(capability="native")

    assert policy["metadata"].pop("annotations") == {"istio-aux.io/capability": "native"}
    assert policy["metadata"] == configuration["metadata"]


@pytest.mark.parametrize("mode", ["auto", "native", "hold", "off"])
def test_rules_are_the_same_whether_native_cannot_be_had_or_is_not_known(
    mode: Literal["auto", "native", "hold", "off"],
) -> None:
    """The cluster tier's table leaves the one out for the other."""
    (cannot, webhook), (unknown, same) = (
        by_policy(start_mode=mode, capability=capability) for capability in ("classic", "unknown")
    )

    assert cannot["spec"] == unknown["spec"]
    assert webhook == same
