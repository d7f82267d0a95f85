"""What the workload's image would bring: the program `istio-aux`, and the Pebble layer of the rock.

The program is in a virtual environment, built from `workload/` and its lock with the interpreter
that ships, cached by content.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
from pathlib import Path

import yaml

from lab import cache, interpreters

from . import root
from .root import Bind

ROCK = "rockcraft.yaml"
LAYER = "layer.yaml"  # In the environment's folder.


@dataclasses.dataclass(frozen=True)
class Image:
    """What a container starts with.

    Attributes:
        binds: what is visible in it beside the system's own folders.
        path: its PATH.
        owns: folders that belong to the user who runs Pebble.
    """

    binds: tuple[Bind, ...]
    path: str
    owns: tuple[str, ...] = ()


def of_workload(workload: Path) -> Image:
    """Return the image of the workload in the folder `workload`.

    Raises:
        ChildProcessError: see `environment`.
    """
    folder = environment(workload)
    python, _ = interpreters.shipped()
    # Pebble reads the layers of its folder by number; rockcraft names the first one like this.
    layer = Bind(folder / LAYER, "/var/lib/pebble/default/layers/001-istio-aux.yaml")
    return Image(
        (*root.interpreter(python), Bind(folder, str(folder)), layer),
        f"{folder}/bin:{root.PATH}",
        # The rock gives this folder to the user who runs Pebble, who may not write to /etc.
        ("/etc/istio-aux",),
    )


def environment(workload: Path, python: Path | None = None) -> Path:
    """Return the virtual environment with the program of the folder `workload` installed.

    ``python``: its interpreter, by default the one that ships.

    Raises:
        ChildProcessError: when uv cannot install it; the message ends with what uv said.
    """
    python, excuse = (python, "") if python else interpreters.shipped()
    folder = cache.root().parent / "workload" / _digest(workload, python)
    with cache.lock(folder.with_suffix(".lock"), waiting="another process installs the workload"):
        if not (folder / "ready").exists():
            cache.say("installing the workload into a virtual environment (about 5 s)")
            if excuse:
                cache.say(excuse)
            command = [interpreters.uv(), "sync", "--frozen", "--no-dev", "--no-editable"]
            # Containers see the environment read-only and could not keep the bytecode.
            command += ["--compile-bytecode"]
            command += ["--quiet", "--project", str(workload), "--python", str(python)]
            settings = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)}
            settings.pop("VIRTUAL_ENV", None)
            done = subprocess.run(
                command, env=settings, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise ChildProcessError(f"{workload}: {' '.join(command)}\n{done.stderr}")
            rock = yaml.safe_load((workload / ROCK).read_text())
            brought = {key: rock[key] for key in ("summary", "services", "checks") if key in rock}
            (folder / LAYER).write_text(yaml.safe_dump(brought))
            (folder / "ready").touch()
        return cache.use(folder)


def _digest(workload: Path, python: Path) -> str:
    digest = hashlib.sha256(str(python).encode())
    files = [workload / name for name in ("pyproject.toml", "uv.lock", ROCK)]
    files += sorted(path for path in (workload / "src").rglob("*") if path.is_file())
    for path in files:
        if "__pycache__" not in path.parts:
            digest.update(f"\n{path.relative_to(workload)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
