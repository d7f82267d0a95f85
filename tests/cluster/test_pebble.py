"""Real Pebbles take the charm's layers and checks, and wake it ever more rarely.

Juju had version 1.19.2 until 3.6.12, and 1.26 since (juju#21335). The former is the oldest that
knows what the layers say.
"""

from __future__ import annotations

import copy
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lab
import ops
import pytest
import yaml
from lab import Cluster, processes, tools
from lab.fixtures import ROOT
from lab.juju.container import IDENTITIES
from lab.workload import configured

import workload
from relations import cos

# Seconds between the end of the service and its next start; ten times as fast as in the charm.
FIRST = 0.5


@pytest.fixture
def socket() -> Iterator[Path]:
    # A socket's path has less than 108 bytes; pytest's own folders may need more.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder) / "socket"


@pytest.fixture(
    params=["pebble", pytest.param("pebble-1.19", marks=pytest.mark.nightly("the newest"))]
)
def pebble(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    socket: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """A Pebble of each version as Juju starts it, with the layer of the rock.

    It knows the layer that wakes the charm, with shorter times.
    """
    program = tools.path(request.param)
    layer = copy.deepcopy(workload.WAKE_LAYER)
    (service,) = cast("dict[str, Any]", layer)["services"].values()
    service["command"] = service["command"].replace(workload.PEBBLE, str(program))
    service["command"] = service["command"].replace("sleep 2", "sleep 0.1")
    service["environment"]["PEBBLE_SOCKET"] = str(socket)
    service["backoff-delay"] = f"{FIRST * 1000:.0f}ms"
    monkeypatch.setattr(workload, "WAKE_LAYER", layer)
    path = f"{tmp_path}:{os.environ['PATH']}"
    variables = {"PEBBLE": str(tmp_path), "PEBBLE_SOCKET": str(socket), "PATH": path}
    rock = yaml.safe_load((ROOT / "workload/rockcraft.yaml").read_text())
    (tmp_path / "layers").mkdir()
    layer = {key: rock[key] for key in ("services", "checks")}
    (tmp_path / "layers/001-rock.yaml").write_text(yaml.safe_dump(layer))
    (tmp_path / "identities.yaml").write_text(IDENTITIES)
    identities = ["--identities", str(tmp_path / "identities.yaml")]
    process = cluster.spawn(
        "pebble", [str(program), "run", "--create-dirs", "--hold", *identities], env=variables
    )
    client = ops.pebble.Client(str(socket))
    lab.until(
        lambda: socket.exists() and client.get_system_info(),
        what="Pebble to answer",
        ignoring=(ops.pebble.ConnectionError,),
    )
    yield client
    process.end()


def container(client: ops.pebble.Client) -> ops.Container:
    context = SimpleNamespace(version=ops.JujuVersion("3.6.0"))
    backend = cast("Any", SimpleNamespace(_juju_context=context))
    return ops.Container("istio-aux", backend, pebble_client=client)


def happened(kind: type[ops.EventBase]) -> ops.EventBase:
    """An event of this kind; only the kind counts."""
    return kind.__new__(kind)


def current(client: ops.pebble.Client) -> ops.pebble.ServiceStatus | str:
    """Return the service's status; ops has no name for `backoff`, and gives the text."""
    (service,) = client.get_services([workload.WAKE])
    return service.current


def await_status(client: ops.pebble.Client, status: ops.pebble.ServiceStatus | str) -> None:
    lab.until(lambda: current(client) == status, what=f"the service to be {status}")


def notices(client: ops.pebble.Client, number: int) -> list[datetime]:
    """Return when the first so many notices came."""
    seen = list[datetime]()

    def look() -> bool:
        for notice in client.get_notices(keys=[workload.WAKE_KEY]):
            if notice.last_occurred not in seen:
                seen.append(notice.last_occurred)
        return len(seen) >= number

    lab.until(look, what=f"{number} notices", every=0.02)
    return seen


def test_pebble_wakes_the_charm_ever_more_rarely_until_it_is_stopped(pebble: Any) -> None:
    workload.wake(container(pebble), happened(ops.ConfigChangedEvent), wanted=True)

    came = notices(pebble, 4)
    gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(came)]
    assert all(gap >= FIRST * 2**n for n, gap in enumerate(gaps)), gaps

    # The notice itself, and update-status, change nothing: Pebble goes on waiting.
    await_status(pebble, "backoff")
    for kind in (ops.PebbleCustomNoticeEvent, ops.UpdateStatusEvent):
        workload.wake(container(pebble), happened(kind), wanted=True)
    assert current(pebble) == "backoff"

    workload.wake(container(pebble), happened(ops.PebbleCustomNoticeEvent), wanted=False)
    await_status(pebble, ops.pebble.ServiceStatus.INACTIVE)


