"""Fixtures of the charm's tests: a unit, and the API server and the workload that it talks to.

The API server has what the charm needs of it. `tests/cluster` tests real RBAC, admission and
server-side apply.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import istio_aux
import msgspec
import pytest
import yaml
from istio_aux.model.answers import group
from istio_aux.model.documents import run_now
from istio_aux.model.found import Found
from istio_aux.status import page, place
from ops import pebble, testing
from scenario import mocking
from simulation.store import Path as ApiPath, parse, selection
from unit.apiserver import kubeconfig

import certificates
import objects
import probe
import workload
from charm import IstioAuxCharm
from container import CONTAINER

Answer = httpx2.Response | httpx2.TransportError | Callable[[], httpx2.Response]

# Of the model that the unit is in, and of its namespace.
MODEL_ID, MODEL_UID = "5a0f6f7c-0d6e-4f6a-8a55-3f6b2a9c1e10", "uid-of-the-model"


def jwt(uid: str, issued: float, expires: float) -> str:
    """A token as the API server signs it, but for the signature."""
    claims = {"iat": issued, "exp": expires, "kubernetes.io": {"serviceaccount": {"uid": uid}}}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.sig"


def endpoint(pod: str, address: str, *, ready: bool | None = True) -> dict[str, Any]:
    """One endpoint of an EndpointSlice."""
    target = {"kind": "Pod", "name": pod}
    return {"addresses": [address], "conditions": {"ready": ready}, "targetRef": target}


def refusal(code: int, message: str) -> httpx2.Response:
    """What the API server answers instead of an object."""
    return httpx2.Response(code, json={"kind": "Status", "code": code, "message": message})


class ApiServer:
    """Keeps objects by URL path and knows apply, get, list, merge patches, delete and tokens.

    Attributes:
        applied: the objects that were applied, in order.
        denied: permissions that are refused, as "verb resource".
        broken: requests that fail with 503, written likewise.
        unknown: plurals that are not served, as in older versions.
        answers: the answer to "verb resource" or "verb resource name", or what makes it.
        failures: the answers to the next requests.
        patience: the client's timeout in seconds, by request.
        endpoints: those of the application's Service.
        port: that of the application's Service.
        model: the namespace of the model.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.applied: list[dict[str, Any]] = []
        self.denied: set[str] = set()
        self.broken: set[str] = set()
        self.unknown: set[str] = set()
        self.answers: dict[str, Answer] = {}
        self.failures: list[httpx2.Response | httpx2.TransportError] = []
        self.patience: dict[str, float] = {}
        self.endpoints = [endpoint("istio-aux-0", "10.1.0.10")]
        self.port = 8443
        self.model = "kubeflow"
        self._count = 0
        self._managed: dict[tuple[str, str], set[tuple[str, str]]] = {}

    @property
    def writes(self) -> list[str]:
        return [c for c in self.calls if not c.startswith("GET") and not c.endswith("tokenreviews")]

    def kinds(self) -> list[str]:
        return sorted(o["kind"] for o in self.objects.values())

    def one(self, kind: str, end: str = "") -> dict[str, Any]:
        """The only object of a kind whose name has this end."""
        found = (o for o in self.objects.values() if o["kind"] == kind)
        (one,) = (o for o in found if o["metadata"]["name"].endswith(end))
        return one

    @property
    def webhooks(self) -> list[dict[str, Any]]:
        """Those of the only MutatingWebhookConfiguration."""
        return self.one("MutatingWebhookConfiguration")["webhooks"]

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path, body = request.url.path, json.loads(request.content or b"{}")
        self.calls.append(f"{request.method} {path}")
        self.patience[self.calls[-1]] = request.extensions["timeout"]["read"]
        to = parse(path)
        verb = {"PATCH": "patch", "DELETE": "delete", "POST": "create"}.get(request.method, "get")
        verb = verb if to.name else verb.replace("get", "list")
        resource, name = f"{to.resource}/{to.part}".rstrip("/"), to.part or to.name
        answer = self.failures.pop(0) if self.failures else None
        answer = answer or self.answers.get(f"{verb} {resource} {name}")
        if answer := answer or self.answers.get(f"{verb} {resource}"):
            if isinstance(answer, httpx2.TransportError):
                raise answer
            return answer() if callable(answer) else answer
        if resource in self.unknown:
            return httpx2.Response(404, text="404 page not found\n")
        if f"{verb} {resource}" in self.denied:
            why = f'User "charm" cannot {verb} resource "{resource}"'
            return refusal(403, f"{resource} is forbidden: {why}")
        if f"{verb} {resource}" in self.broken:
            return refusal(503, "etcd is slow")
        if resource == "tokenreviews":
            return self._review_token(body)
        return self._act(request, to, body)

    def _review_token(self, body: dict[str, Any]) -> httpx2.Response:
        """Take what `_act` granted until it expires or its account is another one."""
        claims = json.loads(base64.urlsafe_b64decode(body["spec"]["token"].split(".")[1] + "=="))
        owners = [
            o["metadata"]
            for o in self.objects.values()
            if claims["exp"] > time.time()
            and o["kind"] == "ServiceAccount"
            and o["metadata"]["uid"] == claims["kubernetes.io"]["serviceaccount"]["uid"]
        ]
        names = [f"system:serviceaccount:{o['namespace']}:{o['name']}" for o in owners]
        status = {"authenticated": bool(names), "user": {"username": "".join(names)}}
        return httpx2.Response(201, json=body | {"status": status})

    def _act(self, request: httpx2.Request, to: ApiPath, body: dict[str, Any]) -> httpx2.Response:
        path = request.url.path
        present = (self.objects | self._standing()).get(path.removesuffix("/token"))
        match request.method:
            case "PATCH":
                apply = self._apply_to_namespace if to.resource == "namespaces" else self._apply
                assert request.headers["content-type"] == "application/apply-patch+yaml"
                return apply(request, path, body)
            case "GET" if not to.name:
                return self._list(request, to)
            case _ if present is None:
                return refusal(404, f'"{to.part or to.name}" not found')
            case "DELETE":
                del self.objects[path]
                return refusal(200, "")
            case "POST":
                life, uid = body["spec"]["expirationSeconds"], present["metadata"]["uid"]
                token = jwt(uid, time.time(), time.time() + life)
                granted = {"token": token, "expirationTimestamp": "2026-01-01T00:00:00Z"}
                return httpx2.Response(201, json=body | {"status": granted})
        return httpx2.Response(200, json=present)

    def _list(self, request: httpx2.Request, to: ApiPath) -> httpx2.Response:
        selects = selection(request.url.params.get("labelSelector", ""))
        there = [(parse(path), o) for path, o in (self.objects | self._standing()).items()]
        found = [
            o
            for at, o in there
            if (at.api, at.resource) == (to.api, to.resource)
            and to.namespace in {"", at.namespace}
            and selects(o)
        ]
        return httpx2.Response(200, json={"items": found, "metadata": {}})

    def _apply(self, request: httpx2.Request, path: str, body: dict[str, Any]) -> httpx2.Response:
        assert request.url.params["force"] == "true"
        present = self.objects.get(path)
        self._count += 1
        uid = present["metadata"]["uid"] if present else f"uid-{self._count}"
        body["metadata"] |= {"uid": uid, "manager": request.url.params["fieldManager"]}
        self.objects[path] = body
        self.applied.append(copy.deepcopy(body))
        return httpx2.Response(200 if present else 201, json=body)

    def _standing(self) -> dict[str, dict[str, Any]]:
        """What Juju and Kubernetes make: the Service's endpoints and the model's namespace."""
        metadata = {"labels": {"kubernetes.io/service-name": "istio-aux"}}
        found = {"metadata": metadata, "addressType": "IPv4", "endpoints": self.endpoints}
        found["ports"] = [{"port": self.port, "protocol": "TCP"}]
        identity = {"model.juju.is/id": MODEL_ID, "model.juju.is/name": self.model}
        named = {"name": self.model, "uid": MODEL_UID, "labels": identity, "annotations": {}}
        namespace = {"kind": "Namespace", "apiVersion": "v1", "metadata": named}
        return {
            f"/apis/discovery.k8s.io/v1/namespaces/{self.model}/endpointslices/x": found,
            f"/api/v1/namespaces/{self.model}": namespace,
        }

    def add_namespace(self, name: str, **labels: str) -> None:
        """Have a namespace whose labels somebody else has set."""
        metadata = {"name": name, "uid": f"uid-of-{name}", "labels": labels, "annotations": {}}
        self.objects[f"/api/v1/namespaces/{name}"] = {"kind": "Namespace", "metadata": metadata}

    def add_pod(self, name: str, address: str) -> None:
        """Have a pod in the model."""
        pod = {"kind": "Pod", "metadata": {"name": name}, "status": {"podIP": address}}
        self.objects[f"/api/v1/namespaces/{self.model}/pods/{name}"] = pod

    def _apply_to_namespace(
        self, request: httpx2.Request, path: str, body: dict[str, Any]
    ) -> httpx2.Response:
        """Apply labels and annotations without force; what a manager leaves out, it takes back."""
        present = self.objects.get(path)
        assert request.url.params.get("force", "false") == "false"
        ours = body["metadata"]
        there: dict[str, Any] = present["metadata"] if present else {}
        if ours["uid"] != there.get("uid"):
            return refusal(409, "uid mismatch")
        by = (path, request.url.params["fieldManager"])
        wanted = {(f, k): v for f in ("labels", "annotations") for k, v in ours.get(f, {}).items()}
        for field, key in self._managed.get(by, set()) - set(wanted):
            there[field].pop(key, None)
        for (field, key), value in wanted.items():
            there[field][key] = value
        self._managed[by] = set(wanted)
        return httpx2.Response(200, json=present)


