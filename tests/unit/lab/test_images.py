"""Images made by hand: another content is another archive, which its name tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import images


def test_the_same_content_makes_the_same_archive_and_other_content_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that is there is not made again: a stale one would run unseen."""

    def make(cache: str, content: bytes) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        return images.image("example/tool:1", {"/tool": content}, entrypoint=["/tool"])

    first, second, other = make("a", b"a"), make("b", b"a"), make("a", b"b")

    assert first.name == second.name != other.name
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()