def test_news_let_the_delays_begin_again(pebble: Any) -> None:
    """An hour after the deployment, `juju trust` is tried again within seconds."""
    workload.wake(container(pebble), happened(ops.ConfigChangedEvent), wanted=True)
    notices(pebble, 4)
    await_status(pebble, "backoff")

    workload.wake(container(pebble), happened(ops.ConfigChangedEvent), wanted=True)

    *_, first, second = notices(pebble, 3)
    # Without the news, Pebble would wait at least this long between these two.
    assert (second - first).total_seconds() < FIRST * 2**4


CONFIG = configured("kubeflow")
NAMES = {"lease": "kubeflow/istio-aux"}


@pytest.fixture
def answers(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """What answers for the workload: 200 for each file of a folder, 404 for all else."""
    folder = tmp_path / "answers"
    folder.mkdir()
    port = processes.reserve_port()
    argv = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    process = cluster.spawn("answers", [*argv, "--directory", str(folder)])
    for name in ("livez", "readyz"):
        (folder / name).touch()
    yield folder, f"http://127.0.0.1:{port}"
    process.end()


def of_answers(layer: Any, url: str) -> Any:
    """The layer with checks that ask there, and a service that does nothing."""
    layer = copy.deepcopy(layer)
    for check in layer["checks"].values():
        check["http"]["url"] = check["http"]["url"].replace(workload.STATUS_URL, url)
    for service in layer.get("services", {}).values():
        service["command"] = "sleep 1000"
    return layer


def begun(client: Any) -> tuple[str, dict[str, str]]:
    """Return since when the service runs, and which change of Pebble performs each check."""
    (service,) = client._request("GET", "/v1/services", {"names": workload.SERVICE})["result"]
    return service["current-since"], {one.name: one.change_id for one in client.get_checks()}


def is_up(unit: Any) -> bool:
    return workload.check(unit, ready=False)[1]


def test_the_layers_checks_and_identities_of_the_charm_are_understood(
    pebble: Any, answers: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url = answers
    unit = container(pebble)
    relaxed = of_answers({"checks": {"ready": workload.SINCE_READY}}, url)["checks"]["ready"]
    monkeypatch.setattr(workload, "SINCE_READY", relaxed)
    lab.until(lambda: not is_up(unit), what="the rock's check to fail")

    def reconcile() -> None:
        layer = of_answers(workload.layer(CONFIG.settings | NAMES), url)
        unit.add_layer(workload.SERVICE, layer, combine=True)
        unit.replan()
        workload.check(unit, ready=True)

    reconcile()
    assert unit.get_service(workload.SERVICE).is_running()
    assert unit.get_plan().checks["ready"].threshold == 2
    lab.until(lambda: is_up(unit), what="the unit to be ready")
    before = begun(pebble)
    reconcile()
    assert begun(pebble) == before, "no service and no check starts again"

    (folder / "readyz").unlink()
    lab.until(lambda: not is_up(unit), what="it not to be")
    kinds = {notice.last_data.get("kind") for notice in pebble.get_notices()}
    assert "perform-check" in kinds
    (folder / "readyz").touch()
    lab.until(lambda: is_up(unit), what="it to be so again")

    to = {"location": "http://127.0.0.1:1/loki", "services": ["all"], "labels": {"product": "Juju"}}
    targets: Any = {"loki/0": cos._TARGET | to}
    unit.add_layer("log-forwarding", {"log-targets": targets}, combine=True)
    assert unit.get_plan().log_targets["loki/0"].services == ["all"]
    assert pebble.get_identities()["juju"].access == ops.pebble.IdentityAccess.ADMIN
