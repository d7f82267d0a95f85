"""The playground on this tier's stage: its pods hang, and the commands of its page free them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import lab.juju
import pytest
from demo import playground
from demo.scenes import Steps
from lab.workload import follow
from lightkube import Client
from lightkube.resources.core_v1 import Namespace

pytestmark = pytest.mark.nightly("cluster/test_commands.py, and test_demo.py on this stage")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/playground.md"


@pytest.fixture(scope="module")
def furnished(
    cluster: lab.Cluster, client: Client, istio_aux: lab.juju.App, trainer: None, steps: Steps
) -> Iterator[None]:
    """What `make playground` adds to the stage, which it shares with `make demo`."""
    playground.furnish(cluster, steps)
    yield
    for namespace in (playground.PROFILE, playground.FORGOTTEN):
        client.delete(Namespace, namespace)


@pytest.fixture(scope="module")
def held(cluster: lab.Cluster, furnished: None) -> str:
    """What finished pods hold in the namespace that nobody looks after."""
    return follow(cluster, held_in(playground.FORGOTTEN)).stdout


def held_in(namespace: str) -> str:
    return f"istio-aux audit --holders -o json -n {namespace}\n"


def test_finished_pods_hold_every_gpu_and_a_tfjob_waits_for_some(held: str, client: Client) -> None:
    [holder] = map(json.loads, held.splitlines())
    assert (holder["pods"], holder["requests"]["gpus"]) == (playground.PODS, playground.GPUS)
    [why] = playground.refusals(client)
    assert f"Insufficient {playground.GPU}" in why


def test_the_commands_of_the_page_free_the_gpus_and_every_example_completes(
    held: str, cluster: lab.Cluster, client: Client
) -> None:
    """In their order; the page waits for each job."""
    mark = f"```sh run by {Path(__file__).relative_to(ROOT)}\n"
    scripts = re.findall(rf"^{mark}(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for script in scripts:
        follow(cluster, script)

    assert scripts
    assert follow(cluster, held_in(playground.PROFILE) + held_in(playground.FORGOTTEN)).stdout == ""