ROOT = Path(__file__).parents[3]

TEXTS = {
    key: yaml.safe_load((ROOT / f"{name}.yaml").read_text())
    for key, name in {"meta": "metadata", "config": "config", "actions": "actions"}.items()
}

ROCK = yaml.safe_load((ROOT / "workload/rockcraft.yaml").read_text())


def recorded(name: str) -> dict[str, str]:
    """A databag of a relation with Istio; `tests/data/relations/README.md` says how it came."""
    return json.loads((ROOT / f"tests/data/relations/{name}.json").read_text())


PILOT = testing.Relation("istio-pilot", remote_app_data=recorded("istio-pilot"))
METADATA = testing.Relation("istio-metadata", remote_app_data=recorded("istio-metadata"))
# What Pebble has when a container starts.
STARTED: dict[str, Any] = {
    "layers": {"rock": pebble.Layer({"services": ROCK["services"], "checks": ROCK["checks"]})},
    "service_statuses": {},
    "check_infos": frozenset(
        {testing.CheckInfo("ready", level=pebble.CheckLevel.READY, threshold=1)}
    ),
}

# The status while the workload answers as `Workload` does at first.
WELL = "2 namespaces selected; istio-sidecar-injector live since 2026-11-21 19:40Z"
SINCE = "2026-11-21T19:40:12.5Z"


