"""The rendered objects; `tests/cluster/test_inject.py` shows what an API server does with them."""

from __future__ import annotations

from typing import Any

import pytest

import config
import manifests
from config import Applications
from manifests import Values

from .conftest import Unit

PODS = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}
# As `istioctl install` and Charmed Kubeflow name Istio's (reference: istio-discovery chart).
ISTIO = [
    "istio-revision-tag-default",
    "istio-revision-tag-default-kubeflow",
    "istio-sidecar-injector",
    "istio-sidecar-injector-1-28",
    "istio-sidecar-injector-kubeflow",
]


def webhooks(**values: Any) -> list[dict[str, Any]]:
    """The webhooks of an application with these values."""
    (configuration,) = manifests.render_webhook(Values("istio-aux", "kubeflow", **values))
    return configuration.to_dict()["webhooks"]


@pytest.mark.parametrize(("app", "model"), [("istio-aux", "kubeflow"), ("z" * 63, "z" * 63)])
def test_our_configuration_sorts_before_all_of_istio(app: str, model: str) -> None:
    ours = manifests.webhook_configuration(app, model)

    assert min(*ISTIO, ours, key=str.encode) == ours


def test_every_webhook_takes_three_seconds_at_most_and_sees_only_new_pods() -> None:
    inject = (Applications("kubeflow", ("*",)), Applications("team", ("a", "b")))

    found = webhooks(inject=inject, inject_namespaces=("meshed",))

    assert [webhook["name"] for webhook in found] == [
        "start.istio-aux.io",
        "injected.start.istio-aux.io",
        "kubeflow.inject.istio-aux.io",
        "team.inject.istio-aux.io",
    ]
    for webhook in found:
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

    selector = webhooks(namespace_selectors=[given])[0]["namespaceSelector"]

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


def test_the_account_is_narrowed_before_it_gets_its_roles() -> None:
    kinds = [each.kind for each in manifests.render_access(Values("a", "m", repairs=True))]

    assert kinds.count("ValidatingAdmissionPolicyBinding") == 2
    narrowed = len(kinds) - kinds[::-1].index("ValidatingAdmissionPolicyBinding")
    assert narrowed < min(kinds.index("ClusterRoleBinding"), kinds.index("RoleBinding"))


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


def test_the_order_of_namespace_selectors_changes_nothing() -> None:
    read = config.parse_namespaces_selected

    assert read("b;a;c") == read("c; a;b;a")


def test_the_pod_selector_does_not_narrow_the_webhooks_of_named_applications_and_namespaces() -> (
    None
):
    inject = (Applications("shop", ("*",)),)

    found = webhooks(pod_selector=PODS, inject=inject, inject_namespaces=("bank",))

    (chosen,) = PODS["matchExpressions"]
    selectors = {hook["name"]: hook["objectSelector"]["matchExpressions"] for hook in found}
    assert len(selectors) == 3
    assert {name for name, found in selectors.items() if chosen in found} == {"start.istio-aux.io"}


@pytest.mark.parametrize(
    ("inject", "chosen"),
    [
        pytest.param(
            (
                Applications("kubeflow", ("istio-aux", "web")),
                Applications("team", ("istio-aux",)),
            ),
            [["web"], ["istio-aux"]],
            id="in our own model only",
        ),
        # The API server refuses an `In` without values.
        pytest.param(
            (Applications("kubeflow", ("istio-aux",)),), [], id="and is not there for us alone"
        ),
    ],
)
def test_a_webhook_for_named_applications_leaves_us_out(
    inject: tuple[Applications, ...], chosen: list[list[str]]
) -> None:
    start, *more = webhooks(inject=inject)

    assert start["name"] == "start.istio-aux.io"
    assert [
        expression["values"]
        for webhook in more
        for expression in webhook["objectSelector"]["matchExpressions"]
        if expression["key"] == "app.kubernetes.io/name"
    ] == chosen


def test_each_selector_has_a_webhook_that_goes_with_it(unit: Unit) -> None:
    def made() -> dict[str, str]:
        """The label that each of them looks at first."""
        return {
            each["name"]: each["namespaceSelector"]["matchExpressions"][0]["key"]
            for each in unit.api.webhooks
        }

    profile, ours = "app.kubernetes.io/part-of", "io.datastrophic/istio-aux"
    assert made() == {"start.istio-aux.io": profile, "2.start.istio-aux.io": ours}

    unit.configure(namespace_selectors="team")

    assert made() == {"start.istio-aux.io": "team"}
