"""Fixtures of the workloads' tier."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence

import lab.juju
import pytest
from lab.deployed import await_selected
from lab.fixtures import await_account
from lab.seen import Seen, await_end
from lab.workloads import Workload
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace


@pytest.fixture(scope="module")
def namespaces(client: Client, istio_aux: lab.juju.App) -> Iterator[tuple[str, str, str]]:
    """A plain one, one that istio-aux looks after, and one with sidecars and without istio-aux."""
    names = [f"{name}-{secrets.token_hex(3)}" for name in ("plain", "meshed", "alone")]
    for name in names:
        client.create(Namespace(metadata=ObjectMeta(name=name)))
        await_account(client, name)
    plain, meshed, alone = names
    await_selected(client, meshed)
    client.patch(Namespace, alone, {"metadata": {"labels": {"istio-injection": "enabled"}}})
    yield plain, meshed, alone
    for name in names:
        client.delete(Namespace, name)


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
