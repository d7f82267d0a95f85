"""The pictures of the documents as two renderers draw them: `tox -e pictures`.

A viewer without style sheets or with other fonts than a browser's must show them, too. Each line is
a picture and a renderer: the share of dark pixels, and the texts that are not drawn, or are drawn
across a line. The exit status is 1 if there is such a text, or a dark picture.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import cairosvg
import resvg_py
from PIL import Image, ImageChops

DOCS = Path(__file__).resolve().parent
RENDERERS = {
    "cairo": lambda svg: cairosvg.svg2png(bytestring=svg, background_color="white"),
    "resvg": lambda svg: resvg_py.svg_to_bytes(svg_string=svg.decode(), background="white"),
}
DARK, DARKEST = 40, 0.1  # Of 255; share of a picture.
EVEN = 48  # How much the colours below a text may differ: less than a line and what it is on.


def amiss(tree: ET.Element, name: str) -> Iterator[str]:
    """What is wrong with a picture, as a renderer draws it."""

    def drawn() -> Image.Image:
        return Image.open(io.BytesIO(RENDERERS[name](ET.tostring(tree)))).convert("RGB")

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


def main() -> int:
    """Print the table; return the exit status."""
    wrong = 0
    for path in sorted(DOCS.glob("*.svg")):
        for name in RENDERERS:
            found = [*amiss(ET.parse(path).getroot(), name)]
            print(f"{path.name:20}{name:8}{'; '.join(found) or 'well'}")
            wrong += len(found)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
