"""What no unit test notices: `tox -e mutants`, with cosmic-ray.

    tox -e mutants [-- MODULE ... | --all] [--base main] [--most 40] [--seconds 8] [--jobs 2]

What goes in: modules of the charm, its library or the workload; without any, those that changed
since `--base`; `--all`: every one. What comes out: for each change of one operator, number or
condition whether a unit test fails, and the changes that survive. A module gets at most `--most`
changes, spread over its lines, the same in each run, and the files of tests that are nearest to it
and take `--seconds` of CPU. The work is done on copies of the checkout. Exits with 1 if a test
fails on the unchanged code.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("workload/src", "src", "interfaces/istio-sidecar/src")
# Of the 213 operators those whose survivors are worth a look. `|` is nearly always a type.
OPERATORS = re.compile(
    r"core/(AddNot|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr|ReplaceOrWithAnd"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ReplaceUnaryOperator_Delete_.*"
    r"|ExceptionReplacer|NumberReplacer|ZeroIterationForLoop"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_Mul))"
)
# Tests that run everything, for longer than a change is worth.
STORIES = frozenset(f"test_{story}.py" for story in ("exhaustive", "fuzz", "oracle", "simulation"))
DECLARED = re.compile(r"\b(frozen|kw_only|omit_defaults|slots)=True")


def git(*arguments: str) -> list[str]:
    """The lines that git prints about the checkout."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def modules() -> list[str]:
    """Every module of charm, library and workload."""
    found = git("ls-files", "--", *(f"{source}/*.py" for source in SOURCES))
    return [path for path in found if (ROOT / path).read_text().strip()]


def name(path: str) -> str:
    """How a file is imported: `workload/src/istio_aux/kube/exec.py` is `istio_aux.kube.exec`."""
    for source in (*SOURCES, "tests"):
        path = path.removeprefix(f"{source}/")
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imports(path: str) -> frozenset[str]:
    """What a file may import: the names of modules, and of what is in them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return frozenset(found)


def tests_of(module: str) -> list[str]:
    """The files of unit tests that import a module, the nearest first.

    The nearest have its name. Then come those that import it, those that do so through a helper of
    the tests, and those that import a module of the product that imports it; of each those first
    that import the fewest other modules.
    """
    helpers = {name(path): path for path in git("ls-files", "--", "tests/*.py")}
    product = {name(path): path for path in modules()}
    wanted, stem = name(module), Path(module).stem

    def distance(path: str) -> int | None:
        reached = imports(path)
        for far, through in enumerate((helpers, product, dict[str, str]())):
            if wanted in reached:
                return far
            names = reached & through.keys()
            reached |= {each for name in names for each in imports(through[name])}
        return None

    found = list[tuple[bool, int, int, str]]()
    for path in git("ls-files", "--", "tests/unit/**test_*.py", "interfaces/**test_*.py"):
        far = distance(path)
        if far is not None and Path(path).name not in STORIES:
            others = len(imports(path) & product.keys())
            found.append((stem not in Path(path).stem, far, others, path))
    return [path for *_, path in sorted(found)]


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


def command(files: Iterable[str]) -> list[str]:
    """What runs files of tests, up to the first that fails."""
    options = "-x -q --no-header --tb=line -n 0 -p no:cacheprovider"
    return [sys.executable, "-m", "pytest", *options.split(), *files]


def copied(source: Path) -> None:
    """Work on a copy: its code comes first, and its compiled code stays."""
    folder = Path(tempfile.mkdtemp(dir=source.parent))
    shutil.copytree(source, folder, dirs_exist_ok=True)
    enter(folder)


def enter(folder: Path) -> None:
    """Import from a folder."""
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(f"{folder}/{each}" for each in (*SOURCES, "tests"))


def baseline(module: str, most: float) -> tuple[list[str], float] | None:
    """The nearest tests of an unchanged module, of so many seconds of CPU, and how long they take.

    None: a test fails.
    """
    chosen = list[str]()
    spent = lasted = 0.0
    for path in tests_of(module):
        began, before = time.monotonic(), cpu()
        ran = subprocess.run(command([path]), check=False, capture_output=True, text=True)
        if ran.returncode:
            print(ran.stdout[-2000:])
            return None
        took = cpu() - before
        if chosen and spent + took > most:
            break
        chosen, spent, lasted = [*chosen, path], spent + took, lasted + time.monotonic() - began
    return chosen, lasted


def cpu() -> float:
    """Seconds of CPU that the tests have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def result_of(work: tuple[MutationSpec, str, float]) -> WorkResult:
    """What the tests say of one change."""
    mutation, tests, timeout = work
    return mutate_and_test([mutation], tests, timeout)


def shown(mutation: MutationSpec, result: WorkResult) -> Iterator[str]:
    """The line that nobody missed, before and after."""
    yield f"  {mutation.module_path}:{mutation.start_pos[0]} {mutation.operator_name[5:]}"
    for line in (result.diff or "").splitlines():
        if re.match(r"[-+](?!--|\+\+)", line):
            yield f"    {line}"


def main() -> int:
    """Run the changes; print a row for each module, and what survives."""
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
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "source"
        for path in git("ls-files", "--cached", "--others", "--exclude-standard"):
            if (ROOT / path).is_file():
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, source / path)
        enter(source)
        failed, total, survived = 0, 0, 0
        tests = {module: baseline(module, wish.seconds) for module in chosen}
        with ProcessPoolExecutor(wish.jobs, initializer=copied, initargs=(source,)) as pool:
            for module, nearest in tests.items():
                if nearest is None:
                    failed = 1
                    print(f"{module}: its tests fail without any change")
                    continue
                line, timeout = shlex.join(command(nearest[0])), 3 * nearest[1] + 10
                work = [(one, line, timeout) for one in mutations(module, wish.most)]
                results = list(pool.map(result_of, work))
                alive = [
                    (mutation, result)
                    for (mutation, _, _), result in zip(work, results, strict=True)
                    if result.test_outcome is TestOutcome.SURVIVED
                ]
                total, survived = total + len(work), survived + len(alive)
                print(
                    f"{module}: {len(work) - len(alive)} killed, {len(alive)} survived", flush=True
                )
                for mutation, result in alive:
                    print("\n".join(shown(mutation, result)), flush=True)
        print(f"in all: {total - survived} killed, {survived} survived")
    return failed


if __name__ == "__main__":
    sys.exit(main())
