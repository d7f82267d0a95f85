"""What Juju makes of a model and an application in Kubernetes, written with all rights.

Namespace, ServiceAccount, its roles untrusted and trusted, its token, the Service. Juju's Service
selects pods; here there are none, so an EndpointSlice by hand names the units, and says of each
what a readiness probe would.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from lightkube import Client
from lightkube.models.apps_v1 import StatefulSetSpec
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.core_v1 import (
    Container,
    PodSpec,
    PodTemplateSpec,
    ServicePort,
    ServiceSpec,
)
from lightkube.models.discovery_v1 import Endpoint, EndpointConditions, EndpointPort
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.models.rbac_v1 import PolicyRule, RoleRef, Subject
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.core_v1 import Namespace, Service, ServiceAccount, ServiceAccountToken
from lightkube.resources.discovery_v1 import EndpointSlice
from lightkube.resources.rbac_authorization_v1 import (
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
)

from lab import images

# Juju's rules for an application's ServiceAccount, without and with `juju trust`.
UNTRUSTED = [
    PolicyRule(apiGroups=[""], resources=["pods", "services"], verbs=["get", "list", "patch"]),
    PolicyRule(apiGroups=[""], resources=["pods/exec"], verbs=["create"]),
]
NAMESPACES = [PolicyRule(apiGroups=[""], resources=["namespaces"], verbs=["get", "list"])]
TRUSTED = [PolicyRule(apiGroups=["*"], resources=["*"], verbs=["*"])]


class Objects:
    """The objects of one application, in its model's namespace."""

    def __init__(self, client: Client, model: str, app: str, *, namespace: str) -> None:
        """Know where the objects go, which the `client` with all rights makes."""
        self._client, self._namespace, self._app = client, namespace, app
        self._lock = threading.Lock()
        self._labels = {
            "app.kubernetes.io/managed-by": "juju",
            "app.kubernetes.io/name": app,
            "model.juju.is/name": model,
        }
        self._endpoints: EndpointSlice | None = None

    def create(self, *, trust: bool) -> None:
        """Make the ServiceAccount and its roles, and the Service with its placeholder port."""
        self._client.apply(ServiceAccount(metadata=self._named()), force=True)
        self.grant(trust=trust)
        self.publish({}, ports=["65535/tcp"])

    def grant(self, *, trust: bool) -> None:
        """Give the ServiceAccount what an application has with, or without, `juju trust`."""
        name = self._cluster_name
        rules = (TRUSTED, TRUSTED) if trust else (UNTRUSTED, NAMESPACES)
        subject = Subject(kind="ServiceAccount", name=self._app, namespace=self._namespace)
        api = "rbac.authorization.k8s.io"
        for resource in (
            Role(metadata=self._named(), rules=rules[0]),
            RoleBinding(
                roleRef=RoleRef(apiGroup=api, kind="Role", name=self._app),
                metadata=self._named(),
                subjects=[subject],
            ),
            ClusterRole(metadata=ObjectMeta(name=name, labels=self._labels), rules=rules[1]),
            ClusterRoleBinding(
                roleRef=RoleRef(apiGroup=api, kind="ClusterRole", name=name),
                metadata=ObjectMeta(name=name, labels=self._labels),
                subjects=[subject],
            ),
        ):
            self._client.apply(resource, force=True)

    def write_credentials(self, folder: Path, ca: Path) -> None:
        """Write what the kubelet mounts into a pod: token, ca.crt and namespace."""
        request = ServiceAccountToken(
            metadata=ObjectMeta(), spec=TokenRequestSpec(audiences=[], expirationSeconds=86400)
        )
        answer = self._client.create(request, self._app, namespace=self._namespace)
        assert answer.status
        assert answer.status.token
        (folder / "token").write_text(answer.status.token)
        (folder / "ca.crt").write_bytes(ca.read_bytes())
        (folder / "namespace").write_text(self._namespace)

    def publish(self, ready: Mapping[str, bool], *, ports: list[str]) -> None:
        """Write Service and EndpointSlice when they differ from what was written last.

        Args:
            ready: address of each unit and whether its container is ready.
            ports: open ports as hook tools spell them, such as "8443/tcp".
        """
        numbers = [int(port.partition("/")[0]) for port in ports]
        endpoints = EndpointSlice(
            metadata=self._named(**{"kubernetes.io/service-name": self._app}),
            addressType="IPv4",
            endpoints=[
                Endpoint(addresses=[address], conditions=EndpointConditions(ready=is_ready))
                for address, is_ready in sorted(ready.items())
            ],
            ports=[EndpointPort(name=f"juju-{n}", port=n, protocol="TCP") for n in numbers],
        )
        service = Service(
            metadata=self._named(),
            spec=ServiceSpec(
                ports=[ServicePort(name=f"juju-{n}", port=n, targetPort=n) for n in numbers]
            ),
        )
        # The probe's thread and a caller who awaits its work may both be here.
        with self._lock:
            if endpoints != self._endpoints:
                self._client.apply(service, force=True)
                self._client.apply(endpoints, force=True)
                self._endpoints = endpoints

    def delete(self) -> None:
        """Remove everything again, the rights last: a charm's remove hook may need them."""
        self._client.delete(EndpointSlice, self._app, namespace=self._namespace)
        self._client.delete(Service, self._app, namespace=self._namespace)
        for kind in (RoleBinding, Role, ServiceAccount):
            self._client.delete(kind, self._app, namespace=self._namespace)
        for kind in (ClusterRoleBinding, ClusterRole):
            self._client.delete(kind, self._cluster_name)

    @property
    def _cluster_name(self) -> str:
        """Juju's name for the application's ClusterRole and its binding."""
        return f"{self._namespace}-{self._app}"

    def _named(self, **labels: str) -> ObjectMeta:
        return ObjectMeta(
            name=self._app, namespace=self._namespace, labels={**self._labels, **labels}
        )


def create_model(client: Client, model: str, identifier: str, *, namespace: str) -> None:
    """Make the model's namespace, labelled as Juju labels it."""
    labels = {
        "app.kubernetes.io/managed-by": "juju",
        "kubernetes.io/metadata.name": namespace,
        "model.juju.is/id": identifier,
        "model.juju.is/name": model,
    }
    client.apply(Namespace(metadata=ObjectMeta(name=namespace, labels=labels)), force=True)


def run_application(client: Client, model: str, name: str) -> None:
    """Make the StatefulSet of an application with one unit, as Juju does; its pod is NAME-0.

    Shape and labels are those of Juju's internal/provider/kubernetes. The programs only sleep: the
    stand-in runs its charms elsewhere.
    """
    labels = {"app.kubernetes.io/name": name}
    image, sleep = images.BUSYBOX, ["sleep", "infinity"]
    pod = PodSpec(
        initContainers=[Container(name="charm-init", image=image, command=["true"])],
        containers=[Container(name=n, image=image, command=sleep) for n in ("charm", name)],
        automountServiceAccountToken=False,
        terminationGracePeriodSeconds=0,
    )
    spec = StatefulSetSpec(
        serviceName=f"{name}-endpoints",
        podManagementPolicy="Parallel",
        selector=LabelSelector(matchLabels=labels),
        template=PodTemplateSpec(metadata=ObjectMeta(labels=labels), spec=pod),
    )
    own = {**labels, "app.kubernetes.io/managed-by": "juju"}
    metadata = ObjectMeta(name=name, namespace=model, labels=own)
    client.create(StatefulSet(metadata=metadata, spec=spec), field_manager="juju")
