"""Lean clients: one creates pods, many at once or at a rate, and records each result.

Another asks as one ServiceAccount, with all rights in RBAC, which policies still restrict, or with
few of them. Not lightkube: it drops the headers of an answer, and its models would take more CPU
than all that is measured.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import aiohttp
import httpx2
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import RoleRef, Subject
from lightkube.resources.core_v1 import Pod
from lightkube.resources.rbac_authorization_v1 import ClusterRoleBinding

import manifests
from lab import Cluster, until
from lab.meshed import meta, typed

# Seconds. The API server itself gives a creation 34 s, and the machine may be very busy.
ANSWER = 120.0
_JSON = {"Content-Type": "application/json"}
# Creations at once. More wait for their turn: a rate that is too high for the machine gets lower,
# and an API server that has half a core still answers others.
AT_ONCE = 32
LATE = 0.2  # seconds


@dataclass(frozen=True)
class Creation:
    """How the creation of a pod went."""

    status: int  # The HTTP status; 201 is success.
    body: bytes  # The pod as it was stored, or a Status; JSON.
    warnings: tuple[str, ...]  # The Warning headers.
    audit_id: str  # The request's name in the audit log.
    began: float  # When it began, by the monotonic clock.
    seconds: float  # From the request to the end of its answer.

    @property
    def pod(self) -> Pod:
        """The pod. Raises ValueError: it was refused; the message is the API server's."""
        document = json.loads(self.body)
        if self.status != 201:
            raise ValueError(document["message"])
        return typed(Pod, document)

    def audit(self, cluster: Cluster) -> dict[str, str]:
        """The annotations of its event in the audit log, once there. Raises TimeoutError."""

        return until(
            lambda: next(audited(cluster, about=self.audit_id), None),
            what=f"audit event {self.audit_id} in {cluster.audit}",
        ).get("annotations", {})


def audited(cluster: Cluster, *, about: str = "") -> Iterator[dict[str, Any]]:
    """The events in the audit log so far, those whose text has `about` in it."""
    # Without its end, the last line may be half of one.
    whole, _, _ = cluster.audit.read_text().rpartition("\n")
    return (json.loads(line) for line in whole.splitlines() if about in line)


def create(
    cluster: Cluster,
    *pods: Pod,
    dry_run: bool = False,
    at_once: int = AT_ONCE,
) -> list[Creation]:
    """Create pods as an administrator, so many ``at_once``; returns how each went, in order."""
    query = "?dryRun=All" if dry_run else ""
    requests = [_request(cluster, pod) for pod in pods]

    async def run() -> list[Creation]:
        # A creation's time does not include the wait for its turn.
        turns = asyncio.Semaphore(at_once)

        async def one(url: str, body: bytes) -> Creation:
            async with turns:
                return await _post(session, url + query, body)

        async with _session(cluster) as session:
            return await asyncio.gather(*(one(url, body) for url, body in requests))

    return asyncio.run(run())


def send(cluster: Cluster, method: str, path: str, body: bytes = b"{}") -> tuple[int, bytes]:
    """Send an administrator's request of any bytes, and return the status and body of its answer.

    For what no Python client can write or read, such as objects that are nested deeply.
    """
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"

    async def run() -> tuple[int, bytes]:
        async with (
            _session(cluster) as session,
            session.request(
                method, f"{cluster.server}{path}", data=BytesIO(body),
                headers={"Content-Type": kind, "Content-Length": str(len(body))},
            ) as answer,
        ):  # fmt: skip
            return answer.status, await answer.read()

    return asyncio.run(run())


