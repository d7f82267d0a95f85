"""Pictures of the page of `audit --report`: a desktop in light and dark, and paper.

    PYTHONPATH=tests python -m lab.pictures page.html FOLDER

A real browser draws them: Debian's Chromium, which is installed if it is missing (root).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

from tools import debian

PACKAGES = ("chromium", "fonts-dejavu-core", "poppler-utils")


def draw(page: Path, folder: Path) -> list[Path]:
    """Make ``light.png``, ``dark.png`` and ``paper-1.png``, … in the folder; return their paths."""
    debian.ensure(PACKAGES)
    folder.mkdir(parents=True, exist_ok=True)
    for name, more in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
        _chromium(page, f"--screenshot={folder / name}.png", "--window-size=1280,900", *more)
    _chromium(page, f"--print-to-pdf={folder / 'paper.pdf'}", "--no-pdf-header-footer")
    paper = ["pdftoppm", "-png", "-r", "80", str(folder / "paper.pdf"), str(folder / "paper")]
    subprocess.run(paper, check=True)
    return sorted(folder.glob("*.png"))


def _chromium(page: Path, *options: str) -> None:
    with tempfile.TemporaryDirectory() as profile:
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()
        command = ("chromium", "--headless", "--disable-gpu", f"--user-data-dir={profile}", *root)
        address = page.resolve().as_uri()
        subprocess.run([*command, *options, address], check=True, capture_output=True, timeout=300)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    for path in draw(given.page, given.folder):
        print(path)
