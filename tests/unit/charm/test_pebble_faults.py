"""A Pebble that hangs, closes or answers nonsense fails no hook (decision 0006), at any request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import IncompleteRead, RemoteDisconnected
from typing import Any
from unittest.mock import patch

import pytest
from lab.nightly import NIGHTLY
from ops import pebble, testing
from scenario import mocking

from .conftest import Unit, active

_CHANGE = pebble.Change.from_dict(
    {"id": "3", "kind": "replan", "summary": "", "status": "Error", "ready": True,
     "spawn-time": "2026-11-21T08:00:00Z"}
)  # fmt: skip
# What a client of Pebble raises (ops.pebble.Client, http.client, socket).
KINDS: dict[str, Callable[[], Exception]] = {
    "it hangs": lambda: TimeoutError("timed out"),
    "it closes the connection": lambda: RemoteDisconnected("closed without response"),
    "half an answer": lambda: IncompleteRead(b"{"),
    "a reset": lambda: ConnectionResetError(104, "Connection reset by peer"),
    "no socket": lambda: pebble.ConnectionError("no socket"),
    "500": lambda: pebble.APIError({}, 500, "Internal Server Error", "it panics"),
    "no JSON": lambda: pebble.ProtocolError("expected JSON"),
    "a change that takes long": lambda: pebble.TimeoutError("timed out waiting for change 3"),
    "a change that failed": lambda: pebble.ChangeError("it does not start", _CHANGE),
}
METHODS = (
    "get_system_info", "get_plan", "get_services", "get_checks", "add_layer", "replan_services",
    "restart_services", "stop_services", "pull", "push",
)  # fmt: skip
EVENTS: dict[str, Callable[[Unit], Any]] = {
    "install": lambda unit: unit.run(unit.on.install()),
    "pebble-ready": lambda unit: unit.run(unit.on.pebble_ready(unit.container)),
    "config-changed": lambda unit: unit.configure(quit_grace=7),
    "update-status": lambda unit: unit.run(),
    "a related Loki": lambda unit: unit.relate(testing.Relation("logging")),
    "remove": lambda unit: unit.run(unit.on.remove()),
}


@contextmanager
def failing(at: int, error: Callable[[], Exception]) -> Iterator[list[str]]:
    """Let the request of this number fail; yields the names of all requests."""
    sent = list[str]()

    def instead(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            sent.append(name)
            if len(sent) == at:
                raise error()
            return method(*args, **kwargs)

        return call

    kind = mocking._MockPebbleClient
    with patch.multiple(kind, **{name: instead(name, getattr(kind, name)) for name in METHODS}):
        yield sent


@pytest.mark.parametrize("event", EVENTS)
def test_no_request_to_pebble_that_fails_fails_a_hook(event: str, unit: Unit) -> None:
    """The status says what is so, and the next event goes on. By day each request fails once."""
    before, wrong = unit.state, list[str]()
    with failing(0, Exception) as sent:
        EVENTS[event](unit)
    assert sent
    for number, name in enumerate(sent, 1):
        kinds = [*KINDS]
        for kind in kinds if NIGHTLY else [kinds[number % len(kinds)]]:
            unit.state = before
            try:
                with failing(number, KINDS[kind]):
                    status = EVENTS[event](unit)
            except Exception as error:
                wrong.append(f"{name}, {kind}: {error!r}")
                continue
            if not isinstance(
                status, testing.WaitingStatus | testing.ActiveStatus | testing.MaintenanceStatus
            ):
                wrong.append(f"{name}, {kind}: {status}")
    assert wrong == []
    unit.state = before
    unit.run()
    assert unit.run() == active()
