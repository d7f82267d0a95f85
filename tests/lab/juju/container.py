"""The workload container of one unit: a real Pebble as PID 1, in a private root."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import http.client
import os
import urllib.error
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ops.pebble

from lab import Cluster, Process, tools

from . import root
from .image import Image
from .root import CREDENTIALS, Bind, User

# Where Juju mounts its folder with the socket, which the charm sees below /charm/containers.
SOCKET_FOLDER = "/charm/container"
# Juju lets its own user, under whom a charm without root runs, into a Pebble that runs as another.
IDENTITIES = "identities: {juju: {access: admin, local: {user-id: 170}}}\n"
# Errors that say that Pebble is not there: it is starting, or it was killed.
GONE = (ops.pebble.ConnectionError, FileNotFoundError, ConnectionError, urllib.error.URLError)


class Container:
    """A container of a unit; it starts with its constructor and ends with the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        folder: Path,
        *,
        label: str,
        image: Image,
        environment: Mapping[str, str],
        network: Path,
        user: User,
    ) -> None:
        """Start Pebble; `label` names its process, and `folder` has `serviceaccount`."""
        self.name = name
        self.sockets = folder / "containers"
        (self.sockets / name).mkdir(parents=True, exist_ok=True)
        os.chown(self.sockets / name, user.uid, user.gid)
        identities = folder / "identities.yaml"
        identities.write_text(IDENTITIES)
        mount_point = folder / f"root-{name}"
        mount_point.mkdir(exist_ok=True)
        binds = [
            Bind(self.sockets / name, SOCKET_FOLDER, writable=True),
            Bind(tools.path("pebble"), "/charm/bin/pebble"),
            Bind(identities, "/charm/etc/identities.yaml"),
            # Without a ServiceAccount of its own the workload would have the application's.
            Bind(folder / "serviceaccount", CREDENTIALS),
            *image.binds,
        ]
        variables = {
            **environment,
            "PATH": image.path,
            # Where Pebble runs commands: containerd reads it in the rock's /etc/passwd.
            "HOME": "/var/lib/pebble/default" if user.uid else "/root",
            "LANG": "C.UTF-8",
            "PEBBLE": "/var/lib/pebble/default",
            "PEBBLE_SOCKET": f"{SOCKET_FOLDER}/pebble.socket",
        }
        argv = ["/charm/bin/pebble", "run", "--create-dirs", "--hold", "--verbose"]
        argv += ["--identities", "/charm/etc/identities.yaml"]
        command = root.command(
            argv,
            mount_point=mount_point,
            binds=binds,
            environment=variables,
            network=network,
            user=dataclasses.replace(user, owns=image.owns),
        )
        self.process: Process = cluster.spawn(label, command)

    @contextlib.contextmanager
    def pebble(self) -> Iterator[ops.pebble.Client]:
        """Return a client of the container's Pebble, for the length of the block."""
        # A socket's path has less than 108 bytes; the folder's own path may need more.
        descriptor = os.open(self.sockets / self.name, os.O_PATH)
        try:
            yield ops.pebble.Client(f"/proc/self/fd/{descriptor}/pebble.socket")
        finally:
            os.close(descriptor)

    def boot_id(self) -> str | None:
        """Return what tells one run of Pebble from the next; None while it does not answer."""
        answer = self._get("/v1/system-info")
        return answer["boot-id"] if answer else None

    def ready(self) -> bool:
        """Say whether all checks of level ready are up, as the kubelet's probe would ask."""
        answer = self._get("/v1/health?level=ready")
        return bool(answer and answer.get("healthy"))

    def notices(self, after: datetime.datetime | None) -> list[ops.pebble.Notice]:
        """Return the notices, of any user, that were repeated after the time, oldest first."""
        since = f"&after={urllib.parse.quote(after.isoformat())}" if after else ""
        answer = self._get(f"/v1/notices?users=all{since}") or []
        # Pebble's times are finer, so it may give the last one again.
        notices = map(ops.pebble.Notice.from_dict, answer)
        return [each for each in notices if after is None or each.last_repeated > after]

    def change(self, identifier: str) -> ops.pebble.Change | None:
        """Return a change; None when Pebble has forgotten it."""
        with self.pebble() as pebble:
            try:
                return pebble.get_change(ops.pebble.ChangeID(identifier))
            except ops.pebble.APIError:
                return None

    def files(self) -> Path:
        """Return the root of the container's file system, as the host can see it."""
        return Path("/proc", str(self.pid), "root")

    @property
    def pid(self) -> int:
        """The pid of Pebble itself, as the harness sees it."""
        return _children(self.process.pid)[0]

    def service_pid(self, program: str) -> int | None:
        """The pid, as the harness sees it, of the service whose command line has the program."""
        for pid in _children(self.pid):
            with contextlib.suppress(OSError):
                command = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
                if any(Path(word.decode()).name == program for word in command):
                    return pid
        return None

    def _get(self, path: str) -> Any:
        """Ask what the library has no method for; None: it does not answer, or with an error."""
        gone = (OSError, http.client.HTTPException, ops.pebble.Error)
        with contextlib.suppress(*gone), self.pebble() as pebble:
            return pebble._request("GET", path)["result"]


def _children(pid: int) -> list[int]:
    """Return the pids of a process's children, whichever of its threads started them."""
    children: list[int] = []
    for thread in Path("/proc", str(pid), "task").glob("*"):
        # A thread that ends in between has left its children to another one.
        with contextlib.suppress(OSError):
            children += map(int, (thread / "children").read_text().split())
    return children
