"""Jobs that Kueue admits, with the real Kueue: one at a time, beside a sidecar and without one.

Kueue creates each Job suspended, and resumes it when there is room. If anybody else suspends or
resumes it, Kueue reverts that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lab.istio
import pytest
from lab import upstream, workloads
from lab.fixtures import make_namespace
from lab.workload import late_istio
from lab.workloads import TRAIN, Seen, Workload, await_end, container, job, look, template
from lightkube import Client
from lightkube.resources.core_v1 import Event, Namespace

LATE, REVISION = "late-for-queued-jobs", "late-queued"


def queued(name: str, script: str, codes: tuple[int, ...], **spec: Any) -> Workload:
    """A Job in the queue of its namespace, which has room for one."""
    manifest = job(
        template(container(script, resources={"requests": {"cpu": upstream.SHARE}})), **spec
    )
    manifest["metadata"] = {"labels": upstream.QUEUE}
    return Workload(name, manifest, "Failed" if any(codes) else "Complete", codes)


# Each waits until the one before it has ended.
WORKLOADS = (
    queued("a-queued-job-succeeds", "sleep 1", (0,)),
    queued("a-queued-job-fails", "sleep 1; exit 3", (3,)),
    queued("the-last-queued-job-succeeds", "sleep 1", (0,)),
)
FIRST = WORKLOADS[0]
EARLY = queued("an-early-queued-job", TRAIN, (0,), backoffLimit=2)


@pytest.fixture(scope="module")
def client(cluster: lab.Cluster, istio: lab.istio.Istio) -> Iterator[Client]:
    """An administrator of a cluster with Kueue."""
    upstream.install_kueue(cluster)
    with cluster.client() as client:
        yield client
        upstream.remove_kueue(client)


@pytest.fixture(scope="module")
def ends(client: Client, namespaces: tuple[str, str]) -> Mapping[str, tuple[Seen, Seen]]:
    """Each Job at its end, without a sidecar and beside one."""
    plain, meshed = namespaces
    for namespace in namespaces:
        upstream.make_queue(client, namespace)
        client.create(FIRST.in_namespace(namespace))
        # Whichever is admitted first keeps the others waiting.
        lab.until(
            lambda namespace=namespace: (
                look(client, FIRST, namespace).owner["spec"]["suspend"] is False
            ),
            what=f"the first Job of {namespace} to be admitted",
        )
        for workload in WORKLOADS[1:]:
            client.create(workload.in_namespace(namespace))

    return {w.name: (await_end(client, w, plain), await_end(client, w, meshed)) for w in WORKLOADS}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_nobody_can_tell_from_its_end_that_a_queued_job_had_a_sidecar(
    ends: Mapping[str, tuple[Seen, Seen]], workload: Workload
) -> None:
    """Same conditions, counts, phases, exit codes and restarts.

    uds-core#687, kuma#2848, kruise#1285.
    """
    without, beside = ends[workload.name]

    assert workloads.describes(workload, without.outcome), without.outcome
    assert (beside.outcome, beside.proxies) == (without.outcome, [(0, 0)])


@pytest.fixture(scope="module")
def early(client: Client) -> Iterator[Seen]:
    """A Job that Kueue has admitted before Istio can inject."""
    make_namespace(client, LATE, {"istio.io/rev": REVISION, f"lab.test/{LATE}": "yes"})
    upstream.make_queue(client, LATE)
    client.create(EARLY.in_namespace(LATE))
    yield lab.until(
        lambda: seen if (seen := look(client, EARLY, LATE)).running else None, what="its pod to run"
    )
    client.delete(Namespace, LATE)


def test_an_early_pod_of_a_queued_job_is_reported_until_an_admin_lets_kueue_make_it_again(
    cluster: lab.Cluster, client: Client, early: Seen, tmp_path: Path
) -> None:
    """Kueue makes its pods again when its Workload is active again.

    istio#3716, istio#15873.
    """
    with late_istio(cluster, tmp_path, LATE, REVISION):
        lab.until(
            lambda: any(
                "it is a Job's: delete the Job and apply it again" in str(event.message)
                for event in client.list(Event, namespace=LATE)
            ),
            what="the Event NoSidecar",
        )
        assert look(client, EARLY, LATE).uids(finished=False) == early.uids(finished=False)
        upstream.activate(client, LATE, EARLY.name, active=False)
        lab.until(lambda: not look(client, EARLY, LATE).pods, what="its pod to be gone")
        upstream.activate(client, LATE, EARLY.name, active=True)
        after = await_end(client, EARLY, LATE)

    assert workloads.describes(EARLY, after.outcome), after.outcome
    assert dict(after.outcome.counts) == {"succeeded": 1}
    assert len(workloads.proxies(after.pods)) == len(after.pods) == 1
