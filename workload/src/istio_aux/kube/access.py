"""Address and credentials of the API server, from kubeconfigs or a pod's service account.

Files are read again when they change. A kubeconfig with a field that is not supported is refused
with the name of that field: without it, we would connect in another way than kubectl. Each
`AccessError` is one line with the file, the field and the problem.
"""

from __future__ import annotations

import base64
import logging
import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, NamedTuple
from urllib import request
from urllib.parse import SplitResult, urlsplit

import msgspec
import yaml

from istio_aux.kube import exec_plugin
from istio_aux.kube.errors import AccessError
from istio_aux.model.documents import load_yaml
from istio_aux.model.text import UNDECODABLE, one_line, problem, quoted

_log = logging.getLogger(__name__)

# Where the kubelet mounts a pod's token and the cluster's CA.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Access:
    """How to connect to the API server, at one moment."""

    server: str  # Base URL, without a slash at the end.
    # Context with the cluster's CA and our client certificate, if any. All connections share it: to
    # build one costs more than a handshake.
    tls: ssl.SSLContext
    token: Callable[[], str | None]  # Returns the bearer token that is valid now, or None.
    server_hostname: str | None = None  # Name in the server's certificate, if it is not the URL's.
    namespace: str = "default"  # The namespace of the context.
    proxy: str | None = None  # URL of the HTTP proxy on the way to the server.
    # Returns the access that replaces this one; None if this one stays valid.
    renewed: Callable[[], Awaitable[Access]] | None = None
    refused: Callable[[], None] = lambda: None  # The caller calls it after a 401.

    async def current(self) -> Access:
        """The access that is valid now; `AccessError` if a credential plugin fails."""
        return self if self.renewed is None else await self.renewed()


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    disable_compression: bool = False
    extensions: object = None


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    exec: dict[str, object] | None = None
    extensions: object = None


class _Context(msgspec.Struct, frozen=True):
    cluster: str
    user: str = ""
    namespace: str = "default"
    extensions: object = None


class _Named(msgspec.Struct, frozen=True):
    """An entry of a list. Only the entry that the context names is checked further."""

    name: str
    cluster: dict[str, object] | None = None
    user: dict[str, object] | None = None
    context: dict[str, object] | None = None


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: tuple[_Named, ...] | None = None
    contexts: tuple[_Named, ...] | None = None
    users: tuple[_Named, ...] | None = None


class _Entry(NamedTuple):
    """A cluster, user or context: its kubeconfig, and the fields that are set."""

    path: Path
    where: str  # The kubeconfig, the kind and the name, for messages.
    value: dict[str, object]

    def beside(self, name: str) -> Path:
        """Resolve a path in the entry; it is relative to the folder of the kubeconfig."""
        return self.path.absolute().parent / name

    def content(self, key: str, files: list[Path]) -> bytes:
        """Decode the field ``key`` + "-data", or read the file that ``key`` names, if any."""
        if data := self.value.get(f"{key}-data"):
            try:
                return base64.b64decode(str(data), validate=True)
            except ValueError as error:
                raise AccessError(f"{self.path}: {key}-data: not base64: {error}") from error
        if name := self.value.get(key):
            files.append(self.beside(str(name)))
            return _read(files[-1])
        return b""


def find(
    kubeconfig: Path | None, environ: Mapping[str, str] = os.environ, *, context: str | None = None
) -> Access:
    """Choose as kubectl does: the file given, ``KUBECONFIG``, ``~/.kube/config``, in-cluster."""
    if kubeconfig is not None:
        return load(kubeconfig, context=context)
    if named := [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]:
        if not any(path.exists() for path in named):
            raise AccessError(f"KUBECONFIG: no such file: {', '.join(map(str, named))}")
        return load(*named, context=context)
    usual = Path.home() / ".kube" / "config"
    if context is not None or usual.exists():
        return load(usual, context=context)
    return in_cluster(environ)


def in_cluster(environ: Mapping[str, str], mount: Path = SERVICE_ACCOUNT) -> Access:
    """Use the service account of the pod that this process runs in."""
    host = environ.get("KUBERNETES_SERVICE_HOST")
    port = environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise AccessError(
            "no kubeconfig, and KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set:"
            " name a file with --kubeconfig"
        )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    authority = mount / "ca.crt"

    def make() -> _Made:
        return (
            Access(
                server=server,
                tls=_context(authority, _read(authority)),
                token=_of_file(mount / "token"),
                namespace=_read(mount / "namespace").decode().strip(),
            ),
            [authority],
        )

    return _fresh(make)


def load(*paths: Path, context: str | None = None) -> Access:
    """Read a context of a kubeconfig, or of several merged into one; the current one by default.

    As in kubectl, the first file that sets something wins, and of several files some may be
    missing (client-go clientcmd loader.go).
    """
    return _fresh(lambda: _load(paths, context))


