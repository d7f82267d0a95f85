"""Stand-in for an installed Istio: istiod, its webhook configurations and the proxy image.

It emulates what a Job sees of Istio 1.28.10 installed by `istioctl install`: which pods are
injected, how (classic, hold, native; for all of the mesh or one pod), when the webhooks become
live, revisions, how a sidecar starts, drains and ends. It has PeerAuthentications, which nobody can
write while istiod is away. It does not: have a data plane configuration, mutual TLS, routing,
gateways, or a CNI plugin; ProxyConfig objects, which cannot hold, are not read.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkube import ApiError, codecs
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod, Service
from lightkube.resources.discovery_v1 import EndpointSlice

from lab import images, ports
from lab.istio import validation, webhooks
from lab.istio.sidecar import PROXY, Template, World
from lab.meshed import has_sidecar
from lab.waiting import until

if TYPE_CHECKING:
    from lab import Cluster, Process

__all__ = ["PROXY", "Istio", "World", "install"]

TEMPLATE = "template.json"

# Measured on 2 cores: 1 s until the injector is live, 10 s with six builds and test runs beside it.
LIVE = 100


@dataclasses.dataclass(frozen=True)
class Istio:
    """An installed stand-in; `folder` has its certificates and its template."""

    cluster: Cluster
    folder: Path
    namespace: str
    revision: str
    port: int
    process: Process
    configurations: tuple[str, ...]
    template: Template

    @property
    def bundle(self) -> str:
        """The caBundle that istiod writes, once it is told to."""
        return base64.b64encode((self.folder / "root.crt").read_bytes()).decode()

    def trust(self, bundle: str | None) -> None:
        """Write another caBundle into all webhooks; istiod corrects it if it `writes_ca`."""
        with self.cluster.client() as client:
            for name in self.configurations:
                found = client.get(MutatingWebhookConfiguration, name)
                for webhook in found.webhooks or ():
                    webhook.clientConfig.caBundle = bundle
                client.replace(found)

    def serve(self, *, ready: bool = True) -> None:
        """Make the process the endpoint of its Service, or one that is not to be used."""
        service = webhooks.service(self.revision)
        self.cluster.publish(self.namespace, service, 443, self.port, ready=ready)

    def start(self) -> None:
        """Start its process again, which has a new CA then; returns when it serves."""
        self.process.start()
        ports.await_listener(self.process, self.cluster.host, self.port)

    def become(self, native: World) -> None:
        """Go on as another Istio, in another pod; returns when that one is live."""
        template = json.dumps(dataclasses.asdict(dataclasses.replace(self.template, native=native)))
        if (self.folder / TEMPLATE).read_text() == template:
            return
        (self.folder / TEMPLATE).write_text(template)
        self.serve(ready=False)
        self.process.kill()
        self.process.wait(LIVE)
        self.start()
        self.serve()
        self.await_live()

    def configure(self) -> None:
        """Make what `istioctl install` makes for the API server to read, without a caBundle."""
        name, *_ = self.configurations
        found = webhooks.configurations(self.namespace, self.revision, name)
        policy = webhooks.config_map(self.namespace, self.revision)
        validators = validation.configurations(self.namespace, self.revision)
        kind = validation.PEER_AUTHENTICATION
        with self.cluster.client() as client:
            for document in (kind, policy, *validators, *found):
                client.apply(codecs.from_dict(document), force=True)

    def await_live(self) -> None:
        """Return when a pod that asks for a sidecar would get one."""
        what = f"Istio's injector to be live ({self.process.log})"
        until(self._injects, what=what, ignoring=(ApiError,))

    def remove(self) -> None:
        """Remove the configurations, the Service and the injector; namespace and CRD stay."""
        with self.cluster.client() as client:
            for name in self.configurations:
                client.delete(MutatingWebhookConfiguration, name)
            # The API server learns of it a moment later, and until then wants an answer.
            for document in validation.configurations(self.namespace, self.revision):
                client.delete(ValidatingWebhookConfiguration, document["metadata"]["name"])
            gone = "the API server to forget Istio's injector"
            until(lambda: not self._injects(), what=gone, ignoring=(ApiError,))
            service = webhooks.service(self.revision)
            client.delete(Service, service, namespace=self.namespace)
            client.delete(EndpointSlice, service, namespace=self.namespace)
            policy = webhooks.config_map(self.namespace, self.revision)["metadata"]["name"]
            client.delete(ConfigMap, policy, namespace=self.namespace)
        self.process.kill()
        self.process.wait(LIVE)

    def _injects(self) -> bool:
        """Whether the API server gives a sidecar to a pod that asks for one; makes none."""
        pod = Pod(
            metadata=ObjectMeta(
                generateName="is-istio-live-",
                namespace="default",
                labels={"istio.io/rev": self.revision},
            ),
            spec=PodSpec(containers=[Container(name="main", image=images.BUSYBOX)]),
        )
        with self.cluster.client() as client:
            created = client.create(pod, dry_run=True)
        return has_sidecar(created)


def install(
    cluster: Cluster,
    namespace: str = "istio-system",
    *,
    writes_ca: bool = True,
    configuration: str | None = None,
    revision: str = webhooks.DEFAULT,
    native: World = "never",
    lifecycle: Mapping[str, Any] | None = None,
    cni: bool = False,
    proxy_ready_delay: float = 0.0,
    shell: bool = False,
) -> Istio:
    """Install the stand-in; returns when it is live, if it `writes_ca`.

    Args:
        cluster: a cluster of either level; on `node` the proxy's image is loaded as well.
        namespace: where istiod is; part of the configurations' names unless it is istio-system.
        writes_ca: False leaves the caBundles to `trust`: the configurations refuse pods until then.
        configuration: the name of the configuration that does the work, if not Istio's own.
        revision: which of several Istios, by the label `istio.io/rev`.
        native: when its sidecars are native; by default never, for tests of hold and quit.
        lifecycle, cni: as in `lab.istio.sidecar.Template`.
        proxy_ready_delay: seconds between the start of a proxy and its readiness.
        shell: whether the proxy's image has a shell, as Istio's has unless it is distroless.
    """
    if cluster.level == "node":
        cluster.load(images.proxyv2(shell=shell))
    service = webhooks.service(revision)
    image = images.PROXYV2_WITH_SHELL if shell else images.PROXYV2
    template = Template(namespace, image, native, proxy_ready_delay, revision, lifecycle, cni)
    port = ports.reserve()
    folder = cluster.state / f"{service}-{namespace}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TEMPLATE).write_text(json.dumps(dataclasses.asdict(template)))
    with cluster.client() as client:
        client.apply(Namespace(metadata=ObjectMeta(name=namespace)))
    process = cluster.spawn(
        f"{service}-{namespace}",
        [
            *(sys.executable, "-m", "lab.istio.injector"),
            *("--kubeconfig", cluster.kubeconfig),
            *("--state", folder),
            *("--address", cluster.host),
            *("--port", str(port)),
            *(() if writes_ca else ("--without-ca",)),
        ],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    ports.await_listener(process, cluster.host, port)
    documents = webhooks.configurations(namespace, revision, configuration)
    names = tuple(document["metadata"]["name"] for document in documents)
    istio = Istio(cluster, folder, namespace, revision, port, process, names, template)
    istio.serve()
    istio.configure()
    if writes_ca:
        istio.await_live()
    return istio
