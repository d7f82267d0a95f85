"""The harness's side of the supervisor: starts and ends processes, and awaits what they do.

It reserves their ports, lists running clusters, and removes what dead harnesses left.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from lab import supervisor
from tools import cache

T = TypeVar("T")
# Seconds. Nothing that is awaited takes a tenth of that on two busy cores.
PATIENCE = 300.0


def until(
    check: Callable[[], T | None],
    *,
    what: str,
    timeout: float = PATIENCE,
    ignoring: tuple[type[Exception], ...] = (),
    every: float = 0.05,
) -> T:
    """Call `check` every so often until it returns something true; returns that.

    `ignoring` are exceptions of it that mean "not yet" as well. Raises TimeoutError, which says
    `what` is awaited and the last value or exception.
    """
    begin = time.monotonic()
    while True:
        try:
            last: object = check()
            if last:
                return last  # pyright: ignore[reportReturnType] - true, so not None
        except ignoring as error:
            last = error
        waited = time.monotonic() - begin
        if waited > timeout:
            raise TimeoutError(f"waited {timeout:g} s for {what}; last seen: {last!r}")
        # A sleep, because nothing announces what is awaited here. Looking costs those that are
        # looked at, too: what takes long is looked at less often, and seen late by a twentieth of
        # the time that it took, half a second at most; never more often than asked for.
        time.sleep(max(every, min(waited / 20, 0.5)))


@contextlib.contextmanager
def ending(what: str) -> Iterator[None]:
    """Run the end of a part of the lab; an error is said on stderr, and fails no test."""
    try:
        yield
    except Exception as error:  # The run is over: its end must not decide about it.
        cache.say(f"{what} did not end well: {type(error).__name__}: {error}")


# Ending a cluster takes 3 s; the slowest part is the removal of its files.
END = 60


class Process:
    """A process of a cluster; it can be ended and started again, with the same command line."""

    def __init__(
        self, tree: Tree, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path
    ) -> None:
        self.name = name
        self.log = tree.logs / f"{name}.log"
        self._tree = tree
        self._spawn = {"argv": list(argv), "env": dict(env), "cwd": str(cwd), "log": str(self.log)}
        self._key = 0
        self._inner_pid = 0
        self._exited: Future[int] | None = None

    @property
    def pid(self) -> int:
        """The pid as the harness sees it, whatever namespace the process lives in."""
        return self._tree.outer_pid(self._inner_pid)

    @property
    def running(self) -> bool:
        return self._exited is not None and not self._exited.done()

    def check(self) -> None:
        """Do nothing while the process runs. Raises ChildProcessError with its last line."""
        if not self.running:
            raise ChildProcessError(f"{self.name} ended: {self.last_words()} ({self.log})")

    def kill(self, signal: int = signal.SIGKILL) -> None:
        """Send a signal to the process; one that ended gets none."""
        self._tree.request("kill", key=self._key, signal=int(signal))

    def end(self) -> None:
        """Kill the process, if it runs; return when it is gone."""
        self.kill()
        self.wait(END)

    def last_words(self) -> str:
        return (self.log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]

    def restart(self) -> None:
        """Kill the process, if it runs, and start it again."""
        self.end()
        self.start()

    def start(self) -> None:
        """Start the process, which must not run. Raises OSError: the program cannot be run."""
        self._key, exited = self._tree.expect_exit()
        self._inner_pid = self._tree.request("spawn", key=self._key, **self._spawn)
        self._exited = exited

    def wait(self, timeout: float) -> int:
        """The exit status once it has ended, negative for a signal. Raises TimeoutError."""
        if self._exited is None:
            raise ValueError(f"{self.name}: was not started")
        try:
            return self._exited.result(timeout)
        except TimeoutError:
            raise TimeoutError(f"{self.name}: runs after {timeout:g} s; log: {self.log}") from None


class Tree:
    """A supervisor and all the processes below it, with a folder for state and one for logs."""

    def __init__(self, *, isolate: bool) -> None:
        """Start a supervisor; `isolate` gives it namespaces of its own, which needs root."""
        # The name is also the one of the network interface, which may have 15 characters.
        self.name = f"lab-{secrets.token_hex(3)}"
        self.state = cache.root() / "run" / self.name
        self.logs = cache.root() / "logs" / self.name
        self.isolated = isolate
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._replies: dict[int, Future[Any]] = {}
        self._exits: dict[int, Future[int]] = {}
        self._isolated: Future[int] = Future()
        self._gone: ConnectionError | None = None
        self._supervisor = self._start_supervisor()
        # A daemon, so that an interpreter which never closes this can end, and the supervisor too.
        self._reader = threading.Thread(
            target=self._read, name=f"supervisor of {self.name}", daemon=True
        )
        self._reader.start()
        # As the harness sees it: the pid of PID 1 of the namespaces, or the supervisor's own.
        self.pid = self._isolated.result(END) if isolate else self._supervisor.pid

    def _start_supervisor(self) -> subprocess.Popen[bytes]:
        # From the folder's making to its lock nobody may take it for what a dead harness left.
        with cache.lock(cache.root() / "run" / "lock"):
            (self.state / "tmp").mkdir(parents=True)
            self.logs.mkdir(parents=True)
            lock = (self.state / "lock").open("w")
            supervisor.hold(lock.fileno())
        with lock, (self.logs / "supervisor.log").open("wb") as log:
            plan = {
                "name": self.name,
                "state": str(self.state),
                "lock": lock.fileno(),
                "harness": os.getpid(),
                "isolate": self.isolated,
            }
            return subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[lock.fileno()],
            )

    def spawn(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start a process, with the harness's environment without proxies. Raises OSError."""
        own = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY")}
        # Where root's programs are, even if the harness was started without them.
        own["PATH"] = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"
        whole = {**own, "TMPDIR": str(self.state / "tmp"), **(env or {})}
        process = Process(self, name, [str(part) for part in argv], whole, cwd or self.state)
        process.start()
        return process

    def run(
        self, name: str, argv: Sequence[str | Path], *, timeout: float, cwd: Path | None = None
    ) -> None:
        """Run a process to its end. Raises ChildProcessError or TimeoutError, with its log."""
        process = self.spawn(name, argv, cwd=cwd)
        if status := process.wait(timeout):
            last = process.last_words()
            raise ChildProcessError(f"{name}: exit status {status}: {last} ({process.log})")

    def close(self, *, keep_logs: bool) -> None:
        """End every process and return when nothing is left of them."""
        assert self._supervisor.stdin
        assert self._supervisor.stdout
        with contextlib.suppress(BrokenPipeError):
            self._supervisor.stdin.close()
        self._supervisor.wait(END)
        self._reader.join(END)
        self._supervisor.stdout.close()
        if not keep_logs:
            shutil.rmtree(self.logs, ignore_errors=True)

    def expect_exit(self) -> tuple[int, Future[int]]:
        """A new key for a process, and its exit status to come."""
        key = next(self._keys)
        self._exits[key] = Future()
        return key, self._exits[key]

    def request(self, do: str, **arguments: Any) -> Any:
        """Have the supervisor do something. Raises OSError, ConnectionError: it is gone."""
        key = next(self._keys)
        reply: Future[Any] = Future()
        line = json.dumps({"id": key, "do": do, "with": arguments}).encode() + b"\n"
        assert self._supervisor.stdin
        try:
            with self._lock:
                if self._gone:
                    raise self._gone
                self._replies[key] = reply
                self._supervisor.stdin.write(line)
                self._supervisor.stdin.flush()
        except BrokenPipeError as error:
            raise ConnectionError(f"{self.name}: the supervisor is gone: {error}") from error
        return reply.result(END)

    def outer_pid(self, pid: int) -> int:
        """The pid in the harness's namespace of the process that the supervisor knows as `pid`."""
        if not self.isolated:
            return pid
        inside = Path(f"/proc/{self.pid}/ns/pid").readlink()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "ns/pid").readlink() == inside:
                    _, _, line = (process / "status").read_text().partition("NSpid:")
                    if int(line.split("\n")[0].split()[-1]) == pid:
                        return int(process.name)
        raise ProcessLookupError(f"{self.name}: no process {pid} inside")

    def _read(self) -> None:
        assert self._supervisor.stdout
        for line in self._supervisor.stdout:
            message = json.loads(line)
            if "exited" in message:
                self._exits.pop(message["exited"]).set_result(message["code"])
            elif "isolated" in message:
                self._isolated.set_result(message["isolated"])
            elif "error" in message:
                self._replies.pop(message["id"]).set_exception(OSError(message["error"]))
            else:
                self._replies.pop(message["id"]).set_result(message["result"])
        # With its supervisor every process is gone, and no exit will be reported.
        gone = ConnectionError(
            f"{self.name}: the supervisor is gone; log: {self.logs}/supervisor.log"
        )
        with self._lock:
            self._gone = gone
        for exit_status in self._exits.values():
            exit_status.set_result(-signal.SIGKILL)
        for reply in (*self._replies.values(), self._isolated):
            if not reply.done():
                reply.set_exception(gone)