class Stream:
    """Creates pods like this one at a rate while it is open; `creations` are those that ended."""

    def __init__(self, cluster: Cluster, pod: Pod, *, rate: float, dry_run: bool = False) -> None:
        """`rate`: creations a second; `dry_run`: they are admitted, and not stored."""
        self.creations: list[Creation] = []
        self._cluster, self._pod, self._rate = cluster, pod, rate
        self._query = "?dryRun=All" if dry_run else ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="creations")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def await_more(self, count: int) -> list[Creation]:
        """Return the creations that began after this call did, once so many have ended."""
        now, seen = time.monotonic(), len(self.creations)

        def more() -> list[Creation]:
            return [creation for creation in self.creations[seen:] if creation.began > now]

        until(lambda: len(more()) >= count, what=f"{count} more pods to be created")
        return more()

    async def _run(self) -> None:
        slots = asyncio.Semaphore(AT_ONCE)
        url, body = _request(self._cluster, self._pod)

        async def one() -> None:
            try:
                self.creations.append(await _post(session, url + self._query, body))
            finally:
                slots.release()

        async with _session(self._cluster) as session, asyncio.TaskGroup() as group:
            due = time.monotonic()
            while not self._stop.is_set():
                await slots.acquire()
                group.create_task(one())
                # A delay of up to `LATE` is made up for.
                due = max(due + 1 / self._rate, time.monotonic() - LATE)
                await asyncio.sleep(due - time.monotonic())  # The rate is the point.


def _session(cluster: Cluster) -> aiohttp.ClientSession:
    """A client as an administrator."""
    pair = cluster.issue("creator", "creator", organizations=["system:masters"])
    context = ssl.create_default_context(cafile=cluster.ca)
    context.load_cert_chain(pair.certificate, pair.key)
    connector = aiohttp.TCPConnector(ssl=context)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(ANSWER))


def _request(cluster: Cluster, pod: Pod) -> tuple[str, bytes]:
    url = f"{cluster.server}/api/v1/namespaces/{meta(pod).namespace}/pods"
    return url, json.dumps(pod.to_dict()).encode()


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> Creation:
    began = time.monotonic()
    async with session.post(url, data=BytesIO(body), headers=_JSON) as answer:
        made = await answer.read()
    return Creation(
        status=answer.status,
        body=made,
        warnings=tuple(answer.headers.getall("Warning", [])),
        audit_id=answer.headers["Audit-Id"],
        began=began,
        seconds=time.monotonic() - began,
    )


PODS = "/api/v1/namespaces/{}/pods"
QUIT = manifests.QUIT_COMMANDS[2]
EVENTS, LEASES = "events.k8s.io/v1", "coordination.k8s.io/v1"
RBAC = "rbac.authorization.k8s.io"
DRY_RUN = {"dryRun": "All"}


