"""The rendered objects; `tests/cluster/test_inject.py` shows what an API server does with them."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

import pytest
from istio_aux.model.names import IGNORED

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
def test_our_configuration_sorts_before_all_of_istio(app: str, model: str) -> None:
    ours = manifests.webhook_configuration(app, model)

    assert min(*ISTIO, ours, key=str.encode) == ours


def test_every_webhook_takes_three_seconds_at_most_and_sees_only_new_pods() -> None:
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
    values = Values("a", "m", inject=(Applications("sidecar-injector", None),))
    configuration = manifests.render_webhook(values)[0].to_dict()

    assert "istio.io/rev" not in configuration["metadata"]["labels"]
    assert configuration["metadata"]["labels"].get("app") != "sidecar-injector"
    theirs = (".istio.io", "/istio.io", "sidecar-injector.istio.io")
    assert not [hook["name"] for hook in configuration["webhooks"] if hook["name"].endswith(theirs)]


@pytest.mark.parametrize("odd", ['quote"', "colon: x", "{{ braces }}", "yes", "null", "#"])
def test_label_values_reach_the_object_unchanged(odd: str) -> None:
    selector = {"matchLabels": {"key": odd}}

    webhook = manifests.render_webhook(Values("a", "m", namespace_selector=selector))[0]

    assert webhook.to_dict()["webhooks"][0]["namespaceSelector"]["matchLabels"] == {"key": odd}


def test_names_that_look_like_yaml_values_stay_strings() -> None:
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
    *(("pods", verb) for verb in ("get", "list", "watch")),
    *(("namespaces", verb) for verb in ("list", "watch")),
    *(("mutatingwebhookconfigurations", verb) for verb in ("list", "watch")),
    *(("nodes", verb) for verb in ("get", "list")),
    *(("endpointslices", verb) for verb in ("list", "watch")),
    ("configmaps", "get"),
    ("events", "create"),
}
ASKS = {("pods", "create")}
EXECUTES, FORWARDS = (
    {(f"pods/{way}", verb) for verb in ("get", "create")} for way in ("exec", "portforward")
)
STREAMS = EXECUTES | FORWARDS
DELETES = {("pods", "delete")}
EVICTS = {("pods/eviction", "create"), ("jobs", "get")}
SUSPENDS = {
    (resource, verb)
    for resource in (
        *(f"{kind}jobs" for kind in ("", "jax", "mpi", "paddle", "pytorch", "tf", "train")),
        "xgboostjobs",
        "jobsets",
    )
    for verb in ("get", "list", "patch")
}


@pytest.mark.parametrize(
    ("what", "granted"),
    [
        ({}, READS | ASKS | STREAMS),
        ({"deletes": True}, READS | ASKS | STREAMS | DELETES),
        ({"quit_via": "exec"}, READS | ASKS | EXECUTES),
        ({"quit_via": "port-forward"}, READS | ASKS | FORWARDS),
        ({"acts": False, "quit_via": "exec"}, READS | ASKS),
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

    assert kinds.count("ValidatingAdmissionPolicyBinding") == 3
    narrowed = len(kinds) - kinds[::-1].index("ValidatingAdmissionPolicyBinding")
    assert narrowed < kinds.index("ClusterRoleBinding")
    assert narrowed < kinds.index("RoleBinding")


def test_the_policy_follows_the_selector() -> None:
    selector = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}

    access = manifests.render_access(Values("a", "m", namespace_selector=selector))

    policy, _ = [r.to_dict() for r in access if r.kind == "ValidatingAdmissionPolicy"]
    assert {
        "name": "selected",
        "expression": '"team" in variables.labels && !("kubernetes.io/metadata.name" in'
        ' variables.labels && variables.labels["kubernetes.io/metadata.name"] in ["kube-system"])',
    } in policy["spec"]["variables"]


def test_the_ca_bundle_is_encoded() -> None:
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
    """T34: never pods of ambient namespaces."""
    policy, configuration = by_policy(namespace_selector={"matchLabels": {"team": "x"}})

    (webhook,) = configuration["webhooks"]
    constraints = policy["spec"]["matchConstraints"]
    assert constraints.pop("resourceRules") == webhook["rules"]
    done = {"key": "istio-aux.io/started-by", "operator": "DoesNotExist"}
    webhook["objectSelector"]["matchExpressions"].remove(done)
    assert constraints == {field: webhook[field] for field in constraints}
    assert constraints["namespaceSelector"]["matchLabels"] == {"team": "x"}
    assert AMBIENT in constraints["namespaceSelector"]["matchExpressions"]


PODS = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}


def test_both_forms_of_admission_choose_the_pods_of_the_pod_selector() -> None:
    policy, configuration = by_policy(
        pod_selector=PODS, inject=(Applications("shop", None),), inject_namespaces=("bank",)
    )

    (wanted,) = PODS["matchExpressions"]
    selectors = {
        hook["name"]: hook["objectSelector"]["matchExpressions"]
        for hook in configuration["webhooks"]
    }
    assert {name for name, found in selectors.items() if wanted in found} == {"start.istio-aux.io"}
    assert len(selectors) == 3
    constraints = policy["spec"]["matchConstraints"]
    assert wanted in constraints["objectSelector"]["matchExpressions"]


def test_the_policy_for_the_account_knows_the_pods_that_may_be_deleted() -> None:
    access = manifests.render_access(Values("a", "m", pod_selector=PODS))

    policy, _ = [r.to_dict() for r in access if r.kind == "ValidatingAdmissionPolicy"]
    assert {
        "name": "chosen",
        "expression": '"team" in variables.podLabels && variables.podLabels["team"] in ["a", "b"]',
    } in policy["spec"]["variables"]


def test_policy_and_webhook_have_the_same_conditions() -> None:
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


def test_both_forms_open_ports_by_default_only_with_the_option() -> None:
    """A pod without annotations does not become one that its peers reach directly."""
    ends = "object.spec.restartPolicy != 'Always'"
    for peers in ("off", "direct"):
        policy, configuration = by_policy(start_mode="off", peers=peers)
        found = [policy["spec"]["matchConditions"], configuration["webhooks"][0]["matchConditions"]]
        assert [ends in json.dumps(conditions) for conditions in found] == [peers == "direct"] * 2


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_the_policy_adds_istios_label_first_where_the_inject_selector_matches(
    mode: Literal["auto", "off"],
) -> None:
    """And nothing excludes pods before that: match conditions would be for both."""
    alone, _ = by_policy(start_mode=mode)
    policy, beside = by_policy(start_mode=mode, inject_selector=PODS)

    label, start = (each["jsonPatch"]["expression"] for each in policy["spec"]["mutations"])
    assert '"team" in ' in label
    assert "/metadata/labels/sidecar.istio.io~1inject" in label
    assert not policy["spec"]["matchConditions"]
    (mutation,) = alone["spec"]["mutations"]
    assert mutation["jsonPatch"]["expression"] in start
    conditions = {c["name"]: c["expression"] for c in beside["webhooks"][0]["matchConditions"]}
    assert [name for name, text in conditions.items() if '"team" in ' in text] == [
        "sidecar-wanted", "left-by-the-policy",
    ]  # fmt: skip


def test_without_a_policy_the_webhook_excludes_nothing() -> None:
    values = Values("a", "m")

    (webhook,) = manifests.render_webhook(values)[0].to_dict()["webhooks"]

    assert manifests.render_start_policy(values) == []
    assert [c["name"] for c in webhook["matchConditions"]] == ["may-have-a-sidecar"]


@pytest.mark.parametrize("failure_policy", ["Ignore", "Fail"])
def test_both_forms_have_the_failure_policy_of_the_option(
    failure_policy: Literal["Ignore", "Fail"],
) -> None:
    inject = (Applications("team", None),)
    policy, configuration = by_policy(failure_policy=failure_policy, inject=inject)

    assert policy["spec"]["failurePolicy"] == failure_policy
    assert [w["failurePolicy"] for w in configuration["webhooks"]] == [failure_policy] * 2


def test_the_policy_has_the_name_of_the_webhook_configuration() -> None:
    policy, configuration = by_policy(capability="native")

    assert policy["metadata"].pop("annotations") == {"istio-aux.io/capability": "native"}
    assert policy["metadata"] == configuration["metadata"]


@pytest.mark.parametrize("mode", ["auto", "native", "hold", "off"])
def test_the_rules_are_the_same_for_classic_and_unknown(
    mode: Literal["auto", "native", "hold", "off"],
) -> None:
    """So the table of the cluster tier needs only one of them."""
    (cannot, webhook), (unknown, same) = (
        by_policy(start_mode=mode, capability=capability) for capability in ("classic", "unknown")
    )

    assert cannot["spec"] == unknown["spec"]
    assert webhook == same


def inject_webhooks(
    *asked: Applications, admission: Literal["webhook", "policy"] = "webhook"
) -> list[dict[str, Any]]:
    """All webhooks but the first, which is `start`."""
    values = Values("istio-aux", "kubeflow", inject=asked, admission=admission)
    (configuration,) = manifests.render_webhook(values)
    start, *others = configuration.to_dict()["webhooks"]
    assert start["name"] == "start.istio-aux.io"
    return others


def chosen(webhook: dict[str, Any]) -> list[dict[str, Any]]:
    """The requirements on the name of a pod's application."""
    expressions = webhook["objectSelector"]["matchExpressions"]
    return [e for e in expressions if e["key"] == "app.kubernetes.io/name"]


