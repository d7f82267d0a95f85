"""Every kind of ending, with a sidecar in a selected namespace and without one in a plain one.

Jobs beside each sidecar that needs no option end in a mesh as their payload ends alone; those
programs are stand-ins, which end as the table says of them (`lab.images.STAND_IN`).

What a payload that works on after SIGTERM still reaches, beside the real Istio: that prints the
table of `docs/how-to/distributed-training.md`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import lab.istio
import lab.juju
import pytest
from istio_aux.model.known_sidecars import KNOWN, Known
from lab import images, workloads
from lab.creation import audited
from lab.fixtures import (
    ON_REQUEST,
    await_marks,
    await_root,
    await_selected,
    list_stuck,
    new_namespaces,
)
from lab.meshed import PROXY, is_ready
from lab.nightly import NIGHTLY
from lab.workload import program
from lab.workloads import (
    BY_NIGHT,
    ENDINGS,
    JOBS,
    NATIVE_SIDECARS,
    NO_PORT,
    OWN_PORT,
    TALK,
    Seen,
    Workload,
    a_job,
    await_end,
    await_ends,
    container,
    look,
    pod,
)
from lightkube import Client
from lightkube.resources.core_v1 import Event, Namespace, Pod

SUBRESOURCES = {"exec", "attach", "portforward"}


@dataclass(frozen=True)
class Connection:
    """What somebody wanted of a pod; a port-forward has neither container nor command."""

    user: str
    namespace: str
    pod: str
    subresource: str
    container: str
    command: tuple[str, ...]


def connections(cluster: lab.Cluster, *namespaces: str) -> Iterator[Connection]:
    """The connections to pods of these namespaces in order, also those that came to nothing."""
    # The API server notes the begin of a connection and its end.
    events = {event["auditID"]: event for event in audited(cluster, about='"subresource"')}
    for event in events.values():
        pod = event["objectRef"]
        if pod["subresource"] not in SUBRESOURCES or pod["namespace"] not in namespaces:
            continue
        query = parse_qs(urlsplit(event["requestURI"]).query)
        yield Connection(
            event["user"]["username"],
            pod["namespace"],
            pod["name"],
            pod["subresource"],
            "".join(query.get("container", [])),
            tuple(query.get("command", [])),
        )


AT_ONCE = 15  # Workloads that start together, each in two namespaces: two cores start no more.

# Measured: the longest time in which no workload ends is 12 s.
QUIET = 120
REQUEST, QUIT = ("pilot-agent", "request"), ("POST", "quitquitquit")
STARTED = [
    workload
    for workload in ENDINGS
    if (not workload.needs or workload.needs.there) and (NIGHTLY or workload not in BY_NIGHT)
]


@dataclass(frozen=True)
class Endings:
    """How all workloads ended, and every connection to their pods."""

    plain: Mapping[str, Seen]
    meshed: Mapping[str, Seen]
    connections: list[Connection]
    account: str


@pytest.fixture(scope="module")
def endings(
    cluster: lab.Cluster,
    client: Client,
    trainer: None,
    istio_aux: lab.juju.App,
    places: Mapping[str, str],
) -> Endings:
    """All workloads without a sidecar and beside one, some at once, seen to their ends."""
    plain, meshed, native = (places[name] for name in ("plain", "classic", "native"))
    without, sidecars = dict[str, Seen](), dict[str, Seen]()
    # The operator's webhook has 10 s to answer, which forty pods that start may take from it.
    ordered = sorted(STARTED, key=lambda each: "tfjob" not in each.name)
    for first in range(0, len(ordered), AT_ONCE):
        some = ordered[first : first + AT_ONCE]
        for workload in some:
            for namespace in (plain, native if workload in NATIVE_SIDECARS else meshed):
                client.create(workload.in_namespace(namespace))
        ended = await_ends(client, [(plain,), (meshed, native)], some, quiet=QUIET)
        without |= ended[0]
        sidecars |= ended[1]
    account = f"system:serviceaccount:{istio_aux.model.name}:istio-aux-workload"
    return Endings(without, sidecars, [*connections(cluster, meshed, native)], account)


def each(workloads: Sequence[Workload]) -> pytest.MarkDecorator:
    by_night = pytest.mark.nightly(
        "a row of another kind with such an end; unit/rules/test_quit.py"
    )

    def marks(workload: Workload) -> list[pytest.MarkDecorator]:
        needed = [workload.needs.needed] if workload.needs else []
        return [*needed, *([by_night] if workload in BY_NIGHT else [])]

    return pytest.mark.parametrize(
        "workload", [pytest.param(w, marks=marks(w), id=w.name) for w in workloads]
    )


@each(ENDINGS)
def test_nobody_can_tell_from_its_end_that_it_had_a_sidecar(
    endings: Endings, workload: Workload
) -> None:
    """Same conditions, counts, phases, exit codes and restarts.

    The proxy never fails, and never starts again unless the whole pod does.

    uds-core#687, uds-core#913, kuma#2848, KEP-5307, kruise#1285, scuttle#34.
    """
    without, beside = (ended[workload.name] for ended in (endings.plain, endings.meshed))

    assert workloads.describes(workload, without.outcome), without.outcome
    assert (beside.outcome, beside.proxies) == (without.outcome, beside.freed)


def test_nobody_connects_to_a_pod_with_a_native_sidecar(endings: Endings) -> None:
    """community-distribution#3057: with one payload and with two."""
    native = {
        pod["metadata"]["name"] for w in NATIVE_SIDECARS for pod in endings.meshed[w.name].pods
    }

    assert len(native) == len(NATIVE_SIDECARS)
    assert [seen for seen in endings.connections if seen.pod in native] == []


