"""The pictures of the documents as two renderers draw them: `tox -e pictures`.

So does Chromium, if there is one, with the page of `audit --report`. `build/pictures` keeps them.
A viewer without style sheets or with other fonts than a browser's must show the pictures, too. Each
line says what is wrong: a text that is not drawn, or is drawn across a line, a dark picture, a page
that is wider than its window. The exit status is 1 if something is.
"""

from __future__ import annotations

import html
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import cairosvg
import resvg_py
from istio_aux.cli.page import page
from istio_aux.cli.report import Audit
from istio_aux.model.found import Found
from istio_aux.model.resources import Requests
from PIL import Image, ImageChops

DOCS = Path(__file__).resolve().parent
KEPT = DOCS.parent / "build/pictures"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RENDERERS = {
    "cairo": lambda svg: cairosvg.svg2png(bytestring=svg, background_color="white"),
    "resvg": lambda svg: resvg_py.svg_to_bytes(svg_string=svg.decode(), background="white"),
}
DARK, DARKEST = 40, 0.1  # Of 255; share of a picture.
EVEN = 48  # How much the colours below a text may differ: less than a line and what it is on.


def amiss(path: Path, name: str) -> Iterator[str]:
    """What is wrong with a picture, as a renderer draws it."""
    tree = ET.parse(path).getroot()

    def drawn() -> Image.Image:
        return Image.open(io.BytesIO(RENDERERS[name](ET.tostring(tree)))).convert("RGB")

    drawn().save(KEPT / f"{path.stem}-{name}.png")
    grey = drawn().convert("L").histogram()
    if sum(grey[:DARK]) > DARKEST * sum(grey):
        yield "it is dark"
    texts = [each for each in tree.iter() if each.tag.endswith("}text")]
    for each in texts:
        each.set("display", "none")
    bare = drawn()
    for each in texts:
        del each.attrib["display"]
        ink = ImageChops.difference(bare, drawn()).getbbox()
        each.set("display", "none")
        if not ink or any(most - least > EVEN for least, most in bare.crop(ink).getextrema()):
            yield f"{''.join(each.itertext())!r} is {'across a line' if ink else 'not drawn'}"


def report(pods: int) -> str:
    """The page about so many pods that hang."""
    found = [
        Found(
            namespace=f"team-{number % 7}",
            name=f"mnist-worker-{number}",
            owner=f"TFJob/mnist-with-a-name-of-usual-length-{number}",
            state="stuck" if number % 3 else "blocked",
            code="IA0101" if number % 3 else "IA0102",
            since=NOW - timedelta(hours=number),
            by=() if number % 3 else ("vault-agent",),
            reason="every payload container is finished, and the proxy has not answered 5 times",
            requests=Requests(gpus=8, millicpu=4000, memory=2**35),
        )
        for number in range(pods)
    ]
    return page(Audit(found, 1000), NOW)


# Chromium has no window below 500 pixels.
FRAME = """<!doctype html><title></title><body style="margin:0"><iframe width={window} height=900
  style="border:0" srcdoc="{page}"></iframe><script>onload = () => {{
  document.title = frames[0].document.documentElement.scrollWidth }}</script>"""


def drawn_wider(chromium: str, pods: int, window: int, dark: int) -> Iterator[str]:
    """Whether the page is wider than a window of so many pixels."""
    name = f"report-{pods}-{window}-{'dark' if dark else 'light'}"
    file = KEPT / f"{name}.html"
    file.write_text(FRAME.format(window=window, page=html.escape(report(pods))))
    dark_or_light = f"--blink-settings=preferredColorScheme={1 - dark}"
    flags = (
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        f"--window-size={max(500, window)},900",
    )

    def run(what: str) -> str:
        argv = [chromium, *flags, dark_or_light, what, f"file://{file}"]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    run(f"--screenshot={KEPT / name}.png")
    text = run("--dump-dom")
    wide = re.search(r"<title>(\d+)</title>", text)
    if not wide or int(wide[1]) > window:
        yield f"it is {wide[1] if wide else 'not'} wide"


def main() -> int:
    """Print the table; return the exit status."""
    KEPT.mkdir(parents=True, exist_ok=True)
    wrong = dict[str, list[str]]()
    for path in sorted(DOCS.glob("*.svg")):
        for name in RENDERERS:
            wrong[f"{path.name}, {name}"] = [*amiss(path, name)]
    if chromium := shutil.which("chromium") or shutil.which("google-chrome"):
        for pods in (0, 1, 300):
            for window, dark in ((400, 0), (1280, 0), (1280, 1)):
                what = f"report of {pods} pods, {window} px, {'dark' if dark else 'light'}"
                wrong[what] = [*drawn_wider(chromium, pods, window, dark)]
    else:
        print("skipped: there is no Chromium for the pages of `audit --report`")
    for what, found in wrong.items():
        print(f"{what:40}{'; '.join(found) or 'well'}")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
