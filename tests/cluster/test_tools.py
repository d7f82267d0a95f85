"""Programs are built once for all that goes into them; with a Go module of a few lines."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from lab import toolchain, tools

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


def test_a_program_is_built_when_it_is_missing_and_then_no_more(module: Path):
    program = tools.path("greeter")
    built = program.stat().st_mtime_ns

    assert said_by(program) == "hello\n"
    assert tools.path("greeter") == program
    assert program.stat().st_mtime_ns == built


def test_another_source_and_another_pin_are_another_program(module: Path):
    before = tools.path("greeter")
    (module / "main.go").write_text(MAIN % "goodbye")
    after = tools.path("greeter")
    (module / "go.mod").write_text("module example.test/greeter\n\ngo 1.25\n")

    assert said_by(before) == "hello\n"
    assert said_by(after) == "goodbye\n"
    assert tools.path("greeter") not in {before, after}


def test_a_failed_build_names_the_program_its_error_and_the_log(module: Path):
    (module / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")

    with pytest.raises(tools.BuildError, match=r"greeter: .*undefined: undefined.*greeter\.log"):
        tools.path("greeter")
    assert "greeter" in tools.missing()


def test_two_processes_build_once(module: Path, tmp_path: Path):
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from lab import toolchain, tools
        tools.PROGRAMS["greeter"] = tools.Program("greeter", Path({str(module)!r}), ".", seconds=1)
        tools.path("greeter")
        """
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=Path(tools.__file__).parents[1],
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = "".join(process.communicate(timeout=120)[1] for process in both)

    assert [process.returncode for process in both] == [0, 0]
    assert said.count("built greeter") == 1