def test_no_application_needs_no_inject_webhook() -> None:
    assert inject_webhooks() == []


def test_all_applications_of_a_model_are_one_webhook() -> None:
    names = tuple(f"app-{i}" for i in range(300))

    (webhook,) = inject_webhooks(Applications("team", names))

    assert webhook["name"] == "team.inject.istio-aux.io"
    assert webhook["clientConfig"]["service"]["path"] == "/inject"
    assert {
        "key": "kubernetes.io/metadata.name",
        "operator": "In",
        "values": ["team"],
    } in webhook["namespaceSelector"]["matchExpressions"]
    assert [one["values"] for one in chosen(webhook)] == [list(names)]


def test_each_model_has_its_own_webhook() -> None:
    found = inject_webhooks(Applications("a", ("x",)), Applications("b", None))

    assert [webhook["name"] for webhook in found] == [
        "a.inject.istio-aux.io",
        "b.inject.istio-aux.io",
    ]


@pytest.mark.parametrize(
    ("asked", "expressions"),
    [
        (Applications("team", None), [("Exists", None)]),
        (Applications("kubeflow", None), [("Exists", None), ("NotIn", ["istio-aux"])]),
        (Applications("kubeflow", ("istio-aux", "web")), [("In", ["web"])]),
        (Applications("team", ("istio-aux", "web")), [("In", ["istio-aux", "web"])]),
    ],
)
def test_the_webhook_of_our_model_excludes_our_own_pods(
    asked: Applications, expressions: list[tuple[str, list[str] | None]]
) -> None:
    (webhook,) = inject_webhooks(asked)

    assert [(e["operator"], e.get("values")) for e in chosen(webhook)] == expressions


