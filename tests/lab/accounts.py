"""ServiceAccounts with all rights in RBAC, which policies still restrict, and with few of them."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import RoleRef, Subject
from lightkube.resources.core_v1 import Pod
from lightkube.resources.rbac_authorization_v1 import ClusterRoleBinding

import manifests
from lab import Cluster, meshed

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
        body = {"dryRun": ["All"], "preconditions": seen, **options}
        return self._ask("DELETE", _path(where), body)

    def create(self, pod: Pod, **options: str) -> str:
        """Create a pod, unless `options` have `dryRun`; returns as `connect` does."""
        path = PODS.format(meshed.meta(pod).namespace)
        return self._ask("POST", path, pod.to_dict(), **options)

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
        about = meshed.meta(pod)
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
