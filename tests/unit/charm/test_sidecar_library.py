"""The relation library: its databags, the provider, and a charm that asks for a sidecar."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ops
import pytest
from charms.istio_aux.v0 import sidecar
from charms.istio_aux.v0.sidecar import (
    Asked,
    Mesh,
    SidecarProvider,
    SidecarRequest,
    SidecarRequirer,
)
from hypothesis import example, given
from hypothesis import strategies as st
from ops import testing

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(NAMES, NAMES)
@example("a" * 63, "0")
def test_every_application_in_every_model_can_ask(application: str, model: str) -> None:
    request = SidecarRequest(application, model)

    assert SidecarRequest.from_databag(request.to_databag()) == request


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(live=True, reason="istiod default", root_namespace="kubeflow", revision="default"),
        Mesh(live=True, meshed=True),
        Mesh(live=True, meshed=False, meshed_reason="a-0 has no sidecar"),
        Mesh(live=False, meshed=None, meshed_reason="pods cannot be listed"),
    ],
)
def test_the_state_of_the_mesh_is_read_as_it_was_written(mesh: Mesh) -> None:
    assert Mesh.from_databag(mesh.to_databag()) == mesh


@pytest.mark.parametrize("databag", [{}, {"live": ""}, {"live": "True"}, {"live": "maybe"}])
def test_unknown_is_never_live(databag: dict[str, str]) -> None:
    assert Mesh.from_databag(databag) is None


@pytest.mark.parametrize("databag", [{}, {"meshed": "unknown"}, {"meshed": "1"}])
def test_unknown_pods_are_neither_meshed_nor_unmeshed(
    databag: dict[str, str],
) -> None:
    mesh = Mesh.from_databag({"live": "true"} | databag)

    assert mesh is not None
    assert mesh.meshed is None


def test_databags_of_the_first_version_are_still_read() -> None:
    written = {"live": "true", "reason": "istiod default", "revision": "default"}

    assert Mesh.from_databag(written) == Mesh(True, "istiod default", revision="default")


def test_keys_of_a_later_version_are_ignored() -> None:
    assert Mesh.from_databag({"live": "true", "new": "key"}) == Mesh(live=True)


MESH = Mesh(live=True, reason="istiod default", revision="default", meshed=True)
EXPECTED = "expected up to 63 lower-case letters, digits and hyphens"


class Provider(ops.CharmBase):
    """A charm that provides the interface and does nothing of its own."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self.sidecar = SidecarProvider(self)


@pytest.fixture
def provider() -> Iterator[testing.Context[Provider]]:
    meta = {"name": "istio-aux", "provides": {"sidecar": {"interface": "istio_sidecar"}}}
    with testing.Context(Provider, meta=meta) as context:
        yield context


def asking(number: int, application: str, model: str = "kubeflow") -> testing.Relation:
    return related(number, {"application": application, "model": model})


def related(number: int, databag: dict[str, str]) -> testing.Relation:
    return testing.Relation(
        "sidecar", "istio_sidecar", id=number, remote_app_name="asker", remote_app_data=databag
    )


def requests(
    provider: testing.Context[Provider], *relations: testing.Relation, leader: bool = True
) -> list[Asked]:
    with provider(
        provider.on.update_status(), testing.State(leader=leader, relations=relations)
    ) as manager:
        return manager.charm.sidecar.requests()


@pytest.mark.parametrize("leader", [True, False])
def test_every_unit_reads_the_requests(
    provider: testing.Context[Provider], *, leader: bool
) -> None:
    found = requests(
        provider, asking(8, "serving", "other"), asking(7, "tensorboard"), leader=leader
    )

    assert found == [
        Asked(7, SidecarRequest("tensorboard", "kubeflow")),
        Asked(8, SidecarRequest("serving", "other")),
    ]


def test_an_empty_databag_is_no_request(provider: testing.Context[Provider]) -> None:
    assert requests(provider, related(7, {})) == []


@pytest.mark.parametrize(
    ("databag", "reason"),
    [
        ({"application": "a"}, "asker: model: missing"),
        ({"model": "m"}, "asker: application: missing"),
        (
            {"application": "*", "model": "m"},
            f'asker: application "*": {EXPECTED}',
        ),
        (
            {"application": "a", "model": "kube\nflow"},
            f'asker: model "kube\\nflow": {EXPECTED}',
        ),
        (
            {"application": "a" * 64, "model": "m"},
            f'asker: application "{"a" * 60}"…: {EXPECTED}',
        ),
    ],
)
def test_an_invalid_request_is_read_with_the_reason(
    provider: testing.Context[Provider], databag: dict[str, str], reason: str
) -> None:
    found = requests(provider, related(7, databag), asking(8, "serving"))

    assert found == [Asked(7, None, reason), Asked(8, SidecarRequest("serving", "kubeflow"))]


def test_a_relation_that_goes_is_no_request(provider: testing.Context[Provider]) -> None:
    going, staying = asking(7, "tensorboard"), asking(8, "serving")
    state = testing.State(leader=True, relations={going, staying})

    with provider(provider.on.relation_broken(going), state) as manager:
        assert [asked.relation_id for asked in manager.charm.sidecar.requests()] == [8]


