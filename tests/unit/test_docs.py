"""The documents: nothing is missing or stale, commands are run; codes of findings, and queries."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import promql_parser
import pytest
import yaml
from demo import report, scenes
from istio_aux.cli.commands import main, parser
from istio_aux.model import pod_settings
from istio_aux.model.findings import GROUPS, Code, ignored, parse
from istio_aux.model.names import EventReason
from istio_aux.model.sidecars import REMEDY
from istio_aux.repair.rollout import RolloutLimits
from prometheus_client.parser import text_string_to_metric_families
from unit.process import metrics

import status
from docs import pages

ROOT = pages.ROOT
REFERENCE = pages.DOCS / "reference"
# What the site shows, and what a reader meets before it.
DOCUMENTS = [
    *pages.pages(),
    *(ROOT / f"{folder}/README.md" for folder in ("bundle", "terraform", "examples", "workload")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md")),
]
OPTIONS: dict[str, Any] = yaml.safe_load((ROOT / "config.yaml").read_text())["options"]
ACTIONS: dict[str, Any] = yaml.safe_load((ROOT / "actions.yaml").read_text())
MAKEFILE, TOX = (ROOT / "Makefile").read_text(), (ROOT / "tox.ini").read_text()


class Block(NamedTuple):
    """A fenced block; ``mark`` says which test runs its commands, or why none does."""

    file: Path
    line: int
    language: str
    mark: str
    body: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[str]:
        """The commands of the block, without their comments and output."""
        body = self.body.replace("\\\n", " ")
        if self.language == "console":
            return [line[2:] for line in body.splitlines() if line.startswith("$ ")]
        return [line for line in body.splitlines() if line.strip()]


def blocks(file: Path) -> Iterator[Block]:
    """The fenced blocks of a document, also those of a list."""
    fence = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
    content = file.read_text()
    for found in fence.finditer(content):
        line = content.count("\n", 0, found.start()) + 1
        language, _, mark = found[2].strip().partition(" ")
        body = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        yield Block(file, line, language, mark, body)


BLOCKS = [block for file in DOCUMENTS for block in blocks(file)]
SHELL = [block for block in BLOCKS if block.language in {"sh", "console"}]
RUN_HERE = [block for block in SHELL if block.mark == "run by tests/unit/test_docs.py"]
INLINE = {
    (str(file.relative_to(ROOT)), command)
    for file in DOCUMENTS
    for command in re.findall(
        r"`((?:(?:\.venv/bin/)?tox|make|istio-aux|juju) [^`.…][^`…]*)`", file.read_text()
    )
}
COMMANDS = sorted(
    INLINE | {(str(each), line.strip()) for each in SHELL for line in each.commands()}
)


def table(content: str) -> list[list[str]]:
    """The rows of the tables of a text, without their heads."""
    rows = [line for line in content.splitlines() if line.startswith("|")]
    heads = {i for i, row in enumerate(rows) if i + 1 < len(rows) and rows[i + 1].startswith("|--")}
    kept = [row for i, row in enumerate(rows) if i not in heads and not row.startswith("|--")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in kept]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_says_in_which_language_it_is(block: Block) -> None:
    assert block.language
    assert block.language not in {"bash", "shell", "shell-session"}


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_are_run_by_a_test_or_say_why_not(block: Block) -> None:
    """By the words after the fence's language: "run by FILE", or "not run: REASON"."""
    ran, why = re.match(r"run by (\S+)$", block.mark), re.match(r"not run: \S.{3,}", block.mark)
    assert ran or why, f"{block}: {block.mark}"
    for test in re.findall(r"tests/\S+\.py", block.mark):
        assert (ROOT / test).is_file(), test