@pytest.mark.parametrize(
    ("workload", "subresource", "command"),
    [
        (JOBS[0], "exec", (*REQUEST, "--debug-port=15020", *QUIT)),
        (OWN_PORT, "portforward", ()),
        (NO_PORT, "exec", (*REQUEST, *QUIT)),
    ],
    ids=lambda value: value.name if isinstance(value, Workload) else "",
)
def test_a_proxy_is_told_to_quit_where_its_agent_listens(
    endings: Endings, workload: Workload, subresource: str, command: tuple[str, ...]
) -> None:
    """istio.io#5073, istio#11659: there is neither a shell nor curl in the image."""
    [pod] = endings.meshed[workload.name].pods
    connections = [seen for seen in endings.connections if seen.pod == pod["metadata"]["name"]]

    assert (connections[0].subresource, connections[0].command) == (subresource, command)


def test_every_classic_proxy_is_told_to_quit_and_nothing_else_is_done(endings: Endings) -> None:
    """kruise#1285: by the account of the workload, in the container of the proxy."""
    classic = [w for w in STARTED if w not in NATIVE_SIDECARS]
    pods = {pod["metadata"]["name"] for w in classic for pod in endings.meshed[w.name].pods}

    assert pods <= {seen.pod for seen in endings.connections}
    assert {seen.user for seen in endings.connections} == {endings.account}
    assert {seen.container for seen in endings.connections} == {"istio-proxy", ""}
    assert {seen.command for seen in endings.connections if seen.subresource == "exec"} <= {
        (*REQUEST, "--debug-port=15020", *QUIT),
        (*REQUEST, *QUIT),
    }


BY_FORCE = pytest.mark.nightly("unit/rules/test_quit_blocked.py; a grace period has to pass")

GRACE, WORKS = 60, 30  # Seconds.
DRAIN = f"terminationDrainDuration: {GRACE}s"
CLASSIC = {"istio-aux.io/start": "hold"}  # Such a pod would get a native sidecar.
ANNOTATIONS: Mapping[str, Mapping[str, str]] = {
    "classic": CLASSIC,
    "native": {"istio-aux.io/start": "native"},
    "drain": {**CLASSIC, "proxy.istio.io/config": DRAIN},
}
SAVE = f"""
trap 'over=1' TERM; while [ -z "$over" ]; do sleep 1; done
good=0 refused=0 end=$(($(date +%s) + {WORKS}))
while [ $(date +%s) -lt $end ]; do
  if {TALK}; then good=$((good + 1)); else refused=$((refused + 1)); fi; sleep 1
done
echo "$good $refused" >/dev/termination-log
"""


class Served(NamedTuple):
    """Calls after SIGTERM, and seconds from the deletion of the pod to three ends."""

    good: int
    refused: int
    payload: float
    proxy: float
    gone: float


def ends(pod: Any, begin: float) -> Served:
    """What the last state of a pod says that is gone now."""
    status = pod["status"]
    every = [*status["containerStatuses"], *status.get("initContainerStatuses", [])]
    states = {each["name"]: each["state"]["terminated"] for each in every}
    main, proxy = (
        datetime.fromisoformat(states[name]["finishedAt"]).timestamp() - begin
        for name in ("main", PROXY)
    )
    good, refused = map(int, states["main"]["message"].split())
    return Served(good, refused, main, proxy, time.time() - begin)


