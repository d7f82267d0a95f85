"""The rendered objects; `tests/cluster/test_inject.py` shows what an API server does with them."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from istio_aux.model import sidecars
from istio_aux.model.names import IGNORED

import config
import manifests
from config import Applications
from manifests import Values

PODS = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}
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
    inject = (Applications("kubeflow", ("*",)), Applications("team", ("a", "b")))
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


@pytest.mark.parametrize("odd", ['quote"', "{{ braces }}", "null"])
def test_the_namespace_selector_is_as_written_but_for_kube_system(odd: str) -> None:
    own = {"key": "team", "operator": "Exists"}
    given = {"matchLabels": {"key": odd}, "matchExpressions": [own]}
    (configuration,) = manifests.render_webhook(Values("a", "m", namespace_selectors=[given]))

    selector = configuration.to_dict()["webhooks"][0]["namespaceSelector"]

    never = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
    assert selector["matchLabels"] == {"key": odd}
    assert [each for each in (own, never) if each not in selector["matchExpressions"]] == []


def test_istiod_and_istioctl_do_not_take_it_for_an_injector() -> None:
    values = Values("a", "m", inject=(Applications("sidecar-injector", ("*",)),))
    configuration = manifests.render_webhook(values)[0].to_dict()

    assert "istio.io/rev" not in configuration["metadata"]["labels"]
    assert configuration["metadata"]["labels"].get("app") != "sidecar-injector"
    theirs = (".istio.io", "/istio.io", "sidecar-injector.istio.io")
    assert not [hook["name"] for hook in configuration["webhooks"] if hook["name"].endswith(theirs)]


def test_names_that_look_like_yaml_values_stay_strings() -> None:
    access = [resource.to_dict() for resource in manifests.render_access(Values("null", "1234"))]

    assert access[0]["metadata"]["namespace"] == "1234"
    assert access[0]["metadata"]["labels"]["istio-aux.io/application"] == "null"
    subjects = [a["subjects"][0]["namespace"] for a in access if "subjects" in a]
    assert {*subjects} == {"1234"}


def test_the_account_is_narrowed_before_it_gets_its_roles() -> None:
    values = Values("a", "m", repairs=True, repairs_jobs=True)
    kinds = [resource.kind for resource in manifests.render_access(values)]

    assert kinds.count("ValidatingAdmissionPolicyBinding") == 3
    narrowed = len(kinds) - kinds[::-1].index("ValidatingAdmissionPolicyBinding")
    assert narrowed < kinds.index("ClusterRoleBinding")
    assert narrowed < kinds.index("RoleBinding")


def test_the_policy_for_the_account_knows_both_selectors() -> None:
    selector = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}
    values = Values("a", "m", namespace_selectors=[selector, {}], pod_selector=PODS)

    policy, _ = [
        found.to_dict()
        for found in manifests.render_access(values)
        if found.kind == "ValidatingAdmissionPolicy"
    ]

    told = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    never = (
        '!("kubernetes.io/metadata.name" in variables.labels'
        ' && variables.labels["kubernetes.io/metadata.name"] in ["kube-system"])'
    )
    assert told["selected"] == f'("team" in variables.labels && {never}) || ({never})'
    assert told["chosen"] == (
        '"team" in variables.podLabels && variables.podLabels["team"] in ["a", "b"]'
    )


AMBIENT = {"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["ambient"]}


def by_policy(**what: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The policy and the webhook beside it."""
    values = Values("a", "m", admission="policy", **what)
    policy, *_ = (resource.to_dict() for resource in manifests.render_start_policy(values))
    return policy, manifests.render_webhook(values)[0].to_dict()


def test_both_forms_of_admission_choose_the_same_pods() -> None:
    """T34: never pods of ambient namespaces."""
    selectors = [{"matchLabels": {"team": "x"}}, {"matchLabels": {"tier": "y"}}]
    values = Values("a", "m", admission="policy", namespace_selectors=selectors)
    policy, *bindings = (each.to_dict() for each in manifests.render_start_policy(values))
    webhooks = manifests.render_webhook(values)[0].to_dict()["webhooks"]

    constraints = policy["spec"]["matchConstraints"]
    rules = constraints.pop("resourceRules")
    done = {"key": "istio-aux.io/started-by", "operator": "DoesNotExist"}
    for webhook in webhooks:
        webhook["objectSelector"]["matchExpressions"].remove(done)
        assert webhook["rules"] == rules
        assert constraints == {field: webhook[field] for field in constraints}
    assert {each["spec"]["policyName"] for each in bindings} == {policy["metadata"]["name"]}
    chosen = [each["spec"]["matchResources"]["namespaceSelector"] for each in bindings]
    assert chosen == [webhook["namespaceSelector"] for webhook in webhooks]
    assert [each["matchLabels"] for each in chosen] == [{"team": "x"}, {"tier": "y"}]
    assert all(AMBIENT in each["matchExpressions"] for each in chosen)


def test_the_order_of_namespace_selectors_changes_nothing() -> None:
    def rendered(text: str) -> list[dict[str, Any]]:
        values = Values("a", "m", config.parse_namespaces_selected(text), admission="policy")
        return [each.to_dict() for each in manifests.render(values)]

    assert rendered("b;a;c") == rendered("c; a;b;a")
    bindings = [b for b in rendered("b;a;c") if b["kind"] == "MutatingAdmissionPolicyBinding"]
    # No application is named a.2.
    names = [binding["metadata"]["name"] for binding in bindings]
    assert names == ["istio-aux-m-a", "istio-aux-m-a.2", "istio-aux-m-a.3"]


