"""Another authority takes the place of one that Juju has lost, or whose key others may know.

juju#20710, juju#21058 and juju#22310: the record of the secret is there, and its content is gone.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import ops
import pytest
from ops import testing

from .conftest import Unit
from .test_actions import failure, results
from .test_certificates import DOWN, bundle, fail, handshake, kept, served, trusted


def lost_for(unit: Unit, minutes: float) -> None:
    """Note that Juju lost the content of the secret so long ago."""
    (peers,) = unit.state.get_relations("peers")
    since = {"authority-lost-since": str(datetime.now(UTC) - timedelta(minutes=minutes))}
    noted = dataclasses.replace(peers, local_app_data={**peers.local_app_data, **since})
    unit.state = dataclasses.replace(unit.state, relations={noted})


def noted(unit: Unit) -> Any:
    (peers,) = unit.state.get_relations("peers")
    return peers.local_app_data


def test_a_lost_authority_is_replaced_after_an_hour_beside_the_old_one(
    unit: Unit, tmp_path: Path
) -> None:
    old = kept(unit).certificate
    (lost,) = unit.state.secrets
    unit.run(secrets=set())
    assert "authority-lost-since" in noted(unit)
    lost_for(unit, 59)
    status = unit.run()
    assert isinstance(status, testing.WaitingStatus)
    assert "; the leader makes another one at " in status.message
    assert not unit.state.secrets

    lost_for(unit, 61)
    unit.run()

    (secret,) = unit.state.secrets
    assert secret.label != lost.label, "Juju keeps the label of the lost one"
    assert noted(unit)["authority-secret-id"] == secret.id
    assert "authority-lost-since" not in noted(unit)
    for _ in range(5):
        status = unit.run()
        assert handshake(served(unit), trusted(unit.api), "istio-aux.kubeflow.svc", tmp_path)
    assert bundle(unit.api) == {kept(unit).certificate} != {old}
    assert isinstance(status, testing.ActiveStatus)
    assert "authority-lost-since" not in noted(unit)


def test_an_authority_that_is_found_again_is_as_good_as_before(unit: Unit) -> None:
    before = kept(unit)
    secrets = unit.state.secrets
    unit.run(secrets=set())
    lost_for(unit, 50)

    status = unit.run(secrets=secrets)

    assert isinstance(status, testing.ActiveStatus)
    assert kept(unit) == before
    assert "authority-lost-since" not in noted(unit)


def test_while_juju_does_not_answer_no_other_authority_is_made(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not take another secret either, and the hook would fail at its end."""
    before = kept(unit)
    lost_for(unit, 120)
    with monkeypatch.context() as patch:
        fail(patch, "secret_get", DOWN)
        unit.run()
    assert kept(unit) == before


class RefusedError(Exception):
    """What ops chains its own error to: `ops.hookcmds.Error`."""

    stderr = ""


def refused(said: str) -> ops.ModelError:
    """What ops raises when `secret-get` says this."""
    known = "not found" in said
    error, cause = ops.SecretNotFoundError() if known else ops.ModelError(said), RefusedError()
    cause.stderr, error.__cause__ = said, cause
    return error


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("ERROR permission denied", id="juju#23017"),
        pytest.param('ERROR secret backend not found: "09a7abf8"', id="juju#21936"),
        pytest.param('ERROR external backend "vault", have ["internal"] not found', id="juju 3"),
    ],
)
def test_while_a_secret_that_is_not_lost_cannot_be_read_the_status_names_the_action(
    said: str, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept(unit)
    lost_for(unit, 120)
    with monkeypatch.context() as patch:
        fail(patch, "secret_get", refused(said))
        unit.run()
        status = unit.run()
    assert status == testing.WaitingStatus(
        "certificate authority cannot be read; if that lasts: juju run istio-aux/leader"
        f" replace-authority ({said})"
    )
    assert kept(unit) == before
    assert isinstance(unit.run(), testing.ActiveStatus)


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


@pytest.mark.parametrize("since", ["yesterday", "2026-11-21T08:00:00", ""])
def test_a_time_that_another_revision_has_noted_counts_as_none(since: str, unit: Unit) -> None:
    (peers,) = unit.state.get_relations("peers")
    known = {**peers.local_app_data, "authority-lost-since": since}
    changed = dataclasses.replace(peers, local_app_data=known)

    status = unit.run(relations={changed})

    assert isinstance(status, testing.ActiveStatus)


def test_an_authority_that_cannot_be_read_is_a_lost_one(unit: Unit) -> None:
    (secret,) = unit.state.secrets
    bad = {**secret.tracked_content, "certificate": "no PEM"}
    broken = dataclasses.replace(secret, tracked_content=bad, latest_content=bad)

    status = unit.run(secrets={broken})

    assert isinstance(status, testing.WaitingStatus)
    assert "certificate authority cannot be read" in status.message
    lost_for(unit, 61)
    unit.run()
    assert noted(unit)["authority-secret-id"] != secret.id
