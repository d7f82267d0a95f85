"""The stand-in for Istio through a real API server: when it is live, and what is so until then."""

from __future__ import annotations

from collections.abc import Iterator

import lab
import lab.istio
import pytest
from lightkube import ApiError
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace, Pod

CLASSIC = ["istio-init", "main", "istio-proxy"]
# Measured: 0.1 s until the API server acts on a configuration or a label, 1 s until istiod is back,
# 10 s with six builds and test runs beside it.
SOON = 100


@pytest.fixture
def istio(cluster: lab.Cluster) -> Iterator[lab.istio.Istio]:
    """An Istio that leaves the caBundle to the test."""
    istio = lab.istio.install(cluster, writes_ca=False)
    yield istio
    istio.remove()


@pytest.fixture
def meshed(cluster: lab.Cluster, namespace: str) -> str:
    """A namespace whose pods Istio injects."""
    with cluster.client() as client:
        labels = {"labels": {"istio-injection": "enabled"}}
        client.patch(Namespace, namespace, {"metadata": labels})
    return namespace


def containers(cluster: lab.Cluster, namespace: str) -> list[str]:
    """The containers of a new pod, init containers first."""
    pod = Pod(
        metadata=ObjectMeta(generateName="pod-", namespace=namespace),
        spec=PodSpec(containers=[Container(name="main", image="x")], restartPolicy="Never"),
    )
    with cluster.client() as client:
        spec = client.create(pod).spec or PodSpec(containers=[])
    return [container.name for container in [*(spec.initContainers or []), *spec.containers]]


def await_refusal(cluster: lab.Cluster, namespace: str) -> str:
    """What the API server says when it refuses a pod."""

    def refusal() -> str:
        try:
            containers(cluster, namespace)
        except ApiError as error:
            return error.status.message or ""
        return ""

    return lab.until(refusal, timeout=SOON, what="a pod to be refused")


def await_containers(cluster: lab.Cluster, namespace: str, expected: list[str]) -> None:
    lab.until(
        lambda: containers(cluster, namespace) == expected,
        timeout=SOON,
        what=f"a pod with {expected}",
        ignoring=(ApiError,),
    )


def test_pods_are_refused_until_istiod_has_written_its_ca_and_while_it_does_not_run(
    cluster: lab.Cluster, meshed: str, istio: lab.istio.Istio
) -> None:
    with cluster.client() as client:
        found = client.get(MutatingWebhookConfiguration, istio.configurations[0])
    assert [webhook.clientConfig.caBundle for webhook in found.webhooks or []] == [None] * 4
    assert "failed calling webhook" in await_refusal(cluster, meshed)

    istio.trust(istio.bundle)
    await_containers(cluster, meshed, CLASSIC)

    istio.process.kill()
    istio.process.wait(SOON)
    assert "failed calling webhook" in await_refusal(cluster, meshed)

    istio.start()
    istio.trust(istio.bundle)
    await_containers(cluster, meshed, CLASSIC)
