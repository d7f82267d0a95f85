"""The chart on a real kubelet: the main job, by install, a TFJob, upgrade and uninstall.

And where the cluster gives a pod its user, as OpenShift does, beside cert-manager, and with the
kinds of Prometheus' operator.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import lab.istio
import pytest
from demo import scenes
from demo.scenes import Steps
from istio_aux.model.annotations import STARTED_WITH
from lab import fixtures, tools, upstream
from lab.creation import Stream, send
from lab.istio import EXPECTED, Shape
from lab.meshed import annotations_of, delete, nameless, proxy_exit_code
from lightkube import ApiError, Client, codecs
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount

import cluster as charm
from helm.charts import CHART, Release, render, run_helm
from tools import rock, toolchain

NAMESPACE, USER = "any-user", 1000680000
# What `restricted-v2` writes. It also refuses a pod that asks for a user; ours asks for none.
CONSTRAINT = f"""
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {{name: restricted-v2}}
spec:
  matchConstraints:
    resourceRules:
    - {{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{{spec: Object.spec{{securityContext:
        Object.spec.securityContext{{runAsUser: {USER}, fsGroup: {USER}}}}}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {{name: restricted-v2}}
spec:
  policyName: restricted-v2
  matchResources:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {NAMESPACE}}}}}
"""


@pytest.fixture
def assigned(client: Client, cluster: lab.Cluster) -> Iterator[None]:
    """A namespace in which each pod gets the user."""
    client.apply(Namespace(metadata=ObjectMeta(name=NAMESPACE)))
    policies = codecs.load_all_yaml(CONSTRAINT)
    for each in policies:
        client.apply(each)
    pod = json.dumps(nameless(NAMESPACE, sidecar=None).to_dict()).encode()
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
    lab.until(
        lambda: f'"runAsUser":{USER}'.encode() in send(cluster, "POST", path, pod)[1],
        what="pods to get their user",
    )
    yield
    delete(client, policies)


@pytest.fixture
def anybodys(cluster: lab.Cluster, home: Path, assigned: None) -> Iterator[Release]:
    """The chart with no value but the image."""
    found = Release(cluster, home, "istio-aux", NAMESPACE)
    found.install({})
    yield found
    found.uninstall()


def test_with_no_value_but_the_image_the_pods_run_as_the_user_that_the_cluster_gives(
    anybodys: Release,
) -> None:
    user, group, *_ = anybodys.executed("sh", "-c", "id -u; id -g").split()

    assert (user, group) == (str(USER), "0")
    assert {each["check"]: each["result"] for each in anybodys.checked()}["rights"] == "ok"


README = CHART.with_name("README.md").read_text()


def owned(client: Client, release: Release) -> set[str]:
    """Kind and name of what a release has of the kinds that the charm deletes at its end."""
    labels = {"istio-aux.io/application": release.name, "istio-aux.io/model": release.namespace}
    return {
        f"{kind.__name__} {each.name}"
        for kind in charm.OWNED
        for each in charm.owned(client, kind, labels, release.namespace) or ()
    }


def test_a_tfjob_completes_beside_istios_sidecar(
    client: Client, cluster: lab.Cluster, release: Release, steps: Steps
) -> None:
    manifest = scenes.EXAMPLES / "tfjob.yaml"
    without = scenes.play(scenes.WITHOUT, manifest, client, cluster.kubeconfig, steps)
    helped = scenes.play(scenes.WITH, manifest, client, cluster.kubeconfig, steps)

    assert not without.succeeded
    assert helped.succeeded


def test_an_upgrade_rolls_the_pods_without_a_refused_or_unchanged_pod(
    client: Client, cluster: lab.Cluster, release: Release, namespace: str
) -> None:
    """Nor does the way back. The new pods listen on another port than those before."""
    fixtures.await_selected(client, namespace)
    kept = client.get(Secret, f"{release.name}-certificate", namespace=release.namespace).data
    release.upgrade({})
    before = {pod.metadata.uid for pod in release.pods(client) if pod.metadata}
    with Stream(cluster, nameless(namespace, sidecar=None), rate=10, dry_run=True) as stream:
        stream.await_more(10)
        release.upgrade({"settings.quit-grace": 1, "webhook.securePort": 10250})
        stream.await_more(10)
        release.rollback()
        stream.await_more(10)
    after = {pod.metadata.uid for pod in release.pods(client) if pod.metadata}

    assert not before & after
    assert {annotations_of(each.pod).get(STARTED_WITH) for each in stream.creations} == {"hold"}
    secret = client.get(Secret, f"{release.name}-certificate", namespace=release.namespace)
    assert secret.data == kept
    pod = lab.istio.complete_job(client, namespace, "after-the-upgrade")
    assert lab.istio.shape_of(pod) == Shape("hold", native=False)
    assert proxy_exit_code(pod) == 0


def test_pods_are_changed_while_a_new_certificate_reaches_the_webhook(
    client: Client, cluster: lab.Cluster, release: Release, namespace: str
) -> None:
    """The API server learns of it at once, and the pods when their kubelet looks again."""
    fixtures.await_selected(client, namespace)
    before = release.certificate(client)
    with Stream(cluster, nameless(namespace, sidecar=None), rate=2, dry_run=True) as stream:
        release.upgrade({"certificates.renewAfterDays": 0})
        new = release.certificate(client)
        release.await_served(client, new)
        stream.await_more(2)

    assert new != before
    assert {annotations_of(each.pod).get(STARTED_WITH) for each in stream.creations} == {"hold"}


def test_an_upgrade_renews_a_certificate_of_whose_life_half_is_over(
    client: Client, release: Release
) -> None:
    """Whatever `renewAfterDays` says: nothing else renews it."""
    name, made = f"{release.name}-certificate", str(int(time.time()) - 366 * 86400)
    aged = {"metadata": {"annotations": {"istio-aux.io/made": made}}}
    client.patch(Secret, name, aged, namespace=release.namespace)
    before = release.certificate(client)

    # Helm 4 would not take a field back that another client has set.
    release.upgrade({"certificates.renewAfterDays": 9999}, "--force-conflicts")

    new = release.certificate(client)
    assert new != before
    release.await_served(client, new)


def test_the_workload_says_that_it_would_work_here(release: Release) -> None:
    """The command of the chart's notes."""
    results = release.checked()

    assert [each for each in results if each["result"] == "problem"] == []
    found = {each["check"]: each for each in results}
    for check in ("rights", "webhook order", "lease", "network"):
        assert found[check]["result"] == "ok", found[check]


