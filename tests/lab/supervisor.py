"""The supervisor: owns every process of a cluster, and ends them when the harness ends.

A program of its own, run by path, with nothing but the standard library:

    supervisor.py PLAN

PLAN is a JSON object: name, state, lock (descriptor), harness (pid), isolate.

The harness writes requests to its stdin and reads replies and events from its stdout, one JSON
object a line. At the end of stdin, or when the harness is gone, it kills every descendant and
removes what the cluster left: cgroups, interface, state folder; the logs stay.

With `isolate` there are two: the outer one stays in the host's namespaces, the inner one is PID 1
of new PID, mount, network, IPC and UTS namespaces and does the spawning. If either dies, the
kernel kills everything inside. Nothing here knows Kubernetes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Set in every process of a cluster and inherited: `clean` finds those whose supervisor was killed.
# The value is the folder of the cluster's state: in a copied cache clusters have the same names.
MARK = "ISTIO_AUX_LAB"

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
_MS_NOSUID_NODEV_NOEXEC, _MS_REC, _MS_PRIVATE, _MS_SHARED = 0xE, 0x4000, 1 << 18, 1 << 20


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _die_with_parent() -> None:
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def hold(lock: int) -> bool:
    """Lock the descriptor for as long as any copy of it is open; false when another holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Supervisor:
    """The loop that serves the harness: requests in, replies and exits out, zombies reaped."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.keys: dict[int, int] = {}

    def serve(self, harness: int) -> None:
        """Answer requests until stdin ends, or the process behind the pidfd `harness` does.

        Both are watched, since a fork of the harness may hold the other end of stdin open.
        """
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        pending = b""
        while True:
            ready, _, _ = select.select([0, woken, harness], [], [])
            if harness in ready:
                return
            if woken in ready:
                os.read(woken, 4096)
                self.reap()
            if 0 in ready:
                data = os.read(0, 65536)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self.answer(json.loads(line))

    def answer(self, request: dict[str, Any]) -> None:
        """Do one request and reply with its id, and a result or an error."""
        try:
            result = getattr(self, f"do_{request['do']}")(**request["with"])
            reply = {"id": request["id"], "result": result}
        except (OSError, ValueError) as error:
            reply = {"id": request["id"], "error": str(error)}
        _write(reply)

    def do_spawn(self, key: int, argv: list[str], env: dict[str, str], cwd: str, log: str) -> int:
        """Start a process in a session of its own, output appended to `log`; returns its pid.

        Its exit is reported by `key`, which the harness never uses again, unlike a pid.
        """
        with Path(log).open("ab") as output:
            child = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**env, MARK: self.state},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
            )
        self.children[child.pid] = child
        self.keys[child.pid] = key
        return child.pid

    def do_kill(self, key: int, signal: int) -> None:
        """Send a signal to the process spawned with `key`, if it still runs."""
        for pid, its_key in self.keys.items():
            if its_key == key:
                os.kill(pid, signal)

    def reap(self) -> None:
        """Collect every ended child, adopted orphans too, and report those spawned here."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                code = os.waitstatus_to_exitcode(status)
                if child := self.children.pop(pid, None):
                    child.returncode = code  # So that Popen does not wait for it as well.
                    _write({"exited": self.keys.pop(pid), "code": code})


def _write(message: dict[str, Any]) -> None:
    # A harness that is gone reads no reply; its end is noticed at stdin.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")


def _kill_descendants() -> None:
    """Kill until there is no child: orphans come to this process, which is their reaper."""
    while True:
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _isolate() -> int:
    """Fork PID 1 of new namespaces; returns its pid in the parent and 0 in the child."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    unshared, done = os.pipe()
    _call("unshare", _NEWPID)
    child = os.fork()
    if child:
        # Otherwise nothing could be forked here once the new namespace is dead.
        _call("setns", own, _NEWPID)
        # The harness lays a cable into the child's network, which is the host's until then.
        os.close(done)
        os.read(unshared, 1)
    if child == 0:
        _die_with_parent()
        _call("unshare", _NEWNS | _NEWNET | _NEWIPC | _NEWUTS)
        os.write(done, b"1")
        # Private, so that nothing reaches the host, then shared within, as kubelets expect it.
        _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        _call("mount", b"none", b"/", None, _MS_REC | _MS_SHARED, None)
        _call("mount", b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV_NOEXEC, None)
    return child


def clean(name: str, state: Path) -> None:
    """Remove what the processes of a dead cluster left on the host; safe to repeat.

    Interface and cgroups stay if a cluster of this name lives by another cache.
    """
    marked = marks()
    for pid in (pid for pid, mark in marked.items() if mark == str(state)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not any(mark != str(state) and Path(mark).name == name for mark in marked.values()):
        _clean_host(name)
    # The folders first: without the lock beside them, it looks as if nothing were left.
    for folder in (place for place in state.glob("*") if place.is_dir()):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(state, ignore_errors=True)


def marks() -> dict[int, str]:
    """The mark of each process that has one, of those that this user may see, by pid."""
    found = dict[int, str]()
    # Not `*/environ`: `glob` looks whether each is there, and raises for a process that ends then.
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for word in (process / "environ").read_bytes().split(b"\0"):
                if word.startswith(f"{MARK}=".encode()):
                    found[int(process.name)] = os.fsdecode(word).partition("=")[2]
    return found


def _clean_host(name: str) -> None:
    if Path("/sys/class/net", name).exists():
        subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mountpoint, kind, *_ = line.split()
        if kind in {"cgroup", "cgroup2"}:
            _remove_cgroup(Path(mountpoint, name))


def _remove_cgroup(path: Path) -> None:
    folders = [Path(folder) for folder, _, _ in os.walk(path, topdown=False)]
    for folder in folders:
        for _ in range(100):
            try:
                folder.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                # A killed process leaves its cgroup a moment later, and nothing tells when.
                time.sleep(0.05)


def main() -> None:
    """Serve, then clean up; the plan is the only argument."""
    plan = json.loads(sys.argv[1])
    # The terminal's ^C is for the harness, which ends this process by closing the pipe.
    os.setsid()
    os.chdir("/")
    os.set_inheritable(plan["lock"], False)
    try:
        harness = os.pidfd_open(plan["harness"])
    except ProcessLookupError:
        harness = 0  # It is gone, and so is the other end of stdin.
    supervisor = Supervisor(plan["state"])
    if plan["isolate"]:
        child = _isolate()
        if child == 0:
            supervisor.serve(harness)
            os._exit(0)
        _write({"isolated": child})
        os.waitpid(child, 0)
    else:
        _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        supervisor.serve(harness)
        _kill_descendants()
    clean(plan["name"], Path(plan["state"]))


if __name__ == "__main__":
    main()
