"""What Sphinx reads of a page: sections of other files, working links; and tables that are made.

A page says ``<!-- include -->`` above a line with one link. On a forge the reader follows the link.
On the site the two lines become that section of that file.

Between ``<!-- generated: NAME -->`` and ``<!-- end -->`` a page has what `GENERATED` makes, so that
a forge shows it, too. ``python -m docs.pages`` writes it; a test fails if it is stale.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
METADATA: dict[str, Any] = yaml.safe_load((ROOT / "metadata.yaml").read_text())
# Nothing is at an address under `.example`, so the site has no links into the sources then.
SOURCE: str = "" if ".example/" in METADATA["source"] else METADATA["source"]

_MARK = re.compile(
    r"^<!-- include(?P<short> without subsections)? -->\n"
    r"\[[^\]]*\]\((?P<target>[^)\s]+)\)$",
    re.MULTILINE,
)
BLOCK = re.compile(r"^<!-- generated: (\w+) -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$")
_FENCE = re.compile(r"^\s*(```|~~~)")
# Code, in which nothing is a link; or a link.
_LINK = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]*`)|\[(?P<words>[^\]]*)\]\((?P<to>[^)\s]+)\)",
    re.DOTALL | re.MULTILINE,
)


class Place(NamedTuple):
    """A heading of a file, by its anchor; the empty anchor is the file itself."""

    file: Path
    anchor: str


def text(page: Path) -> str:
    """What Sphinx reads of the page at this path.

    Raises:
        ValueError: a mark names a section that its file does not have.
    """
    own = page.read_text()
    parts, end = list[str](), 0
    for mark in _MARK.finditer(own):
        before = own[end : mark.start()]
        parts += [_relinked(before, page, page), _put(mark, page, _depth(own[: mark.start()]))]
        end = mark.end()
    return "".join([*parts, _relinked(own[end:], page, page)])


def renewed(own: str) -> str:
    """The text of a page with each table as its source makes it today. KeyError: no such NAME."""
    return BLOCK.sub(
        lambda it: f"<!-- generated: {it[1]} -->\n{GENERATED[it[1]]()}\n<!-- end -->", own
    )


def pages() -> list[Path]:
    """The pages of the site."""
    return [path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts]


def anchor(heading: str) -> str:
    """The anchor of a heading, as forges and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def headings(content: str) -> Iterator[tuple[int, int, str]]:
    """The headings of a Markdown text: number of the line, level, words."""
    fenced = False
    for number, line in enumerate(content.splitlines()):
        fenced ^= bool(_FENCE.match(line))
        if not fenced and (found := _HEADING.match(line)):
            yield number, len(found[1]), found[2]


def section(content: str, wanted: str, depth: int = 1, *, short: bool = False) -> str:
    """The body of the section with this anchor; without one, of the whole file.

    Args:
        content: a Markdown text.
        wanted: the anchor of a heading of it, or nothing.
        depth: the level of the heading above the place that it is put in.
        short: leave subsections out.
    """
    lines, found = content.splitlines(), list(headings(content))
    at = next(
        (i for i, (_, level, words) in enumerate(found)
         if (anchor(words) == wanted if wanted else level == 1)),
        None,
    )  # fmt: skip
    if at is None:
        raise ValueError(f"#{wanted}: no such heading")
    start, level, _ = found[at]
    below = found[at + 1 :]
    end = next((n for n, other, _ in below if short or other <= level), len(lines))
    for number, other, words in below:
        if number < end:
            lines[number] = f"{'#' * (other - level + depth)} {words}"
    return "\n".join(lines[start + 1 : end]).strip("\n")


def _depth(before: str) -> int:
    return [level for _, level, _ in headings(before)][-1]


def _put(mark: re.Match[str], page: Path, depth: int) -> str:
    path, _, wanted = mark["target"].partition("#")
    file = (page.parent / path).resolve()
    found = section(file.read_text(), wanted, depth, short=bool(mark["short"]))
    return _relinked(found, file, page)


@cache
def _homes() -> dict[Place, Place]:
    """Where on the site included sections are."""
    homes: dict[Place, Place] = {}
    for page in pages():
        own = page.read_text()
        for mark in _MARK.finditer(own):
            path, _, wanted = mark["target"].partition("#")
            file = (page.parent / path).resolve()
            above = list(headings(own[: mark.start()]))
            here = "" if len(above) == 1 else anchor(above[-1][2])
            homes[Place(file, wanted)] = Place(page, here)
            body = section(file.read_text(), wanted, short=bool(mark["short"]))
            for _, _, words in headings(body):
                homes[Place(file, anchor(words))] = Place(page, anchor(words))
    return homes


def _relinked(content: str, here: Path, page: Path) -> str:
    """The text of the file ``here``, with links that work on ``page``.

    A link to a file that is not on the site is text as long as the sources have no address.
    """

    def link(match: re.Match[str]) -> str:
        if match["code"]:
            return match["code"]
        target = _target(match["to"], here, page)
        return f"[{match['words']}]({target})" if target else match["words"]

    return _LINK.sub(link, content)


def _target(target: str, here: Path, page: Path) -> str:
    path, _, wanted = target.partition("#")
    if ":" in path:
        return target
    file = (here.parent / path).resolve() if path else here
    homes = _homes()
    home = homes.get(Place(file, wanted)) or homes.get(Place(file, "")) or Place(file, wanted)
    if home.file == page and home.anchor:
        return f"#{home.anchor}"
    end = f"#{home.anchor}" if home.anchor else ""
    if home.file.is_relative_to(DOCS) and home.file.is_file():
        return os.path.relpath(home.file, page.parent) + end
    if not SOURCE:
        return ""
    kind = "tree" if file.is_dir() else "blob"
    return f"{SOURCE}/{kind}/main/{file.relative_to(ROOT)}{end}"


