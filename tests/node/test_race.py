"""The deployment race: charms, then Istio, then another charm; afterwards all have a sidecar.

As canonical/istio-operators tells it. A model whose charms an administrator names, and another one
whose charm asks by itself, with the library; packed charms, their `dispatch`. This file is played
first, while the tier's Kubernetes has no Istio yet; its istio-aux is that of the later files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import lab.istio
import lab.juju
import pytest
from demo.node import MODEL
from lab import images
from lab.fixtures import ROOT
from lab.juju.kubernetes import run_application
from lab.meshed import has_sidecar, is_ready, meta
from lightkube import Client
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.core_v1 import Namespace, Pod

from tools import pack

ELSEWHERE = "elsewhere"
EARLY, LATE, ASKING = ("charm-a", "charm-b"), "charm-c", "asking"
UNMESHED = {*(f"{name}-0" for name in EARLY), f"{ASKING}-0"}


@dataclass(frozen=True)
class Seen:
    """How things were in both models at one moment."""

    pods: Mapping[str, Pod]
    stateful_sets: Mapping[str, Any]  # Without their status.
    status: str  # The message of istio-aux in `juju status`.
    answer: Mapping[str, str]  # Of istio-aux to the asking charm over their relation.
    asking: tuple[str, str]  # Status and message of the asking charm.

    def meshed(self) -> set[str]:
        return {name for name, pod in self.pods.items() if has_sidecar(pod)}

    def uids(self) -> dict[str, str]:
        return {name: str(pod.metadata and pod.metadata.uid) for name, pod in self.pods.items()}


@dataclass(frozen=True)
class World:
    """Two models, related, and how to look at them."""

    client: Client
    istio_aux: lab.juju.App  # In the model whose charms an administrator names.
    asking: lab.juju.App  # In the other one.
    relation: lab.juju.Relation  # Between them, as the asking charm sees it.
    offered: lab.juju.Relation  # The same as istio-aux sees it.

    def look(self) -> Seen:
        return Seen(
            pods={
                str(meta(pod).name): pod
                for model in (MODEL, ELSEWHERE)
                for pod in self.client.list(Pod, namespace=model)
            },
            stateful_sets={
                str(meta(found).name): written(found)
                for model in (MODEL, ELSEWHERE)
                for found in self.client.list(StatefulSet, namespace=model)
            },
            status=self.istio_aux.status()[1],
            answer=dict(self.relation.data(self.istio_aux.name)),
            asking=self.asking.status(),
        )

    def settle(self) -> None:
        # What one application writes is an event for the other, and so is the answer.
        for app in (self.istio_aux, self.asking, self.istio_aux, self.asking):
            app.settle(waiting=True)

    def await_pods(self, *names: str, meshed: bool = False) -> None:
        """Return when these pods are ready, with a sidecar if they are to be meshed."""

        def there() -> bool:
            seen = self.look()
            ready = {name for name, pod in seen.pods.items() if is_ready(pod)}
            return {*names} <= (ready & seen.meshed() if meshed else ready)

        lab.until(there, what=f"{', '.join(names)} to be there, meshed: {meshed}")

    def await_answer(self, **answer: str) -> Seen:
        """Return how things are once the asking charm has this answer, and shows it."""

        def shown() -> Seen | None:
            seen = self.look()
            given = answer.items() <= seen.answer.items()
            return seen if given and seen.asking[1] in {*seen.answer.values(), "meshed"} else None

        return lab.until(shown, what=f"the asking charm to get the answer {answer}")


def written(stateful_set: StatefulSet) -> tuple[Any, ...]:
    managers = meta(stateful_set).managedFields or []
    return (
        meta(stateful_set).generation,
        stateful_set.spec and stateful_set.spec.to_dict(),
        [m.to_dict() for m in managers if m.subresource != "status"],
    )


NOTICE = "istio-aux-pebble-custom-notice"
# At most 10 s after the last notice. Juju's update-status comes after minutes.
PROMPT = 90.0


@pytest.fixture(scope="module")
def world(
    cluster: lab.Cluster, client: Client, deploy: Callable[[], lab.juju.App]
) -> Iterator[World]:
    """Two charms run; istio-aux and the asking charm are settled."""
    cluster.load(images.busybox())
    with lab.juju.Model(cluster, ELSEWHERE) as there:
        run_application(client, ELSEWHERE, ASKING)
        asking = there.deploy(pack.pack(ROOT / "tests/lab/juju/asking"))
        istio_aux = deploy()
        for name in EARLY:
            run_application(client, MODEL, name)
        istio_aux.configure(inject_applications="*")
        ends = lab.juju.consume(asking, "proxy-beside-me", istio_aux, "sidecar")
        made = World(client, istio_aux, asking, *ends)
        made.await_pods(*UNMESHED)
        made.settle()
        yield made
        istio_aux.configure(inject_applications="", race_policy="report")
        istio_aux.settle()
    client.delete(Namespace, ELSEWHERE)
    for name in (*EARLY, LATE):
        client.delete(StatefulSet, name, namespace=MODEL)


@pytest.fixture(scope="module")
def before(world: World) -> Seen:
    """While there is no Istio."""
    return world.await_answer(live="false")


def test_a_charm_that_asks_learns_why_nothing_injects_yet(before: Seen) -> None:
    assert before.answer["live"] == "false"
    assert before.answer["reason"]
    assert before.asking == ("waiting", before.answer["reason"])


@dataclass(frozen=True)
class Told:
    """How the charm learnt of Istio, and how things were then, with another charm deployed."""

    by: lab.juju.Outcome  # After this dispatch the asking charm was told that Istio injects.
    seconds: float  # From the change that lets the API server trust istiod until it began.
    unmeshed: Mapping[str, Any]  # What the action `list-unmeshed` answers.
    seen: Seen


@pytest.fixture(scope="module")
def told(world: World, before: Seen, cluster: lab.Cluster) -> Iterator[Told]:
    """Istio is installed, and one more charm deployed; istio-aux is to report only."""
    istio = lab.istio.install(cluster, writes_ca=False)
    lab.until(lambda: world.look().answer != before.answer, what="an answer that there is Istio")
    world.settle()  # A hook that still runs could read the trust that is written below.
    history = world.istio_aux.leader.history
    known, begun = len(history), time.time()
    istio.trust(istio.bundle)
    lab.until(lambda: world.look().answer["live"] == "true", what="an answer that Istio injects")
    istio.await_live()
    by = [outcome for outcome in history[known:] if "relation-set" in outcome.tools][-1]
    run_application(world.client, MODEL, LATE)
    world.await_pods(f"{LATE}-0")
    world.settle()
    unmeshed = world.istio_aux.action("list-unmeshed").results
    seen = world.await_answer(live="true", meshed="false")
    yield Told(by, by.began - begun, unmeshed["results"], seen)
    istio.remove()


def test_a_notice_of_the_workload_wakes_the_charm_once_istio_is_live(
    told: Told, record_testsuite_property: Callable[[str, object], None]
) -> None:
    record_testsuite_property("seconds from trust in istiod to dispatch", round(told.seconds, 2))
    assert told.by.event == NOTICE
    assert told.by.environment["JUJU_NOTICE_KEY"] == "istio-aux.io/changed"
    assert 0 < told.seconds < PROMPT


def test_reporting_names_the_pods_without_a_sidecar_and_changes_none(
    before: Seen, told: Told
) -> None:
    """istio#3716: pods that were made while there was no injector are found."""
    listed = [line for line in str(told.unmeshed["pods"]).splitlines() if line]
    assert {name for name in told.seen.pods if any(name in line for line in listed)} == UNMESHED
    assert "3 outside the mesh" in told.seen.status
    assert told.seen.uids() == {**told.seen.uids(), **before.uids()}


