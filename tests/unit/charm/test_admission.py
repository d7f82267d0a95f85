"""The webhook that shows new pods to the workload, and what earlier revisions made beside it."""

from __future__ import annotations

from itertools import pairwise

import pytest

import manifests

from .conftest import Unit, active

NATIVE = ("native", "istio: native sidecars on request")
CLASSIC = ("classic", "istio: a webhook drops restartPolicy")

POLICY, BINDING = "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"


@pytest.fixture
def before(unit: Unit) -> Unit:
    """A unit in a cluster where a revision with the option `admission` made a policy."""
    labels = manifests.labels("istio-aux", "kubeflow")
    for kind, plural in ((POLICY, "policies"), (BINDING, "policybindings")):
        made = {"kind": kind, "metadata": {"name": "ours", "uid": kind, "labels": labels}}
        at = f"/apis/admissionregistration.k8s.io/v1/mutatingadmission{plural}/ours"
        unit.api.objects[at] = made
    return unit


def test_a_refresh_deletes_the_policy_that_an_earlier_revision_made(before: Unit) -> None:
    """The binding first: one whose policy is gone fails for every request."""
    before.api.moments.clear()

    assert before.run(before.on.upgrade_charm()) == active()

    moments = before.api.moments
    gone = [kind for was, now in pairwise(moments) for kind in was - now]
    assert gone == [BINDING, POLICY]
    assert all("MutatingWebhookConfiguration" in moment for moment in moments)


def test_the_policy_of_an_earlier_revision_stays_until_the_workload_serves(before: Unit) -> None:
    before.process.running = False
    before.run(before.on.upgrade_charm())
    assert {POLICY, BINDING} <= {*before.api.kinds()}

    before.process.running = True
    before.run()
    assert not {POLICY, BINDING} & {*before.api.kinds()}


def test_a_removal_deletes_the_policy_of_an_earlier_revision(before: Unit) -> None:
    before.remove()

    assert not before.api.objects


@pytest.mark.parametrize("verb", ["create", "patch", "get"])
def test_the_charm_asks_for_no_right_to_make_a_policy(verb: str, before: Unit) -> None:
    before.api.denied = {f"{verb} mutatingadmissionpolicies"}

    assert before.run(before.on.upgrade_charm()) == active()


def test_each_selector_has_a_webhook_that_goes_with_it(unit: Unit) -> None:
    def made() -> dict[str, str]:
        """The label that each of them looks at first."""
        webhooks = unit.api.one("MutatingWebhookConfiguration")["webhooks"]
        found = {each["name"]: each["namespaceSelector"] for each in webhooks}
        return {name: chosen["matchExpressions"][0]["key"] for name, chosen in found.items()}

    profile, ours = "app.kubernetes.io/part-of", "io.datastrophic/istio-aux"
    assert made() == {"start.istio-aux.io": profile, "2.start.istio-aux.io": ours}

    unit.configure(namespace_selectors="team")

    assert made() == {"start.istio-aux.io": "team"}


@pytest.mark.parametrize(
    ("mode", "first", "said"),
    [
        (
            "auto", ["asm-sidecar-injector", "istio-a"],
            "; called after asm-sidecar-injector, istio-a, so pods are held, not native",
        ),
        ("hold", ["asm-sidecar-injector"], "; start: hold"),
        ("none", ["asm-sidecar-injector"], "; start: none"),
        ("auto", [], ""),
        ("auto", None, ""),
    ],
)  # fmt: skip
def test_webhooks_of_istio_that_are_called_first_are_named_where_that_has_an_effect(
    unit: Unit, *, mode: str, first: list[str] | None, said: str
) -> None:
    """istio#43074: only a sidecar that Istio has not injected yet can be made native."""
    unit.process.called_before = first

    assert unit.configure(start_mode=mode) == active(said)


def test_a_workload_in_a_strict_mesh_lets_the_api_server_in_once_istio_is_there(
    new_unit: Unit,
) -> None:
    """Istiod tells ztunnel of ports that are PERMISSIVE alone, not of those with DISABLE.

    notebooks#652.
    """
    new_unit.api.unknown = {"peerauthentications"}
    assert new_unit.configure() == active()
    assert "PeerAuthentication" not in new_unit.api.kinds()

    new_unit.api.unknown = set()
    new_unit.run()

    path = "/apis/security.istio.io/v1/namespaces/kubeflow/peerauthentications/istio-aux"
    assert new_unit.api.objects[path]["spec"] == {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "istio-aux"}},
        "portLevelMtls": {"8443": {"mode": "PERMISSIVE"}, "8080": {"mode": "PERMISSIVE"}},
    }


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
