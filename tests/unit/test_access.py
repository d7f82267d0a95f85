"""Credentials: which kubeconfigs are understood, and what is said of one that is not."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from istio_aux.kube import access
from istio_aux.kube.client import Client
from istio_aux.kube.errors import AccessError
from unit.apiserver import ApiServer
from unit.asynchronous import driven
from unit.tls import certificate


def kubeconfig(
    folder: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None,
    context: dict[str, Any] | None = None, **top: Any,
) -> Path:  # fmt: skip
    """A kubeconfig of which a test says only what matters to it."""
    config: dict[str, Any] = {
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **(cluster or {})}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **(context or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config | top))
    return path


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@pytest.mark.parametrize("form", ["data", "file", "relative file"])
@driven
async def test_the_cluster_s_authority_is_trusted_in_any_form(form: str, tmp_path: Path) -> None:
    async with ApiServer() as api:
        (tmp_path / "ca.crt").write_bytes(api.ca.read_bytes())
        cluster = {
            "data": {"certificate-authority-data": encoded(api.ca)},
            "file": {"certificate-authority": str(api.ca)},
            "relative file": {"certificate-authority": "ca.crt"},
        }[form]
        path = kubeconfig(tmp_path, cluster={"server": api.url + "/", **cluster})
        async with Client(access.load(path)) as client:
            assert b"items" in await client.get("/api/v1/pods")


@driven
async def test_a_server_may_be_trusted_unseen_if_its_kubeconfig_says_so(tmp_path: Path) -> None:
    async with ApiServer() as api:
        cluster = {"server": api.url, "insecure-skip-tls-verify": True}
        async with Client(access.load(kubeconfig(tmp_path, cluster=cluster))) as client:
            assert b"items" in await client.get("/api/v1/pods")


@pytest.mark.parametrize("form", ["data", "files"])
def test_a_client_certificate_is_taken_in_either_form(form: str, tmp_path: Path) -> None:
    crt, key = certificate(tmp_path)
    user = {
        "data": {"client-certificate-data": encoded(crt), "client-key-data": encoded(key)},
        "files": {"client-certificate": crt.name, "client-key": key.name},
    }[form]
    assert access.load(kubeconfig(tmp_path, user=user)).token() is None


def test_a_client_certificate_without_its_own_key_is_refused(tmp_path: Path) -> None:
    crt, _ = certificate(tmp_path, stem="one")
    _, key = certificate(tmp_path, stem="other")
    user = {"client-certificate": str(crt), "client-key": str(key)}
    with pytest.raises(AccessError, match="client certificate"):
        access.load(kubeconfig(tmp_path, user=user))


def test_a_token_may_stand_in_the_kubeconfig(tmp_path: Path) -> None:
    found = access.load(kubeconfig(tmp_path, user={"token": "abc"}))
    assert found.token() == "abc"
    assert found.server == "https://api:6443"


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    token = access.load(kubeconfig(tmp_path, user={"tokenFile": "token"})).token
    assert token() == "first"
    file.write_text("second, longer\n")
    assert token() == "second, longer"


def test_a_token_file_that_is_just_being_replaced_leaves_the_last_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    token = access.load(kubeconfig(tmp_path, user={"tokenFile": str(file)})).token
    file.unlink()
    assert token() == "first"
    file.write_text("")
    assert token() == "first"
    file.write_text("second")
    assert token() == "second"


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    crt, _ = certificate(tmp_path)
    crt.rename(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("mounted")
    (tmp_path / "namespace").write_text("istio-aux\n")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = access.in_cluster(environ, tmp_path)
    assert (found.server, found.token()) == ("https://[fd00::1]:443", "mounted")
    assert found.namespace == "istio-aux"
    assert found.tls.verify_mode is ssl.CERT_REQUIRED


def test_the_variable_kubeconfig_is_looked_at_when_no_file_is_given(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, context={"namespace": "mine"})
    assert access.find(None, {"KUBECONFIG": str(path)}).namespace == "mine"


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"current-context": "there"}, 'current-context: "there": expected one of: here'),
        ({"context": {"cluster": "d"}}, 'context here: no cluster "d"'),
        ({"cluster": {"server": "api"}}, 'cluster c: server: "api": expected an https URL'),
        ({"cluster": {"server": 7}}, "Expected `str`, got `int` - at `$.clusters[0].cluster"),
        ({"cluster": {"proxy-url": "http://p"}}, "cluster c: proxy-url is not supported"),
        ({"cluster": {"certificate-authority": "no.crt"}}, "no.crt: No such file"),
        ({"cluster": {"certificate-authority-data": "?"}}, "certificate-authority-data: not base"),
        ({"cluster": {"certificate-authority-data": "YQ=="}}, "no certificate authority in PEM"),
        ({"user": {"exec": {"command": "gcloud"}}}, "user u: exec, auth-provider and username"),
        ({"user": {"tokenFile": "none"}}, "none: no token to read"),
        ({"clusters": None}, "no kubeconfig: Expected `array`"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_refused_in_one_line(
    parts: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(AccessError) as caught:
        access.load(kubeconfig(tmp_path, **parts))
    assert complaint in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "just text"])
def test_a_file_that_is_no_kubeconfig_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(AccessError, match="no kubeconfig") as caught:
        access.load(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="absent: No such file or directory"):
        access.load(tmp_path / "absent")


def test_neither_pod_nor_kubeconfig_says_what_to_give() -> None:
    with pytest.raises(AccessError, match="--kubeconfig"):
        access.in_cluster({})