@pytest.mark.parametrize(
    "asked",
    [Applications("kubeflow", ("istio-aux",)), *(Applications(n, None) for n in IGNORED)],
    ids=str,
)
def test_a_webhook_that_matches_nothing_is_not_rendered(asked: Applications) -> None:
    """An `In` without values is refused by the API server; kube-system is left alone anyway."""
    assert inject_webhooks(asked) == []


def test_a_pod_with_its_own_label_is_included_unless_it_declines() -> None:
    """The pod itself decides on its sidecar; where it has one, it must start after it."""
    (webhook,) = inject_webhooks(Applications("team", None))

    expressions = webhook["objectSelector"]["matchExpressions"]
    [own] = [e for e in expressions if e["key"] == "sidecar.istio.io/inject"]
    assert (own["operator"], own["values"]) == ("NotIn", ["false"])


@pytest.mark.parametrize("admission", ["webhook", "policy"])
def test_pods_of_namespaces_that_we_label_reach_the_webhook_whatever_is_selected(
    admission: Literal["webhook", "policy"],
) -> None:
    values = Values(
        "istio-aux", "kubeflow", admission=admission, inject_namespaces=("team-a", "team-b")
    )
    (configuration,) = manifests.render_webhook(values)
    start, labelled = configuration.to_dict()["webhooks"]

    assert labelled["name"] == "injected.start.istio-aux.io"
    assert labelled["clientConfig"]["service"]["path"] == "/mutate"
    assert labelled["matchConditions"] == start["matchConditions"]
    assert labelled["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]},
        {"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["ambient"]},
    ]
    assert labelled["objectSelector"] == start["objectSelector"]


def test_pods_that_juju_needs_are_excluded() -> None:
    (webhook,) = inject_webhooks(Applications("kubeflow", None))

    expressions = webhook["objectSelector"]["matchExpressions"]
    assert {"key": "model.juju.is/disable-webhook", "operator": "DoesNotExist"} in expressions
    assert {"key": "juju-modeloperator", "operator": "DoesNotExist"} in expressions
    assert {
        "key": "operator.juju.is/name",
        "operator": "NotIn",
        "values": ["modeloperator"],
    } in expressions


def test_inject_webhooks_are_the_same_beside_a_policy() -> None:
    asked = Applications("team", ("web",))

    assert inject_webhooks(asked, admission="policy") == inject_webhooks(asked)
