"""The policies that we ship are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightkube
import pytest
import yaml
from lightkube.codecs import from_dict

POLICIES = Path(__file__).parents[2] / "examples/training-peers.yaml"


@pytest.mark.parametrize("document", [*yaml.safe_load_all(POLICIES.read_text())])
def test_the_network_policies_that_we_ship_are_accepted(
    client: lightkube.Client, namespace: str, document: dict[str, Any]
):
    """Nothing in them is dropped as unknown."""
    document["metadata"]["namespace"] = namespace

    made = client.create(from_dict(document)).to_dict()

    assert made["spec"] == document["spec"]
