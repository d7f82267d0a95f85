"""The stand-in for Istio through a real API server: when it is live, and what is so until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lab
import lab.istio
import pytest
from lightkube import ApiError
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace, Pod

Install = Callable[..., lab.istio.Istio]
CLASSIC = ["istio-init", "main", "istio-proxy"]
# Measured: 0.1 s until the API server acts on a configuration or a label, 1 s until istiod is back,
# 10 s with six builds and test runs beside it.
SOON = 100


@pytest.fixture
def install(cluster: lab.Cluster) -> Iterator[Install]:
    """`lab.istio.install`, undone at the end."""
    installed: list[lab.istio.Istio] = []

    def install(**options: Any) -> lab.istio.Istio:
        installed.append(lab.istio.install(cluster, **options))
        return installed[-1]

    yield install
    for istio in installed:
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


def test_until_istiod_writes_its_ca_pods_are_refused(
    cluster: lab.Cluster, meshed: str, install: Install
) -> None:
    istio = install(ca_delay=3600)

    # Without the delay it takes 0.1 s.
    with pytest.raises(TimeoutError):
        istio.await_live(timeout=2)
    assert "failed calling webhook" in await_refusal(cluster, meshed)
    with cluster.client() as client:
        found = client.get(MutatingWebhookConfiguration, istio.configurations[0])
    assert [webhook.clientConfig.caBundle for webhook in found.webhooks or []] == [None] * 4


def test_once_istiod_writes_its_ca_pods_are_injected(
    cluster: lab.Cluster, meshed: str, install: Install
) -> None:
    install(ca_delay=1).await_live()

    await_containers(cluster, meshed, CLASSIC)


def test_without_istiod_pods_are_refused_until_it_is_back(
    cluster: lab.Cluster, meshed: str, install: Install
) -> None:
    istio = install()
    istio.process.kill()
    istio.process.wait(SOON)
    refused = await_refusal(cluster, meshed)

    istio.process.start()

    assert "failed calling webhook" in refused
    await_containers(cluster, meshed, CLASSIC)
