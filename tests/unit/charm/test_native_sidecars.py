"""Which pods the webhook sees beside a policy, so that other sidecars become native."""

from __future__ import annotations

import pytest

import manifests
from manifests import Values


@pytest.mark.parametrize(
    ("sidecars", "capability", "shown"),
    [
        ((), "native", False),
        (("vault-agent",), "native", True),
        (("vault-agent",), "classic", False),
    ],
)
def test_the_webhook_sees_pods_that_end_where_other_sidecars_can_become_native(
    *, sidecars: tuple[str, ...], capability: str, shown: bool
) -> None:
    """Another webhook may still add the sidecar; an annotation is seen in any case."""
    values = Values(
        "a", "m", admission="policy", start_mode="off", native_sidecars=sidecars,
        capability=capability,
    )  # fmt: skip
    policy = manifests.render_start_policy(values)[0].to_dict()
    (webhook,) = manifests.render_webhook(values)[0].to_dict()["webhooks"]

    (*_, left) = webhook["matchConditions"]
    (mutation,) = policy["spec"]["mutations"]
    for expression in (left["expression"], mutation["jsonPatch"]["expression"]):
        assert "'istio-aux.io/native-sidecars' in" in expression
        assert ("!= '' : object.spec.restartPolicy != 'Always'" in expression) is shown