_Made = tuple[Access, Sequence[Path]]  # An access, and the files that it comes from.


def _fresh(make: Callable[[], _Made]) -> Access:
    """Return an access that is made again when its files change.

    While the files cannot be used, for example during a write, the last access stays.
    """
    access, files = make()
    known = stamps(files)

    def token() -> str | None:
        return access.token()

    async def current() -> Access:
        nonlocal access, files, known
        if known != (seen := stamps(files)):
            known = seen
            try:
                access, files = make()
                _log.info("credentials read again", extra={"event": "access"})
            except AccessError as error:
                _log.warning("%s; the last ones stay", error, extra={"event": "access"})
        return await access.current()

    return replace(access, token=token, renewed=current)


def stamps(files: Iterable[Path]) -> list[tuple[int, int, int] | None]:
    """Stamps that change when the files do, or the target of a link as in a mounted Secret."""

    def stamp(path: Path) -> tuple[int, int, int] | None:
        try:
            stat = path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    return [stamp(path) for path in files]


def _load(paths: Sequence[Path], chosen: str | None) -> _Made:
    named = ", ".join(map(str, paths))
    files = [(path, _file(path)) for path in paths if len(paths) == 1 or path.exists()]
    current = next((file.current_context for _, file in files if file.current_context), "")
    name, said = (current, "current-context") if chosen is None else (chosen, "context")
    contexts = _entries(files, "context")
    if name not in contexts:
        raise AccessError(
            f'{named}: {said}: "{name}": expected one of: {", ".join(contexts) or "none"}'
        )
    context = exec_plugin.supported(contexts[name].value, _Context, contexts[name].where)
    clusters = _entries(files, "cluster")
    users = _entries(files, "user")
    if context.cluster not in clusters:
        raise AccessError(f'{named}: context {name}: no cluster "{context.cluster}"')
    if context.user and context.user not in users:
        raise AccessError(f'{named}: context {name}: no user "{context.user}"')
    access, more = _access(
        clusters[context.cluster],
        users.get(context.user) or _Entry(paths[0], f"{paths[0]}: user ", {}),
        context.namespace,
    )
    return access, [*paths, *more]


def _file(path: Path) -> _File:
    try:
        return msgspec.convert(load_yaml(_read(path)), _File)
    except (yaml.YAMLError, *UNDECODABLE) as error:
        raise AccessError(f"{path}: no kubeconfig: {one_line(str(error))}") from error


def _entries(files: Iterable[tuple[Path, _File]], kind: str) -> dict[str, _Entry]:
    """Entries of a kind by name. The first entry of a name wins as a whole."""
    by_name: dict[str, _Entry] = {}
    for path, file in files:
        for entry in getattr(file, f"{kind}s") or ():
            value: dict[str, object] = getattr(entry, kind) or {}
            # Some programs write `as: ""` and `token: null`.
            given = {key: item for key, item in value.items() if item not in (None, "", [], {})}
            by_name.setdefault(entry.name, _Entry(path, f"{path}: {kind} {entry.name}", given))
    return by_name


def _access(of_cluster: _Entry, of_user: _Entry, namespace: str) -> _Made:
    cluster = exec_plugin.supported(of_cluster.value, _Cluster, of_cluster.where)
    if _url(cluster.server, f"{of_cluster.where}: server").username is not None:
        raise AccessError(f"{of_cluster.where}: server: a user in a URL is not supported")
    files: list[Path] = []
    bundle = of_cluster.content("certificate-authority", files)
    source = files[0] if files else of_cluster.path

    def context_with(certificate: bytes = b"", key: bytes = b"") -> ssl.SSLContext:
        tls = _context(source, bundle)
        if cluster.insecure_skip_tls_verify:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        if certificate:
            _load_certificate(tls, of_user.path, certificate, key)
        return tls

    user = exec_plugin.supported(of_user.value, _User, of_user.where)
    certified = bool(user.client_certificate_data or user.client_certificate)
    if certified != bool(user.client_key_data or user.client_key):
        # Without it, we would be anonymous.
        lone, lacks = ("certificate", "key") if certified else ("key", "certificate")
        raise AccessError(f"{of_user.where}: client-{lone} without client-{lacks}")
    pair = [of_user.content(f"client-{part}", files) for part in ("certificate", "key")]
    path = of_user.beside(user.token_file) if user.token_file else None
    access = Access(
        server=cluster.server.rstrip("/"),
        tls=context_with(*pair),
        token=_of_file(path, user.token) if path else lambda: user.token,
        server_hostname=cluster.tls_server_name,
        namespace=namespace,
        proxy=_proxy(cluster, of_cluster.where, os.environ),
    )
    if user.exec is None or path or user.token or certified:  # client-go does the same.
        return access, files

    def access_with(credential: exec_plugin.Credential) -> Access:
        pair = [  # It has both or none.
            text.encode()
            for text in (credential.client_certificate_data, credential.client_key_data)
            if text
        ]
        return replace(
            access,
            tls=context_with(*pair) if pair else access.tls,
            token=lambda: credential.token,
            refused=plugin.forget,
        )

    plugin = exec_plugin.Plugin(
        user.exec,
        of_user.where,
        of_user.beside(""),
        _cluster_info(of_cluster, bundle),
        access_with,
    )
    return replace(access, renewed=plugin.current), files


