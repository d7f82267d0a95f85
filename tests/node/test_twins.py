"""Job-like pods with istio-aux are never worse off than beside Istio's injection alone.

Twelve pairs by day. Those of `tox -e twins` are drawn from a seed, in four worlds of Istio, with
outages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import lab.istio
import pytest
from lab.workloads import NATIVE
from twins import manifests, player
from twins.judge import COMPLETE, losses, told, verdict
from twins.manifests import Pair
from twins.player import Played

# Native unasked an init container is in the mesh. On request these are held: it is not.
UNASKED = (*manifests.IN_THE_MESH, *manifests.OPTED_OUT)
ON_REQUEST = manifests.HELD
BY_DAY = [
    *(pytest.param("unasked", pair, id=pair.name, marks=NATIVE.needed) for pair in UNASKED),
    *(pytest.param("on-request", pair, id=pair.name) for pair in ON_REQUEST),
]


@pytest.fixture(scope="module")
def played(
    cluster: lab.Cluster, istio: lab.istio.Istio, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[tuple[str, str], Played]]:
    """The pairs at their ends, by world and name."""
    player.load(cluster)
    folder = tmp_path_factory.mktemp("twins")
    with (
        player.world(cluster, "unasked") as unasked,
        player.world(cluster, "on-request") as on_request,
        ThreadPoolExecutor(2) as pool,
    ):
        batches = [(unasked, UNASKED), (on_request, ON_REQUEST)]
        ended = pool.map(lambda batch: player.play(batch[0], folder, batch[1]), batches)
        yield {
            (beside.name, one.pair.name): one
            for (beside, _), found in zip(batches, ended, strict=True)
            for one in found
        }


@pytest.mark.parametrize(("world", "pair"), BY_DAY)
def test_no_job_is_worse_off_than_its_twin(
    played: Mapping[tuple[str, str], Played], world: str, pair: Pair
) -> None:
    """eventing#6804, website#57244, cloud-sql-proxy#1803."""
    _, ours, twin = played[world, pair.name]

    assert losses(ours, twin) == {}, told(pair, ours, twin)
    assert ours.end == pair.ends, told(pair, ours, twin)


def test_a_job_that_is_held_and_completes_is_better_off(
    played: Mapping[tuple[str, str], Played],
) -> None:
    """Beside a classic proxy it hangs, or fails before the proxy is there."""
    found = {
        pair.name: verdict(*played["on-request", pair.name][1:])
        for pair in ON_REQUEST
        if pair.ends == COMPLETE
    }
    assert found == dict.fromkeys(found, "better")
    assert found
