"""What the workload says of Istio's injector, at a real API server and the stand-in for Istio.

Each test says how long it took until a change was told, from before the change was made. That is
below 2 s on a machine that does nothing else; `PROMPT` is for those that do.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lab
import lab.istio
import pytest
from lab import ports
from lab.certificates import Authority
from lab.fixtures import await_account
from lab.istio import webhooks
from lab.served import Programs, metric
from lab.workload import Workload
from lightkube.models.discovery_v1 import EndpointPort
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.discovery_v1 import EndpointSlice

ACTIVE = "istio-revision-tag-default"
CANARY = "istio-sidecar-injector-canary"
# Ten times what is usual. An injector that is live is asked again after 27 s at the earliest: what
# is told sooner was noticed at once, as ARCHITECTURE says.
PROMPT = 20.0
SOON = 30.0


SETTINGS = {"quit": "off", "lease": "watching/watching"}


class Injectors:
    """What the workload says of them, and how long that takes."""

    def __init__(self, workload: Workload, note: Callable[[str, object], None]) -> None:
        self.workload = workload
        self._note = note

    def one(self, configuration: str = ACTIVE) -> dict[str, Any]:
        """What it says of one of them; empty if nothing."""
        found = self.workload.status().get("injectors", ())
        return next((each for each in found if each["configuration"] == configuration), {})

    def await_state(self, state: str, configuration: str = ACTIVE, **more: str) -> dict[str, Any]:
        """What it says as soon as that is the state."""
        wanted = {"state": state, **more}
        lab.until(
            lambda: wanted.items() <= self.one(configuration).items(),
            timeout=SOON,
            what=f"{configuration or 'no injector'} to be {wanted}",
            every=0.02,
        )
        return self.one(configuration)

    def await_change(
        self, change: Callable[[], object], state: str, configuration: str = ACTIVE, **more: str
    ) -> dict[str, Any]:
        """Make a change that leads to the state: it has to be told promptly."""
        begun = time.monotonic()
        change()
        found = self.await_state(state, configuration, **more)
        seconds = time.monotonic() - begun
        self._note(f"seconds until {state}", f"{seconds:.2f}")
        print(f"{state:>14} told after {seconds:.2f} s")
        assert seconds < PROMPT
        return found


@pytest.fixture(scope="module")
def workload(programs: Programs) -> Workload:
    """The program under its own ServiceAccount, with nothing but a watch on Istio to do."""
    return programs("watching", SETTINGS, revisions=("canary",))


@pytest.fixture
def injectors(
    workload: Workload, record_testsuite_property: Callable[[str, object], None]
) -> Injectors:
    return Injectors(workload, record_testsuite_property)


@pytest.fixture(scope="module")
def meshed(cluster: lab.Cluster) -> Iterator[str]:
    """A namespace whose pods Istio's webhook is called for: a dry run needs one."""
    name = "watched"
    with cluster.client() as client:
        labels = {"istio-injection": "enabled"}
        client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
        await_account(client, name)
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
def live(istiod: lab.istio.Istio, injectors: Injectors) -> lab.istio.Istio:
    """The same with all that it needs, and told to be live."""
    if not istiod.process.running:
        istiod.start()

    def complete() -> None:
        istiod.configure()
        istiod.serve()
        istiod.trust(istiod.bundle)

    injectors.await_change(complete, "live")
    return istiod