def active(more: str = "") -> testing.ActiveStatus:
    """The status of a unit that works, with more to say."""
    return testing.ActiveStatus(WELL + more)


def injector(state: str = "live", why: str = "it injects", name: str = "istio-sidecar-injector"):
    """One of the injectors in /status."""
    return {
        "configuration": name,
        "state": state,
        "why": why,
        "since": SINCE,
        "revision": "default",
        "native": "native",
    }


TROUBLED = {"uid": "1", "reason": "404"}
# What else /status has, unless `more` says otherwise.
NOTHING = {
    "start-mode": "auto", "watched-pods": 0, "unmeshed-pods": [], "unreadable-objects": [],
    "unreadable-total": 0, "leader": True, "quit": "enabled", "race": "report",
    "sidecars": {"pods": 0, "namespaces": 0, "most": {}}, "called-before-us": [],
    "unmeshed-total": 0, "unmeshed-unknown": 0, "capability": "native",
    "capability-why": "istio: sidecars are native on request",
}  # fmt: skip


class Workload:
    """Answers /status and /pods on localhost, and /pods at the address of another unit."""

    def __init__(self) -> None:
        self.running = True
        self.missing: list[str] = []
        self.revision = istio_aux.revision()
        self.more: dict[str, Any] = {}  # What it says beside this, or otherwise.
        self.namespaces = ["team-a", "team-b"]
        self.stuck: list[dict[str, str]] = []
        self.lost: list[dict[str, str]] = []
        self.blocked: list[dict[str, str]] = []
        self.held: list[Found] = []
        self.injectors: list[dict[str, str]] = [injector()]
        self.injects: bool | None = True
        self.applications: list[dict[str, Any]] = []
        self.pods: list[Found] = []
        self.leads = True  # Whether it is this unit's process that holds the Lease.
        # The certificate's file, which the workload follows.
        self.certificate = Path()

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        if not self.running:
            raise httpx2.ConnectError("connection refused")
        if request.url.path == "/pods":
            return self._list(request.url)
        assert str(request.url) == f"{probe.STATUS_URL}/status"
        status = {
            "ready": not self.missing,
            "missing": self.missing,
            "selected-namespaces": self.namespaces,
            "stuck-pods": [TROUBLED | pod for pod in self.stuck],
            "lost-pods": [TROUBLED | pod for pod in self.lost],
            "blocked-pods": [TROUBLED | pod for pod in self.blocked],
            "lost-total": len(self.lost),
            "blocked-total": len(self.blocked),
            "holders": msgspec.to_builtins(run_now(group(self.held))),
            "injectors": self.injectors,
            "injector-live": self.injects,
            "applications": self.applications,
            "lease-holder": "istio-aux-1_5e6f",
            "token-expires": SINCE,
            "certificate": self._fingerprint(),
            "version": "1.2.3",
            "revision": self.revision,
        }
        return httpx2.Response(200, json=NOTHING | status | self.more)

    def _list(self, url: httpx2.URL) -> httpx2.Response:
        """Page the pods as the workload does; only the leader knows stuck ones."""
        leads = (url.host == "localhost") == self.leads
        if url.host not in {"localhost", "10.1.0.10"}:
            raise httpx2.ConnectError("no route to host")
        query = url.params
        states = query.get_list("state")
        seen = (pod for pod in self.pods if pod.state in states and (leads or pod.attempts is None))
        limit, holders = int(query["limit"]), run_now(group(self.held if leads else []))
        found = page(
            sorted(seen, key=place),
            after=query["after"],
            limit=limit,
            leader=leads,
            holders=holders,
        )
        return httpx2.Response(200, content=msgspec.json.encode(found))

    def _fingerprint(self) -> str:
        there = self.certificate.is_file()
        return certificates.Leaf(self.certificate.read_text(), "").fingerprint if there else ""


