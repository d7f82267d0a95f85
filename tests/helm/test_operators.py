"""The chart beside cert-manager, and with the kinds of Prometheus' operator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import lab
import lab.istio
import pytest
from lab import tools, upstream
from lab.creation import Stream, send
from lab.istio import EXPECTED
from lab.meshed import annotations_of, nameless
from lab.release import Release
from lightkube import ApiError, Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace, Secret

from helm import charts
from tools import toolchain


@pytest.fixture(scope="module")
def issued(cluster: lab.Cluster, home: Path, release: Release) -> Iterator[Release]:
    """A release of its own, beside the other."""
    upstream.install_cert_manager(cluster)
    found = Release(cluster, home, "issued", "issued")
    found.install(
        {
            "certificates.from": "cert-manager",
            "settings.namespace-selectors": [{"matchLabels": {"team": "issued"}}],
        }
    )
    yield found
    found.uninstall()


@pytest.fixture(scope="module")
def selected(client: Client, issued: Release) -> str:
    """A namespace that this release looks after, whose pods are changed."""
    name = "of-the-issued"
    labels = {"istio-injection": "enabled", "team": "issued"}
    client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
    lab.until(
        lambda: lab.istio.try_shape(client, name) == EXPECTED["never"],
        what=f"pods of {name} to be changed",
        ignoring=(ApiError,),
    )
    return name


def test_the_api_server_trusts_the_authority_that_cert_manager_made(
    client: Client, issued: Release, selected: str
) -> None:
    configuration = client.get(MutatingWebhookConfiguration, f"istio-aux-issued.{issued.name}")
    authority = client.get(Secret, f"{issued.name}-authority", namespace=issued.namespace)

    bundles = {
        hook.clientConfig.caBundle for hook in configuration.webhooks or () if hook.clientConfig
    }
    assert authority.data
    assert bundles == {authority.data["tls.crt"]}
    issued.await_served(client, issued.certificate(client))


def test_pods_are_changed_while_cert_manager_renews_the_certificate(
    client: Client, cluster: lab.Cluster, issued: Release, selected: str
) -> None:
    """With a certificate that the API server does not trust, pods are created unchanged."""
    before = issued.certificate(client)
    with Stream(cluster, nameless(selected, sidecar=None), rate=2, dry_run=True) as stream:
        upstream.renew_certificate(client, f"{issued.name}-certificate", issued.namespace)
        lab.until(lambda: issued.certificate(client) != before, what="another certificate")
        new = issued.certificate(client)
        issued.await_served(client, new)
        stream.await_more(2)

    started = "istio-aux.io/started-with"
    assert {annotations_of(each.pod).get(started) for each in stream.creations} == {"hold"}


@pytest.fixture(scope="module")
def monitored(client: Client, cluster: lab.Cluster) -> str:
    """Where PodMonitors and PrometheusRules are, by the operator's own schemas."""
    name = "github.com/prometheus-operator/prometheus-operator"
    module = toolchain.module(tools.HERE / "tools/prometheus-operator", name)
    for kind in ("podmonitors", "prometheusrules"):
        file = module / f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
        upstream.apply(client, upstream.read(file))
    return "/apis/monitoring.coreos.com/v1/namespaces/default"


@pytest.mark.parametrize(
    ("kind", "plural"), [("PodMonitor", "podmonitors"), ("PrometheusRule", "prometheusrules")]
)
def test_prometheus_operator_takes_what_the_chart_makes(
    cluster: lab.Cluster, home: Path, monitored: str, kind: str, plural: str
) -> None:
    """An unknown field, which the API server would drop, is an error here."""
    values = {"podMonitor.enabled": True, "prometheusRule.enabled": True}
    [made] = [each for each in charts.render(home, values) if each["kind"] == kind]
    made["metadata"]["namespace"] = "default"
    path = f"{monitored}/{plural}?dryRun=All&fieldValidation=Strict"

    def answer() -> tuple[int, bytes] | None:
        found = send(cluster, "POST", path, json.dumps(made).encode())
        return None if found[0] == 404 else found

    status, body = lab.until(answer, what=f"{plural} to be served")

    assert status == 201, body
