"""Kubeconfig files, and the smallest client for what must work before anything else does."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lab.certificates import KeyPair


def with_certificate(path: Path, server: str, ca: Path, *, user: str, pair: KeyPair) -> Path:
    """Write a kubeconfig whose user has a client certificate; returns its path."""
    credentials = {
        "client-certificate-data": _data(pair.certificate),
        "client-key-data": _data(pair.key),
    }
    return _write(path, server, ca, user=user, credentials=credentials)


def with_token(path: Path, server: str, ca: Path, *, user: str, token: str, namespace: str) -> Path:
    """Write a kubeconfig whose user has a bearer token; returns its path."""
    return _write(path, server, ca, user=user, credentials={"token": token}, namespace=namespace)


def get(server: str, ca: Path, pair: KeyPair, path: str) -> int:
    """The status of an HTTPS GET with a client certificate.

    Raises:
        OSError: no connection; http.client.HTTPException: no answer.
    """
    address = urlsplit(server)
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(pair.certificate, pair.key)
    assert address.hostname
    connection = http.client.HTTPSConnection(
        address.hostname, address.port, context=context, timeout=10
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _write(
    path: Path,
    server: str,
    ca: Path,
    *,
    user: str,
    credentials: dict[str, str],
    namespace: str = "default",
) -> Path:
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
