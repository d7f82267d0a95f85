"""Fixtures of the workloads' tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import lab
import lab.istio
import lab.juju
import pytest
from lab.deployed import await_selected
from lab.fixtures import new_namespaces
from lab.outcome import Seen, await_end
from lab.workloads import Workload
from lightkube import Client
from lightkube.resources.core_v1 import Namespace


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest, cluster: lab.Cluster, istio: lab.istio.Istio
) -> Iterator[Client]:
    """An administrator of a cluster with what the file's `CONTROLLERS` installs."""
    request.module.CONTROLLERS(cluster)
    with cluster.client() as client:
        yield client


@pytest.fixture(scope="module")
def namespaces(client: Client, istio_aux: lab.juju.App) -> Iterator[tuple[str, str, str]]:
    """A plain one, one that istio-aux looks after, and one with sidecars and without istio-aux."""
    with new_namespaces(client, "plain", "meshed", "alone") as names:
        await_selected(client, names["meshed"])
        injected = {"metadata": {"labels": {"istio-injection": "enabled"}}}
        client.patch(Namespace, names["alone"], injected)
        yield names["plain"], names["meshed"], names["alone"]


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest, client: Client, namespaces: tuple[str, str, str]
) -> Mapping[str, tuple[Seen, Seen]]:
    """Each of the file's `WORKLOADS` at its end, without sidecars and beside them; the first one
    also runs where nobody frees it."""
    workloads: Sequence[Workload] = request.module.WORKLOADS
    plain, meshed, alone = namespaces
    for workload in workloads:
        for namespace in (plain, meshed):
            client.create(workload.in_namespace(namespace))
    client.create(workloads[0].in_namespace(alone))

    return {w.name: (await_end(client, w, plain), await_end(client, w, meshed)) for w in workloads}
