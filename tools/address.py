"""Where the project is published: `python -m tools.address https://github.com/OWNER/REPOSITORY`.

`istio_aux.model.names` has the address, and pages, metadata and manifests repeat it. This writes
another one wherever it stands, and says where that is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from istio_aux.model.names import REGISTRY, REPOSITORY

ROOT = Path(__file__).resolve().parents[1]
# What has the old address for good, and what was recorded.
APART = (
    "LICENSE",
    "tests/data/",
    "tests/fuzz/corpus/",
    "benchmarks/",
    "uv.lock",
    "workload/uv.lock",
    "CHANGELOG.md",
)
GITHUB = re.compile(r"https://github\.(?:com|example)/[\w.-]+/[\w.-]+")


def slug(repository: str) -> str:
    """The repository's name with its owner's."""
    return "/".join(repository.split("/")[-2:])


def registry(repository: str) -> str:
    """Where GitHub keeps the images of the repository's owner, by their name in lower case."""
    *_, host, owner, _ = repository.split("/")
    return f"{host.replace('github.', 'ghcr.').replace('ghcr.com', 'ghcr.io')}/{owner.lower()}"


def texts() -> dict[str, str]:
    """The tracked files that may have the address, by their place in the checkout."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and not name.startswith(APART)]
    files = {name: ROOT / name for name in names if (ROOT / name).is_file()}
    return {name: path.read_text(errors="replace") for name, path in files.items()}


def moved(found: Mapping[str, str], to: str) -> dict[str, str]:
    """The texts that have the address, with another one. Raises ValueError: not on GitHub."""
    if not GITHUB.fullmatch(to):
        raise ValueError(f"{to}: expected https://github.com/OWNER/REPOSITORY")
    instead = {
        REPOSITORY: to,
        REGISTRY: registry(to),
        f"--repo {slug(REPOSITORY)}": f"--repo {slug(to)}",
    }
    old = re.compile("|".join(rf"{re.escape(each)}(?![\w-])" for each in instead))
    new = {name: old.sub(lambda match: instead[match[0]], text) for name, text in found.items()}
    return {name: text for name, text in new.items() if text != found[name]}


def main(to: str = "") -> int:
    try:
        changed = moved(texts(), to)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for name, text in changed.items():
        (ROOT / name).write_text(text)
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
