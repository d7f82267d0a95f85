"""What the charm hands to Pebble and Prometheus is taken by them.

Real Pebbles take the charm's layers and checks, and wake it ever more rarely. Juju had version
1.19.2 until 3.6.12, and 1.26 since (juju#21335). The former is the oldest that knows what the
layers say.

Alerts, by promtool from Debian's package `prometheus`: each fires for the series that it is about
and stays silent for others. What panels ask for is in `unit/test_queries.py`.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
import subprocess
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
from lab.fixtures import ROOT, lack
from lab.juju.container import IDENTITIES
from lab.workload import configured

import workload
from relations import cos
from tools import debian

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
    return ops.Container(
        "istio-aux", cast("Any", SimpleNamespace(_juju_context=context)), pebble_client=client
    )


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

    gaps = [
        (after - before).total_seconds() for before, after in itertools.pairwise(notices(pebble, 4))
    ]
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
        unit.add_layer(
            workload.SERVICE, of_answers(workload.layer(CONFIG.settings | NAMES), url), combine=True
        )
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
    assert "perform-check" in {notice.last_data.get("kind") for notice in pebble.get_notices()}
    (folder / "readyz").touch()
    lab.until(lambda: is_up(unit), what="it to be so again")

    to = {"location": "http://127.0.0.1:1/loki", "services": ["all"], "labels": {"product": "Juju"}}
    targets: Any = {"loki/0": cos._TARGET | to}
    unit.add_layer("log-forwarding", {"log-targets": targets}, combine=True)
    assert unit.get_plan().log_targets["loki/0"].services == ["all"]
    assert pebble.get_identities()["juju"].access == ops.pebble.IdentityAccess.ADMIN


TOPOLOGY = {
    "model": "kubeflow",
    "model_uuid": "00000000-0000-4000-8000-000000000000",
    "application": "istio-aux",
    "unit": "istio-aux/0",
}
# The same application in another model, about which no alert of ours is.
OTHER = {**TOPOLOGY, "model": "other", "model_uuid": "11111111-1111-4111-8111-111111111111"}
GROUPS = cos.alert_rules(TOPOLOGY, "istio-aux")["groups"]
ALERTS = [rule["alert"] for group in GROUPS for rule in group["rules"]]

# By alert: series that make it fire and series that do not, over 90 minutes, in promtool's
# notation: start+growth x minutes.
FLAT, GROWS = "7+0x90", "0+3x90"
ON, OFF = "1+0x90", "0+0x90"


def metric(name: str, **labels: str) -> str:
    shown = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"istio_aux_{name}{{{shown}}}"


def gauge(name: str, minutes: int = 4) -> tuple[dict[str, str], dict[str, str]]:
    """Fires for a lasting 1, and not yet for a 1 of so many minutes."""
    return {metric(name): ON}, {metric(name): f"0+0x{84 - minutes} 1+0x9"}


def latency(seconds: str) -> dict[str, str]:
    """Reviews that all take as long as one bucket says."""
    buckets = ["0.1", "0.3", "1.0", "+Inf"]
    slow = buckets.index(seconds)
    return {
        metric("admission_seconds_bucket", le=le): GROWS if index >= slow else OFF
        for index, le in enumerate(buckets)
    }


def token(unit: str, issued: str, expires: str) -> dict[str, str]:
    return {
        metric("token_issue_timestamp_seconds", juju_unit=unit): issued,
        metric("token_expiration_timestamp_seconds", juju_unit=unit): expires,
    }


HANDSHAKES = {metric("admission_connections_closed_total", reason="handshake"): GROWS}
REVIEWS = {metric("admission_reviews_total", outcome="hold"): GROWS}
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "IstioAuxJobsStuck": gauge("stuck_pods"),
    "IstioAuxPodsBlocked": gauge("blocked_pods"),
    "IstioAuxPodsNotStarted": gauge("unstarted_pods"),
    "IstioAuxPodsHeld": gauge("held_pods", minutes=1),  # They wait for five minutes at most.
    "IstioAuxProxiesLost": gauge("lost_pods"),
    "IstioAuxPodsWithoutSidecar": gauge("unmeshed_pods"),
    "IstioAuxInjectorNotLive": (
        {metric("injectors", state="live"): OFF, metric("injectors", state="no-endpoint"): ON},
        {metric("injectors", state="live"): ON, metric("injectors", state="no-endpoint"): ON},
    ),
    "IstioAuxRevisionNotLive": (
        {metric("injectors", state="live"): ON, metric("injectors", state="no-endpoint"): ON},
        {metric("injectors", state="live"): ON, metric("injectors", state="deactivated"): ON},
    ),
    "IstioAuxCalledAfterIstio": gauge("configurations_called_before_ours"),
    "IstioAuxWebhookRefuses": (
        {metric("admission_reviews_total", outcome="busy"): GROWS},
        {metric("admission_reviews_total", outcome="busy"): FLAT, **REVIEWS},
    ),
    "IstioAuxWebhookSlow": (latency("1.0"), latency("0.1")),
    "IstioAuxHandshakesFail": (HANDSHAKES, {**HANDSHAKES, **REVIEWS}),
    "IstioAuxUnitDown": ({"up{}": OFF}, {"up{}": ON}),
    "IstioAuxMetricsMissing": ({}, {"up{}": OFF}),
    "IstioAuxUnready": ({metric("ready"): OFF}, {metric("ready"): ON}),
    "IstioAuxNoLeader": ({metric("leader"): OFF}, {metric("leader"): ON}),
    "IstioAuxTwoLeaders": (
        {metric("leader", juju_unit="istio-aux/0"): ON, metric("leader", juju_unit="x/1"): ON},
        {metric("leader", juju_unit="istio-aux/0"): ON, metric("leader", juju_unit="x/1"): OFF},
    ),
    # promtool's clock begins at 0, and it is asked at 5100.
    "IstioAuxTokenExpires": (
        token("istio-aux/0", "1+0x90", "5700+0x90"),
        {
            **token("istio-aux/0", OFF, OFF),  # Not known.
            **token("istio-aux/1", "1+0x90", "8100+0x90"),  # A third is left: the charm's turn.
            # Less than three tenths are left since 4200: a hook may be a little late.
            **token("istio-aux/2", "1+0x90", "6000+0x90"),
        },
    ),
    "IstioAuxWatchesRestart": (
        {metric("watch_restarts_total", reason="refused"): GROWS},
        {metric("watch_restarts_total", reason="ended"): GROWS},
    ),
    "IstioAuxInternalErrors": (
        {metric("internal_errors_total"): "0+0x80 1+0x9"},
        {metric("internal_errors_total"): FLAT},
    ),
    "IstioAuxUnreadableObjects": gauge("unreadable_objects"),
}


@pytest.fixture(scope="session")
def promtool() -> str:
    """The program, installed if need be, else the test is skipped with one line; in CI it fails."""
    try:
        debian.ensure(["prometheus"])
    except debian.PackageError as error:
        lack(str(error))
    return "promtool"


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the collector writes."""
    path = tmp_path_factory.mktemp("alerts") / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": GROUPS}, width=1000))
    return path


