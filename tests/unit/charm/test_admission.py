"""A policy in the API server changes pods where the cluster serves it; else the webhook does."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from ops import testing

from .apiserver import ApiServer
from .conftest import Unit, active

BEFORE_1_36 = {"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"}
POLICY = {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
WEBHOOK = {"MutatingWebhookConfiguration"}

NATIVE = ("native", "istio: native sidecars on request")
CLASSIC = ("classic", "istio: a webhook drops restartPolicy")


def forms(api: ApiServer) -> set[str]:
    return set(api.kinds()) & (POLICY | WEBHOOK)


def spec(api: ApiServer) -> dict[str, Any]:
    """What the policy does."""
    return api.one("MutatingAdmissionPolicy")["spec"]


@pytest.mark.parametrize(
    ("admission", "served", "expected"),
    [
        ("auto", True, POLICY | WEBHOOK),
        ("auto", False, WEBHOOK),
        ("policy", True, POLICY | WEBHOOK),
        ("webhook", True, WEBHOOK),
        ("webhook", False, WEBHOOK),
    ],
)
def test_the_option_and_the_cluster_decide_which_forms_exist(
    new_unit: Unit, *, admission: str, served: bool, expected: set[str]
) -> None:
    new_unit.api.unknown = set() if served else BEFORE_1_36

    assert new_unit.configure(admission=admission) == active()
    assert new_unit.run() == active()
    assert forms(new_unit.api) == expected


def test_a_policy_that_is_not_served_blocks_and_everything_else_keeps_running(
    new_unit: Unit,
) -> None:
    new_unit.api.unknown = BEFORE_1_36
    new_unit.configure()
    objects, files = dict(new_unit.api.objects), new_unit.files
    plan = new_unit.container.plan

    assert new_unit.configure(admission="policy", log_level="debug") == testing.BlockedStatus(
        'admission: "policy": expected auto or webhook, because the API server does not serve'
        " MutatingAdmissionPolicy v1 (Kubernetes 1.36 does); the last good configuration runs"
    )
    assert new_unit.api.objects == objects
    assert new_unit.files == files
    assert new_unit.container.plan == plan

    # Only the leader owns the policy.
    assert isinstance(new_unit.follow(), testing.ActiveStatus)


def test_the_policy_comes_after_an_upgrade_of_the_cluster(new_unit: Unit) -> None:
    new_unit.api.unknown = BEFORE_1_36
    new_unit.configure()
    assert forms(new_unit.api) == WEBHOOK

    new_unit.api.unknown = set()
    new_unit.run()

    assert forms(new_unit.api) == POLICY | WEBHOOK


def test_the_policy_does_not_wait_for_the_workload(new_unit: Unit) -> None:
    """T37: it holds pods while nobody knows whether Istio can do more."""
    new_unit.process.running = False

    new_unit.configure()

    assert forms(new_unit.api) == POLICY
    policy = new_unit.api.one("MutatingAdmissionPolicy")
    assert policy["metadata"]["annotations"] == {"istio-aux.io/capability": "unknown"}


def test_the_policy_exists_before_the_webhook_leaves_pods_to_it(new_unit: Unit) -> None:
    new_unit.configure(admission="webhook")
    new_unit.api.calls.clear()

    new_unit.configure(admission="policy")

    written = [call.split("/")[-2] for call in new_unit.api.calls if call.startswith("PATCH")]
    assert written.index("mutatingadmissionpolicybindings") < written.index(
        "mutatingwebhookconfigurations"
    )


def test_the_policy_stays_until_the_webhook_serves(new_unit: Unit) -> None:
    """T37"""
    new_unit.process.running = False
    new_unit.configure()
    new_unit.configure(admission="webhook")
    assert forms(new_unit.api) == POLICY

    new_unit.process.running = True
    # API servers take a moment to call a new webhook, so the policy goes with the next event.
    new_unit.run()
    assert forms(new_unit.api) == POLICY | WEBHOOK

    new_unit.run()
    assert forms(new_unit.api) == WEBHOOK


def test_one_form_applies_at_every_moment_of_a_change(unit: Unit) -> None:
    unit.api.moments.clear()

    for admission in ("webhook", "policy", "webhook", "auto"):
        unit.configure(admission=admission)

    moments = unit.api.moments
    assert any(not POLICY & moment for moment in moments)
    assert all(moment >= POLICY or moment >= WEBHOOK for moment in moments)
    # The binding goes first: one whose policy is gone fails for every request.
    gone = {
        kind for before, after in pairwise(moments) if before >= POLICY for kind in before - after
    }
    assert gone == {"MutatingAdmissionPolicyBinding"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("start_mode", "hold"),
        ("peers", "direct"),
        ("sidecars", "vault-agent=native"),
        ("inject_selector", "team"),
        ("pod_selector", "team"),
    ],
)
def test_the_policy_follows_each_option(option: str, value: str, unit: Unit) -> None:
    before = spec(unit.api)

    unit.configure(**{option: value})

    assert spec(unit.api) != before


def test_each_selector_has_a_webhook_and_a_binding_and_they_go_with_it(unit: Unit) -> None:
    def made() -> dict[str, str]:
        """The label that each of them looks at first."""
        webhooks = unit.api.one("MutatingWebhookConfiguration")["webhooks"]
        found = {each["name"]: each["namespaceSelector"] for each in webhooks}
        for each in unit.api.objects.values():
            if each["kind"] == "MutatingAdmissionPolicyBinding":
                chosen = each["spec"]["matchResources"]["namespaceSelector"]
                found[each["metadata"]["name"]] = chosen
        return {name: chosen["matchExpressions"][0]["key"] for name, chosen in found.items()}

    profile, ours = "app.kubernetes.io/part-of", "io.datastrophic/istio-aux"
    assert made() == {
        "start.istio-aux.io": profile,
        "2.start.istio-aux.io": ours,
        "istio-aux-kubeflow-istio-aux": profile,
        "istio-aux-kubeflow-istio-aux.2": ours,
    }

    unit.configure(namespace_selectors="team")

    assert made() == {"start.istio-aux.io": "team", "istio-aux-kubeflow-istio-aux": "team"}


@pytest.mark.parametrize(
    ("admission", "mode", "first", "said"),
    [
        (
            "webhook", "auto", ["asm-sidecar-injector", "istio-a"],
            "; called after asm-sidecar-injector, istio-a, so pods are held, not native",
        ),
        ("webhook", "hold", ["asm-sidecar-injector"], "; start: hold"),
        ("webhook", "none", ["asm-sidecar-injector"], "; start: none"),
        # The policy comes before all.
        ("policy", "auto", ["asm-sidecar-injector"], ""),
        ("webhook", "auto", [], ""),
        ("webhook", "auto", None, ""),
    ],
)  # fmt: skip
def test_webhooks_of_istio_that_are_called_first_are_named_where_that_has_an_effect(
    unit: Unit, *, admission: str, mode: str, first: list[str] | None, said: str
) -> None:
    """T33: only a sidecar that Istio has not injected yet can be made native."""
    unit.process.called_before = first

    assert unit.configure(admission=admission, start_mode=mode) == active(said)


def test_a_workload_in_a_strict_mesh_lets_the_api_server_in_once_istio_is_there(
    new_unit: Unit,
) -> None:
    """T36"""
    new_unit.api.unknown = {"peerauthentications"}
    assert new_unit.configure() == active()
    assert "PeerAuthentication" not in new_unit.api.kinds()

    new_unit.api.unknown = set()
    new_unit.run()

    path = "/apis/security.istio.io/v1/namespaces/kubeflow/peerauthentications/istio-aux"
    assert new_unit.api.objects[path]["spec"] == {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "istio-aux"}},
        "portLevelMtls": {"8443": {"mode": "DISABLE"}},
    }


def test_the_policy_follows_the_capability_of_cluster_and_istio(unit: Unit) -> None:
    """The workload's notice wakes the charm at each change."""
    found: list[dict[str, Any]] = []
    webhooks: list[object] = []
    # The last one is an answer too: nobody can find out more.
    for capability in (CLASSIC, NATIVE, CLASSIC, NATIVE, ("unknown", "istio: no dry run: 403")):
        unit.process.capability = capability
        unit.run()
        found.append(spec(unit.api))
        webhooks.append(unit.api.one("MutatingWebhookConfiguration")["webhooks"])

    held, native, *others = found
    assert held != native
    assert others == [held, native, held]
    assert webhooks[0] != webhooks[1]


@pytest.mark.parametrize("change", ["not known yet", "silent", "no container"])
def test_the_policy_stays_while_nothing_is_known(change: str, unit: Unit) -> None:
    """A restart of the workload, or of istiod, must not change the policy twice."""
    unit.process.capability = NATIVE
    unit.run()
    native = spec(unit.api)

    unit.change_container(can_connect=change != "no container")
    unit.process.running = change != "silent"
    unit.process.capability = ("unknown", "")
    unit.run()

    assert spec(unit.api) == native


@pytest.mark.parametrize(
    ("option", "capability", "said"),
    [
        ("auto", NATIVE, ""),
        ("auto", CLASSIC, "; pods are held, not native: istio: a webhook drops restartPolicy"),
        ("auto", ("unknown", ""), ""),
        ("auto", ("unknown", "istio: 403"), "; pods are held, not native: istio: 403"),
        ("hold", CLASSIC, "; start: hold"),
    ],
)
def test_the_status_says_why_pods_are_not_native(
    unit: Unit, option: str, capability: tuple[str, str], said: str
) -> None:
    unit.process.capability = capability

    assert unit.configure(start_mode=option) == active(said)
