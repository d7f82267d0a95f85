"""What istio-aux asks of the API server: every path, and every request that is no watch.

All functions raise `KubeError`. Names of owners, and of what a webhook refers to, come from objects
that are not validated: a name that no object can have is refused here, before anything is sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from urllib.parse import quote

import msgspec

from istio_aux.kube.client import TRIES, Client
from istio_aux.kube.errors import ApiError, InvalidNameError, OversizedError, UnreadableError
from istio_aux.kube.objects import LONGEST, Key, Page, S, T, decoded, read_beginning, read_page
from istio_aux.model import owners
from istio_aux.model.pod import OwnerReference, Pod, Resource, Struct
from istio_aux.model.policy import Right
from istio_aux.model.selectors import DNS_LABEL, DNS_SUBDOMAIN, LONGEST_NAME
from istio_aux.model.text import quoted
from istio_aux.model.webhooks import ConfigMap

# Pods that have not ended, which repair watches; all but succeeded ones; pods that will end.
NOT_TERMINAL = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
NOT_SUCCEEDED = {"fieldSelector": "status.phase!=Succeeded"}
JOBS = {"fieldSelector": f"{NOT_TERMINAL['fieldSelector']},spec.restartPolicy!=Always"}

# The highest age in seconds of a read on which an exec or an eviction is based. Both address a pod
# by its name, which another pod may have got meanwhile.
FRESH = 1.0
READS = 3  # Reads before giving up: an answer, or the exec, may wait for a new connection.

PAGE = 100  # Objects of a page: a body with 500 pods has 7 MB, and is in memory twice.
LONGEST_PAGE = 4 << 20  # Bytes of a page: decoded, it may need ten times as much memory.


class _NodeInfo(Struct, frozen=True):
    kubelet_version: str = ""


class _NodeStatus(Struct, frozen=True):
    node_info: _NodeInfo = _NodeInfo()


class Node(Resource, frozen=True):
    """A node, by its name and the version of its kubelet."""

    status: _NodeStatus = _NodeStatus()


class _Resource(Struct, frozen=True):
    resource: str = ""
    response_kind: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    scope: str = ""
    singular_resource: str = ""
    short_names: tuple[str, ...] | None = None


class _ApiVersion(Struct, frozen=True):
    version: str = ""
    resources: tuple[_Resource, ...] | None = None


class _ApiGroup(Resource, frozen=True):
    versions: tuple[_ApiVersion, ...] | None = None


class _Discovery(Struct, frozen=True):
    """All types that the API server serves."""

    items: tuple[_ApiGroup, ...] | None = None


class ServedType(msgspec.Struct, frozen=True):
    """A type that the API server serves, and its names in lower case, the plural first."""

    group: str
    version: str
    plural: str
    kind: str
    names: tuple[str, ...]
    namespaced: bool = True

    @property
    def api(self) -> str:
        """Group and version, as in ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version


class _AccessStatus(Struct, frozen=True):
    allowed: bool = False


class _AccessReview(Struct, frozen=True):
    """Whether the account has a right."""

    status: _AccessStatus = _AccessStatus()


async def read(client: Client, path: str, kind: type[S]) -> S | None:
    """Read one object; None if it does not exist."""
    try:
        body = await client.get(path)
    except ApiError as error:
        if error.code != 404:
            raise
        return None
    return decoded(body, kind)


async def read_pod(client: Client, pod: Key) -> Pod | None:
    """Read a pod as it is now; None if it is gone, or another pod has its name."""
    stored = await read(client, pod_path(pod.namespace, pod.name), Pod)
    return stored if stored and stored.metadata.uid == pod.uid else None


async def read_kubelet(client: Client, node: str) -> str:
    """Read the version of a node's kubelet; empty if there is no such node."""
    stored = await read(client, f"{NODES}/{object_name(node)}", Node)
    return stored.status.node_info.kubelet_version if stored else ""


async def read_job(client: Client, namespace: str, owner: OwnerReference) -> owners.Job | None:
    """Read the batch Job that ``owner`` names; None if it is gone, or another has its name."""
    stored = await read(
        client, object_path(owner.api_version, "jobs", namespace, owner.name), owners.Job
    )
    return stored if stored and stored.metadata.uid == owner.uid else None


