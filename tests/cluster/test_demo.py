"""Where pods cannot run, the demo plays them by a script and keeps its promise all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lab
import pytest
from demo import __main__ as program
from demo import api
from demo.steps import Steps
from rich.console import Console


@pytest.fixture
def stage() -> Iterator[lab.Cluster]:
    """A cluster of the demo's own."""
    with lab.cluster("api") as cluster:
        yield cluster


def test_the_scripted_demo_keeps_the_promise_and_says_what_is_scripted(
    stage: lab.Cluster, tmp_path: Path
) -> None:
    console = Console(width=100, highlight=False)
    performance = api.run(Steps(console), stage)
    assert program.conclude(console, performance, tmp_path) == 0
    assert "Pod status on this page is scripted" in (tmp_path / "index.html").read_text()