class Account:
    """Asks the API server as one ServiceAccount."""

    def __init__(self, cluster: Cluster, kubeconfig: Path) -> None:
        (user,) = json.loads(kubeconfig.read_text())["users"]
        self._http = httpx2.Client(
            base_url=cluster.server,
            headers={"Authorization": f"Bearer {user['user']['token']}"},
            verify=ssl.create_default_context(cafile=str(cluster.ca)),
            timeout=30,
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, body: Any = None, **options: Any) -> str:
        """Send a request; returns why it is refused, or nothing."""
        return _refusal(self._http.request(method, path, json=body, params=options))

    def connect(self, subresource: str, where: str, **options: str | Sequence[str]) -> str:
        """Connect to a pod (`namespace/name`); returns why it is refused, or nothing."""
        refusal = self._ask("POST", f"{_path(where)}/{subresource}", stdout="true", **options)
        return "" if refusal == "400: Upgrade request required" else refusal

    def execute(
        self, where: str, command: Sequence[str] = QUIT, **options: str | Sequence[str]
    ) -> str:
        """Execute in istio-proxy, unless `options` say otherwise; returns as `connect` does."""
        options = {"container": "istio-proxy", "command": command, **options}
        return self.connect("exec", where, **options)

    def delete(self, where: str, *preconditions: str, **options: Any) -> str:
        """Ask for the deletion of a pod, which stays, if these fields of it are as they were."""
        found: dict[str, Any] = self._http.get(_path(where)).json().get("metadata", {})
        seen = {field: found.get(field) for field in preconditions}
        return self._ask(
            "DELETE", _path(where), {"dryRun": ["All"], "preconditions": seen, **options}
        )

    def create(self, pod: Pod, **options: str) -> str:
        """Create a pod, unless `options` have `dryRun`; returns as `connect` does."""
        return self._ask("POST", PODS.format(meta(pod).namespace), pod.to_dict(), **options)

    def create_lease(self, namespace: str, metadata: dict[str, Any], **spec: Any) -> str:
        lease = {"apiVersion": LEASES, "kind": "Lease", "metadata": metadata, "spec": spec}
        return self._ask("POST", f"/apis/{LEASES}/namespaces/{namespace}/leases", lease, **DRY_RUN)

    def update_lease(self, namespace: str, name: str, metadata: dict[str, Any], **spec: Any) -> str:
        """Replace fields of a Lease, as a dry run; returns as `connect` does."""
        path = f"/apis/{LEASES}/namespaces/{namespace}/leases/{name}"
        while True:
            lease = self._http.get(path).json()
            lease["metadata"] |= metadata
            lease["spec"] |= spec
            refusal = self._ask("PUT", path, lease, **DRY_RUN)
            # Its holder renews it meanwhile.
            if not refusal.startswith("409"):
                return refusal

    def create_event(self, namespace: str, event: dict[str, Any]) -> str:
        body = {"apiVersion": EVENTS, "kind": "Event", **event}
        return self._ask("POST", f"/apis/{EVENTS}/namespaces/{namespace}/events", body, **DRY_RUN)

    def request_token(self, account: str, **spec: Any) -> str:
        """Request a token for a ServiceAccount (`namespace/name`); returns as `connect` does."""
        namespace, _, name = account.partition("/")
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return self._ask("POST", path, request)

    def evict(self, pod: Pod, *preconditions: str, **options: Any) -> str:
        """Ask for the eviction of a pod, which stays, if these fields of it are as they were."""
        about = meta(pod)
        seen = {field: getattr(about, field) for field in preconditions}
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": about.name, "namespace": about.namespace},
            "deleteOptions": {"dryRun": ["All"], "preconditions": seen, **options},
        }
        return self._ask("POST", f"{_path(f'{about.namespace}/{about.name}')}/eviction", eviction)

    def patch(self, path: str, change: dict[str, Any]) -> str:
        """Merge `change` into what is at `path`, as a dry run; returns as `connect` does."""
        return self._patch("merge-patch+json", path, change, DRY_RUN)

    def apply(self, path: str, wanted: dict[str, Any]) -> str:
        """Apply an object on the server's side, as a dry run; returns as `connect` does."""
        return self._patch("apply-patch+yaml", path, wanted, {**DRY_RUN, "fieldManager": "lab"})

    def _patch(self, kind: str, path: str, body: dict[str, Any], params: dict[str, str]) -> str:
        headers = {"content-type": f"application/{kind}"}
        return _refusal(
            self._http.patch(path, params=params, headers=headers, content=json.dumps(body))
        )


def administrator(cluster: Cluster, namespace: str, account: str) -> Account:
    """The account, which may do anything from now on as far as RBAC says."""
    binding = ClusterRoleBinding(
        metadata=ObjectMeta(name=f"{namespace}-{account}-is-an-administrator"),
        roleRef=RoleRef(name="cluster-admin", kind="ClusterRole", apiGroup=RBAC),
        subjects=[Subject(kind="ServiceAccount", name=account, namespace=namespace)],
    )
    with cluster.client() as client:
        client.create(binding)
    return Account(cluster, cluster.kubeconfig_for(namespace, account))


def _path(pod: str) -> str:
    namespace, _, name = pod.partition("/")
    return f"{PODS.format(namespace)}/{name}"


def _refusal(answer: httpx2.Response) -> str:
    return "" if answer.is_success else f"{answer.status_code}: {answer.json()['message']}"
