"""Fixtures of the charm's tests: an API server and a workload with behaviour, and a unit."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from ops import testing

import certificates
import workload
from charm import IstioAuxCharm

ROOT = Path(__file__).parents[3]


def jwt(uid: str, issued: float, expires: float) -> str:
    """A token as the API server signs it, but for the signature."""
    claims = {"iat": issued, "exp": expires, "kubernetes.io": {"serviceaccount": {"uid": uid}}}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.sig"


class ApiServer:
    """Keeps objects by URL path, as far as the charm needs it: apply, get, list, delete, tokens.

    It refuses `denied` permissions (written as "verb resource"), both when asked for by a
    SelfSubjectAccessReview and when used; it fails at `broken` ones, written likewise, and answers
    `failures` first. It does not serve kinds whose plural is `unknown`, as older versions do not.
    `moments` are the kinds that it had after each request.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.moments: list[set[str]] = []
        self.denied: set[str] = set()
        self.broken: set[str] = set()
        self.unknown: set[str] = set()
        self.failures: list[httpx2.Response | httpx2.TransportError] = []
        self._count = 0

    @property
    def writes(self) -> list[str]:
        return [c for c in self.calls if not c.startswith("GET") and "selfsubject" not in c]

    def kinds(self) -> list[str]:
        return sorted(o["kind"] for o in self.objects.values())

    def one(self, kind: str) -> dict[str, Any]:
        (found,) = [o for o in self.objects.values() if o["kind"] == kind]
        return found

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path, body = request.url.path, json.loads(request.content or b"{}")
        self.calls.append(f"{request.method} {path}")
        if "selfsubjectaccessreviews" in path:
            asked = body["spec"]["resourceAttributes"]
            return httpx2.Response(201, json=body | {"status": {"allowed": self._allows(**asked)}})
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, httpx2.TransportError):
                raise failure
            return failure
        verb, resource = self._verb(request), self._resource(path)
        if resource in self.unknown:
            return httpx2.Response(404, text="404 page not found\n")
        if not self._allows(verb=verb, resource=resource):
            return self._status(403, "Forbidden", f"{resource} is forbidden: cannot {verb}")
        if f"{verb} {resource}" in self.broken:
            return self._status(503, "ServiceUnavailable", "etcd is slow")
        response = self._act(request, path, body)
        self.moments.append(set(self.kinds()))
        return response

    def _act(self, request: httpx2.Request, path: str, body: dict[str, Any]) -> httpx2.Response:
        present = self.objects.get(path.removesuffix("/token"))
        match request.method:
            case "PATCH":
                assert request.headers["content-type"] == "application/apply-patch+yaml"
                assert request.url.params["force"] == "true"
                self._count += 1
                uid = present["metadata"]["uid"] if present else f"uid-{self._count}"
                body["metadata"] |= {"uid": uid, "manager": request.url.params["fieldManager"]}
                self.objects[path] = body
                return httpx2.Response(200 if present else 201, json=body)
            case "GET" if path.rpartition("/")[2] in self._plurals():
                wanted = set(request.url.params["labelSelector"].split(","))
                found = [
                    o
                    for at, o in self.objects.items()
                    if at.rpartition("/")[0] == path
                    and wanted <= {f"{k}={v}" for k, v in o["metadata"]["labels"].items()}
                ]
                return httpx2.Response(200, json={"items": found, "metadata": {}})
            case _ if present is None:
                return self._status(404, "NotFound", f'"{path.rpartition("/")[2]}" not found')
            case "DELETE":
                del self.objects[path]
                return self._status(200, "", "")
            case "POST":
                life = body["spec"]["expirationSeconds"]
                token = jwt(present["metadata"]["uid"], time.time(), time.time() + life)
                granted = {"token": token, "expirationTimestamp": "2026-01-01T00:00:00Z"}
                return httpx2.Response(201, json=body | {"status": granted})
        return httpx2.Response(200, json=present)

    def _allows(self, verb: str, resource: str, subresource: str = "", **_: str) -> bool:
        resource += f"/{subresource}" if subresource else ""
        return not self.denied if verb == "*" else f"{verb} {resource}" not in self.denied

    def _verb(self, request: httpx2.Request) -> str:
        if request.method == "GET":
            collection = request.url.path.rpartition("/")[2] in self._plurals()
            return "list" if collection else "get"
        return {"PATCH": "patch", "DELETE": "delete", "POST": "create"}[request.method]

    def _resource(self, path: str) -> str:
        (plural,) = [part for part in path.split("/") if part in self._plurals()]
        return plural + ("/token" if path.endswith("/token") else "")

    @staticmethod
    def _plurals() -> set[str]:
        return {
            "clusterrolebindings",
            "clusterroles",
            "leases",
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "mutatingwebhookconfigurations",
            "peerauthentications",
            "rolebindings",
            "roles",
            "serviceaccounts",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        }

    @staticmethod
    def _status(code: int, reason: str, message: str) -> httpx2.Response:
        body = {"kind": "Status", "code": code, "reason": reason, "message": message}
        return httpx2.Response(code, json=body)


class Workload:
    """Answers /status on the unit's localhost."""

    def __init__(self) -> None:
        self.running = True
        self.missing: list[str] = []
        self.namespaces = ["team-a", "team-b"]
        self.stuck: list[dict[str, str]] = []
        self.lost: list[dict[str, str]] = []
        self.blocked: list[dict[str, str]] = []
        self.called_before: list[str] | None = []
        self.unsaid: set[str] = set()

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        if not self.running:
            raise httpx2.ConnectError("connection refused")
        assert str(request.url) == f"{workload.STATUS_URL}/status"
        status = {
            "ready": not self.missing,
            "missing": self.missing,
            "selected-namespaces": self.namespaces,
            "stuck-pods": self.stuck,
            "lost-pods": self.lost,
            "blocked-pods": self.blocked,
            "called-before-us": self.called_before,
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

    context: testing.Context[IstioAuxCharm] = testing.Context(
        Charm,
        meta=yaml.safe_load((ROOT / "metadata.yaml").read_text()),
        config=yaml.safe_load((ROOT / "config.yaml").read_text()),
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
