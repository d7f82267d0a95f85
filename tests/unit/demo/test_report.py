"""The report is one page that needs nothing else and says what the terminal says."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from demo import report, scenes
from demo.chart import chart
from demo.promise import judge
from unit.demo.stories import helped, with_pod, without

SVG = "{http://www.w3.org/2000/svg}"
FACTS = report.Facts("A title", "A lead.", {"Kubernetes": "1.36.3"}, ("a stand-in <was> used",))


class Page(HTMLParser):
    """What a reader gets from a page: its words, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        self.loads += [value for key, value in attrs if key in ("src", "href") and value]


@pytest.fixture
def page() -> Page:
    jobs = (without(), helped())
    return Page(report.html(jobs, judge(*jobs), FACTS))


@pytest.fixture
def drawing() -> ET.Element:
    return ET.fromstring(report.svg((without(), helped()), "A title"))


def test_the_page_loads_nothing(page: Page) -> None:
    assert page.loads == []


def test_the_page_shows_the_rows_of_the_table_and_every_part_of_the_promise(page: Page) -> None:
    assert page.words.count("16.2 s, exit 0") == 2
    assert "✓ The promise was kept." in page.words
    assert len([word for word in page.words if word.startswith("kept: ")]) == 7


def test_a_broken_promise_is_said_at_the_top_and_where_it_broke() -> None:
    jobs = (without(), with_pod(helped(), proxy=()))
    page = Page(report.html(jobs, judge(*jobs), FACTS))
    assert "✗ The promise was broken." in page.words
    assert "broken: with the label, every proxy exits 0" in page.words


def test_words_from_the_cluster_cannot_become_markup(page: Page) -> None:
    assert "a stand-in <was> used" in page.words


def test_the_drawing_alone_has_a_title_and_tells_the_whole_story_in_words(
    drawing: ET.Element,
) -> None:
    assert drawing.get("role") == "img"
    told = drawing.findtext(f"{SVG}desc") or ""
    assert "Without the label, TFJob mnist in namespace without: still running after 24 s." in told
    assert "mnist-worker-1: payload done at 7.3 s, istio-proxy exits 0 at 8.2 s." in told


def test_the_drawing_has_a_light_and_a_dark_form(drawing: ET.Element) -> None:
    assert "prefers-color-scheme: dark" in (drawing.findtext(f"{SVG}style") or "")


def test_nothing_is_drawn_outside_the_drawing(drawing: ET.Element) -> None:
    left, top, width, height = map(float, drawing.attrib["viewBox"].split())
    drawn = list(drawing.iter(f"{SVG}rect"))
    assert drawn
    for rect in drawn:
        x, y = float(rect.attrib["x"]), float(rect.attrib["y"])
        assert left <= x
        assert x + float(rect.attrib["width"]) <= left + width
        assert top <= y
        assert y + float(rect.attrib["height"]) <= top + height


def test_a_second_is_as_long_in_one_job_as_in_the_other() -> None:
    picture = report.picture(chart((without(), helped())), "A title")
    widths = [
        {round(shape.width) for shape in panel.shapes if shape.kind.name == "WORKING"}
        for panel in picture.panels
    ]
    assert widths[0] == widths[1] != {0}


def test_page_and_drawing_are_written_beside_each_other(tmp_path: Path) -> None:
    jobs = (without(), replace(helped(), condition="Running"))
    page = report.write(tmp_path / "demo-report", jobs, judge(*jobs), FACTS)
    assert page == tmp_path / "demo-report" / "index.html"
    assert sorted(path.name for path in page.parent.iterdir()) == ["index.html", "timeline.svg"]


def test_the_picture_of_the_readme_is_what_the_demo_draws_today() -> None:
    """If it is not: `make picture`, as root."""
    text = (Path(__file__).parents[3] / "docs/timeline.svg").read_text(encoding="utf-8")

    drawn = report.drawn_from(text)

    assert report.svg(drawn.jobs, drawn.title) == text
    shown = [(job.kind, job.namespace, job.helped, job.native) for job in drawn.jobs]
    assert shown == [
        ("TFJob", scenes.WITHOUT.namespace, False, False),
        ("TFJob", scenes.WITH.namespace, True, False),
        ("TFJob", scenes.NATIVE.namespace, True, True),
    ]
