"""Pods that cannot go on by themselves, or missed their sidecar, are named, on a real kubelet.

Trials of Katib: which complete with their metric stored, and which hang. Katib's part is written
down, and its collector is a stand-in: see `lab.workloads`.

A proxy that ends before the payload of its pod is told at once.

Pods that a sidecar or an init container keeps from starting or ending: `audit` names each. A
kubelet that forgets a restart: unit/rules/test_quit_blocked.py.

Kubeflow's jobs that were there before Istio, with the real training operator, run on.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lab.istio
import lab.juju
import pytest
from istio_aux.quit.pairs import KATIB_FIX
from lab import images, workloads
from lab.fixtures import await_selected, list_stuck, make_namespace, new_namespaces
from lab.workload import ask, program
from lab.workloads import (
    TALK,
    TRAIN,
    Seen,
    Workload,
    await_address,
    container,
    look,
    pod,
    template,
    training_job,
)
from lightkube import Client
from lightkube.resources.core_v1 import Event, Namespace

NATIVE = {"sidecar.istio.io/nativeSidecar": "true"}
# By name: where, and `waitAllProcesses` in Katib's configuration.
TRIALS = {
    "plain": ("plain", None),
    "classic-waits-for-all": ("classic", None),
    "classic": ("classic", "false"),
    "native-waits-for-all": ("native", "true"),
    "native": ("native", "false"),
}
COMPLETE = ("plain", "classic", "native")
HANGING = ("classic-waits-for-all", "native-waits-for-all")


@pytest.fixture(scope="module")
def stored(client: Client, places: Mapping[str, str]) -> Mapping[str, str]:
    """Run all trials at once, until those that can have completed, and all others hang; the log of
    the database."""
    database = await_address(
        client, Workload("katib-db-manager", workloads.database()), places["plain"]
    )
    for name, (place, wait) in TRIALS.items():
        annotations = NATIVE if place == "native" else None
        job = workloads.trial(name, database, wait_all_processes=wait, annotations=annotations)
        client.create(Workload(name, job, "Complete", ()).in_namespace(places[place]))
    for name in COMPLETE:
        lab.until(
            lambda name=name: seen(client, places, name).over, what=f"the trial {name} to complete"
        )
    for name in HANGING:
        lab.until(
            lambda name=name: workloads.TRIAL in ended(client, places, name),
            what=f"the training of {name} to end",
        )
    return {"log": "".join(client.log("katib-db-manager", namespace=places["plain"]))}


def seen(client: Client, places: Mapping[str, str], trial: str) -> Seen:
    return look(client, Workload(trial, {"kind": "Job"}, "Complete", ()), places[TRIALS[trial][0]])


def ended(client: Client, places: Mapping[str, str], trial: str) -> dict[str, int]:
    """The exit codes of those containers of the trial that have ended."""
    [pod] = seen(client, places, trial).pods
    states = {one["name"]: one["state"] for one in pod["status"].get("containerStatuses") or []}
    return {
        name: state["terminated"]["exitCode"]
        for name, state in states.items()
        if "terminated" in state
    }


@pytest.mark.parametrize("trial", COMPLETE)
def test_a_trial_completes_with_its_metric_stored(
    stored: Mapping[str, str], client: Client, places: Mapping[str, str], trial: str
) -> None:
    """The collector ends after the training, and a classic proxy after the collector.

    argo-workflows#1282.
    """
    assert f"{trial} loss=0.25\n" in stored["log"]
    codes = ended(client, places, trial)
    assert {workloads.TRIAL: 0, workloads.COLLECTOR: 0}.items() <= codes.items()
    assert set(codes.values()) == {0}


@pytest.mark.parametrize("trial", HANGING)
def test_a_trial_whose_collector_waits_for_the_proxy_hangs_and_is_named_with_the_setting(
    stored: Mapping[str, str],
    client: Client,
    places: Mapping[str, str],
    istio_aux: lab.juju.App,
    trial: str,
) -> None:
    """katib#1638, katib#2614: with a classic sidecar and with a native one."""
    name = seen(client, places, trial).pods[0]["metadata"]["name"]
    namespace = places[TRIALS[trial][0]]

    def named() -> list[str]:
        return [
            one["reason"]
            for one in json.loads(list_stuck(istio_aux)["json"])
            if (one["namespace"], one["name"]) == (namespace, name)
        ]

    [reason] = lab.until(named, what=f"{trial} to be listed")
    explained = istio_aux.action("explain", pod=f"{namespace}/{name}").results["results"]

    assert KATIB_FIX in reason
    assert KATIB_FIX in explained["explanation"]
    assert ended(client, places, trial) == {workloads.TRIAL: 0}
    assert f"{trial} " not in stored["log"]


# No istiod answers the proxy, and its hook gives up after a second instead of a minute.
NEVER_READY = {
    "proxy.istio.io/config": "discoveryAddress: istiod.nowhere.svc:15012",
    "inject.istio.io/templates": "sidecar,impatient",
}
FOREVER = container(f"{TALK} || echo no network; sleep 86400")
HOLD_TIMED_OUT = Workload(
    "hold-timed-out", workloads.pod(FOREVER, annotations=NEVER_READY), ends="", codes=()
)
KILLED = Workload("killed", workloads.pod(FOREVER), ends="", codes=())


