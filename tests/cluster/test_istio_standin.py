"""The stand-in for Istio through a real API server: who is injected, and how."""

from __future__ import annotations

from collections.abc import Iterator

import lab
import lab.istio
import pytest
from lightkube import ApiError
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod

HOLD = {"proxy.istio.io/config": "holdApplicationUntilProxyStarts: true"}
NATIVE = {"sidecar.istio.io/nativeSidecar": "true"}


@pytest.fixture(scope="module")
def istio(cluster: lab.Cluster) -> Iterator[lab.istio.Istio]:
    """One that makes native sidecars for pods that ask for them."""
    istio = lab.istio.install(cluster, native="on request")
    yield istio
    istio.remove()


@pytest.fixture
def meshed(cluster: lab.Cluster, namespace: str) -> str:
    """A namespace whose pods Istio injects."""
    with cluster.client() as client:
        labels = {"labels": {"istio-injection": "enabled"}}
        client.patch(Namespace, namespace, {"metadata": labels})
    return namespace


def create(
    cluster: lab.Cluster,
    namespace: str,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> PodSpec:
    metadata = ObjectMeta(
        generateName="pod-", namespace=namespace, annotations=annotations, labels=labels
    )
    spec = PodSpec(containers=[Container(name="main", image="x")], restartPolicy="Never")
    with cluster.client() as client:
        created = client.create(Pod(metadata=metadata, spec=spec))
    assert created.spec
    return created.spec


def names(containers: list[Container] | None) -> list[str]:
    return [container.name for container in containers or []]


def await_injection(cluster: lab.Cluster, namespace: str) -> None:
    """The API server evaluates a namespace's labels a moment after they were set."""
    lab.until(
        lambda: lab.istio.PROXY in names(create(cluster, namespace).containers),
        timeout=100,
        what=f"pods of namespace {namespace} to be injected",
    )


@pytest.mark.parametrize(
    ("annotations", "init", "containers"),
    [
        ({}, ["istio-init"], ["main", "istio-proxy"]),
        (HOLD, ["istio-init"], ["istio-proxy", "main"]),
        (NATIVE, ["istio-init", "istio-proxy"], ["main"]),
        ({"sidecar.istio.io/inject": "false"}, [], ["main"]),
    ],
)
@pytest.mark.usefixtures("istio")
def test_a_pod_gets_the_sidecar_that_it_asks_for(
    cluster: lab.Cluster,
    meshed: str,
    annotations: dict[str, str],
    init: list[str],
    containers: list[str],
) -> None:
    await_injection(cluster, meshed)

    spec = create(cluster, meshed, annotations)

    assert (names(spec.initContainers), names(spec.containers)) == (init, containers)


@pytest.mark.usefixtures("istio")
def test_a_namespace_without_the_label_is_not_injected_unless_the_pod_asks(
    cluster: lab.Cluster, namespace: str
) -> None:
    assert names(create(cluster, namespace).containers) == ["main"]

    asking = create(cluster, namespace, labels={"sidecar.istio.io/inject": "true"})

    assert names(asking.containers) == ["main", "istio-proxy"]


@pytest.mark.usefixtures("istio")
def test_a_bad_config_is_refused_in_istios_words(cluster: lab.Cluster, meshed: str) -> None:
    await_injection(cluster, meshed)

    with pytest.raises(ApiError) as refused:
        create(cluster, meshed, {"proxy.istio.io/config": "holdApplicationUntilProxyStarts: [true"})

    assert refused.value.status.message == (
        'admission webhook "namespace.sidecar-injector.istio.io" denied the request: '
        "failed to run injection template: 1 error occurred:\n"
        "\t* invalid value 'holdApplicationUntilProxyStarts: [true' for annotation "
        "'proxy.istio.io/config': failed to convert to apply proxy config: "
        "yaml: line 1: did not find expected ',' or ']'\n\n"
    )


@pytest.mark.usefixtures("istio")
def test_a_new_namespace_gets_the_root_certificate_that_sidecars_mount(
    cluster: lab.Cluster, namespace: str
) -> None:
    with cluster.client() as client:
        found = lab.until(
            lambda: client.get(ConfigMap, "istio-ca-root-cert", namespace=namespace),
            timeout=100,
            what="the root certificate",
            ignoring=(ApiError,),
        )

    assert "BEGIN CERTIFICATE" in (found.data or {})["root-cert.pem"]
