"""What the workload says of Istio's injector, at a real API server."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lab.istio
import pytest
from lab.control_plane import Authority
from lab.fixtures import await_account, make_namespace
from lab.workload import Programs, Workload, ask
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace, ResourceQuota
from lightkube.resources.discovery_v1 import EndpointSlice

ACTIVE = lab.istio.TAG
PROMPT = 20.0  # Seconds. An injector that is live is asked every 5 s.
SETTINGS = {"quit": "disabled", "lease": "watching/watching"}


def await_state(
    workload: Workload, state: str, why: str = "", configuration: str = ACTIVE
) -> dict[str, Any]:
    """The status as soon as an injector is in that state, with `why` in its reason."""

    def told() -> dict[str, Any]:
        status = workload.status()
        wanted = {"configuration": configuration, "state": state}
        found = (e for e in status.get("injectors", ()) if wanted.items() <= e.items())
        return status if any(why in each["why"] for each in found) else {}

    what = f"{configuration or 'no injector'} to be {state} ({why})"
    return lab.until(told, timeout=PROMPT, what=what)


@pytest.fixture(scope="module")
def workload(programs: Programs) -> Workload:
    """The program under its own ServiceAccount, with nothing but a watch on Istio to do."""
    return programs("watching", SETTINGS, revisions=("canary",))


@pytest.fixture(scope="module")
def meshed(cluster: lab.Cluster) -> Iterator[str]:
    """A namespace whose pods Istio's webhook is called for: a dry run needs one."""
    name = "watched"
    with cluster.client() as client:
        labels = {"istio-injection": "enabled"}
        make_namespace(client, name, labels)
        yield name
        client.delete(Namespace, name)


@pytest.fixture(scope="module")
def istiod(cluster: lab.Cluster, workload: Workload, meshed: str) -> Iterator[lab.istio.Istio]:
    """An Istio that leaves the caBundle to the tests."""
    istio = lab.istio.install(cluster, writes_ca=False)
    yield istio
    istio.trust(istio.bundle)
    istio.remove()


@pytest.fixture
def live(istiod: lab.istio.Istio, workload: Workload) -> lab.istio.Istio:
    """The same with all that it needs, and told to be live."""
    istiod.configure()
    istiod.come_back()
    istiod.trust(istiod.bundle)
    await_state(workload, "live")
    return istiod


def bundle(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def foreign(folder: Path) -> str:
    return bundle(Authority(folder).pair.certificate)


def deactivate(istio: lab.istio.Istio) -> None:
    """Make no webhook select anything, as istioctl does."""
    nothing = LabelSelector(matchLabels=lab.istio.DEACTIVATED["matchLabels"])
    with istio.cluster.client() as client:
        found = client.get(MutatingWebhookConfiguration, ACTIVE)
        for webhook in found.webhooks or ():
            webhook.namespaceSelector = webhook.objectSelector = nothing
        client.replace(found)


def unlist(istio: lab.istio.Istio) -> None:
    with istio.cluster.client() as client:
        client.delete(EndpointSlice, istio.service, namespace=istio.namespace)


def test_without_istio_it_is_absent(workload: Workload) -> None:
    status = await_state(workload, "absent", "no webhook configuration of Istio's injector", "")

    assert status["injector-live"] is False


CHANGES: dict[str, tuple[Callable[[lab.istio.Istio, Path], None], str, str]] = {
    "no bundle": (lambda istio, _: istio.trust(None), "no-ca-bundle", "has never been up"),
    "foreign": (lambda istio, tmp: istio.trust(foreign(tmp)), "refused", "unknown authority"),
    "not ready": (lambda istio, _: istio.serve(ready=False), "no-endpoint", "no ready endpoint"),
    "no slice": (lambda istio, _: unlist(istio), "no-service", "has no EndpointSlice"),
    # Its endpoint goes on being called ready.
    "killed": (lambda istio, _: istio.process.end(), "refused", "failed calling webhook"),
    "deactivated": (lambda istio, _: deactivate(istio), "deactivated", "none of its webhooks"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_it_says_what_is_wrong_with_an_injector_and_when_that_is_over(
    what: str, live: lab.istio.Istio, workload: Workload, tmp_path: Path
) -> None:
    """istio#3716: `live` brings it back before the next test."""
    change, state, why = CHANGES[what]

    change(live, tmp_path)

    status = await_state(workload, state, why)

    assert (status["injector-live"], status["capability"]) == (False, "unknown")


@pytest.fixture(params=["going", "full"])
def refusing(
    request: pytest.FixtureRequest, cluster: lab.Cluster, workload: Workload
) -> Iterator[str]:
    """The only namespace that is selected; it is injected, too, and takes no pods any more."""
    with cluster.client() as client:
        name = f"a-{request.param}"
        labels = {"istio-injection": "enabled", "io.datastrophic/istio-aux": "enabled"}
        held = ["lab.test/held"] if request.param == "going" else None
        client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels, finalizers=held)))
        await_account(client, name)
        workload.select(name)
        if held:
            client.delete(Namespace, name)
        else:
            spec = ResourceQuotaSpec(hard={"pods": "0"})
            client.create(
                ResourceQuota(metadata=ObjectMeta(name="none"), spec=spec), namespace=name
            )
        yield name
        if held:
            client.patch(Namespace, name, {"metadata": {"finalizers": None}})
        else:
            client.delete(Namespace, name)


def test_a_namespace_that_takes_no_pods_hides_no_injector_from_serve_or_check(
    refusing: str, live: lab.istio.Istio, workload: Workload, cluster: lab.Cluster
):
    """A dry run asks in namespaces that are selected first."""
    live.serve(ready=False)
    await_state(workload, "no-endpoint")
    live.serve()

    await_state(workload, "live")

    done = ask(cluster.kubeconfig, "check", "-o", "json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["result"] for each in found if each["check"] == "injector"] == ["ok"], found
