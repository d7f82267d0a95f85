"""The lab: programs are built once, nothing outlives a harness, and one can be left running."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lab
import lightkube
import pytest
from lab import cache, sweep, toolchain, tools
from lab.__main__ import main
from lab.harness import Harness, running
from lightkube import KubeConfig
from lightkube.resources.core_v1 import Namespace

TESTS = Path(__file__).parents[1]
MAIN = """\
package main

func main() { println("%s") }
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a program `greeter`, and an empty cache of the lab."""
    folder = tmp_path / "greeter"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.test/greeter\n\ngo 1.24\n")
    (folder / "main.go").write_text(MAIN % "hello")
    # Go's own cache moves with XDG_CACHE_HOME, and an empty one costs half a minute a build.
    shown = subprocess.run(
        [toolchain.go(), "env", "GOCACHE"], capture_output=True, text=True, check=True
    )
    monkeypatch.setenv("GOCACHE", shown.stdout.strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(tools.PROGRAMS, "greeter", tools.Program("greeter", folder, ".", seconds=1))
    return folder


def said_by(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stderr


def test_another_source_and_another_pin_are_another_program(module: Path):
    before = tools.path("greeter")
    (module / "main.go").write_text(MAIN % "goodbye")
    after = tools.path("greeter")
    (module / "go.mod").write_text("module example.test/greeter\n\ngo 1.25\n")

    assert said_by(before) == "hello\n"
    assert said_by(after) == "goodbye\n"
    assert tools.path("greeter") not in {before, after}


def test_a_long_build_says_what_it_has_got_and_how_long_it_still_takes(
    module: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tools, "MINUTE", 0.02)
    tools.path("greeter")

    said = capfd.readouterr().err
    line = r"building greeter: \d+ s of CPU so far, 2 s when it was measured; about \d+ s .+"
    assert re.search(line, said)
    assert re.search(r"built greeter in \d+ s$", said.strip())


def test_a_failed_build_names_the_program_its_error_and_the_log(module: Path):
    (module / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")

    with pytest.raises(tools.BuildError, match=r"greeter: .*undefined: undefined.*greeter\.log"):
        tools.path("greeter")
    assert "greeter" in tools.missing()


@pytest.fixture
def harness() -> Iterator[Harness]:
    with running("tree") as harness:
        # The shell, the one that runs away, and their two sleeps.
        await_processes(harness.name, 4)
        yield harness


def await_processes(name: str, count: int) -> None:
    lab.until(lambda: len(sweep.processes(name)) == count, what=f"{count} processes of {name}")


def await_nothing_left(name: str) -> None:
    lab.until(lambda: not sweep.left_by(name), what=f"the end of {name}")


def test_a_harness_that_ends_leaves_nothing_and_no_logs(harness: Harness):
    assert harness.process.stdin
    harness.process.stdin.close()

    assert harness.process.wait(30) == 0
    assert sweep.left_by(harness.name) == []
    assert not (cache.root() / "logs" / harness.name).exists()


def test_a_killed_harness_leaves_nothing_but_logs(harness: Harness):
    harness.process.kill()

    await_nothing_left(harness.name)
    logs = cache.root() / "logs" / harness.name
    assert {log.name for log in logs.iterdir()} == {"escape.log", "supervisor.log"}
    shutil.rmtree(logs)


def test_what_a_killed_supervisor_leaves_is_swept(harness: Harness):
    os.kill(harness.supervisor, signal.SIGKILL)
    await_processes(harness.name, 3)

    assert harness.name in sweep.sweep()

    await_nothing_left(harness.name)
    shutil.rmtree(cache.root() / "logs" / harness.name)


def by_hand(*argv: str) -> str:
    """What a command of the lab prints; it must succeed."""
    return subprocess.run(
        [sys.executable, "-m", "lab", *argv], cwd=TESTS, stdout=subprocess.PIPE, text=True,
        check=True,
    ).stdout  # fmt: skip


def test_up_leaves_a_cluster_running_until_down():
    said = by_hand("up", "--level", "api")
    name = said.split()[0]
    try:
        found = re.search(r"export KUBECONFIG=(\S+)", said)
        assert found
        config = KubeConfig.from_file(Path(found[1]))
        with lightkube.Client(config, trust_env=False) as client:
            assert client.get(Namespace, "default")
        assert f"{name}: level api, left by `up`" in by_hand("status")
    finally:
        by_hand("down", name)
    assert sweep.left_by(name) == []


def test_down_spares_the_cluster_of_a_test(cluster: lab.Cluster):
    assert main(["down", cluster.name]) == 2
    assert sweep.processes(cluster.name)
