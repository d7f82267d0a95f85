"""Every kind of ending, with a sidecar in a selected namespace and without one in a plain one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import lab.juju
import pytest
from lab import workloads
from lab.creation import audited
from lab.nightly import NIGHTLY
from lab.workloads import (
    BY_NIGHT,
    ENDINGS,
    JOBS,
    NATIVE_SIDECARS,
    NO_PORT,
    OWN_PORT,
    Seen,
    Workload,
    await_ends,
)
from lightkube import Client

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
            beside = native if workload in NATIVE_SIDECARS else meshed
            for namespace in (plain, beside):
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

    params = [pytest.param(w, marks=marks(w), id=w.name) for w in workloads]
    return pytest.mark.parametrize("workload", params)


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
