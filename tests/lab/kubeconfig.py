"""Kubeconfig files, and the smallest client for what must work before anything else does."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path
from typing import Any

import httpx2
from lightkube import Client
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ServiceAccountToken

from lab.certificates import KeyPair


def write(
    path: Path, server: str, ca: Path, *, user: str, has: KeyPair | str, namespace: str = "default"
) -> Path:
    """Write a kubeconfig whose user has a certificate or a bearer token; returns its path."""
    if isinstance(has, str):
        credentials = {"token": has}
    else:
        files = {"client-certificate-data": has.certificate, "client-key-data": has.key}
        credentials = {key: _data(file) for key, file in files.items()}
    # JSON is YAML: every reader of kubeconfigs takes it.
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "lab",
                "cluster": {"server": server, "certificate-authority-data": _data(ca)},
            }
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [
            {"name": "lab", "context": {"cluster": "lab", "user": user, "namespace": namespace}}
        ],
        "current-context": "lab",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=2) + "\n")
    return path


def token(client: Client, namespace: str, account: str, *, seconds: int = 3600) -> str:
    """A token of the ServiceAccount."""
    # lightkube reads the metadata, though none are sent.
    spec = TokenRequestSpec(audiences=[], expirationSeconds=seconds)
    request = ServiceAccountToken(metadata=ObjectMeta(), spec=spec)
    answer = client.create(request, account, namespace=namespace)
    assert answer.status
    assert answer.status.token
    return answer.status.token


def get(server: str, ca: Path, pair: KeyPair, path: str, *, patience: float = 10) -> int:
    """The status of an HTTPS GET with a client certificate. Raises httpx2.HTTPError."""
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(pair.certificate, pair.key)
    with httpx2.Client(verify=context, trust_env=False, timeout=patience) as client:
        return client.get(f"{server}{path}").status_code


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
