"""The stand-in for pilot-agent: the built program, on ports of its own on loopback."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import lab
import pytest
from lab import tools

STATUS, READY, ADMIN, OUTBOUND, INBOUND = 15020, 15021, 15000, 15001, 15006
# It starts in some 10 ms and ends 300 ms after it was told to.
SOON = 30


def offsets() -> Iterator[int]:
    """Where the ports may be: nowhere near those of the lab and of outgoing connections."""
    while True:
        yield random.randrange(-9000, 4900, 32)


def free(offset: int) -> bool:
    with contextlib.ExitStack() as sockets:
        try:
            for port in (STATUS, READY, ADMIN, OUTBOUND, INBOUND):
                sockets.enter_context(socket.create_server(("", port + offset)))
        except OSError:
            return False
    return True


@dataclass
class Agent:
    """Processes of one stand-in, which share a network that nobody else uses."""

    program: Path
    offset: int = field(default_factory=lambda: next(filter(free, offsets())))
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self.program, "proxy", "sidecar", "--domain", "x", "--log_output_level=default:info"],
            env=self._environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments],
            env=self._environment(env),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def listens(self, port: int) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port + self.offset)) == 0

    def status(self, port: int, path: str, method: str = "GET") -> int:
        url = f"http://127.0.0.1:{port + self.offset}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def await_port(self, port: int) -> None:
        lab.until(lambda: self.listens(port), timeout=SOON, what=f"port {port} to open")

    def _environment(self, env: dict[str, str]) -> dict[str, str]:
        return {**os.environ, "LAB_PORT_OFFSET": str(self.offset), **env}


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent(tools.path("pilot-agent"))
    yield agent
    for process in agent.started:
        process.kill()
        process.communicate()


@pytest.fixture
def ready(agent: Agent) -> subprocess.Popen[str]:
    process = agent.start()
    agent.await_port(INBOUND)
    return process


def test_quit_on_the_status_port_answers_ok_and_ends_with_0(
    agent: Agent, ready: subprocess.Popen[str]
) -> None:
    done = agent.run("request", "--debug-port=15020", "POST", "quitquitquit")

    assert (done.returncode, done.stdout) == (0, "OK\n")
    assert ready.wait(SOON) == 0


def test_sigterm_ends_with_0_once_it_has_drained_meanwhile_it_serves(agent: Agent) -> None:
    process = agent.start(PROXY_CONFIG='{"terminationDrainDuration":"2s"}')
    agent.await_port(INBOUND)
    told = time.monotonic()
    process.send_signal(signal.SIGTERM)

    line = next(line for line in process.stderr or () if "Graceful termination" in line)
    served = agent.listens(OUTBOUND)

    assert "period is 2s" in line
    assert served
    assert process.wait(SOON) == 0
    assert time.monotonic() - told >= 2


@pytest.mark.parametrize(
    ("port", "drains"), [("--debug-port=15020", True), ("--debug-port=15000", False)]
)
def test_an_older_agent_drains_when_it_is_told_to_quit_and_envoy_does_not(
    agent: Agent, port: str, drains: bool
) -> None:
    """Istio up to 1.25: the answer comes first."""
    process = agent.start(LAB_QUIT_DRAINS="true", PROXY_CONFIG='{"terminationDrainDuration":"1s"}')
    agent.await_port(INBOUND)

    done = agent.run("request", port, "POST", "quitquitquit")
    _, errors = process.communicate(timeout=SOON)

    assert (done.returncode, done.stdout, process.returncode) == (0, "OK\n", 0)
    assert ("Graceful termination" in errors) is drains


def test_a_404_is_a_success_that_ends_nothing(agent: Agent, ready: subprocess.Popen[str]) -> None:
    done = agent.run("request", "--debug-port=15021", "POST", "quitquitquit")

    assert (done.returncode, done.stdout) == (0, "\n")
    assert agent.status(READY, "/quitquitquit", "POST") == 404
    assert agent.status(STATUS, "/healthz/ready") == 200


def test_request_refuses_a_port_that_is_not_on_its_list(agent: Agent) -> None:
    done = agent.run("request", "--debug-port=15520", "POST", "quitquitquit")

    assert done.returncode == 255
    assert "not in allowed list [15000 15004 15020 15021]" in done.stderr


def test_until_it_is_ready_there_is_no_proxy_to_connect_to(agent: Agent) -> None:
    agent.start(LAB_READY_DELAY="60")
    agent.await_port(READY)

    assert agent.status(READY, "/healthz/ready") == 503
    assert agent.status(STATUS, "/healthz/ready") == 503
    assert not agent.listens(OUTBOUND)
    assert not agent.listens(INBOUND)


def test_wait_gives_up(agent: Agent) -> None:
    agent.start(LAB_READY_DELAY="60")
    agent.await_port(READY)

    # On a busy machine half a second is little.
    wait = ("wait", "--periodMillis=100", "--requestTimeoutMillis=30000")
    done = agent.run(*wait, LAB_WAIT_TIMEOUT="1")

    assert done.returncode == 255
    assert "HTTP status code 503" in done.stderr
