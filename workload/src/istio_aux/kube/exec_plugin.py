"""Credential plugins: programs that a kubeconfig names in ``exec`` (client.authentication.k8s.io).

A plugin runs as the user. Its time is bounded.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec

from istio_aux.kube.errors import AccessError
from istio_aux.model.documents import BadDocument, T, read
from istio_aux.model.text import UNDECODABLE, one_line, problem, quoted

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
DEADLINE = 60.0  # Seconds for an answer.
AGAIN = 10.0  # Seconds until a plugin that failed runs again, for all requests together.
_SHOWN = 2000  # Characters of a plugin's words in a message.
S = TypeVar("S", bound=msgspec.Struct)


class ExecEnvVar(msgspec.Struct, frozen=True):
    """One environment variable."""

    name: str
    value: str = ""


class ExecConfig(msgspec.Struct, frozen=True, rename="camel"):
    """``exec`` of a user in a kubeconfig (client-go clientcmd/api/v1 ExecConfig)."""

    command: str = ""
    api_version: str = ""
    args: tuple[str, ...] | None = None
    env: tuple[ExecEnvVar, ...] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class _Allowed(msgspec.Struct, frozen=True):
    command: str = ""
    name: str = ""  # The former name of `command`.


class _Preference(msgspec.Struct, frozen=True, rename="camel"):
    """The preferences in a kuberc (kubectl config/v1beta1 Preference)."""

    api_version: str = ""
    kind: str = ""
    credential_plugin_policy: str = ""
    credential_plugin_allowlist: tuple[_Allowed, ...] = ()


class Credential(msgspec.Struct, frozen=True, rename="camel"):
    """``status`` of an answer: a token, or a client certificate and key in PEM, or both."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: Credential = Credential()


def supported(value: Mapping[str, object], kind: type[S], where: str) -> S:
    """Convert a part of a kubeconfig; `AccessError` if a field is unknown or has another type."""
    for key in value:
        if key not in kind.__struct_encode_fields__:
            raise AccessError(f"{where}: {key} is not supported")
    try:
        return msgspec.convert({k: item for k, item in value.items() if item is not None}, kind)
    except msgspec.ValidationError as error:
        raise AccessError(f"{where}: {error}") from error


def refused_by(environ: Mapping[str, str], command: str) -> str:
    """Why the user's kuberc does not let a plugin run; empty if it does, or there is none.

    The rules are kubectl 1.35's (kuberc.go LoadKuberc, client-go exec.go checkAllowlistLocked), but
    a kuberc that cannot be read lets none run. `AccessError`: it is not there, or cannot be read.
    """
    named = environ.get("KUBERC", "")
    path = Path(named) if named else Path.home() / ".kube" / "kuberc"
    if named == "off" or not (named or path.exists()):
        return ""
    found = _preference(path)
    match found.credential_plugin_policy:
        case "" | "AllowAll":
            return ""
        case "DenyAll":
            return f"{path}: credentialPluginPolicy: DenyAll"
        case "Allowlist":
            allowed = {each.command or each.name for each in found.credential_plugin_allowlist}
            if command in allowed or shutil.which(command) in {*map(shutil.which, allowed - {""})}:
                return ""
            return f"{path}: credentialPluginAllowlist: it is not in that"
        case other:
            return (
                f"{path}: credentialPluginPolicy: {quoted(other)}:"
                " expected AllowAll, DenyAll or Allowlist"
            )


def _preference(path: Path) -> _Preference:
    try:
        for each in read(path.read_bytes()):
            if isinstance(each, BadDocument):
                raise AccessError(f"{path}:{each.place}: {each.why}")
            found = msgspec.json.decode(each.readable, type=_Preference)
            if found.kind == "Preference" and found.api_version.startswith(
                "kubectl.config.k8s.io/"
            ):
                return found
    except (OSError, *UNDECODABLE) as error:
        raise AccessError(f"{path}: {problem(error)}") from error
    return _Preference()