def test_the_options_of_the_webhook_are_those_of_the_policy() -> None:
    """The pod selector does not narrow the webhooks of named applications and namespaces."""
    policy, configuration = by_policy(
        pod_selector=PODS,
        inject=(Applications("shop", ("*",)),),
        inject_namespaces=("bank",),
    )

    (chosen,) = PODS["matchExpressions"]
    selectors = {
        hook["name"]: hook["objectSelector"]["matchExpressions"]
        for hook in configuration["webhooks"]
    }
    assert len(selectors) == 3
    assert {name for name, found in selectors.items() if chosen in found} == {"start.istio-aux.io"}
    assert chosen in policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"]
    assert policy["spec"]["failurePolicy"] == "Ignore"


def test_policy_and_webhook_have_the_same_conditions() -> None:
    """Alone, the webhook leaves nothing to a policy."""
    policy, configuration = by_policy()
    (alone,) = manifests.render_webhook(Values("a", "m"))[0].to_dict()["webhooks"]

    assert manifests.render_start_policy(Values("a", "m")) == []
    assert [each["name"] for each in alone["matchConditions"]] == ["may-have-a-sidecar"]
    conditions = configuration["webhooks"][0]["matchConditions"]
    (mutation,) = policy["spec"]["mutations"]
    expression = mutation["jsonPatch"]["expression"]
    assert [c["name"] for c in conditions if c["expression"] not in expression] == [
        "left-by-the-policy"
    ]


@pytest.mark.parametrize("mode", ["auto", "native", "hold", "none"])
def test_the_api_server_converts_a_pod_that_changes_for_the_policy_only_once(
    mode: Literal["auto", "native", "hold", "none"],
) -> None:
    """Match conditions and a second run convert it again. In mode `none` few pods change."""
    policy, _ = by_policy(start_mode=mode)

    assert policy["spec"]["reinvocationPolicy"] == "Never"
    assert bool(policy["spec"]["matchConditions"]) is (mode == "none")


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_the_policy_adds_istios_label_first_where_the_inject_selector_matches(
    mode: Literal["auto", "none"],
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


@pytest.mark.parametrize("mode", ["auto", "native", "hold", "none"])
def test_the_rules_are_the_same_for_classic_and_unknown(
    mode: Literal["auto", "native", "hold", "none"],
) -> None:
    """So the table of the cluster tier needs only one of them."""
    (cannot, webhook), (unknown, same) = (
        by_policy(start_mode=mode, capability=capability) for capability in ("classic", "unknown")
    )

    assert cannot["spec"] == unknown["spec"]
    assert webhook == same


@pytest.mark.parametrize(
    ("option", "capability", "shown"),
    [
        ("vault-agent=ignore", "native", False),
        ("vault-agent=native", "native", True),
        ("vault-agent=native", "classic", False),
    ],
)
def test_the_webhook_sees_pods_that_end_where_other_sidecars_can_become_native(
    *, option: str, capability: str, shown: bool
) -> None:
    """Another webhook may still add the sidecar. An annotation is seen in any case."""
    policy, configuration = by_policy(
        start_mode="none", sidecars=sidecars.parse(option), capability=capability
    )

    (*_, left) = configuration["webhooks"][0]["matchConditions"]
    (mutation,) = policy["spec"]["mutations"]
    for expression in (left["expression"], mutation["jsonPatch"]["expression"]):
        assert "'istio-aux.io/sidecars' in" in expression
        assert ("!= '' || object.spec.restartPolicy != 'Always'" in expression) is shown


@pytest.mark.parametrize(
    "asked",
    [Applications("kubeflow", ("istio-aux",)), *(Applications(n, ("*",)) for n in IGNORED)],
    ids=str,
)
def test_a_webhook_that_matches_nothing_is_not_rendered(asked: Applications) -> None:
    """The API server refuses an `In` without values, and Istio ignores kube-system anyway."""
    (configuration,) = manifests.render_webhook(Values("istio-aux", "kubeflow", inject=(asked,)))

    (webhook,) = configuration.to_dict()["webhooks"]
    assert webhook["name"] == "start.istio-aux.io"


def test_a_webhook_for_named_applications_leaves_us_out_in_our_own_model_only() -> None:
    inject = (Applications("kubeflow", ("istio-aux", "web")), Applications("team", ("istio-aux",)))
    (configuration,) = manifests.render_webhook(Values("istio-aux", "kubeflow", inject=inject))

    _, *webhooks = configuration.to_dict()["webhooks"]
    assert [
        expression["values"]
        for webhook in webhooks
        for expression in webhook["objectSelector"]["matchExpressions"]
        if expression["key"] == "app.kubernetes.io/name"
    ] == [["web"], ["istio-aux"]]


def test_pods_of_namespaces_that_we_label_reach_the_webhook_whatever_is_selected() -> None:
    _, configuration = by_policy(inject_namespaces=("team-a", "team-b"))
    start, labelled = configuration["webhooks"]

    assert labelled["name"] == "injected.start.istio-aux.io"
    assert labelled["clientConfig"]["service"]["path"] == "/mutate"
    assert labelled["matchConditions"] == start["matchConditions"]
    assert labelled["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]},
        AMBIENT,
    ]
    assert labelled["objectSelector"] == start["objectSelector"]
