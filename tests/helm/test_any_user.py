"""The chart where the cluster gives a pod its user, as OpenShift does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import lab
import pytest
from lab.creation import send
from lab.meshed import delete, nameless
from lab.release import Release
from lightkube import Client, codecs
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

NAMESPACE, USER = "any-user", 1000680000
# What `restricted-v2` writes. It also refuses a pod that asks for a user; ours asks for none.
CONSTRAINT = f"""
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {{name: restricted-v2}}
spec:
  matchConstraints:
    resourceRules:
    - {{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{{spec: Object.spec{{securityContext:
        Object.spec.securityContext{{runAsUser: {USER}, fsGroup: {USER}}}}}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {{name: restricted-v2}}
spec:
  policyName: restricted-v2
  matchResources:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {NAMESPACE}}}}}
"""


@pytest.fixture
def assigned(client: Client, cluster: lab.Cluster) -> Iterator[None]:
    """A namespace in which each pod gets the user."""
    client.apply(Namespace(metadata=ObjectMeta(name=NAMESPACE)))
    policies = codecs.load_all_yaml(CONSTRAINT)
    for each in policies:
        client.apply(each)
    pod = json.dumps(nameless(NAMESPACE, sidecar=None).to_dict()).encode()
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
    lab.until(
        lambda: f'"runAsUser":{USER}'.encode() in send(cluster, "POST", path, pod)[1],
        what="pods to get their user",
    )
    yield
    delete(client, policies)


@pytest.fixture
def release(cluster: lab.Cluster, home: Path, assigned: None) -> Iterator[Release]:
    """The chart with no value but the image."""
    found = Release(cluster, home, "istio-aux", NAMESPACE)
    found.install({})
    yield found
    found.uninstall()


def test_with_no_value_but_the_image_the_pods_run_as_the_user_that_the_cluster_gives(
    release: Release,
) -> None:
    user, group, *_ = release.executed("sh", "-c", "id -u; id -g").split()

    assert (user, group) == (str(USER), "0")
    assert {each["check"]: each["result"] for each in release.checked()}["rights"] == "ok"
