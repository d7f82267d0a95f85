"""Certificates, tokens and the application's own authority: the API server trusts every unit.

It does so before, during and after a renewal. An authority is kept before it is used, and never
replaced because it cannot be read for a while. What Juju does with secrets is in juju#19036, #20794
(secret-remove comes again, and for what is gone), #22051 and #22961 (secret-get fails for a while),
#20710, #21058 and #22310 (the record of the secret is there, and its content is lost for good). A
hook that fails stores nothing. Another authority takes the place of one that Juju has lost, or
whose key others may know.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from istio_aux.model.moment import token_life
from istio_aux.model.names import TOKEN_LIFE
from ops import ModelError, SecretNotFoundError, hookcmds, testing

import certificates
from certificates import Authority, Issuers, Leaf

from .conftest import ROOT, ApiServer, Unit, fail, jwt
from .test_actions import failure

NAMES = certificates.service_names("istio-aux", "kubeflow")
NOW = datetime.now(UTC)
DAY = 24 * 60 * 60.0  # Seconds.


@pytest.fixture
def authority() -> Authority:
    return certificates.make_authority("istio-aux", "kubeflow")


def handshake(leaf: Leaf, bundle: str, name: str, folder: Path) -> str:
    """Do a TLS handshake as the API server would; return the version of TLS."""
    (folder / "served.pem").write_text(leaf.chain + leaf.private_key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "served.pem")
    calling = ssl.create_default_context(cadata=bundle)
    calling.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(there, back, server_side=True)
    client = calling.wrap_bio(back, there, server_hostname=name)
    for end in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return client.version() or ""


@pytest.mark.parametrize("name", NAMES)
def test_a_leaf_is_verified_under_each_name_of_the_service(
    name: str, authority: Authority, tmp_path: Path
) -> None:
    leaf = certificates.issue(authority, NAMES)

    assert handshake(leaf, authority.certificate, name, tmp_path) == "TLSv1.3"


def test_long_names_make_a_valid_authority() -> None:
    assert certificates.parse_bundle(certificates.make_authority("a" * 63, "m" * 63).certificate)


@pytest.mark.parametrize(("age", "due"), [(0, False), (29, False), (31, True), (61, True)])
def test_a_leaf_is_due_after_half_its_life(age: int, due: bool, authority: Authority) -> None:
    leaf = certificates.issue(authority, NAMES)

    renewed = certificates.renewed(leaf, authority, NAMES, NOW + timedelta(days=age))

    assert (renewed != leaf) is due


def spoiled(leaf: Leaf) -> dict[str, Leaf]:
    """What a container may have that no client accepts."""
    other = certificates.make_authority("istio-aux", "kubeflow")
    names = certificates.service_names("istio-aux", "other")
    key = certificates.issue(other, NAMES).private_key
    return {
        "of another key": Leaf(leaf.chain, key),
        "under another name": certificates.issue(other, names),
        "without its issuer": Leaf(certificates.parse_bundle(leaf.chain)[0], leaf.private_key),
        "empty": Leaf(),
        "not PEM": Leaf("no", "PEM"),
        "no key": Leaf(leaf.chain, "PEM"),
    }


def test_what_no_client_accepts_is_replaced(unit: Unit, tmp_path: Path) -> None:
    for what, leaf in spoiled(served(unit)).items():
        (unit.etc / "tls/tls.crt").write_text(leaf.chain)
        (unit.etc / "tls/tls.key").write_text(leaf.private_key)

        unit.run()

        assert handshake(served(unit), trusted(unit.api), NAMES[2], tmp_path), what


def test_private_keys_are_not_in_representations(authority: Authority) -> None:
    assert "PRIVATE" not in repr(authority) + repr(certificates.issue(authority, NAMES))


@pytest.mark.parametrize(
    ("age", "left", "replaced"),
    [
        pytest.param(4 * DAY, 3 * DAY, False, id="it is good for three of seven days"),
        pytest.param(5 * DAY, 2 * DAY, True, id="it is good for two of seven days"),
        # `--service-account-max-token-expiration`: an hour at least.
        pytest.param(1800, 1800, False, id="the API server granted an hour, and half is left"),
    ],
)
def test_the_workload_gets_a_token_for_a_week_when_a_third_is_left_of_its_present_one(
    age: float, left: float, replaced: bool, unit: Unit
) -> None:
    uid = unit.api.one("ServiceAccount")["metadata"]["uid"]
    old = jwt(uid, time.time() - age, time.time() + left)
    (unit.etc / "token").write_text(old)
    plan = unit.container.plan

    unit.run()

    assert (unit.files["token"] != old) is replaced
    life = token_life(unit.files["token"])
    assert life
    assert not replaced or life.exp - life.iat == pytest.approx(7 * DAY, abs=2)
    assert unit.container.plan == plan, "the workload is not restarted"


def test_a_token_that_the_api_server_does_not_take_any_more_is_replaced(unit: Unit) -> None:
    """It may sign with another key since, or the account was deleted and made again."""
    before = unit.files["token"]
    unit.api.answers["create tokenreviews"] = httpx2.Response(
        201,
        json={
            "status": {"authenticated": False, "error": "invalid signature"},
            "spec": {"token": before},
        },
    )

    unit.run()

    assert unit.files["token"] != before


def test_what_the_units_hold_outlasts_two_days_without_a_controller(authority: Authority) -> None:
    """And SECURITY.md says by how much: a leaf is renewed, at the latest, after half its life.

    A token is renewed when a third of its life is left.
    """
    half = certificates.LEAF_VALIDITY / 2
    leaf = certificates.issue(authority, NAMES)

    assert certificates.renewed(leaf, authority, NAMES, NOW + half - timedelta(hours=1)) == leaf
    assert min(half, timedelta(seconds=TOKEN_LIFE / 3)) > timedelta(days=2)
    text = " ".join((ROOT / "SECURITY.md").read_text().split())
    assert f"authority, which is valid for {certificates.AUTHORITY_VALIDITY.days} days" in text
    assert f"certificates are valid for {certificates.LEAF_VALIDITY.days}." in text
    assert f"valid for {certificates.LEAF_VALIDITY.days} days" in text
    assert f"lasts for at least {half.days} days" in text
    days = TOKEN_LIFE / DAY
    assert f"token is valid for {days:g} days" in text
    assert f"{days * 24 / 3:g} hours when a hook has just left it alone" in text


DOWN = ModelError("ERROR cannot access secret backend: connection refused")
DENIED = "ERROR permission denied"
NO_BACKEND = 'ERROR secret backend not found: "09a7abf8"'
NO_VAULT = 'ERROR external backend "vault", have ["internal"] not found'


def kept(unit: Unit) -> Authority:
    """The authority in the only secret that may have one."""
    (secret,) = (s for s in unit.state.secrets if "certificate-authority" in (s.label or ""))
    assert secret.latest_content
    return Authority(**secret.latest_content)


def trusted(api: ApiServer) -> str:
    (bundle,) = {webhook["clientConfig"]["caBundle"] for webhook in api.webhooks}
    return base64.b64decode(bundle).decode()


def bundle(api: ApiServer) -> set[str]:
    return set(certificates.parse_bundle(trusted(api)))


def served(unit: Unit) -> Leaf:
    return Leaf(unit.files["tls/tls.crt"], unit.files["tls/tls.key"])


@pytest.fixture
def fresh(new_unit: Unit) -> Unit:
    """The leader of a new application, before its first event."""
    relations = {testing.PeerRelation("peers")}
    new_unit.state = dataclasses.replace(new_unit.state, secrets=set(), relations=relations)
    return new_unit


@pytest.fixture
def aging(new_unit: Unit, monkeypatch: pytest.MonkeyPatch) -> Unit:
    """The unit, whose authority was due for renewal, and has a successor that is stored."""
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_RENEWED", 1.0)
        new_unit.run()
    return new_unit


def test_the_authority_is_kept_in_one_secret_of_the_application(unit: Unit) -> None:
    unit.run()

    (secret,) = unit.state.secrets
    assert secret.owner == "app"
    assert secret.id in unit.noted.values()
    assert "PRIVATE" not in str(unit.state.relations)
    assert "PRIVATE" not in str(unit.ctx.juju_log)


def test_nothing_is_signed_or_trusted_before_the_authority_is_stored(fresh: Unit) -> None:
    assert isinstance(fresh.configure(), testing.WaitingStatus)

    assert kept(fresh)
    assert "caBundle" not in str(fresh.api.objects)
    assert not fresh.files
    assert fresh.wakes
    assert isinstance(fresh.run(), testing.ActiveStatus)


def test_a_new_authority_is_stored_trusted_and_served_in_this_order(aging: Unit) -> None:
    new, old = kept(aging).certificate, served(aging).issuer
    assert new != old
    assert bundle(aging.api) == {old}

    aging.run()
    assert bundle(aging.api) == {old, new}
    assert served(aging).issuer == old

    aging.run()
    assert served(aging).issuer == new
    assert bundle(aging.api) == {old, new}

    for _ in range(3):
        aging.run()
    assert bundle(aging.api) == {new}


@pytest.mark.parametrize(
    ("broken", "option"),
    [({"patch mutatingwebhookconfigurations"}, "debug"), (set[str](), "loud")],
    ids=["the API server refuses it", "no option was ever valid"],
)
def test_an_authority_that_the_webhook_does_not_trust_is_not_served(
    broken: set[str], option: str, aging: Unit
) -> None:
    old = served(aging).issuer
    aging.api.broken = broken
    aging.note({"last-good-options": ""})

    for _ in range(4):
        assert not isinstance(aging.configure(log_level=option), testing.ActiveStatus)

    assert served(aging).issuer == old
    assert bundle(aging.api) == {old}


def refused(said: str, kind: type[ModelError] = SecretNotFoundError) -> ModelError:
    """What ops raises when `secret-get` says this."""
    error = kind("")
    error.__cause__ = hookcmds.Error(returncode=1, cmd=["secret-get"], stderr=said)
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        pytest.param(DOWN, str(DOWN), id="without a cause"),
        pytest.param(refused(DENIED, ModelError), DENIED, id="juju#23017"),
        pytest.param(refused(NO_BACKEND), NO_BACKEND, id="juju#21936"),
        pytest.param(refused(NO_VAULT), NO_VAULT, id="juju 3"),
    ],
)
def test_an_authority_that_cannot_be_read_and_is_not_lost_is_waited_for(
    error: Exception, said: str, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long: Juju would not take another one either, and the hook would fail at its end."""
    before, objects = kept(unit), dict(unit.api.objects)
    unit.note({"authority-lost-since": "2026-11-21T08:00:00Z"})
    with monkeypatch.context() as patch:
        fail(patch, "secret_get", error)

        status = unit.run()

        assert status == testing.WaitingStatus(
            "certificate authority cannot be read; if that lasts: juju run istio-aux/leader"
            f" replace-authority ({said})"
        )
        assert unit.wakes
        assert said in unit.configure(pod_selector="team").message
    assert kept(unit) == before
    assert unit.api.objects.keys() == objects.keys()
    assert bundle(unit.api) == {before.certificate}
    selector = json.dumps(unit.api.webhooks[0]["objectSelector"])
    assert '"team"' in selector, "an option took no effect meanwhile"
    assert isinstance(unit.run(), testing.ActiveStatus)


