"""Trials of Katib on a real kubelet: which complete with their metric stored, and which hang.

Katib's part is written down, and its collector is a stand-in: see `lab.workloads`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import lab.juju
import pytest
from istio_aux.quit.pairs import KATIB_FIX
from lab import workloads
from lab.fixtures import list_stuck
from lab.workloads import Seen, Workload, await_address, look
from lightkube import Client

NATIVE = {"sidecar.istio.io/nativeSidecar": "true"}
# By name: where, and `waitAllProcesses` in Katib's configuration.
TRIALS = {
    "plain": ("plain", None),
    "classic-waits-for-all": ("classic", None),
    "classic": ("classic", "false"),
    "native-waits-for-all": ("native", "true"),
    "native": ("native", "false"),
}
COMPLETE = ("plain", "classic", "native")
HANGING = ("classic-waits-for-all", "native-waits-for-all")


@pytest.fixture(scope="module")
def stored(client: Client, places: Mapping[str, str]) -> Mapping[str, str]:
    """Run all trials at once, until those that can have completed, and all others hang; the log of
    the database."""
    manager = Workload("katib-db-manager", workloads.database())
    database = await_address(client, manager, places["plain"])
    for name, (place, wait) in TRIALS.items():
        annotations = NATIVE if place == "native" else None
        job = workloads.trial(name, database, wait_all_processes=wait, annotations=annotations)
        client.create(Workload(name, job, "Complete", ()).in_namespace(places[place]))
    for name in COMPLETE:
        lab.until(
            lambda name=name: seen(client, places, name).over, what=f"the trial {name} to complete"
        )
    for name in HANGING:
        lab.until(
            lambda name=name: workloads.TRIAL in ended(client, places, name),
            what=f"the training of {name} to end",
        )
    return {"log": "".join(client.log("katib-db-manager", namespace=places["plain"]))}


def seen(client: Client, places: Mapping[str, str], trial: str) -> Seen:
    return look(client, Workload(trial, {"kind": "Job"}, "Complete", ()), places[TRIALS[trial][0]])


def ended(client: Client, places: Mapping[str, str], trial: str) -> dict[str, int]:
    """The exit codes of those containers of the trial that have ended."""
    [pod] = seen(client, places, trial).pods
    states = {one["name"]: one["state"] for one in pod["status"].get("containerStatuses") or []}
    return {
        name: state["terminated"]["exitCode"]
        for name, state in states.items()
        if "terminated" in state
    }


@pytest.mark.parametrize("trial", COMPLETE)
def test_a_trial_completes_with_its_metric_stored(
    stored: Mapping[str, str], client: Client, places: Mapping[str, str], trial: str
) -> None:
    """The collector ends after the training, and a classic proxy after the collector.

    argo-workflows#1282.
    """
    assert f"{trial} loss=0.25\n" in stored["log"]
    codes = ended(client, places, trial)
    assert {workloads.TRIAL: 0, workloads.COLLECTOR: 0}.items() <= codes.items()
    assert set(codes.values()) == {0}


@pytest.mark.parametrize("trial", HANGING)
def test_a_trial_whose_collector_waits_for_the_proxy_hangs_and_is_named_with_the_setting(
    stored: Mapping[str, str],
    client: Client,
    places: Mapping[str, str],
    istio_aux: lab.juju.App,
    trial: str,
) -> None:
    """katib#1638, katib#2614: with a classic sidecar and with a native one."""
    name = seen(client, places, trial).pods[0]["metadata"]["name"]
    namespace = places[TRIALS[trial][0]]

    def named() -> list[str]:
        found = json.loads(list_stuck(istio_aux)["json"])
        return [
            one["reason"] for one in found if (one["namespace"], one["name"]) == (namespace, name)
        ]

    [reason] = lab.until(named, what=f"{trial} to be listed")
    explained = istio_aux.action("explain", pod=f"{namespace}/{name}").results["results"]

    assert KATIB_FIX in reason
    assert KATIB_FIX in explained["explanation"]
    assert ended(client, places, trial) == {workloads.TRIAL: 0}
    assert f"{trial} " not in stored["log"]
