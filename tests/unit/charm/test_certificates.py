"""Certificates and tokens: the API server trusts every unit before, during and after a renewal."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from istio_aux.kube.access import token_life
from istio_aux.model.names import TOKEN_LIFE
from ops import testing

import certificates
from certificates import Authority, Leaf

from .apiserver import jwt
from .conftest import ROOT, Unit

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
    client = ssl.create_default_context(cadata=bundle)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            serving.wrap_socket(theirs, server_side=True).close()
        except ssl.SSLError:  # The client says why.
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as connection:
            return connection.version() or ""
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("name", NAMES)
def test_a_leaf_is_verified_under_each_name_of_the_service(
    name: str, authority: Authority, tmp_path: Path
) -> None:
    leaf = certificates.issue(authority, NAMES)

    assert handshake(leaf, authority.certificate, name, tmp_path) == "TLSv1.3"


def test_a_leaf_is_not_verified_under_another_name(authority: Authority, tmp_path: Path) -> None:
    leaf = certificates.issue(authority, NAMES)

    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(leaf, authority.certificate, "istio-aux.other.svc", tmp_path)


def test_keys_are_on_p_256(authority: Authority) -> None:
    for pem in (authority.private_key, certificates.issue(authority, NAMES).private_key):
        key = load_pem_private_key(pem.encode(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert isinstance(key.curve, ec.SECP256R1)


def test_long_names_make_a_valid_authority() -> None:
    authority = certificates.make_authority("a" * 63, "m" * 63)

    assert x509.load_pem_x509_certificate(authority.certificate.encode()).subject


@pytest.mark.parametrize(("age", "due"), [(0, False), (29, False), (31, True), (61, True)])
def test_a_leaf_is_due_after_half_its_life(age: int, due: bool, authority: Authority) -> None:
    leaf = certificates.issue(authority, NAMES)

    usable = certificates.usable(leaf, authority, NAMES, NOW + timedelta(days=age))

    assert usable is not due


def test_a_leaf_with_another_authority_name_or_key_is_not_usable(authority: Authority) -> None:
    leaf = certificates.issue(authority, NAMES)
    other = certificates.make_authority("istio-aux", "kubeflow")
    other_key = certificates.issue(authority, NAMES).private_key

    assert certificates.usable(leaf, authority, NAMES, NOW)
    assert not certificates.usable(leaf, other, NAMES, NOW)
    assert not certificates.usable(leaf, authority, NAMES[:2], NOW)
    assert not certificates.usable(Leaf(leaf.chain, other_key), authority, NAMES, NOW)
    assert not certificates.usable(Leaf("", ""), authority, NAMES, NOW)
    assert not certificates.usable(Leaf("no", "PEM"), authority, NAMES, NOW)


def test_private_keys_are_not_in_representations(authority: Authority) -> None:
    leaf = certificates.issue(authority, NAMES)

    assert "PRIVATE" not in repr(authority) + repr(leaf)


@pytest.mark.parametrize(
    ("token", "late"),
    [
        pytest.param("", True, id="there is none"),
        pytest.param("no.token", True, id="it is not a token"),
        pytest.param("e30.e30.sig", True, id="it says nothing about itself"),
        pytest.param(jwt("uid", 800, 1100), False, id="a third is left"),
    ],
)
def test_a_token_is_late_when(token: str, late: bool) -> None:
    assert certificates.token_is_late(token, datetime.fromtimestamp(1000, UTC)) is late


@pytest.mark.parametrize(
    ("age", "left", "replaced"),
    [
        pytest.param(4 * DAY, 3 * DAY, False, id="it is good for three of seven days"),
        pytest.param(5 * DAY, 2 * DAY, True, id="it is good for two of seven days"),
        pytest.param(8 * DAY, -DAY, True, id="it expired"),
        # `--service-account-max-token-expiration`: an hour at least.
        pytest.param(1800, 1800, False, id="the API server granted an hour, and half is left"),
        pytest.param(2700, 900, True, id="the API server granted an hour, and a quarter is left"),
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


def test_a_token_is_not_renewed_again_because_the_api_server_grants_less(unit: Unit) -> None:
    unit.api.longest_token = 3600
    (unit.etc / "token").unlink()
    unit.run()
    granted = unit.files["token"]
    unit.api.calls.clear()

    unit.run()

    assert unit.files["token"] == granted
    assert not [call for call in unit.api.calls if call.endswith("/token")]


def test_a_token_that_the_api_server_does_not_take_any_more_is_replaced(unit: Unit) -> None:
    """It may sign with another key since, as after its certificates were made again."""
    before = unit.files["token"]
    answer = {
        "status": {"authenticated": False, "error": "invalid signature"},
        "spec": {"token": before},
    }
    unit.api.answers["create tokenreviews"] = httpx2.Response(201, json=answer)

    unit.run()

    assert unit.files["token"] != before


def test_an_account_that_was_deleted_gets_a_new_token(unit: Unit) -> None:
    before = unit.files["token"]
    (path,) = [p for p, o in unit.api.objects.items() if o["kind"] == "ServiceAccount"]
    del unit.api.objects[path]

    unit.run()

    assert unit.files["token"] != before


def test_what_the_units_hold_outlasts_two_days_without_a_controller(authority: Authority) -> None:
    """And SECURITY.md says by how much: a leaf is renewed, at the latest, after half its life.

    A token is renewed when a third of its life is left.
    """
    half = certificates.LEAF_VALIDITY / 2
    leaf = certificates.issue(authority, NAMES)

    assert certificates.usable(leaf, authority, NAMES, NOW + half - timedelta(hours=1))
    assert min(half, timedelta(seconds=TOKEN_LIFE / 3)) > timedelta(days=2)
    text = " ".join((ROOT / "SECURITY.md").read_text().split())
    assert f"authority, which is valid for {certificates.AUTHORITY_VALIDITY.days} days" in text
    assert f"certificates are valid for {certificates.LEAF_VALIDITY.days}." in text
    assert f"valid for {certificates.LEAF_VALIDITY.days} days" in text
    assert f"lasts for at least {half.days} days" in text
    days = TOKEN_LIFE / DAY
    assert f"token is valid for {days:g} days" in text
    assert f"{days * 24 / 3:g} hours when a hook has just left it alone" in text


def test_a_follower_waits_for_the_account(unit: Unit) -> None:
    unit.api.objects.clear()

    status = unit.follow()

    assert isinstance(status, testing.WaitingStatus)
    assert "ServiceAccount istio-aux-workload" in status.message