@dataclasses.dataclass
class Unit:
    """A unit of the charm, and what it talks to. Each event starts from the state of the last."""

    ctx: testing.Context[IstioAuxCharm]
    state: testing.State
    api: ApiServer
    process: Workload
    etc: Path
    kubeconfig: Path

    def run(self, event: Any = None, **changes: Any) -> Any:
        """Change the state, emit an event (update-status by default); return the status."""
        changed = dataclasses.replace(self.state, **changes)
        with self.ctx(event or self.on.update_status(), changed) as manager:
            self.state = manager.run()
        self.change_container(notices=[])
        return self.state.unit_status

    def configure(self, **options: str | int | bool) -> Any:
        """Emit config-changed; these options are set, all others have their defaults."""
        named = {name.replace("_", "-"): value for name, value in options.items()}
        return self.run(self.on.config_changed(), config=named)

    def follow(self, event: Any = None) -> Any:
        """Emit an event to the unit, which does not lead any more."""
        return self.run(event, leader=False)

    def act(self, name: str, **params: Any) -> dict[str, Any]:
        """Run an action; return its results."""
        self.run(self.on.action(name, params=params))
        assert self.ctx.action_results is not None
        return self.ctx.action_results

    def remove(self, event: str = "remove", **changes: Any) -> Any:
        """Remove the unit, which is the last one."""
        return self.run(getattr(self.on, event)(), **{"planned_units": 0, **changes})

    def replace(self, event: Any = None, **changes: Any) -> Any:
        """Replace the unit's pod: files and plan of its container are gone."""
        for path in self.etc.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.change_container(**STARTED)
        self.process.running = False
        status = self.run(event or self.on.pebble_ready(self.container), **changes)
        self.process.running = "config.yaml" in self.files
        return status

    def relate(self, *relations: testing.Relation, **changes: Any) -> Any:
        """Add relations, change the rest of the state, emit relation-changed for the first."""
        every = {*self.state.relations, *relations}
        return self.run(self.on.relation_changed(relations[0]), relations=every, **changes)

    def leave(self, relation: testing.Relation) -> Any:
        """Emit relation-broken; then the relation is gone."""
        gone = self.state.get_relation(relation.id)
        status = self.run(self.on.relation_broken(gone))
        kept = {one for one in self.state.relations if one.id != gone.id}
        self.state = dataclasses.replace(self.state, relations=kept)
        return status

    def change_container(self, **changes: Any) -> None:
        """Change facts of the workload's container."""
        container = dataclasses.replace(self.container, **changes)
        self.state = dataclasses.replace(self.state, containers={container})

    def note(self, noted: Mapping[str, str]) -> None:
        """Have the leader noted something else in the peer relation; nothing else is related."""
        (peers,) = self.state.get_relations("peers")
        changed = dataclasses.replace(peers, local_app_data={**self.noted, **noted})
        self.state = dataclasses.replace(self.state, relations={changed})

    @property
    def noted(self) -> dict[str, str]:
        """What the leader has noted in the peer relation."""
        (peers,) = self.state.get_relations("peers")
        return dict(peers.local_app_data)

    @property
    def on(self) -> Any:
        return self.ctx.on

    @property
    def container(self) -> testing.Container:
        return self.state.get_container(CONTAINER)

    @property
    def wakes(self) -> bool:
        """Whether Pebble wakes the charm again after a while."""
        return self.container.service_statuses.get(workload.WAKE) is pebble.ServiceStatus.ACTIVE

    @property
    def files(self) -> dict[str, str]:
        """Name and content of the files in the workload's /etc/istio-aux."""
        return {
            str(path.relative_to(self.etc)): path.read_text()
            for path in self.etc.rglob("*")
            if path.is_file()
        }

    @property
    def settings(self) -> dict[str, Any]:
        """The workload's settings."""
        return yaml.safe_load(self.files["config.yaml"])


