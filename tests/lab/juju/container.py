"""The workload container of one unit: a real Pebble as PID 1, in a private root.

Private roots: a program sees a small file system of its own, and the host none of its files. The
root is a tmpfs in a mount namespace of its own, with the host's programs and libraries bound into
it read-only; what is written there is gone with the last process. The program is PID 1 of a PID
namespace, so that its end is the end of all it started. Needs root.

A container starts with what the workload's image would bring: the program `istio-aux`, in a virtual
environment that is built from `workload/` and its lock with the interpreter that ships, cached by
content, and the Pebble layer of the rock. The image itself is run by a kubelet
(`node/test_image.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import http.client
import os
import shlex
import urllib.error
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ops.pebble

from lab import Cluster, Process, tools
from tools import cache, errors, interpreters
from tools.rock import RECIPE, Recipe

# What a container image would bring: programs, libraries, and the few files of /etc that the
# C library and `which` (an alternative, on Debian) look at.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
_ETC = ("passwd", "group", "hosts", "nsswitch.conf", "ld.so.cache", "localtime", "ssl")
_ALTERNATIVES = Path("/etc/alternatives")
# Where the kubelet mounts a ServiceAccount's token.
CREDENTIALS = "/var/run/secrets/kubernetes.io/serviceaccount"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SPECIAL = (
    "mkdir -p proc dev etc tmp run var/run root",
    "chmod 1777 tmp",
    "mount -t proc proc proc",
    "mount --rbind /dev dev",
)


@dataclasses.dataclass(frozen=True)
class User:
    """Who runs the program, and the folders inside that are made for that user."""

    uid: int = 0
    gid: int = 0
    name: str = "root"
    owns: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Bind:
    """A file or folder of the host that appears in the root, read-only unless said otherwise."""

    source: Path
    target: str
    writable: bool = False


def rooted(
    argv: Sequence[str],
    *,
    mount_point: Path,
    binds: Sequence[Bind],
    environment: Mapping[str, str],
    network: Path,
    user: User,
    folder: str = "/",
) -> list[str]:
    bound = [line for bind in binds for line in _bind(bind)]
    inside = [*_host(mount_point), *_known(user), *bound, *_give(user)]
    script = "\n".join([*inside, *_become(argv, environment, folder, user)])
    namespaces = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    return ["nsenter", f"--net={network}", "unshare", *namespaces, "sh", "-euc", script]


def interpreter(python: Path) -> list[Bind]:
    """Return what has to be bound for an interpreter that lives outside the system's folders."""
    prefix = python.resolve().parents[1]
    return [] if prefix.is_relative_to("/usr") else [Bind(prefix, str(prefix))]


def _host(mount_point: Path) -> list[str]:
    """Return the lines that build a root of the host's programs; the shell stands in it then."""
    root = shlex.quote(str(mount_point))
    lines = [f"mount -t tmpfs -o mode=755 root {root}", f"cd {root}", *_SPECIAL]
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            lines.append(f"ln -s {path.readlink()} .{path}")
        elif path.is_dir():
            lines += _bind(Bind(path, str(path)))
    copied = " ".join(f"/etc/{name}" for name in _ETC if Path("/etc", name).exists())
    lines.append(f"cp -rL {copied} etc/")
    if _ALTERNATIVES.is_dir():
        lines += _bind(Bind(_ALTERNATIVES, str(_ALTERNATIVES)))
    return lines


def _known(user: User) -> list[str]:
    """Return the lines that make the user known, as the image would."""
    entry = f"{user.name}:x:{user.uid}:{user.gid}::/:/usr/sbin/nologin"
    return [f"echo {entry} >>etc/passwd"] if user.uid else []


def _give(user: User) -> list[str]:
    """Return the lines that give the user their folders."""
    lines: list[str] = []
    for folder in user.owns:
        place = shlex.quote(f".{folder}")
        lines.append(f"mkdir -p {place} && chown {user.uid}:{user.gid} {place}")
    return lines


def _become(
    argv: Sequence[str], environment: Mapping[str, str], folder: str, user: User
) -> list[str]:
    """Return the lines that move into the root and become the program."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    identity = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
    # The kernel forgets what unshare's --kill-child asked for when the user changes
    # (prctl PR_SET_PDEATHSIG).
    identity.append("--pdeathsig=KILL")
    return [
        "pivot_root . .",
        "umount -l .",
        f"cd {shlex.quote(folder)}",
        f"exec env -i {shlex.join([*variables, *identity, *argv])}",
    ]


def _bind(bind: Bind) -> list[str]:
    source, target = shlex.quote(str(bind.source)), shlex.quote(f".{bind.target}")
    make = f"mkdir -p {target}"
    if not bind.source.is_dir():
        make = f"mkdir -p {shlex.quote(f'.{Path(bind.target).parent}')} && touch {target}"
    options = "rbind" if bind.writable else "bind,ro"
    return [make, f"mount -o {options} {source} {target}"]


LAYER = "layer.yaml"  # In the environment's folder.


@dataclasses.dataclass(frozen=True)
class Image:
    """What a container starts with."""

    binds: tuple[Bind, ...]  # What is visible in it beside the system's own folders.
    path: str  # Its PATH.
    owns: tuple[str, ...] = ()  # Folders that belong to the user who runs Pebble.


def of_workload(workload: Path) -> Image:
    """The image of the workload in this folder."""
    folder = environment(workload)
    python, _ = interpreters.shipped()
    layer = Bind(folder / LAYER, Recipe.read(workload).pebble_file)
    return Image(
        (*interpreter(python), Bind(folder, str(folder)), layer),
        f"{folder}/bin:{PATH}",
        # The rock gives these folders to the user who runs Pebble.
        ("/etc/istio-aux", "/var/lib/pebble/default"),
    )


def environment(workload: Path, python: Path | None = None) -> Path:
    """The virtual environment with the program of this folder. Raises ChildProcessError."""
    python = python or interpreters.shipped()[0]
    folder = cache.root().parent / "workload" / _digest(workload, python)
    with cache.lock(folder.with_suffix(".lock"), waiting="another process installs the workload"):
        if not (folder / "ready").exists():
            cache.say("installing the workload into a virtual environment (seconds)")
            command = [interpreters.uv(), "sync", "--frozen", "--no-dev", "--no-editable"]
            # Containers see the environment read-only and could not keep the bytecode.
            command += ["--compile-bytecode"]
            command += ["--quiet", "--project", str(workload), "--python", str(python)]
            settings = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)}
            settings.pop("VIRTUAL_ENV", None)
            errors.run(command, env=settings)
            (folder / LAYER).write_text(Recipe.read(workload).pebble_layer())
            (folder / "ready").touch()
        return cache.use(folder)


def _digest(workload: Path, python: Path) -> str:
    digest = hashlib.sha256(str(python).encode())
    files = [workload / name for name in ("pyproject.toml", "uv.lock", RECIPE)]
    files += sorted(path for path in (workload / "src").rglob("*") if path.is_file())
    for path in files:
        if "__pycache__" not in path.parts:
            digest.update(f"\n{path.relative_to(workload)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


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
        command = rooted(
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
        with (
            contextlib.suppress(OSError, http.client.HTTPException, ops.pebble.Error),
            self.pebble() as pebble,
        ):
            return pebble._request("GET", path)["result"]


def _children(pid: int) -> list[int]:
    """Return the pids of a process's children, whichever of its threads started them."""
    children: list[int] = []
    for thread in Path("/proc", str(pid), "task").glob("*"):
        # A thread that ends in between has left its children to another one.
        with contextlib.suppress(OSError):
            children += map(int, (thread / "children").read_text().split())
    return children
