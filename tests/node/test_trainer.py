"""Kubeflow's training-operator in the lab; `test_parade` shows how its jobs end."""

from __future__ import annotations

import lab
import pytest
from lab import parade
from lightkube import ApiError


@pytest.mark.usefixtures("trainer")
def test_the_operators_own_webhook_refuses_a_malformed_tfjob(
    cluster: lab.Cluster, namespace: str
) -> None:
    [workload] = [w for w in parade.TRAINING if w.name == "a-tfjob-succeeds"]
    job = workload.in_namespace(namespace)
    [container] = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["name"] = "other"

    with cluster.client() as client, pytest.raises(ApiError) as refused:
        client.create(job)

    assert "tensorflow" in str(refused.value)
