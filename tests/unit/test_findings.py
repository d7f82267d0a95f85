"""Codes of findings: each has a section and is raised by a test, and none was ever reused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from istio_aux.model.findings import GROUPS, Code, ignored, parse

ROOT = Path(__file__).parents[2]
# Every code that there ever was, with its name: a line is added, and none is changed or removed.
EVER = (Path(__file__).with_name("findings.txt")).read_text().splitlines()
RULES = yaml.safe_load((ROOT / "src/prometheus_alert_rules/istio-aux.rules").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]


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
    alerts = {rule["labels"]["code"] for rule in ALERTS}
    assert {*Code} - named - alerts == set()
    assert named <= {line.split()[0] for line in EVER} | {"IA9999"}


def test_each_alert_leads_to_its_section() -> None:
    pages = {str(code): code.page for code in Code}
    assert [r["alert"] for r in ALERTS
            if r["annotations"]["runbook_url"] != pages[r["labels"]["code"]]] == []  # fmt: skip


def test_codes_are_given_by_a_list_and_an_unknown_one_is_refused() -> None:
    assert parse("IA0101, IA0105") == (Code.RUNS_ON, Code.NO_SIDECAR)
    for text, bad in (("IA0101,IA9", '"IA9"'), ("", '""'), ("stuck", '"stuck"')):
        with pytest.raises(ValueError, match=f"{bad}: expected codes of findings, such as IA0101"):
            parse(text)
    assert (ignored([]), ignored(["b", "a", "b"])) == ("", "ignored: 3 (a, b)")
