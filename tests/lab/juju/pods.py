"""What Juju makes of a model in Kubernetes that runs: StatefulSets, and the model's operator.

The shape and the labels are Juju's (internal/provider/kubernetes: application, modeloperator.go),
who writes them, too; the programs only sleep. The stand-in runs its charms elsewhere.
"""

from __future__ import annotations

from lightkube.models.apps_v1 import DeploymentSpec, StatefulSetSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import Deployment, StatefulSet

from lab import Cluster, images

_OPERATOR = {"operator.juju.is/name": "modeloperator", "operator.juju.is/target": "model"}
_JUJU = {"app.kubernetes.io/managed-by": "juju"}


def run_application(cluster: Cluster, model: str, name: str) -> None:
    """Make the StatefulSet of an application with one unit; its pod is NAME-0."""
    labels = {"app.kubernetes.io/name": name}
    init = Container(name="charm-init", image=images.BUSYBOX, command=["true"])
    stateful_set = StatefulSet(
        metadata=ObjectMeta(name=name, namespace=model, labels={**labels, **_JUJU}),
        spec=StatefulSetSpec(
            serviceName=f"{name}-endpoints",
            podManagementPolicy="Parallel",
            selector=LabelSelector(matchLabels=labels),
            template=_template(labels, ["charm", name], [init]),
        ),
    )
    with cluster.client() as client:
        client.create(stateful_set, field_manager="juju")


def run_operator(cluster: Cluster, model: str) -> None:
    """Make the Deployment of the model's operator, which must be left alone."""
    deployment = Deployment(
        metadata=ObjectMeta(name="modeloperator", namespace=model, labels={**_OPERATOR, **_JUJU}),
        spec=DeploymentSpec(
            selector=LabelSelector(matchLabels=_OPERATOR),
            template=_template(
                {**_OPERATOR, "model.juju.is/disable-webhook": "true"}, ["juju-operator"], []
            ),
        ),
    )
    with cluster.client() as client:
        client.create(deployment, field_manager="juju")


def _template(labels: dict[str, str], names: list[str], init: list[Container]) -> PodTemplateSpec:
    sleep = ["sleep", "infinity"]
    return PodTemplateSpec(
        metadata=ObjectMeta(labels=labels),
        spec=PodSpec(
            initContainers=init or None,
            containers=[Container(name=n, image=images.BUSYBOX, command=sleep) for n in names],
            automountServiceAccountToken=False,
            terminationGracePeriodSeconds=0,
        ),
    )
