"""The main job from the chart, on a real kubelet: install, a TFJob, upgrade, uninstall."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import lab
import lab.istio
import pytest
from demo import scenes
from demo.steps import Steps
from istio_aux.model.annotations import STARTED_WITH
from lab import fixtures
from lab.creation import Stream
from lab.istio import Shape
from lab.meshed import annotations_of, nameless, proxy_exit_code
from lab.release import CHART, Release, run
from lightkube import Client
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Pod, Secret, Service, ServiceAccount

import cluster as charm
from tools import rock

README = CHART.with_name("README.md").read_text()


def owned(client: Client, release: Release) -> set[str]:
    """Kind and name of what a release has of the kinds that the charm deletes at its end."""
    labels = {"istio-aux.io/application": release.name, "istio-aux.io/model": release.namespace}
    found: set[str] = set()
    for kind in charm.OWNED:
        listed = charm.owned(client, kind, labels, release.namespace)
        found |= {f"{kind.__name__} {each.name}" for each in listed or ()}
    return found


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
        changed = {"settings.quit-grace": 1, "webhook.securePort": 10250}
        release.upgrade(changed)
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

    run(*shlex.split(block[2]), home=home, kubeconfig=cluster.kubeconfig)

    assert len(release.pods(client)) == 2


def left(client: Client, release: Release) -> set[str]:
    """What is in the release's namespace, without what Kubernetes and Istio put into each."""
    kinds = (ConfigMap, Deployment, Lease, Pod, Secret, Service, ServiceAccount)
    found = {
        f"{kind.__name__} {each.metadata.name}"
        for kind in kinds
        for each in client.list(kind, namespace=release.namespace)
        if each.metadata
    }
    return found - {
        "ConfigMap kube-root-ca.crt",
        "ConfigMap istio-ca-root-cert",
        "ConfigMap istio-ca-crl",
        "ServiceAccount default",
    }
