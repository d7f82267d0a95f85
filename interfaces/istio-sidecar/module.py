"""Makes the module that istio-aux itself uses: `python interfaces/istio-sidecar/module.py`.

The package is for other charms: Charmhub takes no new libraries, so the module is no library of it.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).parent / "src/charmlibs/interfaces/istio_sidecar"
MODULE = ROOT / "lib/charms/istio_aux/v0/sidecar.py"
_HEAD = "# Made by interfaces/istio-sidecar/module.py of the package there: change that.\n"


def rendered() -> str:
    """The text of the module: that of the package, imported from its own place."""
    code = (PACKAGE / "_sidecar.py").read_text()
    code = code.replace("charmlibs.interfaces.istio_sidecar", "charms.istio_aux.v0.sidecar")
    return code.replace("\nimport ops\n\n", f"\nimport ops\n\n{_HEAD}\n", 1)


if __name__ == "__main__":
    MODULE.write_text(rendered())