def _proxy(cluster: _Cluster, where: str, environ: Mapping[str, str]) -> str | None:
    """The proxy to the API server: of the kubeconfig, else of the environment, as in kubectl."""
    server = urlsplit(cluster.server)
    proxy = cluster.proxy_url
    said = f"{where}: proxy-url"
    if proxy is None:
        said = f"{server.scheme.upper()}_PROXY"
        proxy = environ.get(said) or environ.get(said.lower())
        if not proxy or _direct(server, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
            return None
        proxy = proxy if "://" in proxy else f"http://{proxy}"
    _url(proxy, said)
    return proxy


def _url(text: str, said: str) -> SplitResult:
    """Split the URL of a server; `AccessError` names the field, ``said``, with a bad one."""
    why = "expected an http or https URL"
    try:
        url = urlsplit(text)
        if url.scheme in {"http", "https"} and url.hostname and url.port != 0:
            return url
    except ValueError as error:  # The port or the IPv6 address is bad.
        why = str(error)
    raise AccessError(f"{said}: {quoted(text)}: {why}")


def _direct(server: SplitResult, exceptions: str) -> bool:
    """Whether ``NO_PROXY`` names a host (golang.org/x/net http/httpproxy)."""
    host = (server.hostname or "").rstrip(".")
    port = server.port or {"http": 80}.get(server.scheme, 443)
    entries = [entry.strip() for entry in exceptions.split(",")]
    if host == "localhost" or "*" in entries:
        return True
    with suppress(ValueError):  # Most hosts are no addresses, and most entries no networks.
        address = ip_address(host)
        if address.is_loopback:
            return True
        for entry in entries:
            with suppress(ValueError):
                if address in ip_network(entry, strict=False):
                    return True
    return request.proxy_bypass_environment(  # pyright: ignore  # typeshed lacks it
        f"{host}:{port}",
        {"no": ",".join(entry.removeprefix("*") for entry in entries)},
    )


def _cluster_info(cluster: _Entry, bundle: bytes) -> dict[str, object]:
    """The cluster as a plugin gets it (client.authentication.k8s.io/v1 Cluster)."""
    info = {
        key: cluster.value[key]
        for key in (
            "server",
            "tls-server-name",
            "insecure-skip-tls-verify",
            "disable-compression",
            "proxy-url",
        )
        if key in cluster.value
    }
    if bundle:
        info["certificate-authority-data"] = base64.b64encode(bundle).decode()
    extensions: Any = cluster.value.get("extensions") or ()
    configs = [
        each.get("extension")
        for each in extensions
        if each.get("name") == "client.authentication.k8s.io/exec"
    ]
    return {**info, "config": configs[-1]} if configs else info


def _context(source: Path, bundle: bytes) -> ssl.SSLContext:
    """Trust the authorities in PEM, or those of the system, each as an anchor, as Go does.

    From 3.13 on, Python asks for key usage and key identifiers in an authority; Go does not.
    """
    try:
        context = ssl.create_default_context(cadata=bundle.decode() or None)
    except (ssl.SSLError, ValueError) as error:
        raise AccessError(f"{source}: no certificate authority in PEM form: {error}") from error
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _load_certificate(
    tls: ssl.SSLContext,
    source: Path,
    certificate: bytes,
    key: bytes,
) -> None:
    # OpenSSL reads client certificates from files only. No other user can read this one.
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(certificate + b"\n" + key)
        pair.flush()
        try:
            # Otherwise OpenSSL asks for a password on the terminal.
            tls.load_cert_chain(pair.name, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError.
            raise AccessError(f"{source}: client certificate: {error}") from error


def _of_file(path: Path, token: str | None = None) -> Callable[[], str | None]:
    """Returns the token in a file, which changes every hour or so; the last one if unreadable."""

    def read() -> str | None:
        nonlocal token
        with suppress(OSError, ValueError):  # A path with a NUL is a ValueError.
            token = path.read_text().strip() or token
        return token

    if read() is None:
        raise AccessError(f"{path}: no token to read")
    return read


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # A path with a NUL is a ValueError.
        raise AccessError(f"{path}: {problem(error)}") from error