def test_a_charm_that_comes_once_istio_is_live_has_its_sidecar_at_once(told: Told) -> None:
    assert told.seen.meshed() == {f"{LATE}-0"}


def test_a_charm_whose_pods_were_created_too_early_learns_which_have_no_sidecar(told: Told) -> None:
    assert told.seen.answer["meshed"] == "false"
    assert told.seen.asking == ("waiting", told.seen.answer["meshed-reason"])


@pytest.fixture(scope="module")
def after(world: World, told: Told) -> Seen:
    """Once what missed its sidecar was to be restarted."""
    world.istio_aux.configure(race_policy="restart")
    world.await_pods(*UNMESHED, meshed=True)
    return world.await_answer(meshed="true")


def test_afterwards_all_charms_have_a_sidecar_whenever_they_came(after: Seen) -> None:
    """istio#15873: a pod is restarted once its replacement would have one, not before."""
    assert after.meshed() == {*UNMESHED, f"{LATE}-0"}


def test_nobody_patched_a_stateful_set(before: Seen, told: Told, after: Seen) -> None:
    assert after.stateful_sets == {**before.stateful_sets, LATE: told.seen.stateful_sets[LATE]}


def test_what_had_its_sidecar_is_not_restarted(told: Told, after: Seen) -> None:
    assert after.uids()[f"{LATE}-0"] == told.seen.uids()[f"{LATE}-0"]


def test_the_asking_charm_learns_that_its_pods_are_meshed(after: Seen) -> None:
    assert (after.answer["live"], after.answer["meshed"]) == ("true", "true")
    assert after.asking == ("active", "meshed")


def test_when_the_relation_ends_nothing_asks_for_sidecars(world: World, after: Seen) -> None:
    for end in (world.relation, world.offered):
        end.remove()
    world.settle()
    files = world.istio_aux.leader.containers["istio-aux"].files()
    asked = (files / "etc/istio-aux/applications").read_text()
    assert f"{MODEL}/*" in asked
    assert ASKING not in asked
