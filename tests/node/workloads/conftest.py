"""Fixtures of the workloads' tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import lab.istio
import lab.juju
import pytest
from lab.fixtures import await_selected, new_namespaces
from lab.workloads import Seen, Workload, await_end
from lightkube import Client


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest, cluster: lab.Cluster, istio: lab.istio.Istio
) -> Iterator[Client]:
    """An administrator of a cluster with what the file's `CONTROLLERS` installs."""
    request.module.CONTROLLERS(cluster)
    with cluster.client() as client:
        yield client


@pytest.fixture(scope="module")
def namespaces(client: Client, istio_aux: lab.juju.App) -> Iterator[tuple[str, str]]:
    """A plain one, and one with sidecars that istio-aux looks after."""
    with new_namespaces(client, "plain", "meshed") as names:
        await_selected(client, names["meshed"])
        yield names["plain"], names["meshed"]


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest, client: Client, namespaces: tuple[str, str]
) -> Mapping[str, tuple[Seen, Seen]]:
    """Each of the file's `WORKLOADS` at its end, without sidecars and beside them."""
    workloads: Sequence[Workload] = request.module.WORKLOADS
    plain, meshed = namespaces
    for workload in workloads:
        for namespace in namespaces:
            client.create(workload.in_namespace(namespace))
    return {w.name: (await_end(client, w, plain), await_end(client, w, meshed)) for w in workloads}