def scraped(series: dict[str, str], topology: dict[str, str]) -> list[dict[str, str]]:
    """What Prometheus stores: with the labels of the unit, unless the series says otherwise."""
    found: list[dict[str, str]] = []
    for name, values in series.items():
        own = name.partition("{")[2]
        more = {k: v for k, v in cos.labels(topology).items() if f"{k}=" not in own}
        added = ",".join(f'{label}="{value}"' for label, value in more.items())
        separator = "," if own != "}" else ""
        found.append({"series": f"{name[:-1]}{separator}{added}}}", "values": values})
    return found


def verdict(promtool: str, rules: Path, *expected: tuple[str, list[dict[str, str]], int]) -> str:
    """What promtool says unless so many of an alert fire for such series; empty if they do."""
    tests: list[dict[str, Any]] = []
    for alert, series, firing in expected:
        count = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
        wanted = {"exp_samples": [{"labels": "{}", "value": firing}]}
        test = {"expr": count, "eval_time": "85m", **wanted}
        tests.append({"input_series": series, "promql_expr_test": [test]})
    return failure(promtool, rules, *tests)


def failure(promtool: str, rules: Path, *tests: dict[str, Any]) -> str:
    """What promtool says of tests that fail, else nothing."""
    each = [{"interval": "1m", **test} for test in tests]
    test = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": each}
    path = rules.with_name("test.yaml")
    path.write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_alert_has_a_case() -> None:
    assert sorted(CASES) == sorted(ALERTS)


def test_prometheus_takes_the_rules(promtool: str, rules: Path) -> None:
    """Expressions, durations, and the templates in annotations."""
    command = [promtool, "check", "rules", "--lint=all", "--lint-fatal", str(rules)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_for_its_trouble_and_neither_when_all_is_well_nor_for_another_model(
    alert: str, promtool: str, rules: Path
) -> None:
    trouble, well = CASES[alert]
    expected = [
        (alert, scraped(trouble, TOPOLOGY), 1),
        (alert, scraped(well, TOPOLOGY), 0),
    ]
    if alert != "IstioAuxMetricsMissing":
        expected.append((alert, scraped(trouble, OTHER), 0))
    assert verdict(promtool, rules, *expected) == ""


def test_the_alert_for_stuck_pods_says_how_many_gpus_they_keep(promtool: str, rules: Path) -> None:
    """One unit leads, and has stuck pods that request 24 GPUs."""
    [rule] = [r for group in GROUPS for r in group["rules"] if r["alert"] == "IstioAuxJobsStuck"]
    series = {
        metric("stuck_pods"): FLAT,
        metric("kept_resources", by="istio-proxy", resource="gpu"): "24+0x90",
        metric("kept_resources", by="other", resource="gpu"): "5+0x90",
        metric("kept_resources", by="istio-proxy", resource="cpu"): "99+0x90",
    }
    said = {
        key: re.sub(r"{{ query .*? }}", "24", text) for key, text in rule["annotations"].items()
    }
    for label, value in (("$labels.juju_application", "istio-aux"), ("$value", "7")):
        said = {key: text.replace(f"{{{{ {label} }}}}", value) for key, text in said.items()}
    about = {f"juju_{key}": TOPOLOGY[key] for key in ("model", "application")}
    alert = {"exp_labels": {**rule["labels"], **about}, "exp_annotations": said}
    wanted = {"eval_time": "85m", "alertname": rule["alert"], "exp_alerts": [alert]}
    test = {"input_series": scraped(series, TOPOLOGY), "alert_rule_test": [wanted]}
    assert "24 GPUs" in said["description"]
    assert failure(promtool, rules, test) == ""


def test_a_mesh_without_a_live_injector_is_not_reported_by_revision_too(
    promtool: str, rules: Path
) -> None:
    series = scraped(CASES["IstioAuxInjectorNotLive"][0], TOPOLOGY)
    assert verdict(promtool, rules, ("IstioAuxRevisionNotLive", series, 0)) == ""
