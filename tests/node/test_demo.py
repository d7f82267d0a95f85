"""The demo keeps its promise on a real node, and a broken quit or hold breaks it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lab.istio
import lab.juju
import pytest
import yaml
from demo import __main__ as program
from demo import node, scenes
from demo.scenes import Performance, Steps, judge
from demo.story import JobStory
from lab.nightly import NIGHTLY
from lightkube import Client, codecs
from lightkube.resources.core_v1 import Namespace
from rich.console import Console

NO_QUIT = scenes.Scene("no-quit", helped=True)
NO_HOLD = scenes.Scene("no-hold", helped=True)
PEERS = scenes.Scene("peers", helped=True)  # A PyTorchJob, whose worker and master talk.
HELD = "pods are held, not native"
# At night Istio also becomes one that makes native sidecars by default.
BY_DAY: tuple[lab.istio.World, ...] = ("never", "on request")
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


@pytest.fixture
def console() -> Console:
    return Console(width=100, highlight=False)


@pytest.fixture(scope="module")
def stories(
    cluster: lab.Cluster,
    client: Client,
    steps: Steps,
    trainer: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, JobStory]]:
    """The first scenes of `make demo`, two that break its promise, and one more, all at once."""
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
        PEERS: scenes.EXAMPLES / "pytorchjob.yaml",
    }

    def played(scene: scenes.Scene) -> JobStory:
        with cluster.client() as own:
            return scenes.play(scene, manifests[scene], own, cluster.kubeconfig, steps)

    with ThreadPoolExecutor(len(manifests)) as pool:
        told = pool.map(played, manifests)
    yield {story.namespace: story for story in told}
    for scene in (*manifests, scenes.NATIVE):
        client.delete(Namespace, scene.namespace)


def without_hold(tfjob: str) -> str:
    """The same job with pods that nobody is to hold."""
    document = yaml.safe_load(tfjob)
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    template.setdefault("metadata", {})["annotations"] = {"istio-aux.io/start": "none"}
    return yaml.safe_dump(document)


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """The message of the charm's status in each world of Istio."""
    return {}


@pytest.fixture(scope="module")
def performance(
    *,
    client: Client,
    steps: Steps,
    stories: Mapping[str, JobStory],
    istio: lab.istio.Istio,
    istio_aux: lab.juju.App,
    said: dict[str, str],
) -> Iterator[Performance]:
    def meanwhile(world: lab.istio.World) -> None:
        def told() -> bool:
            # The workload wakes the charm six times in a minute at most. By day Juju does as well.
            if not NIGHTLY:
                istio_aux.run("update-status")
            istio_aux.settle()
            said[world] = istio_aux.status()[1]
            return (HELD in said[world]) == (world == "never")

        lab.until(told, what=f"the status to say whether pods are native: {world}")

    def become(istio: lab.istio.Istio, world: lab.istio.World, namespace: str) -> None:
        istio.become(world)
        while not NIGHTLY and lab.istio.try_shape(client, namespace) != lab.istio.EXPECTED[world]:
            istio_aux.run("update-status")
        lab.istio.become(istio, world, namespace)

    manifest = scenes.EXAMPLES / "tfjob.yaml"
    among = lab.istio.EXPECTED if NIGHTLY else BY_DAY
    try:
        native, rows = node.natively(steps, istio, manifest, meanwhile, among=among, become=become)
        yield Performance(stories["without"], stories["with"], native, status="", worlds=rows)
    finally:  # The tests of other files share this Istio.
        become(istio, "never", scenes.WITH.namespace)


def broken(performance: Performance, helped: JobStory) -> set[str]:
    """The parts of the promise that are broken with another second scene."""
    promise = judge(performance.without, helped)
    return {check.name.removeprefix("with istio-aux, ") for check in promise if not check.kept}


def test_in_a_profile_the_tfjob_succeeds_and_where_that_is_disabled_it_hangs(
    performance: Performance, console: Console, tmp_path: Path
) -> None:
    """By default: nobody labels a profile for istio-aux."""
    promise = (*judge(*performance.jobs), *performance.worlds)
    assert [check for check in promise if not check.kept] == []
    assert performance.native.native
    picture = tmp_path / "timeline.svg"
    assert program.conclude(console, performance, picture) == 0
    assert picture.exists()


@pytest.mark.nightly("test_race.py, test_named.py")
def test_a_pod_that_was_created_before_its_istiod_gets_its_sidecar(
    cluster: lab.Cluster, steps: Steps, istio_aux: lab.juju.App
) -> None:
    assert node.race(steps, cluster, istio_aux).kept


def test_the_pods_of_a_pytorchjob_reach_each_other_through_their_sidecars(
    stories: Mapping[str, JobStory],
) -> None:
    assert stories["peers"].succeeded


def test_the_charm_says_whether_pods_are_native_as_istio_changes(
    performance: Performance, said: dict[str, str]
) -> None:
    held = ["a classic sidecar" in row.why for row in performance.worlds]
    assert held == [True, False, False][: len(performance.worlds)]
    assert [HELD in each for each in said.values()] == held


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
    assert program.conclude(console, changed, tmp_path / "timeline.svg") == 1


def test_a_hold_that_is_missing_breaks_the_promise(
    performance: Performance, stories: Mapping[str, JobStory]
) -> None:
    assert broken(performance, stories[NO_HOLD.namespace]) == {
        "every payload runs once and exits 0",
        "no payload starts before its proxy is ready",
    }
