"""What the table of versions says is lacking is lacking; the policies that we ship are taken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightkube
import pytest
import yaml
from lab import meshed, versions
from lab.versions import Difference
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError


def takes(action: str | None) -> Callable[[lightkube.Client], bool]:
    """Whether the API server keeps a container with a restart policy, and a rule of that action."""
    rule = {"action": action, "exitCodes": {"operator": "In", "values": [42]}}
    main = {"restartPolicy": "Never", **({"restartPolicyRules": [rule]} if action else {})}

    def taken(client: lightkube.Client) -> bool:
        with contextlib.suppress(ApiError):
            made = client.create(meshed.pod("default", "tried", more={"main": main}), dry_run=True)
            assert made.spec
            kept = {c.name: c.to_dict() for c in made.spec.containers}["main"]
            return {key: kept.get(key) for key in main} == main
        return False

    return taken


@pytest.mark.parametrize(
    ("difference", "served"),
    [
        (versions.CONTAINER_RESTARTS, takes(None)),
        (versions.CONTAINER_RESTARTS, takes("Restart")),
        (versions.RESTART_ALL, takes("RestartAllContainers")),
    ],
    ids=["container policies", "restart rules", "all containers"],
)
def test_the_api_server_has_it_from_that_version_on(
    client: lightkube.Client, difference: Difference, served: Callable[[lightkube.Client], bool]
):
    assert served(client) == difference.there


POLICIES = Path(__file__).parents[2] / "examples/training-peers.yaml"


@pytest.mark.parametrize("document", [*yaml.safe_load_all(POLICIES.read_text())])
def test_the_network_policies_that_we_ship_are_accepted(
    client: lightkube.Client, namespace: str, document: dict[str, Any]
):
    """Nothing in them is dropped as unknown."""
    document["metadata"]["namespace"] = namespace

    made = client.create(from_dict(document)).to_dict()

    assert made["spec"] == document["spec"]