@pytest.fixture(scope="module")
def bereft(client: Client, istio: lab.istio.Istio, istio_aux: lab.juju.App) -> Iterator[str]:
    """A namespace with both pods, whose proxies have ended as their names say."""
    with new_namespaces(client, "lost") as names:
        name = names["lost"]
        await_selected(client, name)
        for workload in (HOLD_TIMED_OUT, KILLED):
            client.create(workload.in_namespace(name))
        lab.until(
            lambda: pod_of(client, name, "killed")["status"]["phase"] == "Running",
            what="the payload to run",
        )
        # As the kernel does when memory is short.
        kill(name, "killed", "/usr/local/bin/pilot-agent", "proxy")
        yield name


def kill(namespace: str, pod: str, *command: str) -> None:
    pids = lab.until(
        lambda: list(pids_of(namespace, pod, *command)),
        what=f"{' '.join(command)} in {namespace}/{pod}",
    )
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def pids_of(namespace: str, pod: str, *words: str) -> Iterator[int]:
    """The pids of the processes of a pod's proxy whose command line has these words in this order.

    A proxy is told by its environment which pod it is in, and what is executed beside it as well.
    """
    told = {f"POD_NAME={pod}".encode(), f"POD_NAMESPACE={namespace}".encode()}
    wanted = " ".join(words).encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            # Of other programs it need not be readable.
            if b" ".join(command[: len(words)]) != wanted:
                continue
            environment = (process / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended in between.
        if told <= {*environment}:
            yield int(process.name)


def pod_of(client: Client, namespace: str, name: str) -> Any:
    return client.get(workloads.Pod, name, namespace=namespace)


@pytest.mark.parametrize("name", ["hold-timed-out", "killed"])
def test_a_payload_that_has_lost_its_proxy_is_reported_and_left_alone(
    client: Client, bereft: str, name: str
) -> None:
    """A hold that timed out, and a proxy that was killed: never started again.

    istio#45627, scuttle#34.
    """
    fields: dict[str, Any] = {"involvedObject.name": name, "reason": "ProxyLost"}
    [event] = lab.until(
        lambda: [*client.list(Event, namespace=bereft, fields=fields)],
        what=f"Event ProxyLost on {bereft}/{name}",
    )

    assert (event.type, event.involvedObject.uid) == (
        "Warning",
        pod_of(client, bereft, name)["metadata"]["uid"],
    )
    pod = pod_of(client, bereft, name)
    [proxy] = workloads.proxies([pod])
    [payload] = workloads.read_outcome([], [pod]).pods[0].payload
    assert (pod["status"]["phase"], proxy.restarts) == ("Running", 0)
    assert proxy.exit_code is not None
    assert (payload.exit_code, payload.restarts) == (None, 0)


HOLDERS = pytest.mark.nightly("unit/rules/test_quit_blocked.py has each of these pods")

# No istiod answers the proxy.
UNREADY = {"proxy.istio.io/config": "discoveryAddress: istiod.nowhere.svc:15012", **NATIVE}
DEAF = container("trap '' TERM; while :; do sleep 1; done", "shipper", restartPolicy="Always")
NO_PROGRAM = {**DEAF, "command": ["/no/such/program"]}
FETCH = [container("exit 1", "fetch")]


def proxy(**more: Any) -> dict[str, Any]:
    """What the pod's author changes of its sidecar."""
    return {"name": "istio-proxy", "image": images.PROXYV2, **more}


MAIN = container("true")
# By name: where, the pod, the state of `audit`, and the container.
PODS: Mapping[str, tuple[str, dict[str, Any], str, str]] = {
    "never-ready": ("native", pod(MAIN, annotations=UNREADY), "unstarted", "istio-proxy"),
    "cannot-start": (
        "native", pod(MAIN, annotations=NATIVE, initContainers=[NO_PROGRAM]), "unstarted", "shipper"
    ),
    "runs-on": (
        "native",
        pod(MAIN, annotations=NATIVE, initContainers=[DEAF], terminationGracePeriodSeconds=3600),
        "blocked", "shipper",
    ),
    "no-image": (
        "classic",
        pod(MAIN, proxy(image="nowhere/proxyv2", imagePullPolicy="Never")),
        "blocked", "istio-proxy",
    ),
    "crashes": (
        "classic", pod(MAIN, proxy(args=["no-such-command"]), restart="OnFailure"),
        "blocked", "istio-proxy",
    ),
    "fetch-fails": (
        "classic", pod(MAIN, initContainers=FETCH, restart="OnFailure"), "unstarted", "fetch"
    ),
}  # fmt: skip
WORKS = Workload("works", pod(MAIN, initContainers=[container(f"{TALK}; sleep 86400", "fetch")]))


@pytest.fixture(scope="module")
def created(client: Client, places: Mapping[str, str]) -> Iterator[None]:
    """These pods are there."""
    client.create(WORKS.in_namespace(places["classic"]))
    for name, (place, manifest, *_) in PODS.items():
        client.create(Workload(name, manifest).in_namespace(places[place]))
    yield
    client.delete(workloads.Pod, "runs-on", namespace=places["native"], grace_period=0)


def audited(cluster: lab.Cluster, namespace: str) -> dict[str, dict[str, Any]]:
    lines = ask(cluster.kubeconfig, "audit", "-n", namespace, "-o", "json").stdout.splitlines()
    return {each["name"]: each for each in map(json.loads, lines)}


@HOLDERS
@pytest.mark.usefixtures("created")
@pytest.mark.parametrize("name", PODS)
def test_what_holds_a_pod_is_named(
    cluster: lab.Cluster, places: Mapping[str, str], name: str
) -> None:
    """istio#51883, gcs-fuse-csi-driver#1619, istio#36534, istio#28581, kubeflow#6120."""
    place, _, state, by = PODS[name]
    found = lab.until(
        lambda: (each := audited(cluster, places[place]).get(name)) and each["by"] and each,
        timeout=900, every=2, what=f"audit to name {name}",
    )  # fmt: skip

    assert (found["state"], found["by"]) == (state, [by])
    assert f"{by} " in found["reason"]
    assert found["containers"][by]["finished"] is False


@HOLDERS
@pytest.mark.usefixtures("created")
def test_an_init_container_that_works_holds_nothing_and_is_explained(
    cluster: lab.Cluster, places: Mapping[str, str]
) -> None:
    """istio#23457: with a classic proxy, it runs before that."""
    where = f"{places['classic']}/{WORKS.name}"
    found = lab.until(
        lambda: (
            each := json.loads(ask(cluster.kubeconfig, "explain", where, "-o", "json").stdout)
        )["containers"].get("fetch", {}).get("why") == "running" and each,
        what=f"the init container of {where} to run",
    )  # fmt: skip

    assert (found["action"], found.get("state")) == ("wait", None)
    assert found["reason"].startswith("not finished: init container fetch (running); fetch runs")
    assert "istio-aux.io/start: native" in found["reason"]


NAME, REVISION = "training-race", "late"
TENSORFLOW, PYTORCH = (template(container(TRAIN, name=n)) for n in ("tensorflow", "pytorch"))
JOBS = (
    Workload("early-tf", training_job("TFJob", Worker=(2, TENSORFLOW)), "Succeeded", (0, 0)),
    Workload("early-pytorch", training_job("PyTorchJob", Master=(1, PYTORCH)), "Succeeded", (0,)),
)


@pytest.fixture(scope="module")
def early(client: Client, trainer: None) -> Iterator[None]:
    """The jobs run, and no Istio of theirs is yet."""
    make_namespace(client, NAME, {"istio.io/rev": REVISION, f"lab.test/{NAME}": "yes"})
    for job in JOBS:
        client.create(job.in_namespace(NAME))

    def running() -> bool:
        seen = [look(client, job, NAME) for job in JOBS]
        return [len(each.pods) for each in seen if each.running] == [2, 1]

    lab.until(running, what="the pods of all jobs to run")
    yield
    client.delete(Namespace, NAME)


def names(job: Seen) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in job.pods)