PORTS = range(20_000, 30_000)
"""Below the ports of Services (30000) and those that Linux gives to connections (32768)."""


def reserve_port() -> int:
    """A port that no process listens on, and that no other harness gets. Raises OSError.

    A port that is found free and released is soon taken. So it stays bound by a socket that never
    listens: it refuses connections, and servers in Python and Go listen beside it (SO_REUSEADDR).
    """
    for port in random.sample(PORTS, len(PORTS)):
        taken = socket.socket()
        try:
            taken.bind(("", port))
        except OSError:
            taken.close()
            continue
        # Set earlier, it would let this socket bind a port that another harness has reserved.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.detach()  # Only the end of this process closes it.
        return port
    raise OSError(f"no TCP port is free from {PORTS.start} to {PORTS.stop - 1}")


def await_listener(process: Process, host: str, port: int, *, timeout: float = PATIENCE) -> None:
    """Return when a process takes connections. Raises ChildProcessError: it ended; TimeoutError."""

    def listens() -> bool:
        process.check()
        with socket.create_connection((host, port)):
            return True

    what = f"{process.name} to listen ({process.log})"
    until(listens, what=what, timeout=timeout, ignoring=(ConnectionError,))


# Logs that were kept; the oldest beyond these go.
LOGS = 20


def running() -> dict[str, dict[str, Any]]:
    """The record of every living cluster by name; one that is still starting has an empty one."""
    found: dict[str, dict[str, Any]] = {}
    with cache.lock(cache.root() / "run" / "lock"):
        for state in _states():
            record = state / "record.json"
            if not _dead(state):
                found[state.name] = json.loads(record.read_text()) if record.exists() else {}
    return found