@pytest.fixture(scope="module")
def where(client: Client, requested: lab.istio.Istio, istio_aux: lab.juju.App) -> Iterator[str]:
    """A namespace of this part's own: its Events and its pods are counted."""
    with new_namespaces(client, "native") as names:
        await_selected(client, names["native"], ON_REQUEST)
        yield names["native"]


def told(client: Client, namespace: str, reason: str) -> dict[str, str]:
    """The notes of the Events of a reason, by pod."""
    events = [each for each in client.list(Event, namespace=namespace) if each.reason == reason]
    return {each.involvedObject.name or "": each.message or "" for each in events}


@BY_FORCE
def test_a_native_proxy_that_had_no_time_to_end_is_told(client: Client, where: str) -> None:
    """Its exit code is not in what the watch shows. buildkite/agent-stack-k8s#862."""
    pod = workloads.pod(
        container(TALK), annotations=ANNOTATIONS["native"], terminationGracePeriodSeconds=0
    )
    client.create(Workload("hurried", pod).in_namespace(where))

    notes = lab.until(lambda: told(client, where, "ProxyKilled"), what="the Event")

    killed = (
        "IA0109: istio-proxy was killed with exit code 137: terminationGracePeriodSeconds was 0"
    )
    assert notes == {"hurried": f"{killed}: 5 is enough"}


@BY_FORCE
def test_only_a_native_proxy_serves_a_payload_that_works_on_and_the_pod_ends_with_that(
    client: Client, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """istio#7136. Of the classic ones one loses the network, and one stays after its payload."""
    seen = delete_all(client, where)

    with capsys.disabled():
        print(f"\n{WORKS} of {GRACE} s | calls: good, refused | seconds: payload, proxy, pod")
        for name, each in sorted(seen.items()):
            print(f"{name} | {each.good}, {each.refused} | ", end="")
            print(f"{each.payload:.0f}, {each.proxy:.0f}, {each.gone:.0f}")
    classic, native, drained = (seen[name] for name in ANNOTATIONS)
    assert native.good > 0
    assert (native.refused, drained.refused) == (0, 0)
    assert 0 < classic.good < classic.refused
    assert classic.proxy < classic.payload
    assert native.gone < drained.gone
    assert drained.payload < drained.proxy
    notes = told(client, where, "NetworkLost")
    assert [*notes] == ["classic"]
    lost = "IA0108: deleted, and not finished: main (running); a classic proxy"
    assert notes["classic"].startswith(lost)


def delete_all(client: Client, namespace: str) -> dict[str, Served]:
    """Delete a pod of each kind while it runs; what is known of each when it is gone."""
    for name, marks in ANNOTATIONS.items():
        grace = {"terminationGracePeriodSeconds": GRACE}
        pod = workloads.pod(container(SAVE), annotations=marks, **grace)
        client.create(Workload(name, pod).in_namespace(namespace))
    for name in ANNOTATIONS:
        lab.until(
            lambda name=name: is_ready(client.get(Pod, name, namespace=namespace)),
            what=f"{name} to be Ready",
        )
    seen, begin = dict[str, Served](), time.time()
    for name in ANNOTATIONS:
        client.delete(workloads.Pod, name, namespace=namespace)
    for kind, pod in client.watch(workloads.Pod, namespace=namespace, server_timeout=10 * GRACE):
        if kind == "DELETED":
            seen[pod["metadata"]["name"]] = ends(pod, begin)
        if len(seen) == len(ANNOTATIONS):
            break
    return seen


NAME = "known"
ENOUGH: dict[str, Any] = {"terminationGracePeriodSeconds": 5}
PROBE = Workload("probe", pod(container("true"), **ENOUGH))
SIDECARS = pytest.mark.nightly("unit/rules/test_quit_annotations.py has all; cluster/test_quit.py")


def rows(known: Iterable[Known]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "row", [pytest.param(row, id=row.names.split()[0]) for row in known]
    )


def image(row: Known) -> str:
    return f"istio-aux.lab/{row.images.split()[0]}:stand-in"


def signalled(row: Known) -> int:
    """What it exits with at SIGTERM."""
    return 143 if "143" in row.note else 0


def words(row: Known) -> list[str]:
    """The behaviour of its stand-in."""
    told = [f"{row.port}", row.path] if row.port else ["last"] * row.ends_last
    return [f"{signalled(row)}", *told]


def job(row: Known, *, alone: bool = False) -> Workload:
    """A Job whose payload fails where its sidecar exits with 143, and the sidecar."""
    code, name = signalled(row), row.names.split()[0]
    sidecar = {"name": name, "image": image(row)}
    payload = container(f"sleep 3; exit {3 if code else 0}")
    ends = ("Failed", (3,)) if code else ("Complete", (0,))
    return a_job(name, *ends, payload, *([] if alone else [sidecar]), **ENOUGH)


@pytest.fixture(scope="module")
def known_places(
    cluster: lab.Cluster,
    client: Client,
    istio_aux: lab.juju.App,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, str]]:
    """A plain namespace; one with classic sidecars; one whose sidecars are native on request. All
    Jobs are there, side by side. GKE injects its mounter as a native sidecar itself there."""
    istio = lab.istio.install(cluster, NAME, revision=NAME, native="on request")
    folder, settings = tmp_path_factory.mktemp(NAME), {"root-namespace": NAME}
    for row in KNOWN:
        cluster.load(images.stand_in(image(row), *words(row)))
    with (
        program(cluster, folder, NAME, settings, publish=True, revisions=(NAME,)) as workload,
        new_namespaces(client, "plain", "classic", "native") as names,
    ):
        workload.await_capability("native")
        await_selected(client, names["classic"])
        labels = {"istio.io/rev": NAME, f"lab.test/{NAME}": "yes"}
        client.patch(Namespace, names["native"], {"metadata": {"labels": labels}})
        await_root(client, names["native"])
        await_marks(client, names["native"], PROXY, "nativeSidecar", probe=PROBE)
        for row in KNOWN:
            client.create(job(row, alone=True).in_namespace(names["plain"]))
            client.create(job(row).in_namespace(names["classic"]))
            if not row.ends_last:
                client.create(job(row).in_namespace(names["native"]))
        yield names
    istio.remove()


