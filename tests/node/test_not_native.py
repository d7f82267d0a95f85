"""Jobs that a native sidecar would break end beside istio-aux as they end without a mesh.

In three namespaces, whose Istios make sidecars native never, on request, and unasked where every
kubelet is new enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import lab
import lab.istio
import pytest
from lab import outcome, served
from lab.deployed import REQUESTED, await_marks, await_root
from lab.endings import a_job
from lab.fixtures import new_namespaces
from lab.meshed import PROXY
from lab.outcome import Seen, await_ends
from lab.workloads import TALK, Workload, container, pod
from lightkube import Client
from lightkube.models.core_v1 import LimitRangeItem, LimitRangeSpec, ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, LimitRange, Namespace, ResourceQuota

UNASKED = "unasked"
QUIET = 60  # Seconds. The longest time in which nothing ends is 12 s.
ENOUGH: dict[str, Any] = {"terminationGracePeriodSeconds": 5}
POST = "wget -q -O- --post-data= http://localhost:15020/quitquitquit"
KILLED = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137, 143]}}]}
COUNTED = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [3]}}]}
UNTIL_TOLD = "trap 'exit 143' TERM; for i in 1 2 3 4 5 6; do sleep 1; done"
DEADLINE: dict[str, Any] = {"activeDeadlineSeconds": 600}  # The quota counts pods that have one.


def fetch(**limits: str) -> dict[str, Any]:
    """An init container that may use more than all that comes after it."""
    resources = {"limits": limits, "requests": dict.fromkeys(limits, "0")}
    return {"initContainers": [container("true", name="fetch", resources=resources)]}


ENDS = a_job(
    "its-payload-ends-the-proxy", "Complete", (0,),
    container(f"sleep 3; {TALK}; code=$?; {POST} || true; sleep 4; exit $code"),
    restart="OnFailure", **ENOUGH,
)  # fmt: skip
BROKEN = (
    ENDS,
    a_job(
        "a-limit-range-allows-no-more", "Complete", (0,), container("true"), **ENOUGH,
        **fetch(memory="2Gi"),
    ),
    a_job(
        "a-quota-allows-no-more", "Complete", (0,),
        container("true", resources={"limits": {"cpu": "100m"}, "requests": {"cpu": "1m"}}),
        **ENOUGH, **DEADLINE, **fetch(cpu="10"),
    ),
    a_job(
        "it-has-templates-of-its-own", "Complete", (0,), container(TALK), **ENOUGH,
        annotations={"inject.istio.io/templates": "sidecar,custom"},
    ),
    a_job(
        "its-grace-period-is-short", "Failed", (1,), container("sleep 1; exit 1"),
        spec={"podFailurePolicy": KILLED}, terminationGracePeriodSeconds=0,
        annotations={"proxy.istio.io/config": "terminationDrainDuration: 5s"},  # Istio's default.
    ),
    a_job(
        "its-job-counts-exit-codes-of-sidecars", "Failed", (0, 3), container("sleep 2; exit 3"),
        container(UNTIL_TOLD, name="cloud-sql-proxy"), spec={"podFailurePolicy": COUNTED},
        annotations={"istio-aux.io/sidecars": "cloud-sql-proxy=native"}, **ENOUGH,
    ),
)  # fmt: skip
PROBE = Workload("probe", pod(container("true"), **ENOUGH))
WORLDS = {
    "never": {"istio-injection": "enabled"},
    "on-request": {"istio.io/rev": REQUESTED},
    "unasked": {"istio.io/rev": UNASKED},
}


def limit(client: Client, namespace: str) -> None:
    """Allow what the pods request and may use without a mesh, and beside a classic sidecar."""
    small = {"memory": "100Mi", "cpu": "100m"}
    limits = [
        LimitRangeItem(type="Pod", max={"memory": "2Gi"}),
        LimitRangeItem(type="Container", default=small, defaultRequest={"memory": "8Mi"}),
    ]
    about = ObjectMeta(name="small", namespace=namespace)
    client.create(LimitRange(metadata=about, spec=LimitRangeSpec(limits=limits)))
    spec = ResourceQuotaSpec(hard={"limits.cpu": "10"}, scopes=["Terminating"])
    client.create(ResourceQuota(metadata=about, spec=spec))


@pytest.fixture(scope="module")
def worlds(
    cluster: lab.Cluster,
    client: Client,
    requested: lab.istio.Istio,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, str]]:
    """A plain namespace and one beside each Istio; istio-aux knows the last one, which can."""
    unasked = lab.istio.install(cluster, UNASKED, revision=UNASKED, native="default")
    folder, name = tmp_path_factory.mktemp("native"), "start-native"
    with (
        served.program(
            cluster, folder, name, {"root-namespace": UNASKED}, publish=True,
            selector="lab.test/not-native=yes", revisions=(REQUESTED, UNASKED),
        ) as program,
        new_namespaces(client, "plain", *WORLDS) as names,
    ):  # fmt: skip
        program.await_capability("native")
        for world, labels in WORLDS.items():
            selected = {**labels, "lab.test/not-native": "yes"}
            client.patch(Namespace, names[world], {"metadata": {"labels": selected}})
            await_root(client, names[world])
            await_marks(client, names[world], PROXY, "started-with", probe=PROBE)
        for namespace in names.values():
            limit(client, namespace)
        yield names
    unasked.remove()


@pytest.fixture(scope="module")
def ended(client: Client, worlds: Mapping[str, str]) -> Mapping[str, Mapping[str, Seen]]:
    """The Jobs of each namespace at their ends, by what it is for."""
    for namespace in worlds.values():
        for workload in BROKEN:
            client.create(workload.in_namespace(namespace))
    seen = await_ends(client, [(name,) for name in worlds.values()], BROKEN, quiet=QUIET)
    return dict(zip(worlds, seen, strict=True))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("workload", BROKEN, ids=lambda workload: workload.name)
def test_it_ends_as_it_does_without_a_mesh(
    ended: Mapping[str, Mapping[str, Seen]], workload: Workload, world: str
) -> None:
    """Same conditions, counts, phases, exit codes and restarts.

    eventing#6804, website#57244, cloud-sql-proxy#1803.
    """
    without, beside = ended["plain"][workload.name], ended[world][workload.name]

    assert outcome.describes(workload, without.outcome), without.outcome
    assert (beside.outcome, beside.proxies) == (without.outcome, beside.freed)


@pytest.mark.parametrize("world", WORLDS)
def test_an_event_says_why_it_is_not_native(
    client: Client, ended: Mapping[str, Mapping[str, Seen]], worlds: Mapping[str, str], world: str
) -> None:
    [pod] = ended[world][ENDS.name].pods

    told = [
        event.message
        for event in client.list(Event, namespace=worlds[world])
        if (event.reason, event.involvedObject.name) == ("HeldNotNative", pod["metadata"]["name"])
    ]

    [note] = told
    assert note is not None
    assert 'the payload ends the proxy itself: quitquitquit in container "main"' in note
