"""Which webhooks are called for a pod, in which order, and who decides when there are several."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.injector.injection import Hook, InjectionPolicy, Policies, expected, hooks_of
from istio_aux.model.selectors import parse
from istio_aux.model.webhooks import ControlPlane
from unit.rules.mesh import (
    DEFAULT,
    ENABLED,
    FALSE,
    HOOKS,
    INJECT,
    ORIGINAL,
    OURS,
    POLICIES,
    REVISED,
    REVISION,
    THEIRS,
    TRUE,
    each_webhook,
    edited,
    pod,
    recorded,
    renamed,
)

MAYBE = {INJECT: "maybe"}
ON, OFF = InjectionPolicy(policy="enabled"), InjectionPolicy(policy="disabled")
JOBS, ALL, PODS = parse("kind=job"), parse(""), parse("kind")
JOB = {"kind": "job"}


@pytest.mark.parametrize(
    ("sentence", "policy", "labels", "annotations", "verdict"),
    [
        ("enabled injects", ON, {}, {}, True),
        ("disabled does not", OFF, {}, {}, False),
        ("unknown is unknown", None, {}, {}, None),
        ("a label beats disabled", OFF, TRUE, {}, True),
        ("an annotation beats disabled", OFF, {}, TRUE, True),
        ("a label needs no policy to be known", None, TRUE, {}, True),
        ("nor does an annotation", None, {}, TRUE, True),
        ("an opt-out needs none either", None, {}, FALSE, False),
        ("another word is no wish: disabled", OFF, MAYBE, {}, False),
        ("another word is no wish: unknown", None, MAYBE, {}, None),
        ("never", InjectionPolicy(never=(JOBS,)), JOB, {}, False),
        ("never, but not this one", InjectionPolicy(never=(JOBS,)), {"kind": "pod"}, {}, True),
        ("any never of several", InjectionPolicy(never=(parse("a"), JOBS)), JOB, {}, False),
        ("a label beats never", InjectionPolicy(never=(JOBS,)), JOB | TRUE, {}, True),
        ("never beats always", InjectionPolicy(never=(JOBS,), always=(PODS,)), JOB, {}, False),
        ("always beats disabled", InjectionPolicy("disabled", (), (JOBS,)), JOB, {}, True),
        ("always, but not this one", InjectionPolicy("disabled", (), (JOBS,)), {}, {}, False),
        ("an annotation beats always", InjectionPolicy(always=(JOBS,)), JOB, FALSE, False),
        ("an empty never matches none", InjectionPolicy(never=(ALL,)), JOB, {}, True),
        ("an empty always matches none", InjectionPolicy("disabled", (), (ALL,)), JOB, {}, False),
        ("another policy injects nothing", InjectionPolicy(policy="off"), {}, {}, False),
        ("whatever the pod asks for", InjectionPolicy(policy="off"), TRUE, {}, False),
        ("or an always", InjectionPolicy(policy="off", always=(JOBS,)), JOB, {}, False),
    ],
)  # fmt: skip
def test_istiod_decides_by_its_policy_where_the_pod_does_not_say(
    sentence: str,
    policy: InjectionPolicy | None,
    labels: dict[str, str],
    annotations: dict[str, str],
    verdict: bool | None,
) -> None:
    policies = {OURS: policy} if policy else {}

    answer = expected(pod(labels, annotations), ENABLED, HOOKS, policies)

    assert answer.expected is verdict, f"{sentence}: {answer.reason}"


def test_a_policy_of_the_same_revision_elsewhere_says_nothing() -> None:
    """There may be several control planes, each with a default revision."""
    policies = {ControlPlane("kubeflow", "default"): OFF}

    assert expected(pod(), ENABLED, HOOKS, policies).expected is None


def test_configurations_are_called_in_the_order_of_their_names_and_webhooks_as_listed() -> None:
    """Whatever order they were found in."""
    found = [recorded(REVISED), recorded(ORIGINAL), recorded(DEFAULT)]

    hooks = hooks_of(found)

    assert hooks == hooks_of(found[::-1])
    assert [hook.configuration for hook in hooks] == [DEFAULT] * 4 + [ORIGINAL] * 4 + [REVISED] * 2
    assert [hook.webhook.partition(".sidecar")[0] for hook in hooks[:4]] == [
        "rev.namespace",
        "rev.object",
        "namespace",
        "object",
    ]


@pytest.mark.parametrize(
    ("sentence", "policies", "verdict", "revision"),
    [
        ("the first one injects", {OURS: ON, THEIRS: OFF}, True, "default"),
        ("the second one injects what the first left", {OURS: OFF, THEIRS: ON}, True, REVISION),
        ("the second one injects, whatever the first does", {THEIRS: ON}, True, REVISION),
        ("the first one did, whatever the second does", {OURS: ON}, True, "default"),
        ("neither of them", {OURS: OFF, THEIRS: OFF}, False, "default"),
        ("the second one may", {OURS: OFF}, None, REVISION),
        ("the first one may", {THEIRS: OFF}, None, "default"),
        ("either may", {}, None, "default"),
    ],
)
def test_of_two_control_planes_that_select_a_pod_the_first_that_injects_counts(
    sentence: str, policies: Policies, verdict: bool | None, revision: str
) -> None:
    """The API server calls both."""
    both = [
        Hook("a", "sidecar-injector.istio.io", OURS, parse("istio-injection=enabled")),
        Hook("b", "sidecar-injector.istio.io", THEIRS),
    ]

    answer = expected(pod(), ENABLED, both, policies)

    assert (answer.expected, answer.revision) == (verdict, revision), sentence


def test_a_deactivated_webhook_is_judged_by_its_selectors_alone() -> None:
    """No object has the label that it selects; one that has it after all is selected."""
    never = {"istio.io/deactivated": "never-match"}
    hooks = hooks_of([recorded(ORIGINAL)])

    assert expected(pod(), ENABLED, hooks, POLICIES).expected is False
    assert expected(pod(TRUE), never, hooks, POLICIES).expected is False
    assert expected(pod(never), never, hooks, POLICIES).expected is True


def test_without_istio_no_sidecar_is_expected() -> None:
    answer = expected(pod(TRUE), ENABLED, hooks_of([]), POLICIES)

    assert (answer.expected, answer.reason) == (False, "there is no webhook of Istio's injector")


def test_without_the_labels_of_the_namespace_nothing_is_known() -> None:
    """Not even for a pod that asks; but a pod that Istio never injects needs no namespace."""
    answer = expected(pod(TRUE), None, HOOKS, POLICIES)

    assert (answer.expected, answer.webhook) == (None, "")
    assert answer.reason == "the labels of namespace training are not known"
    assert expected(pod(FALSE), None, HOOKS, POLICIES).expected is False


def _auto() -> tuple[Hook, ...]:
    """With enableNamespacesByDefault (istio mutatingwebhook.yaml) there is a fifth webhook."""

    def add(body: dict[str, Any]) -> None:
        unlabelled = [
            {"key": "istio-injection", "operator": "DoesNotExist"},
            {"key": "istio.io/rev", "operator": "DoesNotExist"},
        ]
        system = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", "kube-public", "kube-node-lease", "local-path-storage"],
        }
        body["webhooks"].append(
            body["webhooks"][0]
            | {
                "name": "auto.sidecar-injector.istio.io",
                "namespaceSelector": {"matchExpressions": [*unlabelled, system]},
                "objectSelector": {
                    "matchExpressions": [
                        {"key": INJECT, "operator": "DoesNotExist"},
                        unlabelled[1],
                    ]
                },
            }
        )

    return hooks_of([edited(DEFAULT, add)])


@pytest.mark.parametrize(
    ("sentence", "namespace", "labels", "webhook"),
    [
        ("a namespace without labels", {}, {}, "auto"),
        ("a namespace with a label of its own", {"team": "a"}, {}, "auto"),
        ("a pod that asks has its own webhook", {}, TRUE, "object"),
        ("a pod that opts out", {}, FALSE, ""),
        ("a word of no meaning is not auto's", {}, MAYBE, ""),
        ("a pod of a revision that is not there", {}, {"istio.io/rev": "gone"}, ""),
        ("a namespace of a revision that is not there", {"istio.io/rev": "gone"}, {}, ""),
        ("a namespace that opts out", {"istio-injection": "disabled"}, {}, ""),
        ("a namespace that asks", ENABLED, {}, "namespace"),
        ("a name that is excluded", {"kubernetes.io/metadata.name": "kube-public"}, {}, ""),
        ("any other name", {"kubernetes.io/metadata.name": "training"}, {}, "auto"),
    ],
)
def test_where_namespaces_are_enabled_by_default_nobody_has_to_ask(
    sentence: str, namespace: dict[str, str], labels: dict[str, str], webhook: str
) -> None:
    answer = expected(pod(labels), namespace, _auto(), POLICIES)

    assert answer.webhook.removesuffix(".sidecar-injector.istio.io") == webhook, sentence
    assert answer.expected is bool(webhook)


@pytest.mark.parametrize(
    ("sentence", "fields", "verdict"),
    [
        ("another name than Istio's", {"name": "validation.istio.io"}, False),
        ("no rules", {"rules": None}, False),
        ("other operations", {"rules": [{"operations": ["UPDATE"]}]}, False),
        ("a condition that only the API server evaluates", {"matchConditions": [{}]}, None),
        ("no conditions", {"matchConditions": None}, True),
        ("an empty list of them", {"matchConditions": []}, True),
        (
            "a selector that cannot be read",
            {"objectSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}},
            None,
        ),
    ],
)
def test_a_webhook_that_may_not_be_called_is_not_counted_on(
    sentence: str, fields: dict[str, Any], verdict: bool | None
) -> None:
    hooks = hooks_of([each_webhook(DEFAULT, **fields)])

    answer = expected(pod(), ENABLED, hooks, POLICIES)

    assert answer.expected is verdict, f"{sentence}: {answer.reason}"


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_selector_selects_everything(nothing: object) -> None:
    """Absent ones are filled in by the API server, as empty ones."""
    hooks = hooks_of([each_webhook(DEFAULT, namespaceSelector=nothing, objectSelector=nothing)])

    assert expected(pod(), {}, hooks, POLICIES).expected is True


def test_a_vendors_name_for_the_configuration_changes_nothing() -> None:
    """Istio's injector is found by the names of its webhooks, never by the configuration's."""
    hooks = hooks_of([renamed(DEFAULT, "asm-managed")])

    assert expected(pod(), ENABLED, hooks, POLICIES).configuration == "asm-managed"
