"""The harness's side of the supervisor: starts and ends processes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from lab import supervisor
from tools import cache

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
