"""The demo keeps its promise on a real node, and a broken quit or hold breaks it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lab
import lab.istio
import pytest
import yaml
from demo import __main__ as program
from demo import node, scenes
from demo.performance import Performance
from demo.promise import judge
from demo.steps import Steps
from demo.story import JobStory
from lab import worlds
from lightkube import codecs
from rich.console import Console

NO_QUIT = scenes.Scene("no-quit", helped=True)
NO_HOLD = scenes.Scene("no-hold", helped=True)
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
def stage(steps: Steps) -> Iterator[lab.istio.Istio]:
    """Istio on a cluster of the demo's own, with the training-operator and the charm."""
    with lab.cluster("node") as cluster:
        _, istio = node.set_stage(steps, cluster)
        yield istio


def played(stage: lab.istio.Istio, steps: Steps, scene: scenes.Scene, manifest: Path) -> JobStory:
    with stage.cluster.client() as client:
        return scenes.play(scene, manifest, client, stage.cluster.kubeconfig, steps)


@pytest.fixture(scope="module")
def stories(
    stage: lab.istio.Istio, steps: Steps, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, JobStory]:
    """The scenes of `make demo`, and two that break its promise, all that can be at once."""
    with stage.cluster.client() as client:
        for resource in codecs.load_all_yaml(REFUSED):
            client.create(resource)
    manifest = scenes.EXAMPLES / "tfjob.yaml"
    unheld = tmp_path_factory.mktemp("no-hold") / manifest.name
    unheld.write_text(without_hold(manifest.read_text()))
    manifests = {
        scenes.WITHOUT: manifest,
        scenes.WITH: manifest,
        NO_QUIT: manifest,
        NO_HOLD: unheld,
    }
    with ThreadPoolExecutor(len(manifests)) as pool:
        told = {s.namespace: pool.submit(played, stage, steps, s, m) for s, m in manifests.items()}
    worlds.become(stage, "on request", scenes.WITH.namespace)
    native = played(stage, steps, scenes.NATIVE, manifest)
    return {"native": native, **{name: story.result() for name, story in told.items()}}


def without_hold(tfjob: str) -> str:
    """The same job with pods that nobody is to hold."""
    document = yaml.safe_load(tfjob)
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    template.setdefault("metadata", {})["annotations"] = {"istio-aux.io/start": "off"}
    return yaml.safe_dump(document)


@pytest.fixture(scope="module")
def performance(stories: Mapping[str, JobStory]) -> Performance:
    return Performance(stories["without"], stories["with"], stories["native"], status="", made={})


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