def sweep() -> None:
    """Remove what clusters left whose supervisor was killed, and old logs."""
    with cache.lock(cache.root() / "run" / "lock"):
        for state in _states():
            if _dead(state):
                supervisor.clean(state.name, state)
        logs = sorted(cache.folder("logs").iterdir(), key=lambda path: path.stat().st_mtime)
        alive = {state.name for state in _states()}
        for log in [log for log in logs if log.name not in alive][:-LOGS]:
            shutil.rmtree(log, ignore_errors=True)


def _states() -> list[Path]:
    return sorted(path for path in cache.folder("run").iterdir() if path.is_dir())


def _dead(state: Path) -> bool:
    """Whether no supervisor holds the folder's lock."""
    try:
        with (state / "lock").open() as lock:
            return supervisor.hold(lock.fileno())
    except FileNotFoundError:
        return True


def left_by(name: str) -> list[str]:
    """Every process, mount, interface, cgroup and folder of the cluster `name`, logs apart."""
    found = [f"process {pid}" for pid in pids_of(name)]
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mountpoint, kind, *_ = line.split()
        if name in mountpoint:
            found.append(f"mount {mountpoint}")
        if kind in {"cgroup", "cgroup2"} and Path(mountpoint, name).exists():
            found.append(f"cgroup {mountpoint}/{name}")
    places = (Path("/sys/class/net", name), cache.root() / "run" / name)
    return found + [str(place) for place in places if place.exists()]


def pids_of(name: str) -> list[int]:
    """The pids of the cluster's processes, of those that this user may see."""
    state = str(cache.folder("run") / name)
    return [pid for pid, mark in supervisor.marks().items() if mark == state]
