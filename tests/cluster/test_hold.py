"""The webhook behind a real API server: what becomes of pods as they are created."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import lab
import lab.istio
import lightkube
import pytest
import yaml
from lab import meshed
from lab.scene import Scene
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace, Pod

CONFIG = "proxy.istio.io/config"
HOLD = "holdApplicationUntilProxyStarts"


@pytest.fixture(scope="module")
def webhook(client: lightkube.Client, workload: Workload, control: str) -> Iterator[Workload]:
    """The workload with its configuration as the charm leaves it, in force."""
    workload.publish()
    lab.until(
        lambda: config_of(client.create(meshed.pod(control, "probe", sidecar=None), dry_run=True)),
        timeout=30,
        what="the API server to call the webhook",
    )
    yield workload
    workload.withdraw()


@pytest.fixture
def served(webhook: Workload, selected: Scene) -> Scene:
    """A namespace whose pods the webhook is shown."""
    return selected


def create(scene: Scene, name: str = "worker", **what: Any) -> Pod:
    return scene.client.create(meshed.pod(scene.namespace, name, sidecar=None, **what))


def config_of(pod: Pod) -> str:
    assert pod.metadata is not None
    return (pod.metadata.annotations or {}).get(CONFIG, "")


def test_a_pod_gets_hold(served: Scene):
    pod = create(served)

    assert yaml.safe_load(config_of(pod)) == {HOLD: True}


def test_what_the_annotation_says_already_is_kept(served: Scene):
    """T32: a string that looks like a number above all, for Istio would refuse the pod."""
    text = 'concurrency: 2 # two\nproxyMetadata:\n  AT: 12:30:45\n  NUMBER: "7"\n'

    pod = create(served, annotations={CONFIG: text})

    assert config_of(pod).startswith(text) or config_of(pod).endswith(text)
    assert yaml.safe_load(config_of(pod)) == {**yaml.safe_load(text), HOLD: True}


@pytest.mark.parametrize("text", [f"{HOLD}: false", "hold_application_until_proxy_starts: false"])
def test_an_explicit_false_is_left_as_it_is(served: Scene, text: str):
    """T32: the user's own opt-out, in either spelling."""
    assert config_of(create(served, annotations={CONFIG: text})) == text


def test_a_pod_in_a_namespace_that_is_not_selected_is_left_as_it_is(
    webhook: Workload, scene: Scene
):
    assert config_of(create(scene)) == ""


def test_the_sidecar_that_istio_injects_starts_before_the_payload(
    istio: lab.istio.Istio, served: Scene
):
    """T33: ours is called before Istio's, which then puts its proxy first and has it awaited."""
    label = {"metadata": {"labels": {"istio-injection": "enabled"}}}
    served.client.patch(Namespace, served.namespace, label)
    await_injection(served)

    pod = create(served)

    assert pod.spec is not None
    proxy = pod.spec.containers[0]
    assert [c.name for c in pod.spec.containers] == ["istio-proxy", "main"]
    assert proxy.lifecycle is not None
    assert proxy.lifecycle.to_dict() == {
        "postStart": {"exec": {"command": ["pilot-agent", "wait"]}}
    }


def test_an_injected_pod_that_finishes_is_freed(istio: lab.istio.Istio, served: Scene):
    """T8: the proxy is containers[0] now, and found by its name."""
    label = {"metadata": {"labels": {"istio-injection": "enabled"}}}
    served.client.patch(Namespace, served.namespace, label)
    await_injection(served)
    pod = create(served)
    served.kubelet.run(pod)

    served.kubelet.finish(pod, "main")

    served.await_phase(pod, "Succeeded")


def await_injection(scene: Scene) -> None:
    """Return when the API server has noticed the namespace's label."""

    def injected() -> bool:
        pod = meshed.pod(scene.namespace, "probe", sidecar=None)
        made = scene.client.create(pod, dry_run=True)
        assert made.metadata is not None
        return "sidecar.istio.io/status" in (made.metadata.annotations or {})

    lab.until(injected, timeout=30, what=f"pods of {scene.namespace} to be injected")


def test_a_webhook_that_is_down_blocks_no_pod(served: Scene, webhook: Workload):
    """T37: failurePolicy Ignore; the pod comes without hold."""
    webhook.process.kill()
    webhook.process.wait(30)

    try:
        pod = create(served)
    finally:
        webhook.start()
        webhook.await_ready()

    assert config_of(pod) == ""


def test_every_review_is_logged_and_counted(served: Scene, webhook: Workload):
    create(served, "seen")

    lines = [json.loads(line) for line in webhook.process.log.read_text().splitlines()]
    assert any(line["event"] == "review" for line in lines)
    assert "istio_aux_admission_reviews_total" in webhook.get("/metrics")[1]
