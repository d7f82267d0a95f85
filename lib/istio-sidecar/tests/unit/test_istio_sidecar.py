"""The library: its databags, the provider, and a charm that asks for a sidecar."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ops
import pytest
from charmlibs.interfaces.istio_sidecar import (
    Mesh,
    SidecarProvider,
    SidecarRequest,
    SidecarRequirer,
    _sidecar,
)
from charmlibs.interfaces.istio_sidecar_testing import (
    relation_for_provider,
    relation_for_requirer,
)
from hypothesis import example, given, strategies as st
from ops import testing
from unit.charm.test_scenarios import refuse

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(NAMES, NAMES)
@example("a" * 63, "0")
def test_every_application_in_every_model_can_ask(application: str, model: str) -> None:
    request = SidecarRequest(application, model)

    assert SidecarRequest.from_databag(request.to_databag()) == request


@pytest.mark.parametrize(
    ("databag", "mesh"),
    [
        ({}, None),
        ({"live": ""}, None),
        ({"live": "True"}, None),
        ({"live": "true"}, Mesh(live=True)),
        ({"live": "true", "meshed": "unknown"}, Mesh(live=True)),
        ({"live": "true", "meshed": "1"}, Mesh(live=True)),
        ({"live": "true", "key": "of a later version"}, Mesh(live=True)),
    ],
)
def test_unknown_is_never_live_and_neither_meshed_nor_unmeshed(
    databag: dict[str, str], mesh: Mesh | None
) -> None:
    assert Mesh.from_databag(databag) == mesh


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


def related(number: int, databag: dict[str, str]) -> testing.Relation:
    return testing.Relation(
        "sidecar", "istio_sidecar", id=number, remote_app_name="asker", remote_app_data=databag
    )


TENSORBOARD = related(7, {"application": "tensorboard", "model": "kubeflow"})
SERVING = related(8, {"application": "serving", "model": "other"})


@pytest.mark.parametrize("leader", [True, False])
@pytest.mark.parametrize(
    ("databag", "found"),
    [
        ({}, None),
        (
            {"application": "tensorboard", "model": "kubeflow"},
            (7, SidecarRequest("tensorboard", "kubeflow"), ""),
        ),
        ({"application": "a"}, (7, None, "asker: model: missing")),
        ({"model": "m"}, (7, None, "asker: application: missing")),
        (
            {"application": "a", "model": "kube\nflow"},
            (7, None, f'asker: model "kube\\nflow": {EXPECTED}'),
        ),
        (
            {"application": "a" * 64, "model": "m"},
            (7, None, f'asker: application "{"a" * 60}"…: {EXPECTED}'),
        ),
    ],
)
def test_every_unit_reads_the_requests_in_order_and_why_one_is_invalid(
    provider: testing.Context[Provider],
    *,
    databag: dict[str, str],
    found: tuple[Any, ...] | None,
    leader: bool,
) -> None:
    state = testing.State(leader=leader, relations={SERVING, related(7, databag)})

    with provider(provider.on.update_status(), state) as manager:
        asked = manager.charm.sidecar.requests()
        requests = [(each.relation.id, each.request, each.reason) for each in asked]

    serving = (8, SidecarRequest("serving", "other"), "")
    assert requests == [each for each in (found, serving) if each]


def test_a_relation_that_goes_is_no_request(provider: testing.Context[Provider]) -> None:
    state = testing.State(leader=True, relations={TENSORBOARD, SERVING})

    with provider(provider.on.relation_broken(TENSORBOARD), state) as manager:
        assert [asked.relation.id for asked in manager.charm.sidecar.requests()] == [8]


@pytest.mark.parametrize(
    ("meshes", "databag"),
    [
        ([MESH], {k: v for k, v in MESH.to_databag().items() if v}),
        ([MESH, Mesh(False)], {"live": "false", "meshed": "unknown"}),
    ],
    ids=["one", "keys that are not known any more"],
)
def test_the_leader_publishes_to_one_relation(
    meshes: list[Mesh], databag: Mapping[str, str], provider: testing.Context[Provider]
) -> None:
    state = testing.State(leader=True, relations={TENSORBOARD, SERVING})

    with provider(provider.on.update_status(), state) as manager:
        asked, _ = manager.charm.sidecar.requests()
        for mesh in meshes:
            manager.charm.sidecar.publish(asked.relation, mesh)
        out = manager.run()

    assert out.get_relation(7).local_app_data == databag
    assert out.get_relation(8).local_app_data == {}


REQUEST = {"application": "tensorboard", "model": "kubeflow"}
LIVE = Mesh(live=True, reason="istiod default", root_namespace="istio-system", meshed=True)


class Requirer(ops.CharmBase):
    """A minimal charm, which keeps what it reads at each change."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self.sidecar = SidecarRequirer(self, "mesh")
        self.told: list[Mesh | None] = []
        framework.observe(self.sidecar.on.changed, self._on_changed)

    def _on_changed(self, _: ops.EventBase) -> None:
        self.told.append(self.sidecar.mesh())


Context = testing.Context[Requirer]
RELATION = testing.Relation("mesh", "istio_sidecar", remote_app_name="istio-aux")
ANSWERED = dataclasses.replace(RELATION, remote_app_data=LIVE.to_databag())