def true_of(job: Seen) -> set[str]:
    conditions = (job.owner.get("status") or {}).get("conditions") or []
    return {each["type"] for each in conditions if each["status"] == "True"}


def kept(client: Client) -> set[str]:
    """The pods of which an Event says that they are not restarted as a job's."""
    # Others may report them, too: the charm of this cluster does, and restarts nothing anyway.
    because = "as `kubectl replace --force -f` does"
    events = client.list(Event, namespace=NAME, fields={"reason": "NoSidecar"})
    return {str(e.involvedObject.name) for e in events if str(e.message).endswith(because)}


@pytest.fixture(scope="module")
def reported(
    cluster: lab.Cluster, client: Client, early: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Seen]]:
    """The jobs once Istio has come, and restarts are the policy."""
    istio = lab.istio.install(cluster, "istio-late", revision=REVISION)

    def told() -> dict[str, Seen]:
        seen = {job.name: look(client, job, NAME) for job in JOBS}
        told_of = kept(client)
        return seen if all(told_of.issuperset(names(job)) for job in seen.values()) else {}

    with program(
        cluster, tmp_path_factory.mktemp(NAME), NAME, {"race-policy": "restart"},
        selector=f"lab.test/{NAME}=yes", revisions=(REVISION,),
    ):  # fmt: skip
        seen = lab.until(told, what="the pods to be told of")
    yield seen
    istio.remove()


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_created_before_the_injector_is_live_is_reported(
    reported: Mapping[str, Seen], job: Workload
) -> None:
    seen = reported[job.name]

    assert "Running" in true_of(seen)
    assert seen.pods
    assert not any("deletionTimestamp" in pod["metadata"] for pod in seen.pods)