def end(seen: Seen) -> tuple[Any, ...]:
    """Conditions and counts of the Job, phases of its pods, and how their payload ended."""
    found = seen.outcome
    pods = [(pod.phase, each) for pod in found.pods for each in pod.payload if each.name == "main"]
    return found.conditions, found.counts, pods


@SIDECARS
@rows(row for row in KNOWN if not row.ends_last)
def test_beside_a_native_proxy_it_ends_as_its_payload_alone(
    client: Client, known_places: Mapping[str, str], row: Known
) -> None:
    """cloud-sql-proxy#1803: 143 of a native sidecar is no failure, and no success either."""
    without, beside = (
        await_end(client, job(row), known_places[place]) for place in ("plain", "native")
    )

    assert workloads.describes(job(row), without.outcome), without.outcome
    assert end(beside) == end(without)
    assert beside.proxies == [(0, 0)]
    [made] = beside.pods
    inits = {each["name"] for each in made["spec"]["initContainers"]}
    assert (row.names.split()[0] in inits) is row.native


@SIDECARS
@rows(KNOWN)
def test_beside_a_classic_proxy_it_ends_alike_if_it_can_be_told_and_else_is_named(
    client: Client, istio_aux: lab.juju.App, known_places: Mapping[str, str], row: Known
) -> None:
    """One that only a signal ends keeps its proxy: it may still send what it has."""
    if row.port or row.ends_last:
        without, beside = (
            await_end(client, job(row), known_places[place]) for place in ("plain", "classic")
        )
        assert (end(beside), beside.proxies) == (end(without), [(0, 0)])
        return
    name = row.names.split()[0]

    def named() -> list[dict[str, str]]:
        found = json.loads(list_stuck(istio_aux)["json"])
        ours = (each for each in found if each["namespace"] == known_places["classic"])
        return [each for each in ours if each["name"].startswith(f"{name}-")]

    [found] = lab.until(named, what=f"{name} to be listed")
    assert f"not finished: {name} (running)" in found["reason"]
    [left] = look(client, job(row), known_places["classic"]).pods
    states = {each["name"]: [*each["state"]] for each in left["status"]["containerStatuses"]}
    assert states == {"main": ["terminated"], name: ["running"], PROXY: ["running"]}
