"""A pod that is Terminating for a week: what `audit`, `explain` and `quit` say of it."""

from __future__ import annotations

from pathlib import Path

import yaml
from unit.apiserver import ApiServer
from unit.screens import Ask, Run, objects

CASE = Path(__file__).parents[1] / "data/cases/09-terminating-for-a-week.yaml"
REASON = (
    "the pod is being deleted since 2026-11-21 01:00Z; as the kubelet last said, every container"
    " has ended; the node does not finish"
)


async def test_a_pod_that_is_terminating_for_a_week_is_a_holder_like_any_other(ask: Ask) -> None:
    """istio.io#16748."""
    async with ApiServer() as api:
        api.put("pods", yaml.safe_load(CASE.read_text()))
        table = await ask(api, "audit", columns=None)
        [found] = objects(await ask(api, "audit", "-o", "json"))
        holders = await ask(api, "audit", "--holders", columns=None)
        [explained] = objects(await ask(api, "explain", "team/train-old", "-o", "json"))
        freed = await ask(api, "quit", "team/train-old", columns=None)
    assert f"2026-11-21 01:00Z  {REASON}\n" in table.out
    assert (found["state"], found["code"], found["reason"]) == ("blocked", "IA0125", REASON)
    assert (found["by"], found["requests"]) == (["node n1"], {"gpus": 8})
    assert holders.out == "1 pod is kept by node n1 since 2026-11-21 01:00Z: 8 GPUs\n"
    assert (explained["state"], explained["code"], explained["reason"]) == (
        "blocked", "IA0125", REASON,
    )  # fmt: skip
    assert "kept" in freed.out
    assert REASON in freed.out


def test_a_file_says_the_same(run: Run) -> None:
    [explained] = objects(run("explain", "-f", str(CASE), "-o", "json"))
    assert (explained["state"], explained["reason"]) == ("blocked", REASON)
