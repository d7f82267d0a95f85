"""What happens on a forge: workflows, and the logs of a Juju that is gone by then."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))


def document(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", [job])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_as_the_scorecard_wants_it(path: Path) -> None:
    """Its checks Pinned-Dependencies and Token-Permissions (scorecard, docs/checks.md)."""
    workflow = document(path)
    assert workflow["permissions"] == {}
    assert all("permissions" in job for job in workflow["jobs"].values())
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    pinned = re.compile(r"\./\.github/workflows/[a-z]+\.yaml|[\w./-]+@[0-9a-f]{40}")
    assert [each for each in used if not pinned.fullmatch(each)] == []


JUJU = """#!/bin/sh
case "$1" in
destroy-model) rm "$PLACE/model" ;;
debug-log) cat "$PLACE/model" ;;
*) echo unit-istio-aux-0: hook failed > "$PLACE/model" ;;
esac
"""


@pytest.mark.parametrize("fails", [True, False], ids=["a test fails", "all is well"])
def test_the_log_of_a_model_in_which_a_test_failed_outlives_the_model(
    tmp_path: Path, *, fails: bool
) -> None:
    for name, program in {"juju": JUJU, "kubectl": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "test_it.py").write_text(f"def test_it(juju): assert not {fails}\n")
    environment = {
        **os.environ, "PLACE": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "tests/integration"),
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", os.devnull]
    done = subprocess.run(
        [*command, "test_it.py"], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == fails, done.stdout
    kept = [log.read_text() for log in tmp_path.glob("test-results/juju/jubilant-*/debug-log.txt")]
    assert kept == (["unit-istio-aux-0: hook failed\n"] if fails else [])
    assert not (tmp_path / "model").exists(), "it is destroyed as before"