# One answer for all groups; from Kubernetes 1.27 on (KEP-3352).
_GROUPS = ",".join(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
    for version in ("v2", "v2beta1")
)
# Asks for only the metadata of a list's objects.
ONLY_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


async def served_types(client: Client) -> list[ServedType]:
    """Return all served types, with the preferred version first where a name is shared."""
    types = list[ServedType]()
    for path in ("/api", "/apis"):
        for of in decoded(await client.get(path, accept=_GROUPS), _Discovery).items or ():
            types += _types(of)
    return types


def _types(of: _ApiGroup) -> Iterator[ServedType]:
    group = of.metadata.name
    known = set[str]()
    for version in of.versions or ():
        for each in version.resources or ():
            if each.resource in known:  # The first version is the preferred one.
                continue
            known.add(each.resource)
            kind = each.response_kind.get("kind", "")
            plain = (each.resource, each.singular_resource or kind.lower(), kind.lower())
            full = [f"{name}.{group}" for name in plain if group]
            yield ServedType(
                group,
                version.version,
                each.resource,
                kind,
                tuple(dict.fromkeys((*plain, *(each.short_names or ()), *full))),
                namespaced=each.scope == "Namespaced",
            )


async def read_config_map(client: Client, namespace: str, name: str) -> Mapping[str, str]:
    """Read the data of a ConfigMap; `ApiError` 404 if it does not exist."""
    body = await client.get(object_path("v1", "configmaps", namespace, name))
    return decoded(body, ConfigMap).data or {}


async def pages(
    client: Client,
    path: str,
    kind: type[T],
    selection: Mapping[str, str],
    *,
    limit: int = PAGE,
    restarted: Callable[[], None] = lambda: None,
    accept: str = "",
) -> AsyncGenerator[Page[T]]:
    """List a collection page by page, in pages of up to ``limit`` objects.

    A page has fewer while it would be longer than `LONGEST_PAGE`; an object that is longer
    than `LONGEST` is unreadable. ``restarted`` is called when the list begins again: the pages
    before count for nothing. ``accept`` is the form of the answer, if it is not whole objects.
    """
    params = {**selection}
    throttled = 0
    lists = 1
    most = limit
    while True:
        try:
            body = await client.get(
                path,
                {**params, "limit": str(limit)},
                accept=accept,
                longest=LONGEST if limit == 1 else LONGEST_PAGE,
            )
            page = await read_page(body, kind)
            if len(body) <= LONGEST_PAGE // 4:
                limit = min(limit * 2, most)
            del body  # The caller may handle the page for long.
        except OversizedError as error:
            if limit > 1:
                limit = max(1, limit // 4)
                continue
            page = read_beginning(error.beginning)
        except ApiError as error:
            if "continue" not in params:
                raise
            if error.code == 429 and error.retry_after is not None and throttled < TRIES:
                # A new list would cost the server all pages so far.
                throttled += 1
                await asyncio.sleep(error.retry_after)
                continue
            if error.code != 410 or lists == 3:
                raise
            # A list has to end before its snapshot expires: etcd is compacted every 5 minutes.
            lists += 1
            limit = most = most * 5
            del params["continue"]
            restarted()
            continue
        yield page
        if not page.metadata.next:
            return
        params["continue"] = page.metadata.next


async def list_kept(
    client: Client,
    path: str,
    kind: type[T],
    selection: Mapping[str, str],
    keep: Callable[[T], S],
    *,
    limit: int = PAGE,
) -> list[S]:
    """List what ``keep`` returns for each object; `UnreadableError` if one cannot be decoded."""
    items = list[S]()
    async with aclosing(
        pages(client, path, kind, selection, limit=limit, restarted=items.clear)
    ) as listed:
        async for page in listed:
            if page.unreadable:
                raise UnreadableError(f"cannot read {page.unreadable[0]}")
            items += map(keep, page.items)
    return items


async def evict(client: Client, pod: Key, resource_version: str) -> None:
    """Evict a pod, only in this version.

    `ApiError` 409: it has another UID or version. 429: a PodDisruptionBudget does not allow it now.
    403: no permission, or the namespace is being deleted (k8s@1.36 eviction.go).
    """
    await client.send(
        "POST",
        pod_path(pod.namespace, pod.name, "eviction"),
        msgspec.json.encode(
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"namespace": pod.namespace, "name": pod.name},
                "deleteOptions": {"preconditions": _preconditions(pod, resource_version)},
            }
        ),
    )


