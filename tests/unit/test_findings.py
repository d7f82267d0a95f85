"""Codes of findings: each has a section and is raised by a test, and none was ever reused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from istio_aux.model import pod_settings
from istio_aux.model.findings import GROUPS, Code, ignored, parse
from istio_aux.model.sidecars import REMEDY

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
