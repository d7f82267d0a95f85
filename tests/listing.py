"""What Charmhub's reviewers check of a charm before they list it: `tox -e listing`.

Their program, charmhub-listing-review, judges this checkout as it is. It reads charmcraft.yaml
alone, and this charm has metadata, options and actions in files of their own, as all charms of
Charmed Kubeflow have. So its lines are followed by those that it cannot tick, with the reason, and
by its own checks of those files, as charmcraft merges them.
"""

from __future__ import annotations

import functools
import http.server
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from charmhub_listing_review import evaluate

ROOT = Path(__file__).resolve().parents[1]
TICK = "* [x]"
# The beginning of a line that their program leaves open, and why.
OPEN = {
    "charmcraft.yaml includes required metadata": "it is in metadata.yaml, see below; "
    "the links are given at the first release (CONTRIBUTING, A release)",
    "Name the repository": "the repository has no address yet",
    "The charm implements coding conventions in CI": "a reviewer looks: .github/workflows/ci.yaml",
    "When using the `charm` plugin": "this charm uses the uv plugin",
}
# The beginning of a line that their program ticks because it reads no such file.
_UNREAD = "it read none: see below"
BLIND = {
    "Prefer lowercase alphanumeric action names": _UNREAD,
    "Prefer lowercase alphanumeric option names": _UNREAD,
    "Include the ``optional`` key": _UNREAD,
}
MERGED: dict[str, Callable[[Path], str]] = {
    "metadata.yaml": evaluate.metadata_links,
    "metadata.yaml: endpoints": evaluate.relations_includes_optional,
    "config.yaml": evaluate.option_names,
    "actions.yaml": evaluate.action_names,
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
    yield evaluate.check_charm_name(description()["name"])
    yield evaluate.action_names(charm)
    yield evaluate.option_names(charm)
    yield evaluate.repository_name(description().get("source", ""), description()["name"])
    yield evaluate.relations_includes_optional(charm)
    yield evaluate.charm_plugin_strict_dependencies(charm)
    yield evaluate.python_requires_version(charm)
    yield evaluate.repo_has_lock_file(charm)
    yield evaluate.charm_has_icon(charm)


def description() -> dict[str, Any]:
    """The charm's description in one document, as charmcraft merges it."""
    files = ("charmcraft.yaml", "metadata.yaml", "config.yaml", "actions.yaml")
    charm, metadata, options, actions = (
        yaml.safe_load((ROOT / name).read_text()) for name in files
    )
    return {**charm, **metadata, "config": options, "actions": actions}


def unseen(address: str) -> Iterator[tuple[str, bool]]:
    """Each file that their program does not read, and what it would say of it.

    Links that nobody has given yet are replaced by one that answers.
    """
    links = dict.fromkeys(("documentation", "issues", "source", "website"), address)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "charmcraft.yaml").write_text(
            yaml.safe_dump({**description(), "links": links})
        )
        for name, check in MERGED.items():
            yield name, check(Path(folder)).startswith(TICK)


def main() -> int:
    """Print each line; the exit status is 1 if something is amiss that has no reason."""
    handler = functools.partial(Silent, directory=str(ROOT))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    lines, merged = list(judged(ROOT, address)), dict(unseen(address))
    server.shutdown()
    amiss = 0
    for line in lines:
        print(line if len(line) < 120 else f"{line[:119]}…")
        well = line.startswith(TICK)
        notes = BLIND if well else OPEN
        note = next((note for start, note in notes.items() if line[6:].startswith(start)), "")
        amiss += not (well or note)
        if not well or note:
            print(f"      {note or 'AMISS'}")
    print("\nIts own checks of the files that it does not read:")
    for name, well in merged.items():
        print(f"{TICK if well else '* [ ]'} {name}")
        amiss += not well
    return 1 if amiss else 0


if __name__ == "__main__":
    sys.exit(main())