async def delete_pod(client: Client, pod: Key, resource_version: str) -> None:
    """Delete a pod, only in this version: `ApiError` 409 if it has another UID or version."""
    await client.send(
        "DELETE",
        pod_path(pod.namespace, pod.name),
        msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": _preconditions(pod, resource_version),
            }
        ),
    )


async def dry_run_pod(client: Client, namespace: str, pod: bytes) -> bytes:
    """Create a pod from JSON in a dry run; returns it as all webhooks would leave it."""
    return await client.send("POST", collection("v1", "pods", namespace), pod, {"dryRun": "All"})


async def allowed(client: Client, right: Right) -> bool:
    """Whether the account of this client has a right; every account may ask."""
    resource, _, subresource = right.resource.partition("/")
    api = "authorization.k8s.io/v1"
    answer = await client.send(
        "POST",
        collection(api, "selfsubjectaccessreviews"),
        msgspec.json.encode(
            {
                "apiVersion": api,
                "kind": "SelfSubjectAccessReview",
                "spec": {
                    "resourceAttributes": {
                        "verb": right.verb,
                        "group": right.group,
                        "resource": resource,
                        "subresource": subresource,
                        "namespace": right.namespace,
                        "name": right.name,
                    }
                },
            }
        ),
    )
    return decoded(answer, _AccessReview).status.allowed


def _preconditions(pod: Key, resource_version: str) -> dict[str, str]:
    return {"uid": pod.uid, "resourceVersion": resource_version}


_API = re.compile(r"(?:[a-z0-9][-.a-z0-9]*/)?v[1-9][a-z0-9]*")


def collection(api: str, resource: str, namespace: str = "") -> str:
    """The path of ``resource``, such as ``pods``, in one namespace, or in all if it is empty.

    `InvalidNameError` if no ``api`` (``v1``, or group and version) has such a name.
    """
    if not _API.fullmatch(api):
        raise InvalidNameError(f"apiVersion {quoted(api)}: the API server serves none of that name")
    root = "apis" if "/" in api else "api"
    middle = f"/namespaces/{namespace_name(namespace)}" if namespace else ""
    return f"/{root}/{api}{middle}/{quote(resource, safe='')}"


def object_path(
    api: str,
    resource: str,
    namespace: str,
    name: str,
    subresource: str = "",
) -> str:
    """The path of an object or its subresource; `InvalidNameError` if a name is impossible."""
    namespace_name(namespace)
    path = f"{collection(api, resource, namespace)}/{object_name(name)}"
    return f"{path}/{subresource}" if subresource else path


def pod_path(namespace: str, name: str, subresource: str = "") -> str:
    """The path of a pod, or of its subresource such as ``exec``; see `object_path`."""
    return object_path("v1", "pods", namespace, name, subresource)


def object_name(name: str) -> str:
    """Return ``name``; `InvalidNameError` if no object with a DNS name can have it."""
    return _checked(name, DNS_SUBDOMAIN, "name")


def namespace_name(name: str) -> str:
    """Return ``name``; `InvalidNameError` if no namespace can have it."""
    return _checked(name, DNS_LABEL, "namespace")


def _checked(name: str, form: re.Pattern[str], what: str) -> str:
    if len(name) > LONGEST_NAME or not form.fullmatch(name):
        raise InvalidNameError(f"{what} {quoted(name)}: no object can have it (RFC 1123)")
    return name


CONFIGURATIONS = collection("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
NAMESPACES = collection("v1", "namespaces")
NODES = collection("v1", "nodes")
PODS = collection("v1", "pods")
