"""The charm on a real Juju, alone and beside Charmed Kubeflow's Istio, until it is removed.

The tests build on one another, in this order.
"""

from __future__ import annotations

from pathlib import Path

import jubilant
from helpers import (
    APP,
    BUSYBOX,
    ISTIO,
    await_active,
    await_state,
    completed,
    created,
    deploy,
    has_sidecar,
    is_started,
    kubectl,
    listed,
    message,
    model_of,
    remove,
    webhooks,
)

CERTIFICATES, ASKING = "self-signed-certificates", "asking"


def test_without_trust_it_blocks_and_says_what_to_run(
    juju: jubilant.Juju, charm: Path, image: str
) -> None:
    deploy(juju, charm, image, trust=False)

    status = juju.wait(lambda status: jubilant.all_blocked(status, APP))

    assert f"juju trust {APP} --scope=cluster" in message(status)


def test_with_trust_it_becomes_active_and_owns_its_webhooks(juju: jubilant.Juju) -> None:
    juju.trust(APP, scope="cluster")
    await_active(juju)

    made = webhooks(juju)
    assert {webhook["failurePolicy"] for webhook in made} == {"Ignore"}
    assert all(webhook["clientConfig"]["caBundle"] for webhook in made)


def test_the_pods_of_a_profile_are_changed_by_default(juju: jubilant.Juju, profile: str) -> None:
    assert is_started(created(profile))


def test_pods_of_a_named_application_ask_for_a_sidecar(juju: jubilant.Juju) -> None:
    def asks(name: str) -> bool:
        pod = created(model_of(juju), **{"app.kubernetes.io/name": name})
        return pod["metadata"]["labels"].get("sidecar.istio.io/inject") == "true"

    juju.config(APP, {"inject-applications": "asker"})

    await_state(juju, lambda: asks("asker"))

    assert not asks("other")
    juju.config(APP, reset="inject-applications")
    await_state(juju, lambda: not asks("asker"))


def test_more_units_become_active(juju: jubilant.Juju) -> None:
    juju.cli("scale-application", APP, "2")

    juju.wait(lambda status: len(status.apps[APP].units) == 2 and jubilant.all_active(status, APP))


def test_it_relates_to_istio_and_names_its_injector(juju: jubilant.Juju, istio: str) -> None:
    juju.integrate(f"{APP}:istio-pilot", f"{ISTIO}:istio-pilot")

    juju.wait(
        lambda status: jubilant.all_active(status, APP, ISTIO) and " live since " in message(status)
    )


def test_nothing_keeps_it_from_working(juju: jubilant.Juju, istio: str) -> None:
    assert juju.run(f"{APP}/0", "run-check").results["works"] == "true"


def test_a_job_of_a_profile_completes_beside_its_sidecar(
    juju: jubilant.Juju, istio: str, profile: str
) -> None:
    assert has_sidecar(completed(istio, profile, "own-authority"))


def test_a_provider_issues_the_certificates_that_the_api_server_trusts(
    juju: jubilant.Juju, istio: str, profile: str
) -> None:
    def bundles() -> set[str]:
        return {webhook["clientConfig"]["caBundle"] for webhook in webhooks(juju)}

    own = bundles()
    juju.deploy(CERTIFICATES, channel="1/stable")
    juju.integrate(f"{APP}:certificates", f"{CERTIFICATES}:certificates")

    await_state(juju, lambda: bundles().isdisjoint(own))

    assert is_started(created(profile))
    juju.remove_relation(f"{APP}:certificates", f"{CERTIFICATES}:certificates")
    await_state(juju, lambda: bundles() == own)


def test_a_charm_that_asks_gets_a_sidecar_and_learns_of_it(
    juju: jubilant.Juju, istio: str, asking: Path
) -> None:
    juju.deploy(asking, ASKING)
    juju.integrate(f"{APP}:sidecar", f"{ASKING}:proxy-beside-me")
    labels = {"app.kubernetes.io/name": ASKING}
    await_state(juju, lambda: has_sidecar(created(model_of(juju), **labels)))

    # It runs without one until its pod is replaced; the model's namespace has to be in the mesh.
    kubectl("delete", "pod", "-n", model_of(juju), f"{ASKING}-0")

    status = juju.wait(lambda status: jubilant.all_active(status, APP, ASKING))
    assert status.apps[ASKING].units[f"{ASKING}/0"].workload_status.message == "meshed"
    remove(juju, ASKING)


def test_removal_leaves_nothing_and_refuses_no_pod(juju: jubilant.Juju, profile: str) -> None:
    remove(juju, APP)

    kinds = "mutatingwebhookconfigurations,clusterroles,clusterrolebindings,serviceaccounts"
    selector = f"--selector=istio-aux.io/model={model_of(juju)},istio-aux.io/application={APP}"
    assert listed(kinds, "--all-namespaces", selector) == []
    kubectl("run", "-n", profile, "later", f"--image={BUSYBOX}", "--dry-run=server")
