"""Programs are built once for all that goes into them; with a Go module of a few lines."""

from __future__ import annotations

import subprocess
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
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
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


def test_a_failed_build_names_the_program_its_error_and_the_log(module: Path):
    (module / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")

    with pytest.raises(tools.BuildError, match=r"greeter: .*undefined: undefined.*greeter\.log"):
        tools.path("greeter")
    assert "greeter" in tools.missing()


def test_programs_of_setup_envtest_are_taken_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Only those that its folder has; etcd alone here."""
    (tmp_path / "etcd").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))

    assert tools.path("etcd") == tmp_path / "etcd"
    assert "etcd" not in tools.missing()