def publish(
    provider: testing.Context[Provider], relation: testing.Relation, *meshes: Mesh
) -> tuple[list[bool], Mapping[str, str]]:
    """What publishing said, one state after the other, and what stands in the databag at last."""
    state = testing.State(leader=True, relations={relation})
    with provider(provider.on.update_status(), state) as manager:
        wrote = [manager.charm.sidecar.publish(relation.id, mesh) for mesh in meshes]
        out = manager.run()
    return wrote, out.get_relation(relation.id).local_app_data


def test_the_same_state_is_not_published_twice(provider: testing.Context[Provider]) -> None:
    assert publish(provider, asking(7, "tensorboard"), MESH, MESH)[0] == [True, False]


def test_keys_that_are_no_longer_known_are_removed(provider: testing.Context[Provider]) -> None:
    wrote, databag = publish(provider, asking(7, "tensorboard"), MESH, Mesh(live=False))

    assert wrote == [True, True]
    assert databag == {"live": "false", "meshed": "unknown"}


def test_each_relation_gets_its_own_state(provider: testing.Context[Provider]) -> None:
    state = testing.State(leader=True, relations={asking(7, "tensorboard"), asking(8, "serving")})
    told = {7: MESH, 8: Mesh(live=True, meshed=False, meshed_reason="serving-0 has no sidecar")}

    with provider(provider.on.update_status(), state) as manager:
        for relation_id, mesh in told.items():
            assert manager.charm.sidecar.publish(relation_id, mesh)
        out = manager.run()

    assert {r.id: Mesh.from_databag(r.local_app_data) for r in out.relations} == told


def test_only_the_leader_publishes(provider: testing.Context[Provider]) -> None:
    state = testing.State(leader=False, relations={asking(7, "tensorboard")})

    with provider(provider.on.update_status(), state) as manager:
        assert manager.charm.sidecar.publish(7, MESH) is False
        out = manager.run()

    assert out.get_relation(7).local_app_data == {}


def test_nothing_is_published_to_a_relation_that_goes(provider: testing.Context[Provider]) -> None:
    going = asking(7, "tensorboard")
    state = testing.State(leader=True, relations={going})

    with provider(provider.on.relation_broken(going), state) as manager:
        assert manager.charm.sidecar.publish(7, MESH) is False


REQUEST = {"application": "tensorboard", "model": "kubeflow"}
LIVE = Mesh(live=True, reason="istiod default", root_namespace="istio-system", meshed=True)


class Requirer(ops.CharmBase):
    """A minimal charm, which keeps what it reads at each change."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        (endpoint,) = self.meta.requires
        self.sidecar = SidecarRequirer(self, endpoint)
        self.told: list[Mesh | None] = []
        framework.observe(self.sidecar.on.changed, self._on_changed)

    def _on_changed(self, _: ops.EventBase) -> None:
        self.told.append(self.sidecar.mesh())


Context = testing.Context[Requirer]


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
    with context_of(Requirer, endpoint) as context:
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
def test_other_units_write_no_request(
    ctx: Context, relation: testing.Relation, event: Event
) -> None:
    out = ctx.run(event(ctx, relation), state(relation, leader=False))

    assert out.get_relation(relation.id).local_app_data == {}


@events
def test_an_outdated_request_is_corrected(
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
def test_every_unit_reads_the_answer_at_the_change(
    ctx: Context, relation: testing.Relation, *, leader: bool
) -> None:
    answered = dataclasses.replace(relation, remote_app_data=LIVE.to_databag())
    event = ctx.on.relation_changed(answered, remote_unit=0)

    with ctx(event, state(answered, leader=leader)) as manager:
        manager.run()
        assert manager.charm.told == [LIVE]


def test_there_is_no_event_without_a_change(ctx: Context, relation: testing.Relation) -> None:
    with ctx(ctx.on.update_status(), state(relation)) as manager:
        manager.run()
        assert manager.charm.told == []


def test_without_a_relation_the_mesh_is_unknown(ctx: Context) -> None:
    with ctx(ctx.on.leader_elected(), state()) as manager:
        manager.run()
        assert manager.charm.sidecar.mesh() is None


def test_the_mesh_is_unknown_when_the_relation_goes(
    ctx: Context, relation: testing.Relation
) -> None:
    going = dataclasses.replace(relation, remote_app_data=LIVE.to_databag())

    with ctx(ctx.on.relation_broken(going), state(going)) as manager:
        manager.run()
        assert manager.charm.told == [None]


def test_two_answers_leave_the_mesh_unknown(ctx: Context, relation: testing.Relation) -> None:
    both = [
        dataclasses.replace(relation, id=number, remote_app_data=LIVE.to_databag())
        for number in (101, 102)
    ]

    with ctx(ctx.on.upgrade_charm(), state(*both)) as manager:
        out = manager.run()
        assert manager.charm.sidecar.mesh() is None
    assert [r.local_app_data for r in out.relations] == [REQUEST, REQUEST]


@events
def test_the_library_sets_no_status(ctx: Context, relation: testing.Relation, event: Event) -> None:
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
