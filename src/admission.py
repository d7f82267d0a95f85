"""Who changes new pods: what the option `admission` comes to on the cluster as it is now."""

from __future__ import annotations

import dataclasses
from typing import Final

from lightkube import Client
from lightkube.resources.admissionregistration_v1 import MutatingAdmissionPolicy

import cluster
import manifests
from cluster import Problem
from inputs import Inputs

_NOT_SERVED: Final = (
    'admission: "policy": expected auto or webhook, for the API server does not serve'
    " MutatingAdmissionPolicy v1, as Kubernetes 1.36 does"
)


def resolve(client: Client, inputs: Inputs) -> Inputs | Problem:
    """Return the leader's `inputs` with `admission` as the cluster has it; ask it each time.

    So an upgrade of the cluster is noticed. `policy` where it is not served is an option that is
    not valid: what was there before goes on.
    """
    if not inputs.leader or inputs.config is None:
        return inputs
    labels = manifests.labels(inputs.app, inputs.model)
    served = cluster.serves(client, MutatingAdmissionPolicy, labels, inputs.model)
    if isinstance(served, Problem):
        return served
    if inputs.config.admission == "policy" and not served:
        return dataclasses.replace(inputs, config=None, invalid=_NOT_SERVED)
    by_policy = served and inputs.config.admission != "webhook"
    return dataclasses.replace(inputs, admission="policy" if by_policy else "webhook")
