"""Fixtures of the workloads' tier."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import lab.juju
import pytest
from lab.deployed import await_selected
from lab.fixtures import await_account
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
