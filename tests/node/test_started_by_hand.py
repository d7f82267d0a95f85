"""What people start by hand, each for a moment on this tier's stage.

The acceptance tests of an installation, with this cluster as the user's own. The burst benchmark:
no number is judged here. `tox -e chaos`: whatever is killed, Jobs end as written. The playground:
its pods hang, and the commands of its page free them.

`tox -e twins`: Job-like pods with istio-aux are never worse off than beside Istio's injection
alone. Twelve pairs by day. Those of `tox -e twins` are drawn from a seed, in four worlds of Istio,
with outages.

The demo keeps its promise, and a broken quit or hold breaks it. It comes last: its Istio becomes
others, until the file ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lab.istio
import lab.juju
import pytest
import yaml
from chaos import outages
from chaos.outages import Stage, make
from demo import __main__ as program, node, playground, scenes
from demo.scenes import Performance, Steps, judge
from demo.story import JobStory
from lab import images, workloads
from lab.fixtures import SELECTED
from lab.nightly import NIGHTLY
from lab.workload import follow
from lightkube import Client, codecs
from lightkube.resources.core_v1 import Namespace
from rich.console import Console
from twins import manifests, player
from twins.judge import COMPLETE, losses, told, verdict
from twins.manifests import Pair
from twins.player import Played

from benchmarks import burst, burst_report
from benchmarks.burst_numbers import CLASSIC, NATIVE

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
# Measured on 2 busy cores: 35 s.
PATIENCE = 400


def accept(cluster: lab.Cluster, *options: str) -> subprocess.CompletedProcess[str]:
    """Run them; a later option wins."""
    argv = ["-q", "-p", "no:cacheprovider", "acceptance", "--image", images.BUSYBOX]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *argv, *options],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS), "LAB_KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.nightly("test_endings.py plays such Jobs")
def test_they_pass_where_istio_aux_works(
    cluster: lab.Cluster, istio: lab.istio.Istio, istio_aux: lab.juju.App
) -> None:
    labels = [f"--namespace-label={key}={value}" for key, value in SELECTED.items()]

    run = accept(cluster, "--workload=a-job-that-talks-at-once", *labels)

    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


@pytest.mark.nightly("a benchmark: test_endings.py plays such Jobs")
def test_the_burst_benchmark_measures_both_kinds_of_sidecars(cluster: lab.Cluster) -> None:
    """With a few Jobs: each proxy is told, by istio-aux or by the kubelet."""
    bursts = burst.measure(cluster, burst.QUICK)

    assert [one.kind for one in bursts] == [CLASSIC, NATIVE]
    for one in bursts:
        assert len(one.pods) == burst.QUICK.jobs
        assert all(0 < pod.started < pod.exited for pod in one.pods)
        assert all((pod.sent is not None) == (one.kind == CLASSIC) for pod in one.pods)
    assert "native's = 1" in burst_report.markdown(burst.QUICK, {}, bursts)
    assert "native: proxy: to its exit" in burst_report.details(bursts)


# The API server restarts, then the only unit is killed.
STORM = make(seed=156, seconds=8, jobs=3)


@pytest.mark.nightly("cluster/test_serve.py, test_istiod_away.py")
@pytest.mark.usefixtures("trainer")
def test_every_job_ends_as_without_a_sidecar_whatever_is_killed(
    cluster: lab.Cluster,
    istio: lab.istio.Istio,
    istio_aux: lab.juju.App,
    selected: str,
) -> None:
    """kuma#10085: also what finishes while the workload or its unit is away."""
    report = outages.play(STORM, Stage(cluster, istio_aux, istio, selected))
    # Hooks may fail while the API server is down; they are tried again.
    istio_aux.settle(failing=True)

    assert report.good, report
    assert report.outages.keys() >= {"api-server", "unit"}
    assert sum(report.jobs.values()) == len(STORM.jobs)
    assert report.meshed > 0
    assert istio_aux.status()[0] == "active", istio_aux.status()


PLAYGROUND = pytest.mark.nightly("cluster/test_commands.py, and the demo on this stage")

PAGE = ROOT / "docs/how-to/playground.md"