@pytest.mark.parametrize("block", RUN_HERE, ids=str)
def test_commands_that_need_no_cluster_work(
    block: Block, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And print what the document shows, up to its first ellipsis."""
    monkeypatch.chdir(block.file.parent if block.file.parent.name == "examples" else ROOT)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")  # Reasons wrap where the terminal ends.
    for command in block.commands():
        program, *arguments = shlex.split(command, comments=True)
        assert program == "istio-aux"
        assert main(arguments) == 0
    said = capfd.readouterr().out
    shown = [line for line in block.body.partition("\n...")[0].splitlines() if line[:1] != "$"]
    if block.language == "console":
        assert "\n".join(shown) in said


def words(command: str) -> list[str]:
    """One command of a line: up to a pipe, and without comments."""
    try:
        found = shlex.split(command, comments=True)
    except ValueError:  # A part of a longer command, such as a loop.
        return []
    return found[: found.index("|")] if "|" in found else found


def is_there(path: str) -> bool:
    """Whether a file is in the checkout, or is not a part of it."""
    return not path.startswith(("tests/", "src/", "workload/")) or (ROOT / path).exists()


@pytest.mark.parametrize(("place", "command"), COMMANDS)
def test_a_command_names_what_there_is(place: str, command: str) -> None:
    """Arguments of the program, options and actions of the charm, targets and environments."""
    match words(command):
        case ["istio-aux", "serve"]:
            pass  # The program, not a command.
        case ["istio-aux", *arguments]:
            parser().parse_args(arguments)
        case ["juju", "config", "istio-aux", *pairs]:
            assert {pair.partition("=")[0] for pair in pairs} <= {*OPTIONS, "NAME", "--reset"}
        case ["juju", "run", _, action, *pairs] if action != "NAME":
            known = set(ACTIONS[action].get("params", {}))
            assert {pair.partition("=")[0] for pair in pairs} <= known
        case ["make", target, *_]:
            assert f"\n{target}:" in MAKEFILE
        case [tox, *others] if tox.endswith("tox") and "-e" in others:
            environments, *arguments = others[others.index("-e") + 1 :]
            for environment in environments.split(","):
                assert f"\n[testenv:{environment}]\n" in TOX
            assert [each for each in arguments if "/" in each and not is_there(each)] == []
        case _:
            pass


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_of_a_document_leads_to_a_file_and_a_heading(file: Path) -> None:
    dead: list[str] = []
    code = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", code.sub("", file.read_text())):
        path, _, wanted = target.partition("#")
        if ":" in path:
            continue
        there = (file.parent / path).resolve() if path else file
        known = there.exists() and (not wanted or wanted in anchors(there))
        dead += [] if known else [target]
    assert dead == []


@cache
def anchors(file: Path) -> set[str]:
    """Those that it has on a forge, and on the site, too."""
    texts = (file.read_text(), read(file))
    return set.intersection(*({pages.anchor(it[2]) for it in pages.headings(of)} for of in texts))


@pytest.mark.parametrize("file", pages.pages(), ids=lambda file: str(file.relative_to(ROOT)))
def test_what_is_generated_on_a_page_is_what_its_source_says_today(file: Path) -> None:
    """If it is not: `python -m docs.pages`."""
    text = file.read_text()
    if "<!-- generated: commands -->" in text and sys.version_info[:2] != (3, 11):
        pytest.skip("argparse of another Python writes other help")
    assert pages.renewed(text) == text


NAMED = "benchmarks|bundle|docs|examples|lib|src|terraform|tests|workload"


@pytest.mark.parametrize(
    "file",
    [*DOCUMENTS, ROOT / "tests/README.md"],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_every_path_that_a_document_names_exists(file: Path) -> None:
    named = re.findall(rf"`((?:{NAMED})/[^` ]+?)/?`", file.read_text())
    assert [path for path in named if not list(ROOT.glob(path))] == []


def test_the_index_lists_each_page_and_has_it_in_its_navigation() -> None:
    index = (ROOT / "docs/index.md").read_text()
    navigated = re.findall(r"^([a-z][a-z/-]+)$", index, re.MULTILINE)
    listed = re.findall(r"\]\(([a-z/-]+)\.md", index)
    assert sorted(navigated) == sorted([*listed, "project"])


def read(file: Path) -> str:
    """A document, with what the site puts into it."""
    return pages.text(file) if file.is_relative_to(pages.DOCS) else file.read_text()


def test_the_reference_has_every_command_and_its_exit_statuses() -> None:
    shown = read(REFERENCE / "commands.md")
    commands = set(re.findall(r"^### istio-aux (\S+)$", shown, re.MULTILINE))
    statuses = pages.section((REFERENCE / "commands.md").read_text(), "exit-statuses")
    assert {row[0].strip("`") for row in table(statuses)} == commands
    assert {"serve", "check", "audit"} <= commands


def test_the_reference_has_every_event() -> None:
    """Types hold the recorders to this list, and the policy for Events is rendered from it."""
    events = pages.section((REFERENCE / "status.md").read_text(), "events")
    assert {row[0].strip("`") for row in table(events)} == {*get_args(EventReason)}


def test_the_reference_has_every_key_that_we_read_or_write() -> None:
    sources = [
        file
        for pattern in ("src/**/*.py", "src/**/*.j2", "workload/src/**/*.py")
        for file in ROOT.glob(pattern)
    ]
    found = {
        key for file in sources for key in re.findall(r"\bistio-aux\.io/[a-z-]+", file.read_text())
    }
    shown = set(re.findall(r"\bistio-aux\.io/[a-z-]+", read(REFERENCE / "annotations.md")))
    assert shown == found


def test_the_numbers_of_repair_are_those_of_the_code() -> None:
    seconds = {"": 1, "s": 1, "min": 60, "h": 3600, "day": 86400}
    section = pages.section(read(pages.DOCS / "explanation/behaviour.md"), "repair")
    first = " ".join(row[0] for row in table(section))
    said = re.findall(r"(\d+) ?(\w*), `(?:RolloutLimits\.)?(\w+)`", first)
    assert len(said) > 5
    for number, unit, name in said:
        assert getattr(RolloutLimits(), name) == int(number) * seconds[unit], name


@cache
def templates() -> set[str]:
    """What `juju status` may say, as patterns: the texts of src/status.py."""
    tree = ast.parse(Path(status.__file__).read_text())
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.Expr)
        for part in (node.values if isinstance(node, ast.JoinedStr) else [node.value])
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.add("".join(pattern(part) for part in node.values))
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            # One word alone is the value of an option, or a name.
            found |= {pattern(node)} if " " in node.value else set()
    return {each for each in found if re.search(r"[a-z]{4,}", each)}


def pattern(part: ast.expr) -> str:
    """A text as a regular expression; what is put into it may be anything."""
    return re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".*"


def shown_texts() -> list[str]:
    """The texts of the page, from the first cells of its tables."""
    texts = pages.section((REFERENCE / "status.md").read_text(), "status-texts")
    cells = [row[0] for row in table(texts)]
    return [
        text.strip("` ") for cell in cells
        for text in re.findall(r"`` .+? ``|`[^`]+`", cell)
    ]  # fmt: skip


@pytest.mark.parametrize("said", sorted(templates()))
def test_the_reference_has_every_text_of_a_status(said: str) -> None:
    assert [text for text in shown_texts() if re.search(said, text)], said


def test_no_picture_needs_variables_of_css() -> None:
    """Many viewers besides browsers know none, and draw in black."""
    assert [each.name for each in pages.DOCS.rglob("*.svg") if "var(" in each.read_text()] == []


# Codes of findings: each has a section and is raised by a test, and none was ever reused.

# Every code that there ever was, with its name: a line is added, and none is changed or removed.
EVER = (Path(__file__).with_name("findings.txt")).read_text().splitlines()
ALERTS: list[dict[str, Any]] = [
    rule
    for file in ROOT.glob("src/prometheus_alert_rules/*.rules")
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]


def test_a_code_has_one_name_for_ever() -> None:
    kept = dict(line.split() for line in EVER)
    assert len(kept) == len(EVER) == len({*kept.values()})
    assert {str(code): code.name for code in Code}.items() <= kept.items()


@pytest.mark.parametrize("group", GROUPS)
def test_a_page_has_one_section_for_each_code_of_its_group_in_their_order(group: str) -> None:
    codes = [code for code in Code if code.startswith(group)]
    page, _, _ = codes[0].page.rpartition("#")
    text = (ROOT / page.partition("/blob/main/")[2]).read_text()
    assert [code.page for code in codes] == [f"{page}#{code.lower()}" for code in codes]
    sections = re.findall(r"^## (\w+)\n\n\*\*(.+)\.\*\*.*\n\n[A-Z`]", text, re.MULTILINE)
    named = [(code, title.casefold()) for code, title in sections]
    assert named == [(code, code.what.casefold()) for code in codes]
    assert text.count("\n#") == len(codes)


def test_each_code_is_raised_by_a_test() -> None:
    """A test names it with what raises it; an alert fires for its own series in Prometheus."""
    others = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    named = {code for path in others for code in re.findall(r"IA\d{4}", path.read_text())}
    assert {*Code} - named - {rule["labels"]["code"] for rule in ALERTS} == set()
    assert named <= {line.split()[0] for line in EVER} | {"IA9999"}


def test_each_alert_leads_to_its_section() -> None:
    pages = {str(code): code.page for code in Code}
    assert [r["alert"] for r in ALERTS
            if r["annotations"]["runbook_url"] != pages[r["labels"]["code"]]] == []  # fmt: skip


def test_what_helps_a_pod_that_a_container_keeps_is_one_text() -> None:
    """`NAME=ignore` ends the proxy alone: no page, alert or help may tell people to say that."""
    (alert,) = (rule for rule in ALERTS if rule["alert"] == "IstioAuxPodsBlocked")
    page = (ROOT / "docs/findings/pods.md").read_text()
    chart = " ".join((ROOT / "chart/files/alerts.yaml").read_text().split())
    assert all(
        pod_settings._own_rules(f"x={way}")
        for way in re.findall(r"NAME=(\S+) in istio-aux.io/sidecars", REMEDY)
    )
    assert REMEDY in alert["annotations"]["description"]
    assert REMEDY in chart
    assert REMEDY in re.sub(r"\[|\]\(\S+\)", "", page)
    said = {
        path.relative_to(ROOT).as_posix()
        for folder in ("docs", "examples", "src", "chart", "workload/src")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".md", ".py", ".rules", ".yaml"}
        and re.search(r"=ignore\b", path.read_text())
    }
    assert said == {
        "docs/findings/pods.md",  # GCS FUSE's mounter, which ends after all others.
        "docs/reference/annotations.md",
        "docs/reference/sidecars.md",
        "workload/src/istio_aux/model/pod_settings.py",
        "workload/src/istio_aux/model/sidecars.py",
        "workload/src/istio_aux/quit/pairs.py",
    }


def test_codes_are_given_by_a_list_and_an_unknown_one_is_refused() -> None:
    assert parse("IA0101, IA0105") == (Code.RUNS_ON, Code.NO_SIDECAR)
    for text, bad in (("IA0101,IA9", '"IA9"'), ("", '""'), ("stuck", '"stuck"')):
        with pytest.raises(ValueError, match=f"{bad}: expected codes of findings, such as IA0101"):
            parse(text)
    assert (ignored([]), ignored(["b", "a", "b"])) == ("", "ignored: 3 (a, b)")


# Every query of the alert rules and the dashboard asks for metrics that the workload exports.

# What the collector adds to each series.
COLLECTED = {"juju_model", "juju_model_uuid", "juju_application", "juju_charm", "juju_unit"}
COLLECTED |= {"instance", "job"}


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard that show something."""
    every = json.loads((ROOT / "src/grafana_dashboards/istio-aux.json").read_text())["panels"]
    return [panel for panel in every if panel["type"] != "row"]


def queries() -> dict[str, str]:
    """Every query, by the alert or panel that has it."""
    alerts = {rule["alert"]: rule["expr"] for rule in ALERTS}
    shown = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in panels()
        for target in panel["targets"]
    }
    return alerts | shown


