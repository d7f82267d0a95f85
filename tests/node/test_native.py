"""A Job in each of the three worlds of Istio, under the charm with its default options.

Nobody is asked for anything: the workload finds out what Istio can do, its notice wakes the charm,
and the charm renders the policy in the API server again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import lab
import lab.istio
import lab.juju
import pytest
from lab import worlds
from lab.deployed import await_selected
from lab.fixtures import await_account
from lab.meshed import proxy_exit_code
from lab.worlds import EXPECTED
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace


@pytest.fixture(scope="module")
def selected(client: Client, istio: lab.istio.Istio, istio_aux: lab.juju.App) -> Iterator[str]:
    """A namespace that all know; afterwards Istio is again what it was, and all know that too."""
    name = f"native-{secrets.token_hex(3)}"
    client.create(Namespace(metadata=ObjectMeta(name=name)))
    await_account(client, name)
    await_selected(client, name)
    yield name
    worlds.become(istio, "never", name)
    client.delete(Namespace, name)
    istio_aux.settle()


@pytest.mark.parametrize("world", EXPECTED)
def test_a_job_is_native_where_that_can_be_had_also_on_request_and_completes(
    client: Client,
    istio: lab.istio.Istio,
    istio_aux: lab.juju.App,
    selected: str,
    world: lab.istio.World,
) -> None:
    worlds.become(istio, world, selected)

    pod = worlds.complete(client, selected, world.replace(" ", "-"))

    assert worlds.shape(pod) == EXPECTED[world]
    assert proxy_exit_code(pod) == 0
    istio_aux.settle()
    said = istio_aux.status()[1]
    assert ("pods are held, not native" in said) is (not EXPECTED[world].native), said