@pytest.fixture(scope="module")
def furnished(
    cluster: lab.Cluster, client: Client, istio_aux: lab.juju.App, trainer: None, steps: Steps
) -> Iterator[None]:
    """What `make playground` adds to the stage, which it shares with `make demo`."""
    playground.furnish(cluster, steps)
    yield
    for namespace in (playground.PROFILE, playground.FORGOTTEN):
        client.delete(Namespace, namespace)


@pytest.fixture(scope="module")
def held(cluster: lab.Cluster, furnished: None) -> str:
    """What finished pods hold in the namespace that nobody looks after."""
    return follow(cluster, held_in(playground.FORGOTTEN)).stdout


def held_in(namespace: str) -> str:
    return f"istio-aux audit --holders -o json -n {namespace}\n"


@PLAYGROUND
def test_finished_pods_hold_every_gpu_and_a_tfjob_waits_for_some(held: str, client: Client) -> None:
    [holder] = map(json.loads, held.splitlines())
    assert (holder["pods"], holder["requests"]["gpus"]) == (playground.PODS, playground.GPUS)
    [why] = playground.refusals(client)
    assert f"Insufficient {playground.GPU}" in why


@PLAYGROUND
def test_the_commands_of_the_page_free_the_gpus_and_every_example_completes(
    held: str, cluster: lab.Cluster, client: Client
) -> None:
    """In their order; the page waits for each job."""
    mark = f"```sh run by {Path(__file__).relative_to(ROOT)}\n"
    scripts = re.findall(rf"^{mark}(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for script in scripts:
        follow(cluster, script)

    assert scripts
    assert follow(cluster, held_in(playground.PROFILE) + held_in(playground.FORGOTTEN)).stdout == ""


# Native unasked an init container is in the mesh. On request these are held: it is not.
UNASKED = (*manifests.IN_THE_MESH, *manifests.OPTED_OUT)
ON_REQUEST = manifests.HELD
BY_DAY = [
    *(
        pytest.param("unasked", pair, id=pair.name, marks=workloads.NATIVE.needed)
        for pair in UNASKED
    ),
    *(pytest.param("on-request", pair, id=pair.name) for pair in ON_REQUEST),
]


@pytest.fixture(scope="module")
def played(
    cluster: lab.Cluster, istio: lab.istio.Istio, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[tuple[str, str], Played]:
    """The pairs at their ends, by world and name."""
    player.load(cluster)
    folder = tmp_path_factory.mktemp("twins")
    with (
        player.world(cluster, "unasked") as unasked,
        player.world(cluster, "on-request") as on_request,
        ThreadPoolExecutor(2) as pool,
    ):
        batches = [(unasked, UNASKED), (on_request, ON_REQUEST)]
        ended = pool.map(lambda batch: player.play(batch[0], folder, batch[1]), batches)
        return {
            (beside.name, one.pair.name): one
            for (beside, _), found in zip(batches, ended, strict=True)
            for one in found
        }


@pytest.mark.parametrize(("world", "pair"), BY_DAY)
def test_no_job_is_worse_off_than_its_twin(
    played: Mapping[tuple[str, str], Played], world: str, pair: Pair
) -> None:
    """eventing#6804, website#57244, cloud-sql-proxy#1803."""
    _, ours, twin = played[world, pair.name]

    assert losses(ours, twin) == {}, told(pair, ours, twin)
    assert ours.end == pair.ends, told(pair, ours, twin)


def test_a_job_that_is_held_and_completes_is_better_off(
    played: Mapping[tuple[str, str], Played],
) -> None:
    """Beside a classic proxy it hangs, or fails before the proxy is there."""
    found = {
        pair.name: verdict(*played["on-request", pair.name][1:])
        for pair in ON_REQUEST
        if pair.ends == COMPLETE
    }
    assert found == dict.fromkeys(found, "better")
    assert found


NO_QUIT = scenes.Scene("no-quit", helped=True)
NO_HOLD = scenes.Scene("no-hold", helped=True)
PEERS = scenes.Scene("peers", helped=True)  # A PyTorchJob, whose worker and master talk.
HELD = "pods are held, not native"
# At night Istio also becomes one that makes native sidecars by default.
WORLDS: tuple[lab.istio.World, ...] = ("never", "on request")
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
    among = lab.istio.EXPECTED if NIGHTLY else WORLDS
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