def parsed(query: str) -> promql_parser.Expr:
    """The query as Prometheus gets it."""
    text = query.replace("%%juju_topology%%", 'juju_application="istio-aux"')
    return promql_parser.parse(text.replace("$__rate_interval", "5m").replace("$__range", "6h"))


def nodes(query: str) -> list[promql_parser.Expr]:
    """Every part of the query."""
    found: list[promql_parser.Expr] = []
    promql_parser.walk(parsed(query), found.append)
    return found


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    """Every choice of series in the query."""
    return [node for node in nodes(query) if isinstance(node, promql_parser.VectorSelector)]


@pytest.fixture(scope="module")
def exported() -> dict[str, dict[str, set[str]]]:
    """The labels of each metric that the workload exports, with their values."""
    series: dict[str, dict[str, set[str]]] = {"up": {}}
    for family in text_string_to_metric_families(metrics()):
        # Histograms without labels, and those of the process.
        series.setdefault(family.name, {})
        for sample in family.samples:
            labels = series.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return series


@pytest.mark.parametrize("name", queries())
def test_a_query_is_about_series_that_exist(
    name: str, exported: dict[str, dict[str, set[str]]]
) -> None:
    """And of one application. Else an alert never fires, and a panel stays empty."""
    found = selectors(queries()[name])
    assert found
    for selector in found:
        assert "juju_application" in [matcher.name for matcher in selector.matchers.matchers]
        assert selector.name in exported
        labels = exported[selector.name]
        for matcher in selector.matchers.matchers:
            if matcher.name in COLLECTED:
                continue
            for value in matcher.value.split("|"):
                assert value in labels.get(matcher.name, set()), f"{selector.name}: {matcher.name}"


