"""The charm on a real Juju: deploy, trust, active, another configuration, removal.

The tests of this module build on one another, in this order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import APP, Kubectl
from juju.application import Application
from juju.model import Model
from pytest_operator.plugin import OpsTest

pytestmark = pytest.mark.abort_on_fail


def model_of(ops_test: OpsTest) -> Model:
    assert ops_test.model is not None
    return ops_test.model


def application(ops_test: OpsTest) -> Application:
    found = model_of(ops_test).applications[APP]
    assert found is not None
    return found


async def configuration(ops_test: OpsTest, kubectl: Kubectl) -> dict[str, Any] | None:
    """The MutatingWebhookConfiguration of the application."""
    name = f"istio-aux-{model_of(ops_test).name}-{APP}"
    kind = "mutatingwebhookconfiguration"
    return await kubectl("get", kind, name, "--ignore-not-found", "-o", "json")


async def test_without_trust_it_blocks_and_says_what_to_run(
    ops_test: OpsTest, charm: Path, image: str
) -> None:
    model = model_of(ops_test)

    await model.deploy(str(charm), APP, resources={"istio-aux-image": image}, trust=False)
    await model.wait_for_idle([APP], status="blocked", timeout=600)

    (unit,) = application(ops_test).units
    assert f"juju trust {APP} --scope=cluster" in unit.workload_status_message


async def test_with_trust_it_becomes_active_and_owns_its_webhook(
    ops_test: OpsTest, kubectl: Kubectl
) -> None:
    await application(ops_test).set_trusted(True)
    # A unit learns of it with its next event: update-status at the latest.
    async with ops_test.fast_forward("30s"):
        await model_of(ops_test).wait_for_idle([APP], status="active", timeout=600)

    found = await configuration(ops_test, kubectl)
    assert found is not None
    (webhook,) = found["webhooks"]
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["clientConfig"]["caBundle"]


async def created(
    ops_test: OpsTest, kubectl: Kubectl, namespace: str, labels: dict[str, str]
) -> dict[str, Any]:
    """A pod as the API server would store it."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tried", "labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]},
    }
    manifest = Path(str(ops_test.tmp_path)) / "pod.json"
    manifest.write_text(json.dumps(pod))
    return await kubectl(
        "create", "-n", namespace, "--dry-run=server", "-f", str(manifest), "-o", "json"
    )


async def test_a_pod_of_a_selected_namespace_is_held(ops_test: OpsTest, kubectl: Kubectl) -> None:
    namespace = f"{model_of(ops_test).name}-selected"
    await kubectl("create", "namespace", namespace)
    await kubectl("label", "namespace", namespace, "io.datastrophic/istio-aux=enabled")

    try:
        pod = await created(ops_test, kubectl, namespace, {})
    finally:
        await kubectl("delete", "namespace", namespace)

    hold = pod["metadata"]["annotations"]["proxy.istio.io/config"]
    assert "holdApplicationUntilProxyStarts: true" in hold


async def test_pods_of_a_named_application_ask_for_a_sidecar(
    ops_test: OpsTest, kubectl: Kubectl
) -> None:
    model = model_of(ops_test).name
    await application(ops_test).set_config({"inject-applications": "asker"})
    await model_of(ops_test).wait_for_idle([APP], status="active", timeout=300)

    asker = await created(ops_test, kubectl, model, {"app.kubernetes.io/name": "asker"})
    other = await created(ops_test, kubectl, model, {"app.kubernetes.io/name": "other"})

    assert asker["metadata"]["labels"]["sidecar.istio.io/inject"] == "true"
    assert "sidecar.istio.io/inject" not in other["metadata"]["labels"]


async def test_what_is_no_pod_is_not_explained(ops_test: OpsTest) -> None:
    (unit,) = application(ops_test).units

    action = await unit.run_action("explain", pod="no pod")
    await action.wait()

    assert action.status == "failed"


async def test_another_selector_reaches_the_webhook(ops_test: OpsTest, kubectl: Kubectl) -> None:
    await application(ops_test).set_config({"namespace-selector": "team in (a,b)"})
    await model_of(ops_test).wait_for_idle([APP], status="active", timeout=300)

    found = await configuration(ops_test, kubectl)
    assert found is not None
    expressions = found["webhooks"][0]["namespaceSelector"]["matchExpressions"]
    assert {"key": "team", "operator": "In", "values": ["a", "b"]} in expressions


async def test_a_bad_option_blocks_and_leaves_the_webhook(
    ops_test: OpsTest, kubectl: Kubectl
) -> None:
    before = await configuration(ops_test, kubectl)

    await application(ops_test).set_config({"failure-policy": "Abort"})
    await model_of(ops_test).wait_for_idle([APP], status="blocked", timeout=300)
    assert await configuration(ops_test, kubectl) == before

    await application(ops_test).set_config({"failure-policy": "Ignore"})
    await model_of(ops_test).wait_for_idle([APP], status="active", timeout=300)


async def test_more_units_become_active(ops_test: OpsTest) -> None:
    await application(ops_test).scale(2)

    await model_of(ops_test).wait_for_idle(
        [APP], status="active", timeout=600, wait_for_exact_units=2
    )


async def test_removal_leaves_nothing_in_the_cluster(ops_test: OpsTest, kubectl: Kubectl) -> None:
    name = model_of(ops_test).name
    await model_of(ops_test).remove_application(APP, block_until_done=True, timeout=600)

    assert await configuration(ops_test, kubectl) is None
    selector = f"--selector=istio-aux.io/model={name},istio-aux.io/application={APP}"
    kinds = "clusterroles,clusterrolebindings,serviceaccounts"
    left = await kubectl("get", kinds, "--all-namespaces", selector, "-o", "json")
    assert not left["items"]
