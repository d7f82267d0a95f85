"""The lab's promises at the api level."""

from __future__ import annotations

import base64
import itertools
import secrets
import signal
import sys
from pathlib import Path

import lab
import lightkube
import pytest
from lab import creation, meshed, ports
from lightkube import KubeConfig
from lightkube.models.admissionregistration_v1 import (
    RuleWithOperations,
    ServiceReference,
    ValidatingWebhook,
    WebhookClientConfig,
)
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.admissionregistration_v1 import ValidatingWebhookConfiguration
from lightkube.resources.core_v1 import ConfigMap


def test_the_time_of_a_creation_is_without_its_wait_for_a_turn(
    cluster: lab.Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(creation, "AT_ONCE", 1)

    made = creation.create(cluster, *(meshed.nameless(namespace) for _ in range(5)))

    for one, other in itertools.pairwise(sorted(made, key=lambda each: each.began)):
        assert other.began >= one.began + one.seconds


def test_a_program_that_ends_before_it_listens_is_named_with_its_last_words(cluster: lab.Cluster):
    program = cluster.spawn("short", [sys.executable, "-c", "print('no configuration')"])

    with pytest.raises(ChildProcessError, match=r"short ended: no configuration \(.*short\.log"):
        ports.await_listener(program, cluster.host, ports.reserve(), timeout=30)


def test_an_image_for_a_cluster_without_pods_is_refused(cluster: lab.Cluster, tmp_path: Path):
    with pytest.raises(ValueError, match=r"image\.tar: images are for level node"):
        cluster.load(tmp_path / "image.tar")


def test_a_service_account_may_do_what_rbac_gives_it_and_no_more(
    cluster: lab.Cluster, namespace: str
):
    path = cluster.kubeconfig_for(namespace, "default")
    with (
        lightkube.Client(KubeConfig.from_file(path), trust_env=False) as client,
        pytest.raises(lightkube.ApiError) as refused,
    ):
        client.get(ConfigMap, "kube-root-ca.crt", namespace=namespace)
    assert refused.value.status.code == 403
    assert f"system:serviceaccount:{namespace}:default" in str(refused.value)


def test_a_spawned_process_is_reached_as_a_webhook_by_its_service(
    cluster: lab.Cluster, namespace: str, tmp_path: Path
):
    pair = cluster.issue("hook", "hook", hosts=[f"hook.{namespace}.svc"])
    program = Path(__file__).with_name("denying_hook.py")
    hook = cluster.spawn(
        "hook", [sys.executable, program, cluster.host, "18443", pair.certificate, pair.key]
    )
    cluster.publish(namespace, "hook", 8443, 18443)
    service = ServiceReference(name="hook", namespace=namespace, port=8443)
    bundle = base64.b64encode(cluster.ca.read_bytes()).decode()
    configuration = ValidatingWebhookConfiguration(
        metadata=ObjectMeta(name=f"{namespace}-hook"),
        webhooks=[
            ValidatingWebhook(
                name="hook.lab.test",
                admissionReviewVersions=["v1"],
                sideEffects="None",
                clientConfig=WebhookClientConfig(caBundle=bundle, service=service),
                namespaceSelector=LabelSelector(
                    matchLabels={"kubernetes.io/metadata.name": namespace}
                ),
                rules=[RuleWithOperations([""], ["v1"], ["CREATE"], ["configmaps"])],
            )
        ],
    )
    with cluster.client() as client:
        client.create(configuration)

        def denied() -> bool:
            try:
                name = f"refused-{secrets.token_hex(3)}"
                client.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace)))
            except lightkube.ApiError as error:
                return "denied by the test's webhook" in str(error)
            return False

        lab.until(denied, timeout=60, what="the webhook to be asked", every=0.2)
        client.delete(ValidatingWebhookConfiguration, f"{namespace}-hook")
    hook.kill()
    assert hook.wait(30) == -signal.SIGKILL
