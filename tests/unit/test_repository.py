"""The promises that the repository makes of itself."""

from __future__ import annotations

import ast
import configparser
import graphlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from sizes import PARTS, ROOT, python, statements, total, tracked, words

TEXTS = {".py", ".md", ".go", ".toml", ".ini", ".yaml", ".j2", ".sh", ".tf"}


def walk(path: Path) -> Iterable[ast.AST]:
    """All parts of a Python file."""
    return ast.walk(ast.parse(path.read_text()))


def lines(path: Path) -> int:
    """How many lines a text file has."""
    return len(path.read_text().splitlines())


def test_no_file_outgrows_what_one_reads_at_once() -> None:
    large = {path: found for path in tracked("*.py") if (found := statements(path)[0]) > 330}
    assert large == {}
    assert [path for path in tracked("*.go") if lines(path) > 500] == []


def test_the_readme_fits_in_a_hundred_lines_of_a_terminal() -> None:
    shown = (ROOT / "README.md").read_text().splitlines()
    assert len(shown) <= 100
    assert [line for line in shown if len(line) > 160] == []


# The most statements, 3 % above what there is: CONTRIBUTING, "How much there is".
MOST = {"workload": 12_056, "charm": 1_805, "tests": 31_700}


@pytest.mark.parametrize("part", MOST)
def test_workload_charm_and_tests_do_not_grow(part: str) -> None:
    more = sum(statements(file)[0] for file in python(*PARTS[part])) - MOST[part]
    assert more <= 0, f"{part}: {more} statements too many: take away what no user needs any more"


@pytest.mark.parametrize("part", ["workload", "charm"])
def test_a_line_of_code_can_be_read_at_once(part: str) -> None:
    """Other Python that is written by hand has 6 to 7.2 tokens a line."""
    assert total(python(*PARTS[part])).tokens_a_line() <= 8.5


def test_the_documents_do_not_grow() -> None:
    for_users = [page for page in tracked("*.md") if not page.is_relative_to(ROOT / "tests")]
    assert words(for_users) <= 34_000
    assert len(tracked("*.md")) <= 66


def test_every_tox_environment_says_what_it_is_for() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    environments = [name for name in tox.sections() if name.startswith("testenv:")]
    assert environments
    assert [name for name in environments if not tox[name].get("description")] == []


def test_the_library_the_charm_and_the_workload_need_the_same_python() -> None:
    """One set of versions is promised everywhere."""
    wanted = 'requires-python = ">=3.11"'
    for project in ("lib/istio-sidecar", ".", "workload"):
        assert wanted in (ROOT / project / "pyproject.toml").read_text(), project


def test_nothing_speaks_of_the_machine_it_was_written_on() -> None:
    """The project is about the product alone."""
    trace = re.compile(r"(?<![\w}])/(?:work|root)/")
    texts = [path for path in tracked() if path.suffix in TEXTS or path.name == "Makefile"]
    assert [path for path in texts if trace.search(path.read_text())] == []


def loses_updates(node: ast.AST) -> bool:
    """Whether a field is read, another task may change it, and what was read is written back."""
    return (
        isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Attribute | ast.Subscript)
        and any(isinstance(part, ast.Await) for part in ast.walk(node.value))
    )


def test_no_field_is_added_to_across_an_await() -> None:
    """`self.torn += await ended()` loses what was added meanwhile; a local name does not."""
    waiting = [path for path in tracked("*.py") if "await" in path.read_text()]
    assert waiting
    assert [path for path in waiting if any(map(loses_updates, walk(path)))] == []


def imports(path: Path) -> set[str]:
    """The modules of the charm that this one imports, also inside of functions."""
    named: set[str] = set()
    for node in walk(path):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return named


def test_no_statement_follows_one_that_leaves() -> None:
    """Neither linter nor type checker says so of what stands behind a `return`."""
    leaves = (ast.Return, ast.Raise, ast.Continue, ast.Break)
    dead = [
        f"{path}:{after.lineno}"
        for path in python("workload/src", "src", "tools", "tests", "lib")
        for node in walk(path)
        for body in (getattr(node, "body", None), getattr(node, "orelse", None))
        if isinstance(body, list)
        for before, after in pairwise(body)
        if isinstance(before, leaves)
    ]
    assert dead == []


def test_no_two_modules_of_the_charm_need_each_other() -> None:
    """Each can be read after those that it imports; `charm` comes last."""
    paths = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in tracked("src/*.py")
    }
    assert len(paths) <= 16
    order = [
        *graphlib.TopologicalSorter(
            {n: imports(p) & {*paths} for n, p in paths.items()}
        ).static_order()
    ]
    assert order[-1] == "charm"


WORKLOAD = ROOT / "workload/src/istio_aux"


def modules() -> list[Path]:
    """The modules of the workload, without those that only say what a package is."""
    found = [path for path in tracked("workload/src/*.py") if path.name != "__init__.py"]
    assert found
    return found


def twice(names: Iterable[str]) -> set[str]:
    """The names that occur more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


def test_no_two_modules_of_the_workload_share_a_name() -> None:
    names = twice(path.stem for path in modules())
    assert names <= {"controller", "recorder", "rules"}


def test_no_two_classes_of_the_workload_share_a_name() -> None:
    """A name in a log, a traceback or a review says which class it is."""
    names = twice(
        node.name for path in modules() for node in walk(path) if isinstance(node, ast.ClassDef)
    )
    assert names == set()


def test_a_module_of_the_workload_is_worth_a_file() -> None:
    """What has fewer than 40 lines is a part of its neighbour, but for what lint rules name."""
    small = {str(path.relative_to(WORKLOAD)) for path in modules() if lines(path) < 40}
    assert small == {"kube/clock.py"}, "who alone may ask the clocks"


def test_the_table_of_the_architecture_has_every_module_in_its_layer() -> None:
    """In the order of the contract that `tox -e lint` checks."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = {
        name.removeprefix("istio_aux."): layer
        for layer, names in enumerate(linter["contracts"][0]["layers"])
        for name in names.split(" | ")
    }
    package, shown = "", list[str]()
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for cell, names in re.findall(r"^\| (?:`([\w/]+)` )?\| ((?:`\w+` )+)\|", text, re.MULTILINE):
        package = cell or package
        shown += [f"{package}{name}" for name in names.replace("`", "").split()]
    shown = [each.removeprefix("istio_aux") for each in shown]
    assert sorted(shown) == sorted(
        str(path.relative_to(WORKLOAD)).removesuffix(".py") for path in modules()
    )
    order = [layers[layer] for each in shown if (layer := each.partition("/")[0]) in layers]
    assert order == sorted(order)


def test_every_known_failure_of_others_has_a_test() -> None:
    """The table in tests/README.md names an issue, which a test cites, or a file of tests."""
    _, _, section = (ROOT / "tests/README.md").read_text().partition("## Failures of others")
    named = re.findall(r"^\| (?!\| |-)(.+?) \|", section, re.MULTILINE)
    cited = "".join(path.read_text() for path in tracked("tests/**/test_*.py"))
    assert len(named) > 40
    assert [
        name
        for name in named
        if not (name in cited if "`" not in name else (ROOT / "tests" / name.strip("`")).is_file())
    ] == []
