"""How much there is: `python tests/sizes.py` prints statements, density, files and words.

Statements are what a reader has to follow, however they are laid out: lines would reward packing.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
PARTS = {
    "workload": ("workload/src",),
    "charm": ("src",),
    "library": ("lib/istio-sidecar/src", "lib/istio-sidecar/testing"),
    "tests": ("tests", "lib/istio-sidecar/tests"),
    "of them lab": ("tests/lab",),
    "tools": ("tools",),
    "benchmarks": ("benchmarks",),
}


class Size(NamedTuple):
    """Of Python files."""

    files: int = 0
    statements: int = 0  # Without docstrings.
    tokens: int = 0  # Without comments, docstrings and layout.
    code: int = 0  # Lines that have such a token.
    lines: int = 0
    unformatted: int = 0  # Comments that tell the formatter to skip something.

    def plus(self, other: Size) -> Size:
        return Size(*map(sum, zip(self, other, strict=True)))

    def tokens_a_line(self) -> float:
        return self.tokens / max(1, self.code)


@cache
def statements(path: Path) -> tuple[int, list[ast.stmt]]:
    """How many statements a file has but docstrings, and those."""
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.stmt)]
    docstrings = [node for node in found if is_string_alone(node)]
    return len(found) - len(docstrings), docstrings


def size(path: Path) -> Size:
    """Measure one file."""
    text = path.read_text()
    number, docstrings = statements(path)
    documented = {line for node in docstrings for line in lines_of(node)}
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in LAYOUT and token.start[0] not in documented
    ]
    code = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    skipped = text.count("# fmt: skip") + text.count("# fmt: off")
    return Size(1, number, len(tokens), len(code), text.count("\n"), skipped)


def is_string_alone(node: ast.AST) -> bool:
    """Docstrings, also those of fields."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def lines_of(node: ast.AST) -> range:
    assert isinstance(node, ast.stmt)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def total(paths: Iterable[Path]) -> Size:
    """Measure files together."""
    result = Size()
    for path in paths:
        result = result.plus(size(path))
    return result


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks; there is at least one."""
    listing = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]
    assert found, patterns
    return found


def python(*folders: str) -> list[Path]:
    """The Python files of these folders."""
    return tracked(*(f"{folder}/*.py" for folder in folders))


def words(paths: Iterable[Path]) -> int:
    """Words that are written; what stands below ``<!-- generated: NAME -->`` is not."""
    made = re.compile("<!-- generated: .*?<!-- end -->", re.DOTALL)
    return sum(len(made.sub("", path.read_text()).split()) for path in paths)


def main() -> None:
    print("| part | files | statements | tokens a line | lines | not formatted |")
    print("|---|--:|--:|--:|--:|--:|")
    for part, folders in PARTS.items():
        found = total(python(*folders))
        figures = (
            f"{found.files} | {found.statements:,} | {found.tokens_a_line():.2f}"
            f" | {found.lines:,} | {found.unformatted}"
        )
        print(f"| {part} | {figures} |")
    pages = tracked("*.md")
    for_users = [page for page in pages if not page.is_relative_to(ROOT / "tests")]
    print(f"\n{len(pages)} pages; {words(for_users):,} words in the {len(for_users)} not of tests")


if __name__ == "__main__":
    main()