def test_a_secret_that_cannot_be_stored_is_tried_again(
    fresh: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail(patch, "secret_add", DOWN)
        assert isinstance(fresh.run(), testing.WaitingStatus)
    fresh.run()
    assert isinstance(fresh.run(), testing.ActiveStatus)


def test_an_old_revision_is_removed_once_however_often_juju_asks(aging: Unit) -> None:
    aging.run()  # It reads revision 2.
    (secret,) = aging.state.secrets

    for revision in (1, 1, 1, 2):  # The latest one is never removed.
        aging.run(aging.on.secret_remove(secret, revision=revision))

    assert aging.ctx.removed_secret_revisions == [1]


def test_a_secret_that_is_gone_is_not_removed(aging: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    (secret,) = aging.state.secrets
    fail(monkeypatch, "secret_info_get", SecretNotFoundError('secret "x" not found'))

    aging.run(aging.on.secret_remove(secret, revision=1))

    assert aging.ctx.removed_secret_revisions == []


# When the issuer of a unit's certificate changes. Hooks of units overlap: each sees what Juju had
# stored when it began, and the next leader what is published. Those of one unit after the other are
# in test_certificates_relation.
OWN, OTHER = (certificates.make_authority(name, "kubeflow") for name in ("own", "other"))
A, B = OWN.certificate, OTHER.certificate
# What the unit serves, and what it wants to serve instead.
OLD, NEW = certificates.issue(OWN, NAMES), certificates.issue(OTHER, NAMES)


def test_what_no_unit_needs_stays_in_the_bundle_until_it_is_noted_as_not_trusted() -> None:
    known = Issuers(frozenset({A}), trusted=frozenset({A, B}), own=A, served=OLD, wants=OLD)

    assert (known.needed(), set(known.bundle())) == ({A}, {A, B})


def test_while_a_unit_has_published_nothing_no_issuer_is_dropped_and_our_own_is_trusted() -> None:
    trusted = frozenset({B})
    known = Issuers(trusted, silent=True, trusted=trusted, own=A, served=NEW, wants=NEW)

    assert known.needed() == {A, B}
    assert dataclasses.replace(known, silent=False).needed() == {B}


@pytest.mark.parametrize(
    ("published", "noted", "applied", "serves"),
    [
        pytest.param({A, B}, {A, B}, False, NEW, id="published and noted"),
        pytest.param({A, B}, {A}, True, NEW, id="published and applied in this event"),
        pytest.param({A, B}, {A}, False, OLD, id="not trusted yet"),
        pytest.param({A}, {A, B}, False, OLD, id="trusted, but the next leader could drop it"),
        pytest.param(set(), {A, B}, True, OLD, id="nothing published yet"),
        pytest.param(set(), None, False, OLD, id="nothing noted yet"),
    ],
)
def test_a_unit_serves_another_issuers_certificate_when_it_is(
    published: set[str], noted: set[str] | None, applied: bool, serves: Leaf
) -> None:
    trusted = None if noted is None else frozenset(noted)
    known = Issuers(frozenset(published), trusted=trusted, own=A, served=OLD, wants=NEW)

    assert known.choose(applied=applied) == serves


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
    unit.run(relations={dataclasses.replace(peers, peers_data={listed: {"issuers": old}})})

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
