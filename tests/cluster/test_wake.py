"""A real Pebble wakes the charm ever more rarely, until the charm stops it."""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lab
import ops
import pytest
from lab import Cluster, tools

import wake

# Seconds between the end of the service and its next start; ten times as fast as in the charm.
FIRST = 0.5
SOON = 60


@pytest.fixture
def socket() -> Iterator[Path]:
    """Where Pebble listens."""
    # A socket's path has less than 108 bytes; pytest's own folders may need more.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder) / "socket"


@pytest.fixture
def pebble(
    cluster: Cluster, socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A Pebble that knows the charm's layer, whose times are shorter."""
    program = tools.path("pebble")
    layer = copy.deepcopy(wake.LAYER)
    (service,) = cast("dict[str, Any]", layer)["services"].values()
    service["command"] = service["command"].replace(wake.PEBBLE, str(program))
    service["command"] = service["command"].replace("sleep 2", "sleep 0.1")
    service["environment"]["PEBBLE_SOCKET"] = str(socket)
    service["backoff-delay"] = f"{FIRST * 1000:.0f}ms"
    monkeypatch.setattr(wake, "LAYER", layer)
    variables = {"PEBBLE": str(tmp_path), "PEBBLE_SOCKET": str(socket)}
    process = cluster.spawn(
        "pebble",
        [str(program), "run", "--create-dirs", "--hold"],
        env=variables,
    )
    client = ops.pebble.Client(str(socket))
    lab.until(
        lambda: socket.exists() and client.get_system_info(),
        timeout=SOON,
        what="Pebble to answer",
        ignoring=(ops.pebble.ConnectionError,),
    )
    yield client
    process.kill()
    process.wait(10)


def container(client: ops.pebble.Client) -> ops.Container:
    context = SimpleNamespace(version=ops.JujuVersion("3.6.0"))
    backend = cast("Any", SimpleNamespace(_juju_context=context))
    return ops.Container("istio-aux", backend, pebble_client=client)


def happened(kind: type[ops.EventBase]) -> ops.EventBase:
    """An event of this kind; only the kind counts."""
    return kind.__new__(kind)


def current(client: ops.pebble.Client) -> ops.pebble.ServiceStatus | str:
    """Return the service's status; ops has no name for `backoff`, and gives the text."""
    (service,) = client.get_services([wake.SERVICE])
    return service.current


def await_status(client: ops.pebble.Client, status: ops.pebble.ServiceStatus | str) -> None:
    lab.until(lambda: current(client) == status, timeout=SOON, what=f"the service to be {status}")


def notices(client: ops.pebble.Client, number: int) -> list[datetime]:
    """Return when the first so many notices came."""
    seen = list[datetime]()

    def look() -> bool:
        for notice in client.get_notices(keys=[wake.KEY]):
            if notice.last_occurred not in seen:
                seen.append(notice.last_occurred)
        return len(seen) >= number

    lab.until(look, timeout=SOON, what=f"{number} notices", every=0.02)
    return seen


def test_pebble_wakes_the_charm_ever_more_rarely_until_it_is_stopped(pebble: Any) -> None:
    wake.ensure(container(pebble), happened(ops.ConfigChangedEvent), wanted=True)

    came = notices(pebble, 4)
    gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(came)]
    assert all(gap >= FIRST * 2**n for n, gap in enumerate(gaps)), gaps

    # The notice itself, and update-status, change nothing: Pebble goes on waiting.
    await_status(pebble, "backoff")
    for kind in (ops.PebbleCustomNoticeEvent, ops.UpdateStatusEvent):
        wake.ensure(container(pebble), happened(kind), wanted=True)
    assert current(pebble) == "backoff"

    wake.ensure(container(pebble), happened(ops.PebbleCustomNoticeEvent), wanted=False)
    await_status(pebble, ops.pebble.ServiceStatus.INACTIVE)


def test_news_let_the_delays_begin_again(pebble: Any) -> None:
    """An hour after the deployment, `juju trust` is tried again within seconds."""
    wake.ensure(container(pebble), happened(ops.ConfigChangedEvent), wanted=True)
    notices(pebble, 4)
    await_status(pebble, "backoff")

    wake.ensure(container(pebble), happened(ops.ConfigChangedEvent), wanted=True)

    *_, first, second = notices(pebble, 3)
    # Without the news, Pebble would wait at least this long between these two.
    assert (second - first).total_seconds() < FIRST * 2**4
