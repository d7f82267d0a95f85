"""The promises that the repository makes of itself: its shape, its workflows, and what ships."""

from __future__ import annotations

import ast
import configparser
import graphlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from helm import generate
from istio_aux import settings
from istio_aux.model import names
from sizes import PARTS, ROOT, python, statements, total, tracked, words

from tools import address, interpreters, packages, program, sbom
from tools.rock import Recipe

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
MOST = {"workload": 11_400, "charm": 1_805, "tests": 30_000}


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
    assert twice(path.stem for path in modules()) <= {"controller", "recorder", "rules"}


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
    for cell, named in re.findall(r"^\| (?:`([\w/]+)` )?\| ((?:`\w+` )+)\|", text, re.MULTILINE):
        package = cell or package
        shown += [f"{package}{name}" for name in named.replace("`", "").split()]
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


# What happens on a forge: workflows, and the logs of a Juju that is gone by then.


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", [job])


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_workflow_is_as_the_scorecard_wants_it(path: Path) -> None:
    """Its checks Pinned-Dependencies and Token-Permissions (scorecard, docs/checks.md)."""
    workflow = yaml.safe_load(path.read_text())
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
    for name, script in {"juju": JUJU, "kubectl": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(script)
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


# What the Helm chart has in common with the charm is made from it. `tox -e chart` runs `helm`.

MADE = generate.files()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_what_is_made_from_the_charm_is_as_the_charm_has_it(path: Path) -> None:
    assert path.read_text() == MADE[path], "run `python -m helm.generate`"


def test_every_setting_is_a_value_or_one_that_the_chart_decides() -> None:
    schema = json.loads((generate.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((generate.CHART / "values.yaml").read_text())

    assert schema["properties"]["settings"]["properties"].keys() == {*generate.SETTINGS}
    assert values["settings"].keys() == {*generate.SETTINGS}
    assert {*generate.SETTINGS} | generate.DECIDED == settings.OPTIONS.keys()


def test_every_value_is_in_the_schema_and_has_its_type() -> None:
    schema = json.loads((generate.CHART / "values.schema.json").read_text())
    values = (generate.CHART / "values.yaml").read_text()
    types = {"array": list, "boolean": bool, "integer": int, "number": int, "object": dict}
    types["string"] = str

    for path in generate.comments(values):
        described = schema
        for name in path.split("."):
            described = described["properties"][name]
        value = generate.value_at(yaml.safe_load(values), path)
        assert (
            value in described["enum"]
            if "enum" in described
            else type(value) is types[described["type"]]
        ), path
    # Helm's own, for charts that have this one as a part.
    assert schema["properties"].keys() - yaml.safe_load(values).keys() == {"global"}


def test_the_chart_has_the_addresses_of_the_charm_and_no_others() -> None:
    chart = (generate.CHART / "Chart.yaml").read_text()
    made = {"website": "https://example.com", "source": ["https://example.com/source"]}
    addressed = yaml.safe_load(generate.chart(chart, made | {"summary": "It is short."}))

    assert (addressed["home"], addressed["sources"]) == (made["website"], made["source"])
    assert yaml.safe_load(chart)["home"] == names.REPOSITORY
    assert yaml.safe_load(chart)["icon"].startswith("data:image/svg+xml;base64,")


def test_every_alert_of_the_chart_is_about_one_release_and_none_speaks_of_juju() -> None:
    text = (generate.CHART / "files/alerts.yaml").read_text()
    for name in ("MODEL", "APP"):
        text = text.replace(f"@{name}@", "ours")
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]

    assert len(rules) > 10
    for rule in rules:
        shown = " ".join((rule["expr"], *rule["annotations"].values()))
        assert "juju" not in shown.lower()
        assert "charm" not in shown
        assert promql_parser.parse(rule["expr"])
        assert rule["expr"].count("{") == rule["expr"].count('{namespace="ours", job="ours"')


# What ships: an image that follows its recipe, one version, and whole bills of materials.

METADATA = yaml.safe_load((packages.ROOT / "metadata.yaml").read_text())


def test_the_product_has_one_version() -> None:
    """That of the workload; the rock, the charm, its image, the chart and the bills repeat it."""
    image = METADATA["resources"]["istio-aux-image"]["upstream-source"]
    chart = yaml.safe_load((packages.ROOT / "chart/Chart.yaml").read_text())
    assert {
        chart["version"],
        chart["appVersion"],
        packages.version(packages.ROOT),
        Recipe.read(packages.WORKLOAD).version,
        image.rpartition(":")[2],
        json.loads(sbom.of_charm())["metadata"]["component"]["version"],
        json.loads(sbom.of_image([]))["metadata"]["component"]["version"],
    } == {packages.version()}


def test_charm_and_wheel_have_the_addresses_of_the_project() -> None:
    project = tomllib.loads((packages.WORKLOAD / "pyproject.toml").read_text())["project"]
    keys = {"Homepage": "website", "Documentation": "docs", "Source": "source", "Issues": "issues"}
    assert project["urls"] == {name: METADATA[key] for name, key in keys.items()}
    assert METADATA["source"] == names.REPOSITORY
    assert address.registry(names.REPOSITORY) == names.REGISTRY


# An address that is written down, and one that is left for the reader to write.
ADDRESS = re.compile(
    r"(?:https://)?(?:github|ghcr)\.(?:com|io|example)/[\w.-]+/(?:charts/)?istio-aux\b(?!\.rb)"
    r"|<(?:the )?(?:address|owner|repository)\b[^>]*>|(?:/|-owner )OWNER\b|charmhub\.io/istio-aux"
)
# Where an address is asked for.
ASKED: dict[str, str] = dict.fromkeys(
    ("CONTRIBUTING.md", "tools/address.py"), "https://github.com/OWNER/REPOSITORY"
)


def strangers(found: Mapping[str, str]) -> dict[str, set[str]]:
    """The addresses in these texts that are not the project's."""
    ours = (names.REPOSITORY, names.REGISTRY)
    others = {
        name: {
            each[0]
            for each in ADDRESS.finditer(text.replace(ASKED.get(name, ""), ""))
            if not each[0].startswith(ours)
        }
        for name, text in found.items()
        if not name.startswith("tests/")  # They have other addresses, too.
    }
    return {name: each for name, each in others.items() if each}


def test_every_file_has_the_address_of_the_project_and_no_other_and_no_placeholder() -> None:
    """Of a page that is to have an address, too: `model/names.py` has it."""
    found = address.texts()
    assert strangers(found) == {}
    pages = {name for name, text in found.items() if names.REPOSITORY in text}
    assert pages >= {"README.md", "metadata.yaml", "workload/src/istio_aux/model/names.py"}


def test_one_command_moves_the_project_to_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the address stood, the new one stands, and nothing of the old one is left."""
    found = address.texts()
    changed = address.moved(found, "https://github.com/Acme/mesh")
    monkeypatch.setattr(names, "REPOSITORY", "https://github.com/Acme/mesh")
    monkeypatch.setattr(names, "REGISTRY", "ghcr.io/acme")
    assert strangers(found | changed) == {}
    assert {name for name, text in changed.items() if f"{address.REPOSITORY}/" in text} == set()
    assert "--repo Acme/mesh" in changed["docs/reference/packages.md"]


def test_the_project_moves_to_no_place_but_a_repository() -> None:
    with pytest.raises(ValueError, match=r"expected https://github.com/OWNER/REPOSITORY"):
        address.moved({}, "github.com/acme")


def test_the_checkout_is_as_charmhubs_reviewers_want_it() -> None:
    """By their own program, which needs Python 3.12: `tox -e listing`."""
    python = interpreters.find(interpreters.SHIPPED)
    if not python:
        pytest.skip(f"python {interpreters.SHIPPED}: not found")
    command = ("run", "--isolated", "--frozen", "--only-group", "listing", "--python", python)
    done = subprocess.run(
        [interpreters.uv(), *command, "python", "tests/listing.py"],
        cwd=packages.ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def image() -> str:
    """The bill of an image."""
    debs = ("libc6_2.36-9+deb12u14_amd64.deb", "zlib1g_1%3a1.2.13.dfsg-1_amd64.deb")
    return sbom.of_image(map(Path, debs))


@pytest.fixture(scope="module")
def charm() -> str:
    """The bill of the charm."""
    return sbom.of_charm()


@pytest.fixture(scope="module")
def packed() -> str:
    """The bill of the program that is one file."""
    return program.bill()


def pinned(project: Path, root: str) -> Iterator[str]:
    """What a lock says that a package of its needs, with the extras that are asked for."""
    lock = tomllib.loads((project / "uv.lock").read_text())
    found: dict[str, dict[str, Any]] = {each["name"]: each for each in lock["package"]}
    todo, seen = [(root, "")], set[tuple[str, str]]()
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        package = found[name]
        needs = package.get("optional-dependencies", {}).get(extra, []) if extra else []
        for need in needs or package.get("dependencies", []):
            todo += [(need["name"], each) for each in ("", *need.get("extra", []))]
        if "registry" in package["source"]:  # Not of this checkout.
            yield f"pkg:pypi/{name}@{package['version']}"


def held(bill: str) -> set[str]:
    return {part["purl"] for part in json.loads(bill)["components"]}


@pytest.mark.parametrize("bill", ["image", "charm", "packed"])
def test_a_bill_is_what_the_standard_says(bill: str, request: pytest.FixtureRequest) -> None:
    """CycloneDX 1.6, by its own schema."""
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415  (the import takes 2 s)
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    errors = JsonStrictValidator(SchemaVersion.V1_6).validate_str(request.getfixturevalue(bill))
    assert errors is None


def test_the_image_lists_every_package_of_the_lock_of_the_workload(image: str) -> None:
    wanted = set(pinned(packages.WORKLOAD, "istio-aux"))
    assert wanted
    assert wanted - held(image) == set()


def test_the_program_lists_its_interpreter_beside_the_lock_of_the_workload(packed: str) -> None:
    more = held(packed) - set(pinned(packages.WORKLOAD, "istio-aux"))
    assert {purl.partition("@")[0] for purl in more} == {
        "pkg:generic/python",
        "pkg:generic/openssl",
    }


def test_the_charm_lists_every_package_that_the_lock_installs_with_it(charm: str) -> None:
    """Those of the tests are in the same lock; they are not in the charm."""
    wanted = set(pinned(packages.ROOT, "istio-aux-charm"))
    assert wanted
    assert held(charm) == wanted


def test_the_image_lists_pebble_its_modules_and_the_packages_of_the_base(image: str) -> None:
    pins = (packages.ROOT / "tools/pebble/go.mod").read_text()
    modules = {
        f"pkg:golang/{n.lower()}@{v}" for n, v in re.findall(r"^\t(\S+) (v\S+)", pins, re.MULTILINE)
    }
    assert any("/pebble@" in module for module in modules)
    assert modules - held(image) == set()
    debs = [purl for purl in sorted(held(image)) if purl.startswith("pkg:deb/")]
    assert [purl.partition("?")[0].rpartition("/")[2] for purl in debs] == [
        "libc6@2.36-9%2Bdeb12u14",
        "zlib1g@1%3A1.2.13.dfsg-1",
    ]
