"""What belongs to `tox -e nightly` and not to `make test`: tests marked `nightly("why")`."""

from __future__ import annotations

import gc

import pytest
from lab.nightly import NIGHT, NIGHTLY


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", 'nightly(why): runs only with NIGHTLY=1; "why" says what runs instead by day'
    )


def pytest_report_header() -> str:
    return f"night: NIGHTLY={NIGHT}" if NIGHTLY else ""


def pytest_collection_finish() -> None:
    """Spare the collector what was imported and collected: it would walk that again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if NIGHTLY:
        return
    later = [item for item in items if item.get_closest_marker("nightly")]
    if later:
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
