"""What holds for every pod and every course of events, not only for those somebody thought of."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from istio_aux.injector.injection import Expectation
from istio_aux.model import owners
from istio_aux.model import pod as pods
from istio_aux.model.policy import Application, RacePolicy, RepairPolicy
from istio_aux.repair import rollout
from istio_aux.repair import rules as repair
from unit.rules.pods import RUNNING, exited
from unit.rules.restart_world import World
from unit.rules.unmeshed import raw

KINDS = [
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
    ("batch/v1", "Job"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("kubeflow.org/v1", "TFJob"),
]
OTHERS = [None, ("example.org/v1", "Job"), ("v1", "Node")]
INJECT, NAME = "sidecar.istio.io/inject", "app.kubernetes.io/name"
DEVIATIONS: list[tuple[str, Any]] = [
    *(("labels", {INJECT: value}) for value in ("true", "false", "False")),
    *(("annotations", {INJECT: value}) for value in ("true", "false", "False")),
    *(("labels", {NAME: value}) for value in ("istio-aux", "web")),
    *(("labels", {"operator.juju.is/name": value}) for value in ("modeloperator", "web")),
    *(("labels", {key: ""}) for key in ("juju-modeloperator", "model.juju.is/disable-webhook")),
    ("annotations", {"sidecar.istio.io/status": "{}"}),
    ("annotations", {"kubernetes.io/config.mirror": "8f2e"}),
    *(("namespace", value) for value in ("kubeflow", "kube-system", "local-path-storage")),
    *(("phase", value) for value in ("Pending", "Succeeded", "Failed", "Unknown", None)),
    *(("containers", {name: RUNNING}) for name in ("log", "istio-proxy")),
    *(("containers", {name: exited(0)}) for name in ("main", "log")),
    *(("sidecars", {name: RUNNING}) for name in ("vault", "istio-proxy")),
    *(("spec", {"hostNetwork": value}) for value in (True, False)),
    *((name, "") for name in ("uid", "version", "owner_uid")),
    ("deleting", True),
]
"""What may be unusual about a pod: a field of `raw`, and its value or an addition to it."""


@st.composite
def documents(draw: st.DrawFn, owner: tuple[str, str] | None) -> dict[str, Any]:
    """A pod's JSON. Few things are unusual at a time, or nothing would ever be restarted."""
    fields: dict[str, Any] = {"containers": {"main": RUNNING}, "labels": {}, "annotations": {}}
    for name, value in draw(st.lists(st.sampled_from(DEVIATIONS), max_size=3)):
        fields[name] = fields.get(name, {}) | value if isinstance(value, dict) else value
    found = raw(owner=owner, restart=draw(RESTARTS), **fields)
    for reference in found["metadata"].get("ownerReferences", []):
        reference["controller"] = draw(mostly(True, False, None))
    return found


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """The first value is drawn twice as often as all others together."""
    return st.sampled_from([usual] * (2 * len(others)) + list(others))


RESTARTS = st.sampled_from(["Always", "OnFailure", "Never"])
POLICIES = st.builds(
    RepairPolicy,
    race=mostly(RacePolicy.RESTART, RacePolicy.REPORT, RacePolicy.OFF),
    restart_jobs=mostly(True, False),
    ours=st.sampled_from([None, Application("kubeflow", "istio-aux")]),
)
EXPECTATIONS = mostly(True, None, False).map(
    lambda expected: Expectation(expected=expected, reason="because")
)


def allowed(found: dict[str, Any], policy: RepairPolicy, *, finished: bool) -> bool:
    """Whether a pod may be restarted, read from its JSON, in other words than the code's."""
    meta, spec, status = found["metadata"], found["spec"], found["status"]
    labels, notes = meta["labels"], meta["annotations"]
    names = {container["name"] for container in spec["containers"] + spec["initContainers"]}
    owners = [owner for owner in meta.get("ownerReferences", []) if owner["controller"]]
    if len(owners) != 1 or not (owners[0]["uid"] and meta["uid"] and meta["resourceVersion"]):
        return False
    kind = (owners[0]["apiVersion"], owners[0]["kind"])
    over = all("terminated" in s["state"] for s in status["containerStatuses"])
    forbidden = (
        kind not in KINDS,
        "deletionTimestamp" in meta,
        status["phase"] not in {"Running", "Pending"},
        "istio-proxy" in names,
        notes.keys() & {"sidecar.istio.io/status", "kubernetes.io/config.mirror"},
        spec.get("hostNetwork"),
        meta["namespace"] in {"kube-system", "local-path-storage"},
        {**notes, **labels}.get("sidecar.istio.io/inject") == "false",
        labels.keys() & {"juju-modeloperator", "model.juju.is/disable-webhook"},
        labels.get("operator.juju.is/name") == "modeloperator",
        policy.ours
        and meta["namespace"] == "kubeflow"
        and labels.get("app.kubernetes.io/name") == "istio-aux",
        kind in KINDS[2:] and not policy.restart_jobs,
        kind == KINDS[2] and finished,
        kind in KINDS[2:] and over and spec["restartPolicy"] != "Always",
    )
    return policy.race is RacePolicy.RESTART and not any(forbidden)


@pytest.mark.parametrize("owner", KINDS + OTHERS, ids=str)
def test_restarts_are_proposed_for_allowed_pods_and_for_no_others(
    owner: tuple[str, str] | None,
) -> None:
    """T41; and every pod gets an answer with a reason of one line."""

    @settings(max_examples=60)
    @given(
        documents(owner),
        EXPECTATIONS,
        POLICIES,
        mostly(False, True),
        mostly(True, False, None),
    )
    def check(
        found: dict[str, Any],
        expectation: Expectation,
        policy: RepairPolicy,
        finished: bool,
        live: bool | None,
    ) -> None:
        pod = pods.convert(found)
        job = owners.GONE if finished and owner == KINDS[2] else None
        decision = repair.decide(pod, expectation, policy, live=live, job=job)
        assert isinstance(decision, repair.RepairAction)
        assert decision.reason
        assert "\n" not in decision.reason
        may = live is True and expectation.expected is True
        may = may and allowed(found, policy, finished=finished)
        assert isinstance(decision, repair.Restart) is may, decision

    check()


@given(st.integers(0, 2**32))
def test_at_most_one_restart_is_under_way_for_each_controller(seed: int) -> None:
    """T41: whatever is refused, lost, late or unmeshed again, however the pods come and go, who
    else restarts them, and whoever leads, whatever the clock of that process shows.
    """
    live(World(Random(seed)))


def live(world: World) -> None:
    """Let things happen for a while."""
    for number in range(60):
        world.happen()
        if number % 7 == 6:
            world.change_leader()
        world.look()
        world.act()


def test_the_table_of_a_rollout_s_states_is_true() -> None:
    """All transitions that happen are in it, and all that are in it happen."""
    assert rollout.__doc__
    row = r"(\w+(?: off)?) +`(\w+)`.*  (\w+(?: off)?)"
    rows = (re.fullmatch(row, line) for line in rollout.__doc__.splitlines())
    table = {(found[1], found[2], found[3]) for found in rows if found}
    happened = set[tuple[str, str, str]]()
    for seed in range(300):
        world = World(Random(seed))
        live(world)
        happened |= world.transitions
    # Both processes have evicted, and neither has seen the end: see `test_rollout`.
    rare = {
        ("replacing", "restored", "replacing"),
        ("replacing", "restored", "failed"),
        ("failed", "observed", "replacing"),
    }
    assert happened == table - rare
