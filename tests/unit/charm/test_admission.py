"""The webhook that shows new pods to the workload."""

from __future__ import annotations

import pytest

from .conftest import Unit, active


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
    ("capability", "said"),
    [
        (("native", "istio: native sidecars on request"), ""),
        (("unknown", ""), ""),
        (("unknown", "istio: 403"), "; pods are held, not native: istio: 403"),
    ],
)
def test_the_status_says_why_pods_are_not_native(
    capability: tuple[str, str], said: str, unit: Unit
) -> None:
    unit.process.capability = capability

    assert unit.run() == active(said)
