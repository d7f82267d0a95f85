"""Check and package the chart, and render plain manifests from it: `python -m helm` writes `dist/`.

The manifests take their certificates from cert-manager: a published key is not secret.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from istio_aux.model.names import REGISTRY

from helm import generate
from helm.charts import APP, CHART, run_helm
from tools import rock
from tools.errors import ToolError

DIST = generate.ROOT / "dist"
MANIFESTS = DIST / "istio-aux.yaml"
# Until there is a registry: as `make image` names it.
IMAGE = rock.NAME if ".example/" in REGISTRY else f"{REGISTRY}/istio-aux"


def main() -> int:
    """Print what is written; return 1, with one line on stderr, if the chart is stale or bad."""
    stale = [path for path, text in generate.files().items() if path.read_text() != text]
    if stale:
        names = ", ".join(str(path.relative_to(generate.ROOT)) for path in stale)
        print(f"{names}: not as the charm has it: run `python -m helm.generate`", file=sys.stderr)
        return 1
    DIST.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="istio-aux-helm-") as folder:
        home = Path(folder)
        try:
            image = f"--set=image.repository={IMAGE}"
            run_helm("lint", "--strict", str(CHART), image, home=home)
            packed = run_helm("package", str(CHART), f"--destination={DIST}", home=home)
            MANIFESTS.write_text(
                run_helm(
                    "template",
                    APP,
                    str(CHART),
                    f"--namespace={APP}",
                    "--set=certificates.from=cert-manager",
                    image,
                    home=home,
                )
            )
        except ToolError as error:
            print(error, file=sys.stderr)
            return 1
    print(Path(packed.strip().rpartition(" ")[2]).relative_to(generate.ROOT))
    print(MANIFESTS.relative_to(generate.ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
