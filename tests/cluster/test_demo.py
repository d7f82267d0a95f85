"""Where pods cannot run, the demo plays them by a script and keeps its promise all the same."""

from __future__ import annotations

from lab import clusters, tools
from lab.user import user


def test_the_scripted_demo_keeps_the_promise_to_a_user_without_root() -> None:
    """As `make demo` runs it, from its first line to its exit status."""
    tools.ensure(clusters.CONTROL_PLANE)
    with user() as somebody:
        done = somebody.python("-m", "demo")
        report = somebody.home / "demo-report/index.html"
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.startswith("cannot run pods: pods need root")
        assert "the promise was kept" in done.stdout
        assert "Pod status on this page is scripted" in report.read_text()