def bundle(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def foreign(folder: Path) -> str:
    """The caBundle of somebody else."""
    return bundle(Authority(folder).pair.certificate)


def closed_port(istio: lab.istio.Istio) -> None:
    """Lead the Service where nobody listens."""
    service = webhooks.service(istio.revision)
    istio.cluster.publish(istio.namespace, service, 443, ports.reserve())


def die(istio: lab.istio.Istio) -> None:
    """End the process; its endpoint goes on being called ready."""
    istio.process.kill()
    istio.process.wait(SOON)


def deactivate(istio: lab.istio.Istio) -> None:
    """Make no webhook select anything, as istioctl does."""
    nothing = LabelSelector(matchLabels=webhooks.DEACTIVATED["matchLabels"])
    with istio.cluster.client() as client:
        found = client.get(MutatingWebhookConfiguration, ACTIVE)
        for webhook in found.webhooks or ():
            webhook.namespaceSelector = webhook.objectSelector = nothing
        client.replace(found)


def unlist(istio: lab.istio.Istio) -> None:
    """Take its endpoints away."""
    with istio.cluster.client() as client:
        service = webhooks.service(istio.revision)
        client.delete(EndpointSlice, service, namespace=istio.namespace)


def test_without_istio_it_is_absent(workload: Workload, injectors: Injectors) -> None:
    found = injectors.await_state("absent", "")

    assert found["why"] == "no webhook configuration of Istio's injector"
    assert workload.status()["injector-live"] is False


CHANGES: dict[str, tuple[Callable[[lab.istio.Istio, Path], None], str, str]] = {
    "no bundle": (lambda istio, _: istio.trust(None), "no-ca-bundle", "has never been up"),
    "foreign": (lambda istio, tmp: istio.trust(foreign(tmp)), "refused", "is not trusted"),
    "not ready": (lambda istio, _: istio.serve(ready=False), "no-endpoint", "no ready endpoint"),
    "no slice": (lambda istio, _: unlist(istio), "no-service", "has no EndpointSlice"),
    "closed": (lambda istio, _: closed_port(istio), "refused", "failed calling webhook"),
    "killed": (lambda istio, _: die(istio), "refused", "failed calling webhook"),
    "deactivated": (lambda istio, _: deactivate(istio), "deactivated", "none of its webhooks"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_it_says_what_is_wrong_with_an_injector_and_when_that_is_over(
    what: str, live: lab.istio.Istio, injectors: Injectors, tmp_path: Path
) -> None:
    """T40: `live` brings it back before the next test, and says how long that took."""
    change, state, why = CHANGES[what]

    found = injectors.await_change(lambda: change(live, tmp_path), state)

    assert why in found["why"]
    status = injectors.workload.status()
    assert (status["injector-live"], status["capability"]) == (False, "unknown")


def test_it_is_absent_again_without_its_configurations(
    live: lab.istio.Istio, injectors: Injectors
) -> None:
    def remove() -> None:
        with live.cluster.client() as client:
            for name in live.configurations:
                client.delete(MutatingWebhookConfiguration, name)

    injectors.await_change(remove, "absent", "")


def test_a_process_that_is_started_again_knows_since_when_an_injector_is_live(
    live: lab.istio.Istio, injectors: Injectors, workload: Workload
) -> None:
    """After a change of any option, for example: it is in the Lease."""
    since = injectors.one()["since"]
    lab.until(lambda: workload.status().get("leader"), timeout=SOON, what="the workload to lead")
    workload.stop()
    workload.start()
    workload.await_ready()
    assert injectors.await_state("live")["since"] == since


def test_where_it_cannot_be_reached_a_dry_run_shows_what_it_does(
    live: lab.istio.Istio, injectors: Injectors
) -> None:
    """The API server finds the right port by the Service; here nobody listens at the usual one."""
    series = 'istio_aux_injector_probes_total{outcome="injected",way="dry-run"}'
    before = metric(injectors.workload, series)
    with live.cluster.client() as client:
        service = webhooks.service(live.revision)
        found = client.get(EndpointSlice, service, namespace=live.namespace)
        assert found.metadata
        found.metadata.managedFields = found.metadata.resourceVersion = None
        dead = EndpointPort(name="https-webhook", port=ports.reserve(), protocol="TCP")
        found.ports = [*(found.ports or ()), dead]
        client.apply(found)

    lab.until(
        lambda: metric(injectors.workload, series) > before,
        timeout=SOON,
        what="a dry run that shows a sidecar",
    )
    found = injectors.await_state("live")
    assert found["why"] == "it injects"
    injectors.await_state("live", native="classic")


def test_it_follows_a_tag_to_another_revision(
    cluster: lab.Cluster, live: lab.istio.Istio, injectors: Injectors
) -> None:
    """The new istiod makes native sidecars. As long as both are called, that is safe for none."""
    injectors.await_state("live", native="classic")
    assert injectors.workload.status()["capability"] == "classic"
    canary = lab.istio.install(cluster, revision="canary", native="on request")

    def move() -> None:
        with cluster.client() as client:
            tag = client.get(MutatingWebhookConfiguration, ACTIVE)
            assert tag.metadata
            tag.metadata.labels = {**(tag.metadata.labels or {}), "istio.io/rev": "canary"}
            for webhook in tag.webhooks or ():
                assert webhook.clientConfig.service
                webhook.clientConfig.service.name = webhooks.service("canary")
                webhook.clientConfig.caBundle = None
            client.replace(tag)

    try:
        injectors.await_state("live", CANARY, native="native", revision="canary")
        assert injectors.workload.status()["capability"] == "classic"

        injectors.await_change(move, "live", revision="canary", native="native")

        assert injectors.workload.status()["capability"] == "native"
    finally:
        canary.remove()
