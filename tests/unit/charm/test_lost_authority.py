"""Another authority takes the place of one that Juju has lost, or whose key others may know.

juju#20710, juju#21058 and juju#22310: the record of the secret is there, and its content is gone.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ops import testing

from .conftest import Unit, fail
from .test_actions import failure
from .test_certificates import DOWN, bundle, handshake, kept, served, trusted


def lost_for(unit: Unit, minutes: float) -> None:
    """Note that Juju lost the content of the secret so long ago."""
    unit.note({"authority-lost-since": str(datetime.now(UTC) - timedelta(minutes=minutes))})


def test_a_lost_authority_is_replaced_after_an_hour_beside_the_old_one(
    unit: Unit, tmp_path: Path
) -> None:
    old = kept(unit).certificate
    (lost,) = unit.state.secrets
    unit.run(secrets=set())
    assert "authority-lost-since" in unit.noted
    lost_for(unit, 59)
    status = unit.run()
    assert isinstance(status, testing.WaitingStatus)
    assert "; the leader makes another one at " in status.message
    assert not unit.state.secrets

    lost_for(unit, 61)
    unit.run()

    (secret,) = unit.state.secrets
    assert secret.label != lost.label, "Juju keeps the label of the lost one"
    assert unit.noted["authority-secret-id"] == secret.id
    assert "authority-lost-since" not in unit.noted
    for _ in range(5):
        status = unit.run()
        assert handshake(served(unit), trusted(unit.api), "istio-aux.kubeflow.svc", tmp_path)
    assert bundle(unit.api) == {kept(unit).certificate} != {old}
    assert isinstance(status, testing.ActiveStatus)


def test_an_authority_that_is_found_again_is_as_good_as_before(unit: Unit) -> None:
    before = kept(unit)
    secrets = unit.state.secrets
    unit.run(secrets=set())
    lost_for(unit, 50)

    assert isinstance(unit.run(secrets=secrets), testing.ActiveStatus)

    assert kept(unit) == before
    assert "authority-lost-since" not in unit.noted


@pytest.mark.parametrize("lost", [False, True])
def test_another_authority_is_made_at_once_and_the_units_change_over(
    lost: bool, unit: Unit
) -> None:
    old = bundle(unit.api)
    if lost:
        unit.run(secrets=set())

    found = unit.act("replace-authority")

    assert found["replaced"] == "true"
    assert ("cannot be read" in found["lost"]) is lost
    assert unit.wakes
    unit.run()
    assert bundle(unit.api) == {*old, kept(unit).certificate}
    assert kept(unit).certificate not in old


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

    unit.act("replace-authority")
    for _ in range(6):
        assert isinstance(unit.run(), testing.ActiveStatus)

    new = kept(unit).certificate
    assert bundle(unit.api) == ({old, new} if kept_too else {new})


def test_another_authority_that_juju_does_not_store_is_no_success(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "secret_set", DOWN)

    assert failure(unit.act, "replace-authority") == (
        f"the certificate authority is not stored: {DOWN}"
    )


@pytest.mark.parametrize("since", ["yesterday", "2026-11-21T08:00:00", ""])
def test_a_time_that_another_revision_has_noted_counts_as_none(since: str, unit: Unit) -> None:
    unit.note({"authority-lost-since": since})

    assert isinstance(unit.run(), testing.ActiveStatus)


def test_an_authority_that_cannot_be_read_is_a_lost_one(unit: Unit) -> None:
    (secret,) = unit.state.secrets
    bad = {**secret.tracked_content, "certificate": "no PEM"}
    broken = dataclasses.replace(secret, tracked_content=bad, latest_content=bad)

    assert "certificate authority cannot be read" in unit.run(secrets={broken}).message
    lost_for(unit, 61)
    unit.run()
    assert unit.noted["authority-secret-id"] != secret.id