def kept_labels(query: str) -> set[str]:
    """The labels that the result of a query has."""
    kept: set[str] | None = None
    for node in nodes(query):
        if isinstance(node, promql_parser.AggregateExpr):
            assert node.modifier, "without `by` no label is left"
            kept = {*node.modifier.labels} if kept is None else kept & {*node.modifier.labels}
    return COLLECTED if kept is None else kept


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do_and_shows_only_labels_that_it_has(rule: dict[str, Any]) -> None:
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    shown = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
    assert set(shown) <= kept_labels(rule["expr"])
    # A summary is one line of a notification.
    assert len(rule["annotations"]["summary"]) < 130


def test_every_state_of_trouble_that_is_counted_has_an_alert(
    exported: dict[str, dict[str, set[str]]],
) -> None:
    alerted = {selector.name for rule in ALERTS for selector in selectors(rule["expr"])}
    troubles = {
        name for name in exported if re.fullmatch(r"istio_aux_\w+_(pods|jobs|errors_total)", name)
    }
    assert "istio_aux_stuck_pods" in troubles
    assert troubles - {"istio_aux_watched_pods", "istio_aux_would_quit_pods"} <= alerted


def test_the_dashboard_shows_every_metric_of_ours(
    exported: dict[str, dict[str, set[str]]],
) -> None:
    shown = {
        selector.name or ""
        for panel in panels()
        for t in panel["targets"]
        for selector in selectors(t["expr"])
    }
    ours = {
        name
        for name in exported
        if name.startswith("istio_aux_") and not name.endswith(("_created", "_sum", "_count"))
    }
    families = {name.removesuffix("_bucket").removesuffix("_total") for name in shown}
    left_out = {"istio_aux_watched_pods", "istio_aux_configurations_called_before_ours"}
    assert {
        name.removesuffix("_bucket").removesuffix("_total") for name in ours
    } - families == left_out


# The demo: a story is told from objects, judged, and drawn.


def test_the_picture_of_the_readme_is_what_the_demo_draws_today() -> None:
    """If it is not: `make picture`, as root."""
    text = (ROOT / "docs/timeline.svg").read_text(encoding="utf-8")

    drawn = report.drawn_from(text)

    assert report.svg(drawn.jobs, drawn.title) == text
    shown = [(job.kind, job.namespace, job.helped, job.native) for job in drawn.jobs]
    assert shown == [
        ("TFJob", scenes.WITHOUT.namespace, False, False),
        ("TFJob", scenes.WITH.namespace, True, False),
        ("TFJob", scenes.NATIVE.namespace, True, True),
    ]
