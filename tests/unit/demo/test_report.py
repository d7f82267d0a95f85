"""The report is one page that needs nothing else; the terminal has 100 columns."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path

import pytest
from demo import report, scenes, table, timeline
from demo.chart import chart
from demo.promise import judge
from rich.console import Console
from unit.demo.stories import helped, with_pod, without

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


def test_the_page_loads_nothing_and_shows_the_table_and_every_part_of_the_promise() -> None:
    jobs = (without(), helped())
    page = Page(report.html(jobs, judge(*jobs), FACTS))

    assert page.loads == []
    assert page.words.count("16.2 s, exit 0") == 2
    assert "✓ The promise was kept." in page.words
    assert len([word for word in page.words if word.startswith("kept: ")]) == 7
    assert "a stand-in <was> used" in page.words, "words of the cluster are no markup"


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


def printed(*things: object) -> list[str]:
    """The lines that a pipe of 100 columns gets."""
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    for thing in things:
        console.print(thing)
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    "name", ["mnist-worker-0", "a-name-as-long-as-kubernetes-allows-" + "x" * 27]
)
def test_no_line_is_wider_than_a_hundred_columns(name: str) -> None:
    story = with_pod(without(), name=name)
    lines = printed(timeline.render(chart((story, helped()))), table.render((story, helped())))
    assert max(map(len, lines)) <= 100


def test_the_table_has_a_row_for_each_pod_with_times_exit_codes_and_result() -> None:
    rows = [row.cells for job in (without(), helped()) for row in table.rows(job)]
    assert rows[0] == (
        "without/mnist-worker-0",
        "13.1 s, try 3",
        "16.2 s, exit 0",
        "4.3 s",
        "no",
        "hangs",
    )
    assert rows[3] == (
        "with/mnist-worker-1",
        "4.2 s",
        "7.3 s, exit 0",
        "4.1 s",
        "8.2 s, exit 0",
        "succeeded",
    )
