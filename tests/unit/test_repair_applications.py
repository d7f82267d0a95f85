"""What is said of applications that ask for sidecars, and how the file that names them counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from istio_aux.model.applications import Applications, parse
from istio_aux.model.policy import RacePolicy, RepairPolicy, State
from istio_aux.repair.reports import ApplicationMesh, follow_applications
from unit.asynchronous import background, until
from unit.repairing import SIDECAR, World, cluster, mesh
from unit.rules.mesh import INJECT
from unit.rules.unmeshed import REPORT, STATEFUL

NAME = "app.kubernetes.io/name"
WEB = {NAME: "web"}


def said(world: World) -> ApplicationMesh:
    """Of the only application that asks by name."""
    (found,) = world.repair.applications()
    return found


def ask(world: World, text: str = "bank/web") -> None:
    """In a namespace of which Istio injects only pods that ask for it."""
    world.namespaces.setdefault("bank", {})
    world.repair.set_applications(parse(text)[0])


async def test_pods_of_an_application_that_asks_are_unmeshed_without_a_sidecar() -> None:
    async with cluster(policy=REPORT) as world:
        await world.pod("web-0", namespace="bank", labels=WEB)
        await world.pod("db-0", namespace="bank", labels={NAME: "db"})
        await world.pod("out-0", namespace="bank", labels={**WEB, INJECT: "false"})
        await world.known(3)
        ask(world)
        await world.found("web-0")
        ask(world, "bank/*")
        await world.found("web-0", "db-0")
        ask(world, "")
        await world.found()


async def test_an_application_is_restarted_once_a_new_pod_would_get_its_sidecar() -> None:
    """Our own admission is in force a moment later than this process leads."""
    async with cluster() as world:
        ask(world)
        world.api.injects = False
        await world.pod("web-0", namespace="bank", labels=WEB, owner=STATEFUL)
        await world.pod("other", labels={NAME: "other"}, owner_uid="owner-2")
        why = "a new pod would get no sidecar: it gives no sidecar to a pod that asks for one"
        await until(lambda: why in world.unmeshed.get("web-0", ""), "it waits")
        # Of those that only Istio is asked about it is known that the injector is live.
        await until(lambda: world.restarts("stopped") == 1, "the other one is tried")
        assert world.api.evictions == ["other"]
        world.api.injects = True
        await until(lambda: said(world).meshed, "it is meshed")
        assert world.api.evictions == ["other", "web-0"]
        assert world.api.dry_runs
        assert all(pod["metadata"]["labels"] == WEB for pod in world.api.dry_runs)


async def test_a_pod_is_not_evicted_while_the_dry_run_of_a_new_one_fails() -> None:
    """The right to create pods in a dry run may be missing."""
    async with cluster() as world:
        ask(world)
        world.api.refuse("/namespaces/bank/pods", 403, "Forbidden", "no right")
        await world.pod("web-0", namespace="bank", labels=WEB, owner=STATEFUL)
        why = "not known whether a new pod would get a sidecar: 403 Forbidden: no right"
        await until(lambda: why in world.unmeshed.get("web-0", ""), "it waits")
        assert world.api.evictions == []


async def test_an_application_is_meshed_when_each_of_its_pods_is() -> None:
    async with cluster(policy=REPORT) as world:
        ask(world)
        await until(lambda: said(world).meshed_reason == "it has no pod that runs", "nothing")
        assert said(world).meshed is None
        await world.pod("web-0", SIDECAR, namespace="bank", labels=WEB, phase="Pending")
        await world.known(1)
        assert said(world).meshed is None
        await world.pod("web-0", SIDECAR, namespace="bank", labels=WEB)
        await until(lambda: said(world).meshed, "it is meshed")
        assert said(world).meshed_reason == "1 of 1 pods have a sidecar"
        for number in range(1, 6):
            await world.pod(f"web-{number}", namespace="bank", labels=WEB)
        await world.pod("web-6", namespace="bank", labels=WEB, deleting=True)
        await world.known(7)
        assert said(world).meshed is False
        reason = "without a sidecar: web-1, web-2, web-3 and 2 more"
        assert said(world).meshed_reason == reason


async def test_an_application_is_live_when_a_new_pod_of_it_would_get_a_sidecar() -> None:
    async with cluster(known=mesh(known=False)) as world:
        ask(world)
        assert (said(world).live, said(world).revision) == (None, "")
        world.repair.set_injectors(mesh(State.NO_ENDPOINT))
        assert (said(world).live, said(world).live_reason) == (False, "so")
        world.repair.set_injectors(mesh())
        found = said(world)
        assert (found.live, found.live_reason) == (True, "so")
        assert (found.revision, found.root_namespace) == ("default", "istio-system")


@pytest.mark.parametrize(
    ("labels", "reason", "entry"),
    [
        ({"istio-injection": "disabled"}, 'label istio-injection: "disabled"', "bank/web"),
        ({"istio.io/dataplane-mode": "ambient"}, 'dataplane-mode: "ambient"', "bank/*"),
    ],
)
async def test_a_namespace_that_forbids_injection_is_reported(
    labels: dict[str, str], reason: str, entry: str
) -> None:
    async with cluster() as world:
        ask(world, entry)
        await world.relabel("bank", labels)
        await world.pod("web-0", namespace="bank", labels=WEB)
        await world.known(1)
        await until(lambda: said(world).meshed is False, "it is seen")
        assert f"bank/{said(world).name}" == entry
        assert said(world).live is False
        assert reason in said(world).live_reason
        assert (world.unmeshed, world.api.evictions) == ({}, [])


async def test_an_application_is_neither_meshed_nor_not_while_pods_are_not_watched() -> None:
    async with cluster(policy=RepairPolicy(race=RacePolicy.OFF)) as world:
        ask(world)
        await world.pod("web-0", namespace="bank", labels=WEB)
        await world.known(1)
        assert (said(world).meshed, said(world).meshed_reason) == (None, "race-policy: off")
        assert said(world).live is True
        assert world.unmeshed == {}


async def test_changes_of_the_file_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may come, change and go; a bad line is told once, and one that cannot be read is kept."""
    path, told = tmp_path / "applications", list[Applications]()
    async with background(follow_applications(path, told.append, 0.01)):
        path.write_text("shop/web\nnonsense\n")
        await until(lambda: len(told) == 1, "it is read")
        path.unlink()
        path.mkdir()
        await until(lambda: len(caplog.records) == 2, "it cannot be read")
        path.rmdir()
        await until(lambda: len(told) == 2, "it is gone")
    web, nothing = parse("shop/web")[0], Applications()
    assert told == [web, nothing]
    first, second = (record.getMessage() for record in caplog.records)
    assert first.endswith(
        'applications: line 2: "nonsense": expected model/app, model/* for all its applications,'
        " or namespace/** for all pods"
    )
    assert "Is a directory" in second
