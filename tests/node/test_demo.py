"""The demo keeps its promise on a real node, and a broken quit or hold breaks it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import lab
import pytest
from demo import __main__ as program
from demo import node, scenes
from demo.performance import Performance
from demo.promise import judge
from demo.steps import Steps
from demo.story import JobStory
from lightkube import codecs
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from rich.console import Console

# Refuses what the quit needs, whatever role the workload has.
NO_EXEC = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: no-exec
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CONNECT]
        resources: [pods/exec]
  validations:
    - expression: "false"
      message: nobody may exec
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: no-exec
spec:
  policyName: no-exec
  validationActions: [Deny]
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
def performance(stage: lab.Cluster, steps: Steps) -> Performance:
    """Both scenes, as `make demo` plays them."""
    without = played(stage, steps, scenes.WITHOUT)
    helped = played(stage, steps, scenes.WITH)
    return Performance(without, helped, status="", made={})


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
    stage: lab.Cluster, performance: Performance, steps: Steps, console: Console, tmp_path: Path
) -> None:
    with stage.client() as client:
        policy = list(codecs.load_all_yaml(NO_EXEC))
        for resource in policy:
            client.create(resource)
        try:
            story = played(stage, steps, scenes.Scene("no-quit", helped=True))
        finally:
            for resource in policy:
                client.delete(type(resource), "no-exec")

    assert broken(performance, story) == {
        "the TFJob succeeds",
        "all 2 workers succeed",
        "every proxy exits 0",
    }
    changed = dataclasses.replace(performance, helped=story)
    assert program.conclude(console, changed, tmp_path) == 1


def test_a_hold_that_is_missing_breaks_the_promise(
    stage: lab.Cluster, performance: Performance, steps: Steps
) -> None:
    with stage.client() as client:
        client.delete(MutatingWebhookConfiguration, f"istio-aux-{node.MODEL}-istio-aux")

    story = played(stage, steps, scenes.Scene("no-hold", helped=True))

    assert broken(performance, story) == {
        "every payload runs once and exits 0",
        "no payload starts before its proxy is ready",
    }
