"""The Istio of each world, and a service in its mesh that notes who has called it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import lab.istio
from lab import images
from lab.fixtures import await_root, make_namespace
from lab.workloads import Pod
from lightkube import Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import ConfigMap, LimitRange, Namespace, ResourceQuota, Service

from twins.manifests import (
    KNOWN,
    KNOWN_WORDS,
    PORT,
    PROXY_RESOURCES,
    SERVED,
    Document,
    container,
)

NATIVE: Mapping[str, lab.istio.World] = {
    "unasked": "default", "on-request": "on request", "never": "never", "revision": "default",
}  # fmt: skip
TAG, OTHER = "twins-tag", "twins-other"
SERVICE = "server"
# It counts how often a container has called, and calls back the address that one may give.
ANSWER = f"""\
#!/bin/sh
who=${{QUERY_STRING%%&*}}
echo "$who" | tee -a /tmp/calls >/proc/1/fd/1
case $QUERY_STRING in
*back=*)
    at=${{QUERY_STRING##*back=}}
    (for n in $(seq 30); do wget -q -O- http://$at:{SERVED}/ && break; sleep 1; done
    ) </dev/null >/dev/null 2>&1 &
esac
printf 'Content-Type: text/plain\\r\\n\\r\\n'
grep -cx "$who" /tmp/calls
"""

_KINDS = {
    "ConfigMap": ConfigMap,
    "LimitRange": LimitRange,
    "ResourceQuota": ResourceQuota,
    "Service": Service,
    "PeerAuthentication": create_namespaced_resource(
        "security.istio.io", "v1", "PeerAuthentication", "peerauthentications"
    ),
    "Sidecar": create_namespaced_resource("networking.istio.io", "v1", "Sidecar", "sidecars"),
}


@dataclass(frozen=True)
class World:
    """An Istio of one kind, and a service in its mesh."""

    name: str
    cluster: lab.Cluster
    istio: lab.istio.Istio
    labels: Mapping[str, str]  # Of namespaces that it injects.
    settings: Mapping[str, str]  # Of a workload beside it.
    revisions: tuple[str, ...]
    server: str  # The address of the service's pod.
    namespace: str  # That of the service.


@contextlib.contextmanager
def world(cluster: lab.Cluster, name: str, *, cni: bool = False) -> Iterator[World]:
    """An Istio that makes sidecars native as this world says, until the block ends.

    ``cni``: whether its pods wait for istio-cni.
    """
    revision = f"twins-{name}"
    names, tags = [revision], [TAG] if name == "revision" else []
    istio = lab.istio.install(
        cluster, revision, revision=revision, native=NATIVE[name], tags=tags,
        resources=PROXY_RESOURCES, cni=cni,
    )  # fmt: skip
    with contextlib.ExitStack() as ends:
        client = ends.enter_context(cluster.client())
        ends.callback(istio.remove)
        # Other worlds may be there, too; in that of a tag, both of its Istios count.
        settings = {} if tags else {"root-namespace": revision}
        if tags:
            other = lab.istio.install(cluster, OTHER, revision=OTHER, native="never", cni=cni)
            ends.callback(other.remove)
            names.append(OTHER)
        labels = {"istio.io/rev": tags[0] if tags else revision}
        namespace = f"server-{secrets.token_hex(3)}"
        address = _serve(client, namespace, labels)
        ends.callback(client.delete, Namespace, namespace)
        yield World(name, cluster, istio, labels, settings, tuple(names), address, namespace)


def load(cluster: lab.Cluster) -> None:
    """Load the images of the pairs."""
    cluster.load(images.busybox())
    cluster.load(images.stand_in(KNOWN, *KNOWN_WORDS))


def _serve(client: Client, namespace: str, labels: Mapping[str, str]) -> str:
    """Start the service, which takes mutual TLS alone; return the address of its pod."""
    make_namespace(client, namespace, labels)
    await_root(client, namespace)
    strict = {"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
              "metadata": {"name": "strict"}, "spec": {"mtls": {"mode": "STRICT"}}}  # fmt: skip
    create(client, strict, namespace)
    about = {"metadata": {"name": SERVICE}}
    create(client, {"kind": "ConfigMap", **about, "data": {"call": ANSWER}}, namespace)
    ports = [{"name": "tcp", "port": PORT}]
    spec = {"clusterIP": "None", "selector": {"app": SERVICE}, "ports": ports}
    create(client, {"kind": "Service", **about, "spec": spec}, namespace)
    httpd = container("httpd", f": >/tmp/calls; exec httpd -f -p {PORT} -h /www")
    httpd["volumeMounts"] = [{"name": "www", "mountPath": "/www/cgi-bin"}]
    httpd["ports"] = [{"containerPort": PORT}]
    volume = {"name": "www", "configMap": {"name": SERVICE, "defaultMode": 0o755}}
    about = {"name": SERVICE, "namespace": namespace, "labels": {"app": SERVICE}}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [httpd], "volumes": [volume]}
    client.create(Pod.from_dict({"metadata": about, "spec": spec}))

    def address() -> str | None:
        status = client.get(Pod, SERVICE, namespace=namespace)["status"]
        ready = {c["type"] for c in status.get("conditions") or () if c["status"] == "True"}
        return status["podIP"] if "Ready" in ready else None

    return lab.until(address, what="the service in the mesh")


def create(client: Client, document: Document, namespace: str) -> None:
    """Create an object of what a namespace has beside Jobs."""
    metadata = {**document["metadata"], "namespace": namespace}
    client.create(_KINDS[document["kind"]].from_dict({**document, "metadata": metadata}))
