"""Images made by hand: what is in the archive, and that it is the same every time."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from lab import images


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        found = tar.extractfile(name)
        assert found
        return found.read()


def blob(archive: Path, described: dict[str, Any]) -> bytes:
    data = member(archive, f"blobs/{described['digest'].replace(':', '/')}")
    assert (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") == (
        described["size"],
        described["digest"],
    )
    return data


def manifest(archive: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the archive names its image, and the image's manifest."""
    [named] = json.loads(member(archive, "index.json"))["manifests"]
    return named["annotations"], json.loads(blob(archive, named))


def layer(archive: Path) -> tarfile.TarFile:
    _, made = manifest(archive)
    return tarfile.open(fileobj=io.BytesIO(blob(archive, made["layers"][0])))


def test_an_image_says_its_name_its_program_and_its_user() -> None:
    archive = images.image(
        "example/tool:1", {"/tool": b""}, entrypoint=["/tool"], env=["A=b"], user="7"
    )

    named, made = manifest(archive)
    config = json.loads(blob(archive, made["config"]))
    assert named["io.containerd.image.name"] == "example/tool:1"
    assert config["config"]["Entrypoint"] == ["/tool"]
    assert config["config"]["User"] == "7"
    assert "A=b" in config["config"]["Env"]


def test_an_image_holds_files_links_and_folders(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"content")

    with layer(
        images.image(
            "example/tool:1",
            {"/usr/bin/tool": program, "/usr/bin/alias": images.Link("tool"), "/tmp/": b""},
            entrypoint=["/usr/bin/tool"],
        )
    ) as made:
        assert made.getnames() == ["tmp", "usr", "usr/bin", "usr/bin/alias", "usr/bin/tool"]
        content = made.extractfile("usr/bin/tool")
        assert content
        assert content.read() == b"content"
        assert made.getmember("usr/bin/tool").mode & 0o111
        assert made.getmember("usr/bin/alias").linkname == "tool"
        assert made.getmember("tmp").mode == 0o1777


def test_the_same_content_makes_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Path:
        return images.image("example/tool:1", {"/tool": b"a", "/b/c": b""}, entrypoint=["/tool"])

    first = make()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    second = make()

    assert first != second
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_other_content_makes_another_archive() -> None:
    first = images.image("example/tool:1", {"/tool": b"a"}, entrypoint=["/tool"])
    second = images.image("example/tool:1", {"/tool": b"b"}, entrypoint=["/tool"])

    assert first != second
