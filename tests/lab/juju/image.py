"""What a container starts with: what the workload's image would bring.

That is the program `istio-aux`, in a virtual environment that is built from `workload/` and its
lock with the interpreter that ships, cached by content, and the Pebble layer of the rock. The image
itself is run by a kubelet (`node/test_image.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path

from tools import cache, errors, interpreters
from tools.rock import RECIPE, Recipe

from . import root
from .root import Bind

LAYER = "layer.yaml"  # In the environment's folder.


@dataclasses.dataclass(frozen=True)
class Image:
    """What a container starts with."""

    binds: tuple[Bind, ...]  # What is visible in it beside the system's own folders.
    path: str  # Its PATH.
    owns: tuple[str, ...] = ()  # Folders that belong to the user who runs Pebble.


def of_workload(workload: Path) -> Image:
    """The image of the workload in this folder."""
    folder = environment(workload)
    python, _ = interpreters.shipped()
    layer = Bind(folder / LAYER, Recipe.read(workload).pebble_file)
    return Image(
        (*root.interpreter(python), Bind(folder, str(folder)), layer),
        f"{folder}/bin:{root.PATH}",
        # The rock gives these folders to the user who runs Pebble.
        ("/etc/istio-aux", "/var/lib/pebble/default"),
    )


def environment(workload: Path, python: Path | None = None) -> Path:
    """The virtual environment with the program of this folder. Raises ChildProcessError."""
    python = python or interpreters.shipped()[0]
    folder = cache.root().parent / "workload" / _digest(workload, python)
    with cache.lock(folder.with_suffix(".lock"), waiting="another process installs the workload"):
        if not (folder / "ready").exists():
            cache.say("installing the workload into a virtual environment (seconds)")
            command = [interpreters.uv(), "sync", "--frozen", "--no-dev", "--no-editable"]
            # Containers see the environment read-only and could not keep the bytecode.
            command += ["--compile-bytecode"]
            command += ["--quiet", "--project", str(workload), "--python", str(python)]
            settings = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)}
            settings.pop("VIRTUAL_ENV", None)
            errors.run(command, env=settings)
            (folder / LAYER).write_text(Recipe.read(workload).pebble_layer())
            (folder / "ready").touch()
        return cache.use(folder)


def _digest(workload: Path, python: Path) -> str:
    digest = hashlib.sha256(str(python).encode())
    files = [workload / name for name in ("pyproject.toml", "uv.lock", RECIPE)]
    files += sorted(path for path in (workload / "src").rglob("*") if path.is_file())
    for path in files:
        if "__pycache__" not in path.parts:
            digest.update(f"\n{path.relative_to(workload)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
