"""The demo keeps its promise on a real node, and a broken quit or hold breaks it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lab
import pytest
from demo import __main__ as program
from demo import node, scenes
from demo.performance import Performance
from demo.promise import judge
from demo.steps import Steps
from demo.story import JobStory
from lab import images
from lab.fixtures import await_account
from lightkube import Client, codecs
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import LabelSelectorRequirement, ObjectMeta
from lightkube.resources.admissionregistration_v1 import (
    MutatingAdmissionPolicy,
    MutatingWebhookConfiguration,
)
from lightkube.resources.core_v1 import Namespace, Pod
from rich.console import Console

NO_QUIT = scenes.Scene("no-quit", helped=True)
NO_HOLD = scenes.Scene("no-hold", helped=True)
# Measured: the API server follows a changed configuration within 1 s.
SOON = 30
# Refuses every way to quit in one scene, whatever role the workload has.
REFUSED = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: nobody-quits
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CONNECT]
        resources: [pods/exec, pods/portforward]
  validations:
    - expression: "false"
      message: nobody may exec or forward ports
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: nobody-quits
spec:
  policyName: nobody-quits
  validationActions: [Deny]
  matchResources:
    namespaceSelector:
      matchLabels:
        kubernetes.io/metadata.name: no-quit
"""


@pytest.fixture(scope="module")
def console() -> Console:
    return Console(width=100, highlight=False)


@pytest.fixture(scope="module")
def steps(console: Console) -> Steps:
    return Steps(console)


@pytest.fixture(scope="module")
def stage(steps: Steps) -> Iterator[lab.Cluster]:
    """A cluster of the demo's own, with Istio, the training-operator and the charm."""
    with lab.cluster("node") as cluster:
        node.set_stage(steps, cluster)
        yield cluster


def played(stage: lab.Cluster, steps: Steps, scene: scenes.Scene) -> JobStory:
    with stage.client() as client:
        manifest = scenes.EXAMPLES / "tfjob.yaml"
        return scenes.play(scene, manifest, client, stage.kubeconfig, steps)


@pytest.fixture(scope="module")
def stories(stage: lab.Cluster, steps: Steps) -> Mapping[str, JobStory]:
    """Both scenes of `make demo`, and two that break its promise, all at the same time."""
    with stage.client() as client:
        for resource in codecs.load_all_yaml(REFUSED):
            client.create(resource)
        leave_out(client, NO_HOLD)
    all_scenes = (scenes.WITHOUT, scenes.WITH, NO_QUIT, NO_HOLD)
    with ThreadPoolExecutor(len(all_scenes)) as pool:
        told = {s.namespace: pool.submit(played, stage, steps, s) for s in all_scenes}
    return {name: story.result() for name, story in told.items()}


def leave_out(client: Client, scene: scenes.Scene) -> None:
    """Make policy and webhook overlook a namespace that has their label."""
    name = f"istio-aux-{node.MODEL}-istio-aux"
    policy = client.get(MutatingAdmissionPolicy, name)
    configuration = client.get(MutatingWebhookConfiguration, name)
    assert policy.spec
    for matches in (policy.spec.matchConstraints, *(configuration.webhooks or ())):
        assert matches
        assert matches.namespaceSelector
        not_here = LabelSelectorRequirement(
            key="kubernetes.io/metadata.name", operator="NotIn", values=[scene.namespace]
        )
        matches.namespaceSelector.matchExpressions = [
            *(matches.namespaceSelector.matchExpressions or ()),
            not_here,
        ]
    client.replace(policy)
    client.replace(configuration)
    client.create(Namespace(metadata=ObjectMeta(name=scene.namespace, labels=scene.labels)))
    await_account(client, scene.namespace)
    containers = [Container(name="main", image=images.BUSYBOX)]
    probe = Pod(
        metadata=ObjectMeta(name="probe", namespace=scene.namespace),
        spec=PodSpec(containers=containers, restartPolicy="Never"),
    )
    lab.until(
        lambda: "holdApplication" not in str(client.create(probe, dry_run=True)),
        timeout=SOON,
        what=f"the charm to overlook {scene.namespace}",
    )


@pytest.fixture(scope="module")
def performance(stories: Mapping[str, JobStory]) -> Performance:
    return Performance(stories["without"], stories["with"], status="", made={})


def broken(performance: Performance, helped: JobStory) -> set[str]:
    """The parts of the promise that are broken with another second scene."""
    promise = judge(performance.without, helped)
    return {
        check.name.removeprefix("with the label, ") for check in promise.checks if not check.kept
    }


def test_with_the_label_the_tfjob_succeeds_and_without_it_hangs(
    performance: Performance, console: Console, tmp_path: Path
) -> None:
    assert [check for check in judge(*performance.jobs).checks if not check.kept] == []
    assert program.conclude(console, performance, tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "timeline.svg"}


def test_a_quit_that_is_refused_breaks_the_promise(
    performance: Performance, stories: Mapping[str, JobStory], console: Console, tmp_path: Path
) -> None:
    story = stories[NO_QUIT.namespace]

    assert broken(performance, story) == {
        "the TFJob succeeds",
        "all 2 workers succeed",
        "every proxy exits 0",
    }
    changed = dataclasses.replace(performance, helped=story)
    assert program.conclude(console, changed, tmp_path) == 1


def test_a_hold_that_is_missing_breaks_the_promise(
    performance: Performance, stories: Mapping[str, JobStory]
) -> None:
    assert broken(performance, stories[NO_HOLD.namespace]) == {
        "every payload runs once and exits 0",
        "no payload starts before its proxy is ready",
    }
