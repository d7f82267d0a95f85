"""Which pods are shown to the workload so that they ask for a sidecar; the API server's own word
on it is in `tests/cluster/test_inject.py`."""

from __future__ import annotations

from typing import Any, Literal

import pytest

import manifests
from config import NEVER_INJECTED, Applications
from manifests import Values


def webhooks(
    *asked: Applications,
    admission: Literal["webhook", "policy"] = "webhook",
    failure_policy: Literal["Ignore", "Fail"] = "Ignore",
) -> list[dict[str, Any]]:
    """All webhooks but the first, which is `start`."""
    values = Values(
        "istio-aux", "kubeflow", inject=asked, admission=admission, failure_policy=failure_policy
    )
    (configuration,) = manifests.render_webhook(values)
    start, *others = configuration.to_dict()["webhooks"]
    assert start["name"] == "start.istio-aux.io"
    return others


def chosen(webhook: dict[str, Any]) -> list[dict[str, Any]]:
    """What the webhook demands of the name of a pod's application."""
    expressions = webhook["objectSelector"]["matchExpressions"]
    return [e for e in expressions if e["key"] == "app.kubernetes.io/name"]


def test_there_are_none_when_nobody_asks() -> None:
    assert webhooks() == []


def test_all_applications_of_a_model_are_one_webhook() -> None:
    names = tuple(f"app-{i}" for i in range(300))

    (webhook,) = webhooks(Applications("team", names))

    assert webhook["name"] == "team.inject.istio-aux.io"
    assert webhook["clientConfig"]["service"]["path"] == "/inject"
    assert {
        "key": "kubernetes.io/metadata.name",
        "operator": "In",
        "values": ["team"],
    } in webhook["namespaceSelector"]["matchExpressions"]
    assert [one["values"] for one in chosen(webhook)] == [list(names)]


def test_every_model_has_a_webhook_of_its_own() -> None:
    found = webhooks(Applications("a", ("x",)), Applications("b", None))

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
def test_our_own_pods_are_left_out_and_in_other_models_nobody_is(
    asked: Applications, expressions: list[tuple[str, list[str] | None]]
) -> None:
    (webhook,) = webhooks(asked)

    assert [(e["operator"], e.get("values")) for e in chosen(webhook)] == expressions


@pytest.mark.parametrize(
    "asked",
    [Applications("kubeflow", ("istio-aux",)), *(Applications(n, None) for n in NEVER_INJECTED)],
    ids=str,
)
def test_what_could_match_nothing_is_left_out(asked: Applications) -> None:
    """An `In` without values is refused by the API server; kube-system is left alone anyway."""
    assert webhooks(asked) == []


def test_a_pod_that_asks_itself_is_shown_too_and_one_that_declines_is_not() -> None:
    """Both get or lack their sidecar by their own word, and the first has to start after it."""
    (webhook,) = webhooks(Applications("team", None))

    expressions = webhook["objectSelector"]["matchExpressions"]
    [own] = [e for e in expressions if e["key"] == "sidecar.istio.io/inject"]
    assert (own["operator"], own["values"]) == ("NotIn", ["false"])


@pytest.mark.parametrize("admission", ["webhook", "policy"])
def test_pods_of_namespaces_that_we_label_are_shown_whatever_is_selected(
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


def test_pods_that_juju_needs_are_left_out() -> None:
    (webhook,) = webhooks(Applications("kubeflow", None))

    expressions = webhook["objectSelector"]["matchExpressions"]
    assert {"key": "model.juju.is/disable-webhook", "operator": "DoesNotExist"} in expressions
    assert {"key": "juju-modeloperator", "operator": "DoesNotExist"} in expressions
    assert {
        "key": "operator.juju.is/name",
        "operator": "NotIn",
        "values": ["modeloperator"],
    } in expressions


def test_the_policy_does_not_do_this() -> None:
    asked = Applications("team", ("web",))

    assert webhooks(asked, admission="policy") == webhooks(asked)


@pytest.mark.parametrize("failure_policy", ["Ignore", "Fail"])
def test_the_option_failure_policy_holds_for_these_too(
    failure_policy: Literal["Ignore", "Fail"],
) -> None:
    (webhook,) = webhooks(Applications("team", None), failure_policy=failure_policy)

    assert webhook["failurePolicy"] == failure_policy


def test_istiod_does_not_take_it_for_an_injector() -> None:
    (webhook,) = webhooks(Applications("sidecar-injector", None))

    assert not webhook["name"].endswith((".istio.io", "/istio.io", "sidecar-injector.istio.io"))
