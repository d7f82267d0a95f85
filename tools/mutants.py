"""What no unit test notices: `tox -e mutants`, with cosmic-ray.

    tox -e mutants [-- MODULE ... | --all] [--base main] [--most 40] [--seconds 8] [--jobs 2]

What goes in: modules of the charm, its library or the workload; without any, those that changed
since `--base`; `--all`: every one. What comes out: for each change of one operator, number or
condition whether a unit test fails, and the changes that survive. A module gets at most `--most`
changes, spread over its lines, the same in each run. All unit tests run once, to see which lines
each of them runs; a change meets those that run its line, the shortest first, for `--seconds`. The
work is done on copies of the checkout. A test that fails on the unchanged code, or beside coverage,
is named, and meets no change.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import coverage
import pytest
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("workload/src", "src", "lib/istio-sidecar/src")
# Of the 213 operators those whose survivors are worth a look. `|` is nearly always a type.
OPERATORS = re.compile(
    r"core/(AddNot|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr|ReplaceOrWithAnd"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ReplaceUnaryOperator_Delete_.*"
    r"|ExceptionReplacer|NumberReplacer|ZeroIterationForLoop"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_Mul))"
)
# Tests that run everything, for longer than a change is worth, or look at the checkout itself.
STORIES = ("repository", "searches")
FAILED = float("inf")  # The seconds of a test that does not pass.
COVERAGE = """[run]
relative_files = True
parallel = True
patch = subprocess
source = %s
"""
DECLARED = re.compile(r"\b(frozen|kw_only|omit_defaults|slots)=True")


def git(*arguments: str) -> list[str]:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def modules() -> list[str]:
    found = git("ls-files", "--", *(f"{source}/*.py" for source in SOURCES))
    return [path for path in found if (ROOT / path).read_text().strip()]


def mutations(module: str, most: int) -> list[MutationSpec]:
    """At most so many changes of a module, spread over its lines."""
    with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/session.sqlite") as session:
        init([Path(module)], session, {})
        found = [one for item in session.work_items for one in item.mutations]
    lines = (ROOT / module).read_text().splitlines()
    found = [
        one
        for one in found
        if OPERATORS.fullmatch(one.operator_name)
        and not DECLARED.search(lines[one.start_pos[0] - 1])
    ]
    found.sort(key=lambda one: (one.start_pos, one.operator_name, one.occurrence))
    return [found[i * len(found) // most] for i in range(most)] if len(found) > most else found


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have coverage note which lines this test runs."""
    if running := coverage.Coverage.current():
        running.switch_context(item.nodeid)


_seconds: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long a test takes, and that it does not pass."""
    if not report.skipped:
        took = report.duration if report.passed else FAILED
        _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + took


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was noted, in the process that has it of all workers."""
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["MUTANTS_SECONDS"]).write_text(json.dumps(_seconds))


class Unchanged(NamedTuple):
    """What the tests do on the code as it is."""

    seconds: dict[str, float]  # Of each test.
    runs: coverage.CoverageData

    def tests_of(self, mutation: MutationSpec, most: float) -> list[str]:
        """The tests that run a line, or any of its module if it runs at the import, of so long."""
        lines = self.runs.contexts_by_lineno(str(mutation.module_path))
        changed = range(mutation.start_pos[0], mutation.end_pos[0] + 1)
        near = {test for line in changed for test in lines.get(line, [])} - {""}
        able = near or {test for tests in lines.values() for test in tests} - {""}
        chosen, spent = list[str](), 0.0
        for seconds, test in sorted((self.seconds.get(test, FAILED), test) for test in able):
            spent += seconds
            if seconds == FAILED or (chosen and spent > most):
                break
            chosen.append(test)
        return chosen


def unchanged(folder: Path, jobs: int) -> Unchanged:
    """Run all unit tests on the code as it is."""
    settings, seconds, data = folder / "coveragerc", folder / "seconds.json", folder / "coverage"
    settings.write_text(COVERAGE % ",".join(SOURCES))
    measured, rc = [sys.executable, "-m", "coverage"], f"--rcfile={settings}"
    tests = ["tests/unit", "lib", *(f"--ignore-glob=*test_{each}.py" for each in STORIES)]
    options = "-q --no-header --tb=line -p no:cacheprovider -p tools.mutants -n"
    run = ["-m", "pytest", *options.split(), str(jobs)]
    # tox sets COVERAGE_FILE to a file of the checkout, which this process does not read.
    environment = {**os.environ, "MUTANTS_SECONDS": str(seconds), "COVERAGE_FILE": str(data)}
    subprocess.run([*measured, "run", rc, *run, *tests], check=False, env=environment)
    subprocess.run([*measured, "combine", "-q", rc], check=True, env=environment)
    runs = coverage.CoverageData(str(data))
    runs.read()
    return Unchanged(json.loads(seconds.read_text()), runs)


def copied(source: Path) -> None:
    """Work on a copy: its code comes first, and its compiled code stays."""
    folder = Path(tempfile.mkdtemp(dir=source.parent))
    shutil.copytree(source, folder, dirs_exist_ok=True)
    enter(folder)


def enter(folder: Path) -> None:
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(f"{folder}/{each}" for each in (*SOURCES, "tests"))


def result_of(work: tuple[MutationSpec, list[str], float]) -> WorkResult | None:
    """What the tests say of one change, up to the first that fails; None: no test runs it."""
    mutation, tests, most = work
    if not tests:
        return None
    Path("tests.args").write_text("".join(f"{test}\n" for test in tests))
    options = "-m pytest -x -q --no-header --tb=line -n 0 -p no:cacheprovider @tests.args"
    return mutate_and_test([mutation], f"{sys.executable} {options}", 3 * most + 20)


def shown(mutation: MutationSpec, result: WorkResult | None) -> Iterator[str]:
    """The line that nobody missed, before and after; only where it is, if no test runs it."""
    yield f"  {mutation.module_path}:{mutation.start_pos[0]} {mutation.operator_name[5:]}"
    lines = ((result and result.diff) or "").splitlines()
    yield from (f"    {line}" for line in lines if re.match(r"[-+](?!--|\+\+)", line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("module", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--base", default="main")
    parser.add_argument("--most", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--jobs", type=int, default=2)
    wish = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    known = modules()
    changed = known if wish.all else git("diff", "--name-only", "--merge-base", wish.base)
    chosen = [path for path in wish.module or changed if path in known]
    if not chosen:
        print("no module of charm, library or workload changed, or is named")
        return
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "source"
        for path in git("ls-files", "--cached", "--others", "--exclude-standard"):
            if (ROOT / path).is_file():
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, source / path)
        enter(source)
        before = unchanged(Path(temporary), wish.jobs)
        failing = [test for test, seconds in before.seconds.items() if seconds == FAILED]
        print("".join(f"fails without any change: {test}\n" for test in failing), end="")
        total = survived = 0
        with ProcessPoolExecutor(wish.jobs, initializer=copied, initargs=(source,)) as pool:
            for module in chosen:
                found = mutations(module, wish.most)
                work = [(one, before.tests_of(one, wish.seconds), wish.seconds) for one in found]
                alive = [
                    (one, result)
                    for one, result in zip(found, pool.map(result_of, work), strict=True)
                    if result is None or result.test_outcome is TestOutcome.SURVIVED
                ]
                total, survived = total + len(work), survived + len(alive)
                print(f"{module}: {len(work) - len(alive)} killed, {len(alive)} survived")
                for mutation, result in alive:
                    print(*shown(mutation, result), sep="\n", flush=True)
        print(f"in all: {total - survived} killed, {survived} survived")


if __name__ == "__main__":
    main()