class Plugin(Generic[T]):
    """One program, and what was made of its last credential."""

    def __init__(
        self,
        spec: Mapping[str, object],
        who: str,
        folder: Path,
        cluster: Mapping[str, object],
        make: Callable[[Credential], T],
    ) -> None:
        """Prepare the ``exec`` of the user ``who``; `AccessError` if it cannot run like that.

        A command with a slash is relative to ``folder``. The plugin may be told of the ``cluster``.
        ``make`` raises `AccessError` for a credential that cannot be used.
        """
        where = f"{who}: exec"
        config = supported(spec, ExecConfig, where)
        mode = config.interactive_mode or (
            "" if config.api_version == VERSIONS[0] else "IfAvailable"
        )
        terminal = sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]
        for wrong, why in (
            (
                config.api_version not in VERSIONS,
                f'apiVersion: "{config.api_version}": expected {" or ".join(VERSIONS)}',
            ),
            (
                not config.command,
                "command: expected the name of a program",
            ),
            (
                mode not in {"Never", "IfAvailable", "Always"},
                "interactiveMode: expected Never, IfAvailable or Always",
            ),
            (
                mode == "Always" and not terminal,
                "interactiveMode: Always: standard input is no terminal",
            ),
        ):
            if wrong:
                raise AccessError(f"{where}: {why}")
        self._spec = config
        self._quiet = not terminal or mode == "Never"
        self._command = str(folder / config.command) if os.sep in config.command else config.command
        self._name = f"{who}: {self._command}"
        if why := refused_by(os.environ, self._command):
            raise AccessError(f"{self._name}: {why}")
        self._info = msgspec.json.encode(
            {
                "apiVersion": config.api_version,
                "kind": "ExecCredential",
                "spec": {
                    "interactive": not self._quiet,
                    **({"cluster": cluster} if config.provide_cluster_info else {}),
                },
            }
        ).decode()
        self._turn = asyncio.Lock()
        self._make = make
        self._last: tuple[datetime | None, T] | None = None
        self._failure: tuple[float, AccessError] | None = None

    async def current(self) -> T:
        """What is made of a valid credential; may run the program.

        A credential without an expiry lasts until `forget`. After a failure, also of ``make``, the
        program does not run again at once.
        """
        async with self._turn:
            if self._last:
                expires, made = self._last
                if expires is None or datetime.now(UTC) < expires:
                    return made
            if self._failure and asyncio.get_running_loop().time() < self._failure[0] + AGAIN:
                raise self._failure[1]
            try:
                credential = self._credential(await self._run())
                made = self._make(credential)
            except AccessError as error:
                self._failure = asyncio.get_running_loop().time(), error
                raise
            self._last = credential.expiration_timestamp, made
            return made

    def forget(self) -> None:
        """Drop the last credential: the API server refused it."""
        self._last = None

    async def _run(self) -> bytes:
        """Run the program; returns its answer."""
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                self._command,
                *(self._spec.args or ()),
                stdin=asyncio.subprocess.DEVNULL if self._quiet else None,
                stdout=asyncio.subprocess.PIPE,
                # A person who logs in must see the instructions.
                stderr=asyncio.subprocess.PIPE if self._quiet else None,
                env={
                    **os.environ,
                    **{item.name: item.value for item in self._spec.env or ()},
                    "KUBERNETES_EXEC_INFO": self._info,
                },
                # `_end` kills the whole session: the program and its children.
                start_new_session=self._quiet,
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # asyncio would kill the program alone, and wait for children that hold its pipes.
            await asyncio.wait([starting])
            if not starting.exception():
                await _end(starting.result(), group=self._quiet)
            raise
        except (OSError, ValueError) as error:
            hint = self._spec.install_hint and f"; {one_line(self._spec.install_hint, _SHOWN)}"
            raise AccessError(f"{self._name}: {problem(error)}{hint}") from error
        seconds = DEADLINE if self._quiet else 300.0  # A person may have to log in.
        try:
            async with asyncio.timeout(seconds):
                answer, errors = await process.communicate()
        except TimeoutError as error:
            raise AccessError(f"{self._name}: no answer within {seconds:g} s") from error
        finally:
            await _end(process, group=self._quiet)
        if process.returncode != 0:
            why = " ".join((errors or b"").decode(errors="replace").split())
            why = why if len(why) <= _SHOWN else f"…{why[-_SHOWN:]}"  # The end says why.
            why = f"exit status {process.returncode}" + (f": {why}" if why else "")
            raise AccessError(f"{self._name}: {why}")
        return answer

    def _credential(self, answer: bytes) -> Credential:
        try:
            credential = msgspec.json.decode(answer, type=_ExecCredential)
        except UNDECODABLE as error:
            raise AccessError(f"{self._name}: no ExecCredential: {error}") from error
        if (credential.kind, credential.api_version) != ("ExecCredential", self._spec.api_version):
            raise AccessError(f"{self._name}: expected ExecCredential {self._spec.api_version}")
        status = credential.status
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise AccessError(
                f"{self._name}: expected both or none of clientCertificateData and clientKeyData"
            )
        if not (status.token or status.client_certificate_data):
            raise AccessError(f"{self._name}: neither token nor client certificate")
        return status


async def _end(process: asyncio.subprocess.Process, *, group: bool) -> None:
    """Kill a program, or its process group. A process that left the group may hold its pipes."""
    with suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(1):  # asyncio also waits for the end of the pipes.
            await process.wait()
