"""What Charmhub's reviewers check of a charm before they list it: `tox -e listing`.

Their program, charmhub-listing-review, clones a repository and reads charmcraft.yaml alone. Here it
reads a folder with metadata, options and actions in that file, as charmcraft merges them, and this
checkout's documents from a server on loopback. Whether the addresses in metadata.yaml answer, and
what `make format lint unit` say, is left to the reviewers and to `make test`.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from charmhub_listing_review import evaluate

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("format", "lint", "unit", "integration")


class Silent(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Log nothing."""


def merged(address: str) -> dict[str, Any]:
    """The charm's description in one document, with addresses that answer here."""
    files = ("charmcraft.yaml", "metadata.yaml", "config.yaml", "actions.yaml")
    charm, metadata, options, actions = (
        yaml.safe_load((ROOT / name).read_text()) for name in files
    )
    names = {"documentation": "docs", "issues": "issues", "source": "source", "website": "website"}
    links = {name: address for name, key in names.items() if metadata.get(key)}
    return {**charm, **metadata, "links": links, "config": options, "actions": actions}


def checks(folder: Path, address: str) -> Iterator[str]:
    """The reviewers' own lines; a tick in those that hold."""
    charm = merged(address)
    (folder / "charmcraft.yaml").write_text(yaml.safe_dump(charm))
    for name in ("icon.svg", "pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, folder)
    yield evaluate.contribution_guidelines(f"{address}/CONTRIBUTING.md")
    yield evaluate.license_statement(f"{address}/LICENSE")
    yield evaluate.security_doc(f"{address}/SECURITY.md")
    yield evaluate.metadata_links(folder)
    yield evaluate.check_charm_name(charm["name"])
    yield evaluate.action_names(folder)
    yield evaluate.option_names(folder)
    yield evaluate.repository_name(charm["source"], charm["name"])
    yield evaluate.relations_includes_optional(folder)
    yield evaluate.python_requires_version(folder)
    yield evaluate.repo_has_lock_file(folder)
    yield evaluate.charm_has_icon(folder)
    makefile = (ROOT / "Makefile").read_text()
    known = all(f"\n{command}:" in makefile for command in COMMANDS)
    yield f"* [{'x' if known else ' '}] The Makefile has the commands {', '.join(COMMANDS)}."


def main() -> int:
    """Print each line; the exit status is 1 if one has no tick."""
    handler = functools.partial(Silent, directory=str(ROOT))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        found = list(checks(Path(folder), f"http://127.0.0.1:{server.server_port}"))
    server.shutdown()
    for line in found:
        print(line if len(line) < 120 else f"{line[:119]}…")
    missing = sum(not line.startswith("* [x]") for line in found)
    print(f"{len(found) - missing} passed, {missing} failed")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
