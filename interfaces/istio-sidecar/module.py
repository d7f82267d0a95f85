"""Makes the module that charms copy of the package: `python interfaces/istio-sidecar/module.py`.

Charmhub takes no new libraries, so the module has no LIBID.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).parent / "src/charmlibs/interfaces/istio_sidecar"
MODULE = ROOT / "lib/charms/istio_aux/v0/sidecar.py"
_HEAD = """\
# Made by interfaces/istio-sidecar/module.py of the package there: change that.
LIBAPI = {api}
LIBPATCH = {patch}
PYDEPS: list[str] = []
"""


def rendered() -> str:
    """The text of the module: that of the package, imported from its own place."""
    version = re.search(r'"(\d+)\.(\d+)\.\d+"', (PACKAGE / "_version.py").read_text())
    assert version
    code = (PACKAGE / "_sidecar.py").read_text()
    code = code.replace("charmlibs.interfaces.istio_sidecar", "charms.istio_aux.v0.sidecar")
    head = _HEAD.format(api=version[1], patch=version[2])
    return code.replace("\nimport ops\n\n", f"\nimport ops\n\n{head}\n", 1)


if __name__ == "__main__":
    MODULE.write_text(rendered())
