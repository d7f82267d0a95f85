"""Fixtures of the charm's tests: an API server and a workload with behaviour, and a unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from ops import testing

import certificates
import probe
import suspended
import workload
from charm import IstioAuxCharm

from .apiserver import ApiServer

ROOT = Path(__file__).parents[3]


# What the status says of a workload as it is here.
WELL = "2 namespaces selected; istio-sidecar-injector live since 2026-11-21 19:40Z"
SINCE = "2026-11-21T19:40:12.5Z"


def injector(state: str = "live", why: str = "it injects", name: str = "istio-sidecar-injector"):
    """One of the injectors in /status."""
    known = {"configuration": name, "state": state, "why": why, "since": SINCE}
    return {**known, "revision": "default", "native": "native"}


class Workload:
    """Answers /status on the unit's localhost, and for `units`, by their address, /readyz."""

    def __init__(self) -> None:
        self.units = {"10.1.0.10": httpx2.Response(200, text="ok\n")}
        self.running = True
        self.missing: list[str] = []
        self.namespaces = ["team-a", "team-b"]
        self.stuck: list[dict[str, str]] = []
        self.lost: list[dict[str, str]] = []
        self.blocked: list[dict[str, str]] = []
        self.called_before: list[str] | None = []
        self.injectors: list[dict[str, str]] = [injector()]
        self.injects: bool | None = True
        # What it says of `capability`, and why.
        self.capability: tuple[str, str] = ("native", "istio: sidecars are native on request")
        self.race = "report"
        self.unmeshed: list[dict[str, str]] = []
        self.unmeshed_total = 0
        self.unmeshed_unknown = 0
        self.suspended: list[dict[str, str]] = []
        self.applications: list[dict[str, Any]] = []
        self.unsaid: set[str] = set()

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        if not self.running:
            raise httpx2.ConnectError("connection refused")
        if request.url.path == "/readyz":
            return self.units[request.url.host]
        assert str(request.url) == f"{probe.STATUS_URL}/status"
        status = {
            "ready": not self.missing,
            "missing": self.missing,
            "selected-namespaces": self.namespaces,
            "stuck-pods": self.stuck,
            "lost-pods": self.lost,
            "blocked-pods": self.blocked,
            "called-before-us": self.called_before,
            "injectors": self.injectors,
            "injector-live": self.injects,
            "capability": self.capability[0],
            "capability-why": self.capability[1],
            "race": self.race,
            "unmeshed-pods": self.unmeshed,
            "unmeshed-total": self.unmeshed_total,
            "unmeshed-unknown": self.unmeshed_unknown,
            "suspended-jobs": self.suspended,
            "applications": self.applications,
            "version": "1.2.3",
        }
        return httpx2.Response(
            200, json={key: value for key, value in status.items() if key not in self.unsaid}
        )


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


@pytest.fixture
def process() -> Workload:
    return Workload()


@pytest.fixture
def ctx(
    api: ApiServer, process: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[testing.Context[IstioAuxCharm]]:
    """The charm, with its two network connections ending in `api` and `process`."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {
                            "server": "https://10.152.183.1:443",
                            "certificate-authority": str(tmp_path / "ca.crt"),
                        },
                    }
                ],
                "users": [{"name": "u", "user": {"token": "charm"}}],
            }
        )
    )
    (tmp_path / "ca.crt").write_text(certificates.make_authority("ca", "cluster").certificate)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))

    class Charm(IstioAuxCharm):
        kubernetes_transport = httpx2.MockTransport(api.answer)
        workload_transport = httpx2.MockTransport(process.answer)
        patience = suspended.Patience(settle=0.05, longest=0.5, pause=0.02)

    context: testing.Context[IstioAuxCharm] = testing.Context(
        Charm,
        meta=yaml.safe_load((ROOT / "metadata.yaml").read_text()),
        config=yaml.safe_load((ROOT / "config.yaml").read_text()),
        actions=yaml.safe_load((ROOT / "actions.yaml").read_text()),
        app_name="istio-aux",
    )
    with context:
        yield context


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """The workload's /etc/istio-aux; it outlives an event, as the container does."""
    (tmp_path / "etc").mkdir()
    return tmp_path / "etc"


@pytest.fixture
def container(etc: Path) -> testing.Container:
    mounts = {"etc": testing.Mount(location="/etc/istio-aux", source=etc)}
    return testing.Container(workload.CONTAINER, can_connect=True, mounts=mounts)


@pytest.fixture
def fresh(container: testing.Container) -> testing.State:
    """The leader of a new application: Pebble is up, nothing was done yet."""
    return testing.State(
        leader=True,
        containers={container},
        relations={testing.PeerRelation("peers")},
        model=testing.Model("kubeflow"),
    )


@pytest.fixture
def settled(ctx: testing.Context[IstioAuxCharm], fresh: testing.State) -> testing.State:
    """The same after its first event."""
    return ctx.run(ctx.on.config_changed(), fresh)


Files = Callable[[], dict[str, str]]


@pytest.fixture
def files(etc: Path) -> Files:
    """Name and content of the files in the workload's /etc/istio-aux."""

    def read() -> dict[str, str]:
        found = (path for path in etc.rglob("*") if path.is_file())
        return {str(path.relative_to(etc)): path.read_text() for path in found}

    return read
