"""The program as one file that needs no Python: `python -m tools.program` writes it to `dist/`.

PyInstaller packs an interpreter, the wheel, what the locks put beside it, and their libraries. It
packs for the machine on which it runs, and for a libc that is no older than those libraries need.
Nothing else is needed of a system but zlib, by the bootloader.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from tools import cache, debian, errors, interpreters, oci, packages, sbom
from tools.errors import ToolError

HERE = Path(__file__).with_suffix("")
# Nothing imports these when a command runs. `frozenlist` is in Python, too; in C++ it would bring a
# library that needs a later libc than all others.
LEFT_OUT = (
    *("frozenlist._frozenlist", "setuptools", "_distutils_hack", "pkg_resources", "packaging"),
    *("unittest", "doctest", "pydoc", "pydoc_data", "tkinter", "curses", "readline", "sqlite3"),
    *("multiprocessing", "lzma", "bz2", "xmlrpc", "_pydecimal", "_pydatetime"),
    *("_codecs_cn", "_codecs_hk", "_codecs_iso2022", "_codecs_jp", "_codecs_kr", "_codecs_tw"),
)
# What is in the file names the C library's versions that it needs.
_LIBC = """
import re, sys
from PyInstaller.archive.readers import CArchiveReader
packed = CArchiveReader(sys.argv[1])
parts = [packed.extract(name) for name, entry in packed.toc.items() if entry[4] == "b"]
print(max(int(minor) for part in parts for minor in re.findall(rb"GLIBC_2[.](\\d+)", part)))
"""


class ProgramError(ToolError):
    """The program could not be packed; the message ends with what the tool said."""


def name() -> str:
    """What the program for this machine is called."""
    return f"istio-aux-linux-{oci.ARCHITECTURES.get(platform.machine(), platform.machine())}"


def program() -> Path:
    """The program, made when its inputs are new; what it `needs` stands beside it."""
    python, version = interpreters.shipped()
    with tempfile.TemporaryDirectory(prefix="istio-aux-program-") as scratch:
        folder = Path(scratch)
        wheel = packages.wheel(folder / "wheel")
        digest = hashlib.sha256(f"{python} {version}".encode())
        inputs = [wheel, Path(__file__), *HERE.iterdir(), packages.WORKLOAD / "uv.lock"]
        for path in inputs:
            digest.update(path.read_bytes())
        made = cache.once(
            "program",
            digest.hexdigest()[:16],
            lambda into: pack(python, wheel, folder, into),
            saying="packing the program (about 20 s)",
        )
    return made / name()


def bill() -> str:
    """The program's bill of materials."""
    asked = "import platform, ssl; print(platform.python_version(), ssl.OPENSSL_VERSION.split()[1])"
    said = errors.run([interpreters.shipped()[0], "-c", asked], ProgramError)
    return sbom.of_program(*said.split())


def needs(made: Path) -> str:
    """The oldest C library that the program runs on."""
    return made.with_name("glibc").read_text()


def pack(python: Path, wheel: Path, folder: Path, into: Path) -> None:
    # PyInstaller appends to its bootloader with objcopy, and packs the interpreter as a library.
    distributions = [f"lib{python.name}-dev"] if python.is_relative_to("/usr/bin") else []
    debian.ensure(["binutils", *distributions])
    venv = folder / "venv"
    packages.uv("venv", "--python", str(python), str(venv))
    pinned = folder / "pinned.txt"
    # Each lock is whole: of what both have, the one of the workload counts.
    pinned.write_text(packages.exported(packages.WORKLOAD))
    tools = folder / "tools.txt"
    tools.write_text(packages.exported(HERE))
    install = ("pip", "install", "--python", str(venv), "--no-deps")
    for file in (tools, pinned):
        packages.uv(*install, "--require-hashes", "--only-binary", ":all:", "-r", str(file))
    packages.uv(*install, str(wheel))
    [site] = venv.glob("lib/python*/site-packages")
    # The version. The files beside it say where the wheel was, and when.
    [metadata] = site.glob("istio_aux-*.dist-info")
    for file in metadata.iterdir():
        if file.is_file() and file.name != "METADATA":
            file.unlink()
    command = [
        *(venv / "bin/pyinstaller", "--onefile", "--strip", "--noconfirm", "--log-level=ERROR"),
        *("--name", name(), "--distpath", into, "--workpath", folder / "build"),
        *("--specpath", folder, "--collect-submodules=istio_aux", "--copy-metadata=istio-aux"),
        "--collect-data=istio_aux",  # The page of `audit --report`.
        # `revision` is a digest of these.
        f"--add-data={site}/istio_aux/model/*.py:istio_aux/model",
        *(f"--exclude-module={each}" for each in LEFT_OUT),
        HERE / "begin.py",
    ]
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
        # The same inputs make the same file.
        "SOURCE_DATE_EPOCH": "315532800",
        "PYTHONHASHSEED": "1",
        "PYINSTALLER_CONFIG_DIR": str(folder / "cache"),
    }
    errors.run(command, ProgramError, env=environment, cwd=folder)
    libc = errors.run([venv / "bin/python", "-c", _LIBC, into / name()], ProgramError)
    (into / "glibc").write_text(f"2.{libc.strip()}")


def main() -> int:
    """Write program and bill to `dist/`; print its path, its size, and the oldest libc for it."""
    try:
        made = program()
    except (ToolError, ChildProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    place = packages.ROOT / "dist" / made.name
    place.parent.mkdir(exist_ok=True)
    shutil.copy2(made, place)
    place.with_suffix(".cdx.json").write_text(bill())
    size = place.stat().st_size / 1e6
    print(f"{place.relative_to(packages.ROOT)}: {size:.1f} MB, for glibc {needs(made)} or later")
    return 0


if __name__ == "__main__":
    sys.exit(main())
