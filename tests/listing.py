"""What Charmhub's reviewers check of a charm before they list it: `tox -e listing`.

Their program, charmhub-listing-review, judges this checkout as it is. It reads charmcraft.yaml
alone, and this charm has metadata, options and actions in files of their own, as all charms of
Charmed Kubeflow have: `unit/charm/test_workload.py` looks at those. A line that it cannot tick is
followed by the reason.
"""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from charmhub_listing_review import evaluate

ROOT = Path(__file__).resolve().parents[1]
TICK = "* [x]"
NAME = "istio-aux"
# The beginning of a line that their program leaves open, and why.
OPEN = {
    "charmcraft.yaml includes required metadata": "it is in metadata.yaml; "
    "the links are given at the first release (CONTRIBUTING, A release)",
    "Name the repository": "the repository has no address yet: `python -m tools.address`",
    "The charm implements coding conventions in CI": "a reviewer looks: .github/workflows/ci.yaml",
    "When using the `charm` plugin": "this charm uses the uv plugin",
}


class Silent(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Log nothing."""


def judged(charm: Path, address: str) -> Iterator[str]:
    """The lines of their program about a checkout whose documents are at this address.

    One is left out: it runs `make format lint unit`, which `make test` does.
    """
    yield evaluate.coding_conventions("")
    yield evaluate.contribution_guidelines(f"{address}/CONTRIBUTING.md")
    yield evaluate.license_statement(f"{address}/LICENSE")
    yield evaluate.security_doc(f"{address}/SECURITY.md")
    yield evaluate.metadata_links(charm)
    yield evaluate.check_charm_name(NAME)
    yield evaluate.action_names(charm)
    yield evaluate.option_names(charm)
    yield evaluate.repository_name("", NAME)
    yield evaluate.relations_includes_optional(charm)
    yield evaluate.charm_plugin_strict_dependencies(charm)
    yield evaluate.python_requires_version(charm)
    yield evaluate.repo_has_lock_file(charm)
    yield evaluate.charm_has_icon(charm)


def main() -> int:
    """Print each line; the exit status is 1 if something is amiss that has no reason."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Silent, directory=str(ROOT))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    lines = list(judged(ROOT, f"http://127.0.0.1:{server.server_port}"))
    server.shutdown()
    print("They do not see the options and actions: config.yaml, actions.yaml (test_workload.py).")
    amiss = 0
    for line in lines:
        print(line if len(line) < 120 else f"{line[:119]}…")
        if not line.startswith(TICK):
            note = next((why for start, why in OPEN.items() if line[6:].startswith(start)), "")
            print(f"      {note or 'AMISS'}")
            amiss += not note
    return 1 if amiss else 0


if __name__ == "__main__":
    sys.exit(main())