def context_of(charm: type[ops.CharmBase], endpoint: str) -> testing.Context[Any]:
    requires = {endpoint: {"interface": "istio_sidecar", "optional": True, "limit": 1}}
    return testing.Context(
        charm, meta={"name": "any", "requires": requires}, app_name="tensorboard"
    )


@pytest.fixture
def ctx() -> Iterator[Context]:
    with context_of(Requirer, "mesh") as context:
        yield context


def state(*relations: testing.Relation, leader: bool = True) -> testing.State:
    return testing.State(leader=leader, relations=relations, model=testing.Model("kubeflow"))


EVENTS: dict[str, Callable[[Context, testing.Relation], Any]] = {
    "the relation is there": lambda ctx, relation: ctx.on.relation_created(relation),
    "istio-aux answers": lambda ctx, relation: ctx.on.relation_changed(relation, remote_unit=0),
    "another unit leads": lambda ctx, _: ctx.on.leader_elected(),
    "the charm is refreshed": lambda ctx, _: ctx.on.upgrade_charm(),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(
    ("present", "leader", "written"),
    [
        ({}, True, REQUEST),
        (REQUEST | {"model": "renamed"}, True, REQUEST),
        ({}, False, {}),
    ],
    ids=["new", "outdated", "not the leader"],
)
def test_the_leader_asks_and_sets_no_status(
    ctx: Context, event: str, *, present: dict[str, str], leader: bool, written: dict[str, str]
) -> None:
    relation = dataclasses.replace(ANSWERED, local_app_data=present)

    out = ctx.run(EVENTS[event](ctx, relation), state(relation, leader=leader))

    assert out.get_relation(relation.id).local_app_data == written
    assert out.unit_status == testing.UnknownStatus()


def test_across_models_the_request_names_the_application_and_its_own_model(ctx: Context) -> None:
    offer = dataclasses.replace(
        RELATION,
        remote_app_name="remote-0123456789abcdef0123456789abcdef",
        remote_model_uuid="5f1b3c8e-2d5a-4a0e-9c1e-000000000001",
    )

    out = ctx.run(ctx.on.relation_created(offer), state(offer))

    assert out.get_relation(offer.id).local_app_data == REQUEST


@pytest.mark.parametrize(
    ("event", "leader", "told"),
    [
        (lambda on: on.relation_changed(ANSWERED, remote_unit=0), True, [LIVE]),
        (lambda on: on.relation_changed(ANSWERED, remote_unit=0), False, [LIVE]),
        (lambda on: on.relation_broken(ANSWERED), True, [None]),
        (lambda on: on.update_status(), True, []),
    ],
    ids=["an answer", "an answer to another unit", "it goes", "no change"],
)
def test_every_unit_reads_the_answer_at_each_change(
    ctx: Context, *, event: Callable[[Any], Any], leader: bool, told: list[Mesh | None]
) -> None:
    with ctx(event(ctx.on), state(ANSWERED, leader=leader)) as manager:
        manager.run()
        assert manager.charm.told == told


@pytest.mark.parametrize("numbers", [(), (101, 102)])
def test_without_one_relation_the_mesh_is_unknown(ctx: Context, numbers: tuple[int, ...]) -> None:
    relations = [dataclasses.replace(ANSWERED, id=number) for number in numbers]

    with ctx(ctx.on.upgrade_charm(), state(*relations)) as manager:
        out = manager.run()
        assert manager.charm.sidecar.mesh() is None
    assert [r.local_app_data for r in out.relations] == [REQUEST] * len(numbers)


def test_a_relation_that_is_gone_and_listed_fails_no_hook_and_hides_no_other(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """juju#23246."""
    gone = dataclasses.replace(ANSWERED, id=99)
    refuse(monkeypatch, gone, ("relation_get", "relation_set"))

    with ctx(ctx.on.upgrade_charm(), state(gone, ANSWERED)) as manager:
        out = manager.run()
        assert manager.charm.sidecar.mesh() == LIVE
    assert out.get_relation(ANSWERED.id).local_app_data == REQUEST


def documented() -> type[ops.CharmBase]:
    """The charm in the library's documentation."""
    (text,) = re.findall(r"```python\n(.*?)```", _sidecar.__doc__ or "", re.DOTALL)
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


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(live=True, reason="istiod default", root_namespace="kubeflow", revision="default"),
        Mesh(live=True, meshed=False, meshed_reason="a-0 has no sidecar"),
        Mesh(live=False, meshed=None, meshed_reason="pods cannot be listed"),
        None,
    ],
)
def test_a_charm_is_tested_with_the_answer_of_a_relation(mesh: Mesh | None, ctx: Context) -> None:
    """And the state of the mesh is read as it was written."""
    given = {"mesh": mesh} if mesh else {"response": False}
    relation = relation_for_requirer("mesh", **given)  # type: ignore[arg-type]
    with ctx(ctx.on.relation_changed(relation), state(relation)) as manager:
        assert manager.charm.sidecar.mesh() == mesh


@pytest.mark.parametrize("response", [True, False])
def test_a_provider_is_tested_with_the_request_of_a_relation(
    *, response: bool, provider: testing.Context[Provider]
) -> None:
    relation = relation_for_provider("sidecar", response=response)
    with provider(provider.on.update_status(), testing.State(relations={relation})) as manager:
        asked = [each.request for each in manager.charm.sidecar.requests()]
    assert asked == ([SidecarRequest("asker", "asking")] if response else [])
