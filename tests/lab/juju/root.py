"""Private roots: a program sees a small file system of its own, and the host none of its files.

The root is a tmpfs in a mount namespace of its own, with the host's programs and libraries bound
into it read-only; what is written there is gone with the last process. The program is PID 1 of a
PID namespace, so that its end is the end of all it started. Needs root.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def command(
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
