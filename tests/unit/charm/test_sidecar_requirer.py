"""A charm that asks for a sidecar, under any endpoint name, with one object of the library."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import ops
import pytest
from charms.istio_aux.v0 import sidecar
from charms.istio_aux.v0.sidecar import Mesh, SidecarRequirer
from ops import testing

REQUEST = {"application": "tensorboard", "model": "kubeflow"}
LIVE = Mesh(live=True, reason="istiod default", root_namespace="istio-system", meshed=True)


class Charm(ops.CharmBase):
    """As little as a charm needs; it notes what it is told, and when."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        (endpoint,) = self.meta.requires
        self.sidecar = SidecarRequirer(self, endpoint)
        self.told: list[Mesh | None] = []
        framework.observe(self.sidecar.on.changed, self._on_changed)

    def _on_changed(self, _: ops.EventBase) -> None:
        self.told.append(self.sidecar.mesh())


Context = testing.Context[Charm]


def context_of(charm: type[ops.CharmBase], endpoint: str) -> testing.Context[Any]:
    requires = {endpoint: {"interface": "istio_sidecar", "optional": True, "limit": 1}}
    return testing.Context(
        charm, meta={"name": "any", "requires": requires}, app_name="tensorboard"
    )


@pytest.fixture(params=["sidecar", "service-mesh"])
def endpoint(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ctx(endpoint: str) -> Iterator[Context]:
    with context_of(Charm, endpoint) as context:
        yield context


@pytest.fixture
def relation(endpoint: str) -> testing.Relation:
    return testing.Relation(endpoint, "istio_sidecar", remote_app_name="istio-aux")


def state(*relations: testing.Relation, leader: bool = True) -> testing.State:
    return testing.State(leader=leader, relations=relations, model=testing.Model("kubeflow"))


Event = Callable[[Context, testing.Relation], Any]
EVENTS: dict[str, Event] = {
    "the relation is there": lambda ctx, relation: ctx.on.relation_created(relation),
    "istio-aux answers": lambda ctx, relation: ctx.on.relation_changed(relation, remote_unit=0),
    "another unit leads": lambda ctx, _: ctx.on.leader_elected(),
    "the charm is refreshed": lambda ctx, _: ctx.on.upgrade_charm(),
}
events = pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)


@events
def test_the_leader_asks(ctx: Context, relation: testing.Relation, event: Event) -> None:
    out = ctx.run(event(ctx, relation), state(relation))

    assert out.get_relation(relation.id).local_app_data == REQUEST


@events
def test_other_units_leave_asking_to_the_leader(
    ctx: Context, relation: testing.Relation, event: Event
) -> None:
    out = ctx.run(event(ctx, relation), state(relation, leader=False))

    assert out.get_relation(relation.id).local_app_data == {}


@events
def test_what_was_asked_otherwise_is_put_right(
    ctx: Context, relation: testing.Relation, event: Event
) -> None:
    stale = dataclasses.replace(relation, local_app_data=REQUEST | {"model": "renamed"})

    out = ctx.run(event(ctx, stale), state(stale))

    assert out.get_relation(relation.id).local_app_data == REQUEST


def test_across_models_the_request_names_the_application_and_its_own_model(
    ctx: Context, relation: testing.Relation
) -> None:
    offer = dataclasses.replace(
        relation,
        remote_app_name="remote-0123456789abcdef0123456789abcdef",
        remote_model_uuid="5f1b3c8e-2d5a-4a0e-9c1e-000000000001",
    )

    out = ctx.run(ctx.on.relation_created(offer), state(offer))

    assert out.get_relation(offer.id).local_app_data == REQUEST


@pytest.mark.parametrize("leader", [True, False])
def test_every_unit_is_told_what_istio_aux_answers(
    ctx: Context, relation: testing.Relation, *, leader: bool
) -> None:
    answered = dataclasses.replace(relation, remote_app_data=LIVE.to_databag())
    event = ctx.on.relation_changed(answered, remote_unit=0)

    with ctx(event, state(answered, leader=leader)) as manager:
        manager.run()
        assert manager.charm.told == [LIVE]


def test_nobody_is_told_anything_when_nothing_changed(
    ctx: Context, relation: testing.Relation
) -> None:
    with ctx(ctx.on.update_status(), state(relation)) as manager:
        manager.run()
        assert manager.charm.told == []


@pytest.mark.parametrize(
    "databag", [{}, {"live": "maybe"}, {"reason": "nothing else"}, {"live": "\0"}]
)
def test_an_answer_that_is_missing_or_garbled_is_unknown(
    ctx: Context, relation: testing.Relation, databag: dict[str, str]
) -> None:
    garbled = dataclasses.replace(relation, remote_app_data=databag)

    with ctx(ctx.on.relation_changed(garbled, remote_unit=0), state(garbled)) as manager:
        manager.run()
        assert manager.charm.told == [None]


def test_without_a_relation_the_mesh_is_unknown(ctx: Context) -> None:
    with ctx(ctx.on.leader_elected(), state()) as manager:
        manager.run()
        assert manager.charm.sidecar.mesh() is None


def test_a_relation_that_goes_takes_its_answer_along(
    ctx: Context, relation: testing.Relation
) -> None:
    going = dataclasses.replace(relation, remote_app_data=LIVE.to_databag())

    with ctx(ctx.on.relation_broken(going), state(going)) as manager:
        manager.run()
        assert manager.charm.told == [None]


def test_of_two_answers_none_is_believed(ctx: Context, relation: testing.Relation) -> None:
    both = [
        dataclasses.replace(relation, id=number, remote_app_data=LIVE.to_databag())
        for number in (101, 102)
    ]

    with ctx(ctx.on.upgrade_charm(), state(*both)) as manager:
        out = manager.run()
        assert manager.charm.sidecar.mesh() is None
    assert [r.local_app_data for r in out.relations] == [REQUEST, REQUEST]


@events
def test_the_status_is_the_charms_own(
    ctx: Context, relation: testing.Relation, event: Event
) -> None:
    answered = dataclasses.replace(relation, remote_app_data=Mesh(live=False).to_databag())

    out = ctx.run(event(ctx, answered), state(answered))

    assert out.unit_status == testing.UnknownStatus()


def documented() -> type[ops.CharmBase]:
    """The charm in the library's documentation."""
    (text,) = re.findall(r"```python\n(.*?)```", sidecar.__doc__ or "", re.DOTALL)
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, "documentation", "exec", dont_inherit=True), scope)
    return scope["Charm"]


@pytest.mark.parametrize(
    ("databag", "status"),
    [
        ({}, testing.ActiveStatus()),
        (LIVE.to_databag(), testing.ActiveStatus()),
        (Mesh(False, "no injector found").to_databag(), testing.WaitingStatus("no injector found")),
        (
            Mesh(True, meshed=False, meshed_reason="a-0 has no sidecar").to_databag(),
            testing.WaitingStatus("a-0 has no sidecar"),
        ),
    ],
    ids=["no answer", "meshed", "not live", "not meshed"],
)
def test_the_documented_charm_works(databag: dict[str, str], status: ops.StatusBase) -> None:
    relation = testing.Relation("sidecar", "istio_sidecar", remote_app_data=databag)
    with context_of(documented(), "sidecar") as ctx:
        out = ctx.run(ctx.on.relation_changed(relation, remote_unit=0), state(relation))

    assert out.get_relation(relation.id).local_app_data == REQUEST
    assert out.unit_status == status
