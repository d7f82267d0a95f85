"""A fake Kubernetes API server with what the charm needs of it.

`tests/cluster` tests real RBAC, admission and server-side apply.
"""

from __future__ import annotations

import base64
import copy
import json
import time
from collections.abc import Callable
from typing import Any

import httpx2
from simulation.store import Path, parse, selection

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

    def _act(self, request: httpx2.Request, to: Path, body: dict[str, Any]) -> httpx2.Response:
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

    def _list(self, request: httpx2.Request, to: Path) -> httpx2.Response:
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