def fail(
    patch: pytest.MonkeyPatch,
    tool: str,
    error: Exception,
    of: type[Any] = mocking._MockModelBackend,
) -> None:
    """Have one of Juju's hook tools fail, or a request to Pebble."""

    def failing(*_: Any, **__: Any) -> None:
        raise error

    patch.setattr(of, tool, failing)


@contextlib.contextmanager
def set_up(folder: Path, api: ApiServer, state: testing.State | None = None) -> Iterator[Unit]:
    """A unit with its credentials and its container in `folder`, which may be in use already."""
    etc, process = folder / "etc", Workload()
    etc.mkdir(parents=True, exist_ok=True)
    if not (folder / "ca.crt").exists():
        (folder / "ca.crt").write_text(certificates.make_authority("ca", "cluster").certificate)
    cluster = {
        "server": "https://10.152.183.1:443",
        "certificate-authority": str(folder / "ca.crt"),
    }
    kubeconfig(folder, cluster=cluster, user={"token": "charm"}, context={"namespace": "kubeflow"})

    class Charm(IstioAuxCharm):
        kubernetes_transport = httpx2.MockTransport(api.answer)
        workload_transport = httpx2.MockTransport(process.answer)

    process.certificate = etc / "tls" / "tls.crt"
    # The folder outlives an event, as the container does.
    mounts = {"etc": testing.Mount(location="/etc/istio-aux", source=etc)}
    state = state or testing.State(
        leader=True,
        containers={testing.Container(CONTAINER, can_connect=True, **STARTED)},
        relations={testing.PeerRelation("peers")},
        model=testing.Model("kubeflow", uuid=MODEL_ID),
    )
    ctx = testing.Context[IstioAuxCharm](Charm, app_name="istio-aux", **TEXTS)
    with pytest.MonkeyPatch.context() as patch:
        # ops.testing writes and reads the charm's YAML for every event: slow without libyaml.
        patch.setattr(yaml, "SafeDumper", yaml.CSafeDumper)
        patch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
        patch.setattr(objects, "WEBHOOK_GONE", 0.02)
        patch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
        with ctx:
            unit = Unit(ctx, state, api, process, etc, folder / "kubeconfig")
            unit.change_container(mounts=mounts)
            yield unit


Copies = Callable[[Path], contextlib.AbstractContextManager[Unit]]


def copies(unit: Unit) -> Copies:
    """Return what copies the unit as it is now."""
    state, api, folder = unit.state, copy.deepcopy(unit.api), unit.kubeconfig.parent
    kept = Path(tempfile.mkdtemp(dir=folder.parent))
    shutil.copytree(folder, kept, dirs_exist_ok=True)

    @contextlib.contextmanager
    def make(target: Path) -> Iterator[Unit]:
        shutil.copytree(kept, target, dirs_exist_ok=True)
        with set_up(target, copy.deepcopy(api), copy.deepcopy(state)) as copied:
            yield copied

    return make


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Copies, Copies]:
    """The unit after `install`, and after its next event; hooks run once for all tests."""
    with set_up(tmp_path_factory.mktemp("unit"), ApiServer()) as unit:
        # The authority is stored now, and used from the next event on.
        containers = unit.state.containers
        unit.run(unit.on.install())
        unit.state = dataclasses.replace(unit.state, containers=containers)
        unit.api.calls.clear()
        new = copies(unit)
    with new(tmp_path_factory.mktemp("settled")) as unit:
        unit.run(unit.on.config_changed())
        return new, copies(unit)


@pytest.fixture
def new_unit(installed: tuple[Copies, Copies], tmp_path: Path) -> Iterator[Unit]:
    """The leader of a new application: Pebble answers, and it has seen `install` only."""
    with installed[0](tmp_path) as unit:
        yield unit


@pytest.fixture
def unit(installed: tuple[Copies, Copies], tmp_path: Path) -> Iterator[Unit]:
    """The same after its next event."""
    with installed[1](tmp_path) as unit:
        yield unit
