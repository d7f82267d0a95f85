"""Where the API server is and how to prove who we are: a kubeconfig, or a pod's service account.

Only the reading of credentials may live here; no request is made. A kubeconfig of which we do not
understand a part is refused with the name of that part, because leaving it out would connect
differently from kubectl.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from istio_aux.kube.errors import AccessError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts a pod's token and the cluster's CA."""


@dataclass(frozen=True)
class Access:
    """All that a client needs to know.

    Attributes:
        server: base URL of the API server, without a slash at the end.
        tls: context that trusts the cluster's CA and carries our client certificate, if any. One
            context serves all connections: building it costs more than a handshake.
        token: gives the bearer token that is valid now, or None.
        server_hostname: name to expect in the server's certificate, when it is not the URL's.
        namespace: the context's namespace.
    """

    server: str
    tls: ssl.SSLContext
    token: Callable[[], str | None]
    server_hostname: str | None = None
    namespace: str = "default"


class _Struct(msgspec.Struct, frozen=True, rename="kebab"):
    """kubeconfig spells its keys in kebab-case, with exceptions that are named."""


class _Cluster(_Struct, frozen=True):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _User(_Struct, frozen=True):
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    exec: object = None
    auth_provider: object = None
    username: str | None = None


class _Context(_Struct, frozen=True):
    cluster: str
    user: str = ""
    namespace: str | None = None


class _NamedCluster(_Struct, frozen=True):
    name: str
    cluster: _Cluster


class _NamedUser(_Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(_Struct, frozen=True):
    name: str
    context: _Context


class _Kubeconfig(_Struct, frozen=True):
    current_context: str
    clusters: tuple[_NamedCluster, ...]
    contexts: tuple[_NamedContext, ...]
    users: tuple[_NamedUser, ...] | None = None


def find(kubeconfig: Path | None, environ: Mapping[str, str] = os.environ) -> Access:
    """Choose as kubectl does: the file given, ``KUBECONFIG``, ``~/.kube/config``, in-cluster.

    Raises:
        AccessError: there are none, or those found cannot be used.
    """
    if kubeconfig is not None:
        return load(kubeconfig)
    if named := environ.get("KUBECONFIG"):
        return load(Path(named))
    usual = Path.home() / ".kube" / "config"
    return load(usual) if usual.exists() else in_cluster(environ)


def in_cluster(environ: Mapping[str, str], mount: Path = SERVICE_ACCOUNT) -> Access:
    """Use the service account of the pod that we run in.

    Raises:
        AccessError: this is no pod, or it has no token.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise AccessError(
            "no kubeconfig, and KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set:"
            " name a file with --kubeconfig"
        )
    host = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{host}:{port}",
        tls=_trust(mount / "ca.crt", _read(mount / "ca.crt")),
        token=_TokenFile(mount / "token"),
        namespace=_read(mount / "namespace").decode().strip(),
    )


def load(path: Path) -> Access:
    """Read the current context of a kubeconfig; relative paths in it start at its own folder.

    Raises:
        AccessError: one line that names the file, the part and what is wrong with it.
    """
    try:
        config = msgspec.convert(yaml.safe_load(_read(path)), _Kubeconfig)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise AccessError(f"{path}: no kubeconfig: {' '.join(str(error).split())}") from error
    name = config.current_context
    context = next((item.context for item in config.contexts if item.name == name), None)
    if context is None:
        known = ", ".join(item.name for item in config.contexts) or "none"
        raise AccessError(f'{path}: current-context: "{name}": expected one of: {known}')
    cluster = next((c.cluster for c in config.clusters if c.name == context.cluster), None)
    if cluster is None:
        raise AccessError(f'{path}: context {name}: no cluster "{context.cluster}"')
    user = next((u.user for u in config.users or () if u.name == context.user), None) or _User()
    if cluster.proxy_url:
        raise AccessError(f"{path}: cluster {context.cluster}: proxy-url is not supported")
    if user.exec or user.auth_provider or user.username:
        raise AccessError(
            f"{path}: user {context.user}: exec, auth-provider and username are not supported;"
            " expected token, tokenFile or client-certificate"
        )
    if not cluster.server.startswith(("https://", "http://")):
        raise AccessError(
            f'{path}: cluster {context.cluster}: server: "{cluster.server}": expected an https URL'
        )
    folder = path.resolve().parent
    return Access(
        server=cluster.server.rstrip("/"),
        tls=_tls(path, folder, cluster, user),
        token=_token(folder, user),
        server_hostname=cluster.tls_server_name,
        namespace=context.namespace or "default",
    )


def _tls(path: Path, folder: Path, cluster: _Cluster, user: _User) -> ssl.SSLContext:
    if cluster.certificate_authority_data:
        bundle = _decoded(path, "certificate-authority-data", cluster.certificate_authority_data)
        context = _trust(path, bundle)
    elif cluster.certificate_authority:
        file = folder / cluster.certificate_authority
        context = _trust(file, _read(file))
    else:
        context = ssl.create_default_context()
    if cluster.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = user.client_certificate_data, user.client_key_data
    if certificate and key:
        chain = _decoded(path, "client-certificate-data", certificate)
        secret = _decoded(path, "client-key-data", key)
        # OpenSSL takes a client certificate from a file only; this one is readable for us alone.
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(chain + b"\n" + secret)
            pair.flush()
            _present(context, path, Path(pair.name), None)
    elif user.client_certificate and user.client_key:
        _present(context, path, folder / user.client_certificate, folder / user.client_key)
    return context


def _trust(source: Path, bundle: bytes) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=bundle.decode())
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise AccessError(f"{source}: no certificate authority in PEM form: {error}") from error


def _present(context: ssl.SSLContext, source: Path, certificate: Path, key: Path | None) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one, too.
        raise AccessError(f"{source}: client certificate: {error}") from error


def _token(folder: Path, user: _User) -> Callable[[], str | None]:
    if user.token:
        token = user.token
        return lambda: token
    if user.token_file:
        return _TokenFile(folder / user.token_file)
    return lambda: None


class _TokenFile:
    """Gives the token in a file, read again when the file changes: tokens live for an hour or so.

    A class because it remembers what it read. A file that is missing for a moment, while it is
    replaced, leaves the last token in force.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token: str | None = None
        if self() is None:
            raise AccessError(f"{path}: no token to read")

    def __call__(self) -> str | None:
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen != self._seen:
                self._token = self._path.read_text().strip() or self._token
                self._seen = seen
        except OSError:
            return self._token
        return self._token


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror or error}") from error


def _decoded(path: Path, key: str, value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise AccessError(f"{path}: {key}: not base64: {error}") from error
