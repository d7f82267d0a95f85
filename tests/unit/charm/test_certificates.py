"""The API server can verify what every unit serves, before, during and after a renewal."""

from __future__ import annotations

import base64
import dataclasses
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from ops import testing

import certificates
from certificates import Authority, Leaf
from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import Files, Workload

Context = testing.Context[IstioAuxCharm]

NAMES = certificates.service_names("istio-aux", "kubeflow")
NOW = datetime.now(UTC)


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

    assert handshake(leaf, authority.bundle(NOW), name, tmp_path) == "TLSv1.3"


def test_a_leaf_is_not_verified_under_another_name(authority: Authority, tmp_path: Path) -> None:
    leaf = certificates.issue(authority, NAMES)

    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(leaf, authority.bundle(NOW), "istio-aux.other.svc", tmp_path)


def test_keys_are_on_p_256(authority: Authority) -> None:
    for pem in (authority.private_key, certificates.issue(authority, NAMES).private_key):
        key = load_pem_private_key(pem.encode(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert isinstance(key.curve, ec.SECP256R1)


def test_long_names_make_a_valid_authority() -> None:
    authority = certificates.make_authority("a" * 63, "m" * 63)

    assert x509.load_pem_x509_certificate(authority.certificate.encode()).subject


@pytest.mark.parametrize("served_by", ["old", "new"])
def test_leaves_of_both_authorities_are_accepted_while_one_replaces_the_other(
    served_by: str, authority: Authority, tmp_path: Path
) -> None:
    new = certificates.make_authority("istio-aux", "kubeflow", replaces=authority)
    leaf = certificates.issue({"old": authority, "new": new}[served_by], NAMES)

    assert handshake(leaf, new.bundle(NOW), NAMES[2], tmp_path)


def test_an_authority_that_expired_leaves_the_bundle(authority: Authority) -> None:
    new = certificates.make_authority("istio-aux", "kubeflow", replaces=authority)

    later = NOW + certificates.AUTHORITY_VALIDITY + timedelta(days=1)

    assert new.bundle(later).split() == new.certificate.split()


@pytest.mark.parametrize(("age", "due"), [(0, False), (29, False), (31, True), (61, True)])
def test_a_leaf_is_due_after_half_its_life(age: int, due: bool, authority: Authority) -> None:
    leaf = certificates.issue(authority, NAMES)

    usable = certificates.usable(leaf, authority, NAMES, NOW + timedelta(days=age))

    assert usable is not due


def test_a_leaf_of_another_authority_name_or_key_is_not_used(authority: Authority) -> None:
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


def test_the_webhook_trusts_what_the_unit_serves(
    settled: testing.State, api: ApiServer, files: Files, tmp_path: Path
) -> None:
    assert isinstance(settled.unit_status, testing.ActiveStatus)
    served = Leaf(files()["tls/tls.crt"], files()["tls/tls.key"])
    client_config = api.one("MutatingWebhookConfiguration")["webhooks"][0]["clientConfig"]
    service = client_config["service"]
    bundle = base64.b64decode(client_config["caBundle"]).decode()

    name = f"{service['name']}.{service['namespace']}.svc"

    assert handshake(served, bundle, name, tmp_path)


def test_the_authority_is_kept_in_one_secret_of_the_application(
    ctx: Context, settled: testing.State
) -> None:
    out = ctx.run(ctx.on.update_status(), settled)

    (secret,) = out.secrets
    assert secret.owner == "app"
    (peers,) = out.get_relations("peers")
    assert list(peers.local_app_data.values()) == [secret.id]
    assert "PRIVATE" not in str(peers.local_app_data)
    assert "PRIVATE" not in str(ctx.juju_log)


def aged(state: testing.State, authority: Authority) -> testing.State:
    (secret,) = state.secrets
    content = authority.to_secret()
    replaced = dataclasses.replace(secret, latest_content=content, tracked_content=content)
    return dataclasses.replace(state, secrets={replaced})


@pytest.fixture
def old() -> Authority:
    """An authority with so short a life that half of it is over at once."""
    return certificates.make_authority("istio-aux", "kubeflow", validity=timedelta(0))


def kept(state: testing.State) -> Authority:
    (secret,) = state.secrets
    assert secret.latest_content
    return Authority.from_secret(secret.latest_content)


def trusted(api: ApiServer) -> str:
    (webhook,) = api.one("MutatingWebhookConfiguration")["webhooks"]
    return base64.b64decode(webhook["clientConfig"]["caBundle"]).decode()


def test_the_leader_replaces_an_authority_in_time(
    ctx: Context, settled: testing.State, old: Authority, files: Files
) -> None:
    out = ctx.run(ctx.on.update_status(), aged(settled, old))

    new = kept(out)
    assert new.certificate != old.certificate
    assert new.previous == old.certificate
    assert files()["tls/tls.crt"].endswith(new.certificate + "\n")
    assert isinstance(out.unit_status, testing.ActiveStatus)


def test_a_new_authority_is_trusted_before_anything_of_it_is_served(
    ctx: Context, settled: testing.State, old: Authority, api: ApiServer, process: Workload
) -> None:
    process.running = False

    out = ctx.run(ctx.on.update_status(), aged(settled, old))

    assert kept(out).certificate in trusted(api)


def test_an_authority_that_could_not_be_announced_is_not_kept(
    ctx: Context, settled: testing.State, old: Authority, api: ApiServer, files: Files
) -> None:
    api.broken = {"patch mutatingwebhookconfigurations"}

    out = ctx.run(ctx.on.update_status(), aged(settled, old))

    assert kept(out) == old
    assert files()["tls/tls.crt"].endswith(old.certificate + "\n")
    assert isinstance(out.unit_status, testing.WaitingStatus)


def test_an_authority_is_not_replaced_while_the_webhook_cannot_be_told(
    ctx: Context, settled: testing.State, old: Authority
) -> None:
    bad = dataclasses.replace(aged(settled, old), config={"failure-policy": "Abort"})

    out = ctx.run(ctx.on.update_status(), bad)

    assert kept(out) == old


def test_an_old_revision_of_the_authority_is_removed(ctx: Context, settled: testing.State) -> None:
    (secret,) = settled.secrets

    ctx.run(ctx.on.secret_remove(secret, revision=3), settled)

    assert ctx.removed_secret_revisions == [3]


def test_a_follower_moves_on_to_the_newest_authority(
    ctx: Context, settled: testing.State, files: Files
) -> None:
    new = certificates.make_authority("istio-aux", "kubeflow", replaces=kept(settled))
    (secret,) = settled.secrets
    # ops.testing takes a secret of the application for one that is not this unit's.
    newest = dataclasses.replace(secret, latest_content=new.to_secret(), owner=None)
    follower = dataclasses.replace(settled, secrets={newest}, leader=False)

    ctx.run(ctx.on.secret_changed(newest), follower)

    assert files()["tls/tls.crt"].endswith(new.certificate + "\n")
