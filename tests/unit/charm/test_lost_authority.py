"""Another authority takes the place of one that Juju has lost, or whose key others may know.

juju#20710, juju#21058 and juju#22310: the record of the secret is there, and its content is gone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ops import testing

from .conftest import Unit
from .test_actions import failure, results
from .test_certificates import DOWN, bundle, fail, kept


def replace_authority(unit: Unit) -> dict[str, Any]:
    unit.run(unit.on.action("replace-authority"))
    return results(unit)


@pytest.mark.parametrize("lost", [False, True])
def test_another_authority_is_made_at_once_and_the_units_change_over(
    lost: bool, unit: Unit
) -> None:
    old = bundle(unit.api)
    if lost:
        unit.run(secrets=set())

    found = replace_authority(unit)

    assert found["replaced"] == "true"
    assert ("cannot be read" in found["lost"]) is lost
    assert unit.wakes
    unit.run()
    assert bundle(unit.api) == {*old, kept(unit).certificate}
    assert kept(unit).certificate not in old
    for _ in range(4):
        assert isinstance(unit.run(), testing.ActiveStatus)
    assert bundle(unit.api) == {kept(unit).certificate}


@pytest.mark.parametrize(
    ("planned", "listed", "kept_too"),
    [
        pytest.param(1, 1, False, id="a unit that was removed is listed for good (juju#23326)"),
        pytest.param(2, 1, True, id="a unit that there is has not changed over"),
        pytest.param(2, 2, False, id="the one of three that was removed"),
        pytest.param(DOWN, 1, True, id="Juju does not say how many there are"),
    ],
)
def test_the_old_authority_goes_once_no_unit_that_there_is_needs_it(
    planned: int | Exception, listed: int, kept_too: bool, unit: Unit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (old,) = bundle(unit.api)
    (peers,) = unit.state.get_relations("peers")
    if isinstance(planned, int):
        unit.state = dataclasses.replace(unit.state, planned_units=planned)
    else:
        fail(monkeypatch, "planned_units", planned)
    others = dataclasses.replace(peers, peers_data={listed: {"issuers": old}})
    unit.run(relations={others})

    replace_authority(unit)
    for _ in range(6):
        assert isinstance(unit.run(), testing.ActiveStatus)

    new = kept(unit).certificate
    assert bundle(unit.api) == ({old, new} if kept_too else {new})


def test_only_the_leader_makes_another_authority_of_one_that_there_is(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept(unit)
    with monkeypatch.context() as patch:
        fail(patch, "secret_set", DOWN)
        said = failure(replace_authority, unit)
    assert said == f"the certificate authority is not stored: {DOWN}"
    state = unit.state
    unit.state = dataclasses.replace(state, leader=False)
    said = failure(replace_authority, unit)
    assert said == "run it on the leader: juju run istio-aux/leader ..."
    assert kept(unit) == before
    peers = {testing.PeerRelation("peers")}
    unit.state = dataclasses.replace(state, secrets=set(), relations=peers)
    assert failure(replace_authority, unit) == "there is no certificate authority yet"
