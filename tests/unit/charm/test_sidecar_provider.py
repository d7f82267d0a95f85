"""The end of the relation `istio_sidecar` that answers: who asks, and what each of them is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import ops
import pytest
from charms.istio_aux.v0.sidecar import Asked, Mesh, SidecarProvider, SidecarRequest
from ops import testing

MESH = Mesh(live=True, reason="istiod default", revision="default", meshed=True)
EXPECTED = "expected up to 63 lower-case letters, digits and hyphens"


class Charm(ops.CharmBase):
    """A charm that provides the interface and does nothing of its own."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self.sidecar = SidecarProvider(self)


Context = testing.Context[Charm]


@pytest.fixture
def ctx() -> Iterator[Context]:
    meta = {"name": "istio-aux", "provides": {"sidecar": {"interface": "istio_sidecar"}}}
    with testing.Context(Charm, meta=meta) as context:
        yield context


def asking(number: int, application: str, model: str = "kubeflow") -> testing.Relation:
    return related(number, {"application": application, "model": model})


def related(number: int, databag: dict[str, str]) -> testing.Relation:
    return testing.Relation(
        "sidecar", "istio_sidecar", id=number, remote_app_name="asker", remote_app_data=databag
    )


def requests(ctx: Context, *relations: testing.Relation, leader: bool = True) -> list[Asked]:
    with ctx(ctx.on.update_status(), testing.State(leader=leader, relations=relations)) as manager:
        return manager.charm.sidecar.requests()


@pytest.mark.parametrize("leader", [True, False])
def test_every_unit_sees_who_asks(ctx: Context, *, leader: bool) -> None:
    found = requests(ctx, asking(8, "serving", "other"), asking(7, "tensorboard"), leader=leader)

    assert found == [
        Asked(7, SidecarRequest("tensorboard", "kubeflow")),
        Asked(8, SidecarRequest("serving", "other")),
    ]


def test_who_has_written_nothing_yet_does_not_ask(ctx: Context) -> None:
    assert requests(ctx, related(7, {})) == []


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
def test_a_request_that_cannot_be_read_says_why(
    ctx: Context, databag: dict[str, str], reason: str
) -> None:
    found = requests(ctx, related(7, databag), asking(8, "serving"))

    assert found == [Asked(7, None, reason), Asked(8, SidecarRequest("serving", "kubeflow"))]


def test_who_goes_does_not_ask_any_more(ctx: Context) -> None:
    going, staying = asking(7, "tensorboard"), asking(8, "serving")
    state = testing.State(leader=True, relations={going, staying})

    with ctx(ctx.on.relation_broken(going), state) as manager:
        assert [asked.relation_id for asked in manager.charm.sidecar.requests()] == [8]


def publish(
    ctx: Context, relation: testing.Relation, *meshes: Mesh
) -> tuple[list[bool], Mapping[str, str]]:
    """What publishing said, one state after the other, and what stands in the databag at last."""
    state = testing.State(leader=True, relations={relation})
    with ctx(ctx.on.update_status(), state) as manager:
        wrote = [manager.charm.sidecar.publish(relation.id, mesh) for mesh in meshes]
        out = manager.run()
    return wrote, out.get_relation(relation.id).local_app_data


def test_what_is_published_is_what_the_other_end_reads(ctx: Context) -> None:
    wrote, databag = publish(ctx, asking(7, "tensorboard"), MESH)

    assert wrote == [True]
    assert Mesh.from_databag(databag) == MESH


def test_the_same_is_not_published_twice(ctx: Context) -> None:
    assert publish(ctx, asking(7, "tensorboard"), MESH, MESH)[0] == [True, False]


def test_what_is_not_known_any_more_is_taken_back(ctx: Context) -> None:
    wrote, databag = publish(ctx, asking(7, "tensorboard"), MESH, Mesh(live=False))

    assert wrote == [True, True]
    assert databag == {"live": "false", "meshed": "unknown"}


def test_each_relation_is_told_its_own(ctx: Context) -> None:
    state = testing.State(leader=True, relations={asking(7, "tensorboard"), asking(8, "serving")})
    told = {7: MESH, 8: Mesh(live=True, meshed=False, meshed_reason="serving-0 has no sidecar")}

    with ctx(ctx.on.update_status(), state) as manager:
        for relation_id, mesh in told.items():
            assert manager.charm.sidecar.publish(relation_id, mesh)
        out = manager.run()

    assert {r.id: Mesh.from_databag(r.local_app_data) for r in out.relations} == told


def test_only_the_leader_publishes(ctx: Context) -> None:
    state = testing.State(leader=False, relations={asking(7, "tensorboard")})

    with ctx(ctx.on.update_status(), state) as manager:
        assert manager.charm.sidecar.publish(7, MESH) is False
        out = manager.run()

    assert out.get_relation(7).local_app_data == {}


def test_nothing_is_published_to_a_relation_that_goes(ctx: Context) -> None:
    going = asking(7, "tensorboard")
    state = testing.State(leader=True, relations={going})

    with ctx(ctx.on.relation_broken(going), state) as manager:
        assert manager.charm.sidecar.publish(7, MESH) is False