@pytest.fixture(scope="module")
def other(cluster: lab.Cluster, home: Path, release: Release) -> Release:
    """Another release, with a port of its own."""
    found = Release(cluster, home, "other", "elsewhere")
    found.install(
        {
            "settings.namespace-selectors": [{"matchLabels": {"team": "other"}}],
            "settings.start-mode": "hold",
            "settings.race-policy": "restart",
            "networkPolicy.enabled": True,
            "statusPort": 9090,
        }
    )
    return found


def test_the_notes_say_which_label_adds_a_namespace(other: Release) -> None:
    assert "\n  kubectl label namespace NAME team=other\n" in other.notes


def test_nothing_is_left_of_a_release_that_is_uninstalled(
    client: Client, release: Release, other: Release
) -> None:
    had = owned(client, other)

    other.uninstall()

    assert {name.partition(" ")[0] for name in had} == {
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    }
    assert owned(client, other) == set()
    lab.until(lambda: not left(client, other), what=f"{left(client, other)} to go")
    assert owned(client, release)


def test_the_lines_of_the_readme_install_what_make_image_writes(
    client: Client, cluster: lab.Cluster, home: Path, release: Release
) -> None:
    """Pasted as they are, where the release of the other tests is gone."""
    block = re.search(
        r"(?m)^make image +#.+\nkind load image-archive (\S+) .+\nhelm (install .+)$", README
    )
    assert block
    assert block[1] == f"dist/{rock.image().name}"
    release.uninstall()

    run_helm(*shlex.split(block[2]), home=home, kubeconfig=cluster.kubeconfig)

    assert len(release.pods(client)) == 2


def left(client: Client, release: Release) -> set[str]:
    """What is in the release's namespace, without what Kubernetes and Istio put into each."""
    found = {
        f"{kind.__name__} {each.metadata.name}"
        for kind in (ConfigMap, Deployment, Lease, Pod, Secret, Service, ServiceAccount)
        for each in client.list(kind, namespace=release.namespace)
        if each.metadata
    }
    return found - {
        "ConfigMap kube-root-ca.crt",
        "ConfigMap istio-ca-root-cert",
        "ConfigMap istio-ca-crl",
        "ServiceAccount default",
    }


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
        issued.await_served(client, issued.certificate(client))
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
    [made] = [each for each in render(home, values) if each["kind"] == kind]
    made["metadata"]["namespace"] = "default"
    path = f"{monitored}/{plural}?dryRun=All&fieldValidation=Strict"

    def answer() -> tuple[int, bytes] | None:
        found = send(cluster, "POST", path, json.dumps(made).encode())
        return None if found[0] == 404 else found

    status, body = lab.until(answer, what=f"{plural} to be served")

    assert status == 201, body