def _cell(content: object) -> str:
    return " ".join(str(content).split()).replace("|", "\\|")


def _first(description: str) -> str:
    """The paragraph that says what an option does."""
    return description.partition("\n\n")[0]


def _value(value: object) -> str:
    """A default as a user writes it."""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{shown}`" if shown else "empty"


def options() -> str:
    """Every option of the charm: a table of their first paragraphs, then whole descriptions."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "config.yaml").read_text())["options"]
    rows = [
        f"| [`{name}`](#{name}) | {_value(option['default'])} | "
        f"{_cell(_first(option['description']))} |"
        for name, option in found.items()
    ]
    table = ["| option | default | what it does |", "|---|---|---|", *rows]
    sections = [
        f"## {name}\n\nType `{option['type']}`, default {_value(option['default'])}.\n\n"
        + option["description"].strip()
        for name, option in found.items()
    ]
    return "\n\n".join(["\n".join(table), *sections])


def actions() -> str:
    """Every action of the charm, with its parameters."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "actions.yaml").read_text())
    return "\n\n".join(
        f"### {name}\n\n{action['description'].strip()}{_parameters(action)}"
        for name, action in found.items()
    )


def _parameters(action: dict[str, Any]) -> str:
    rows = [
        f"| `{name}` | {kind['type']} | "
        f"{_value(kind['default']) if 'default' in kind else 'required'} | "
        f"{_cell(kind['description'])} |"
        for name, kind in action.get("params", {}).items()
    ]
    if not rows:
        return "\n\nIt takes no parameters."
    return "\n".join(["\n\n| parameter | type | default | meaning |", "|---|---|---|---|", *rows])


def endpoints() -> str:
    """Every endpoint of the charm."""
    rows = [
        f"| `{name}` | {role} | `{endpoint['interface']}` | {endpoint.get('limit', 'any number')} "
        f"| {_cell(endpoint['description'])} |"
        for role in ("requires", "provides")
        for name, endpoint in METADATA[role].items()
    ]
    head = ["| endpoint | role | interface | relations | what for |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def alerts() -> str:
    """Every alert: when it fires, what it says, and what to do."""
    rules = ROOT / "src/prometheus_alert_rules/istio-aux.rules"
    found: list[dict[str, Any]] = yaml.safe_load(rules.read_text())["groups"]
    return "\n\n".join(
        f"### {rule['alert']}\n\nSeverity {rule['labels']['severity']}, {_lasting(rule)}, "
        f"[{rule['labels']['code']}](findings/{_page(rule)}). "
        f"{_said(rule['annotations']['summary'])}.\n\n{_said(rule['annotations']['description'])}"
        for group in found
        for rule in group["rules"]
    )


def _page(rule: dict[str, Any]) -> str:
    """The page of the finding that an alert is about, with its anchor."""
    return Path(rule["annotations"]["runbook_url"]).name


def _lasting(rule: dict[str, Any]) -> str:
    return f"after {rule['for']}" if "for" in rule else "at once"


def _said(content: str) -> str:
    """The text of an alert, for an application that is called as the charm, without its labels."""
    named = content.strip().replace("{{ $labels.juju_application }}", "istio-aux")
    named = named.removeprefix("istio-aux: ")
    return re.sub(r"\{\{.*?\}\}", "…", named)


def commands() -> str:
    """The help of every command."""
    from istio_aux.cli.commands import parser  # noqa: PLC0415 - only this page needs the program

    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "96"  # As wide as a page; argparse asks for the terminal's width.
    try:
        root = parser()
        choices = next(each.choices for each in root._actions if isinstance(each.choices, dict))  # noqa: SLF001
        return "\n\n".join(
            f"### istio-aux {name}\n\n```text\n{command.format_help().strip()}\n```"
            for name, command in choices.items()
        )
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def settings() -> str:
    """Every setting of `serve`, with its default and what it says."""
    from istio_aux import settings as known  # noqa: PLC0415 - only this page needs the program

    rows = [
        f"| `{name}` | {_default(known.default(name))} | {option.meaning} |"
        for name, option in known.OPTIONS.items()
    ]
    return "\n".join(["| setting | default | what it says |", "|---|---|---|", *rows])


def _default(value: object) -> str:
    """A default of the program's, as the settings file has it; nothing if it is empty."""
    if value is None or value == ():
        return ""
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{shown}`" if shown else ""


def sidecars() -> str:
    """The sidecars that need no option: those that end by a signal, then those with a POST."""
    from istio_aux.model.known_sidecars import KNOWN  # noqa: PLC0415 - as above

    by_signal, by_post = list[str](), list[str]()
    for row in KNOWN:
        names, images = (
            ", ".join(f"`{each}`" for each in found.split()) for found in (row.names, row.images)
        )
        if row.native and not row.port:
            note = f"; {row.note}" if row.note else ""
            by_signal.append(f"* {names} ({images}{note})")
            continue
        post = f"`{row.port}{row.path}`" if row.port else "none"
        note = "; ".join(filter(None, [row.switch, row.note]))
        native = "yes" if row.native else "no"
        by_post.append(f"| {names} ({images}) | {native} | {post} | {note} |")
    head = ["| container (image) | native | POST | what it needs, and what to know |"]
    return "\n".join([*by_signal, "", *head, "|---|---|---|---|", *by_post])


GENERATED: dict[str, Callable[[], str]] = {
    "options": options,
    "actions": actions,
    "endpoints": endpoints,
    "alerts": alerts,
    "commands": commands,
    "settings": settings,
    "sidecars": sidecars,
}


if __name__ == "__main__":
    for page in pages():
        page.write_text(renewed(page.read_text()))
