"""Who changes new pods, and how: what options come to on cluster and Istio as they are now."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal, get_args

import httpx2
from lightkube import Client
from lightkube.resources.admissionregistration_v1 import MutatingAdmissionPolicy

import cluster
import manifests
import probe
import workload
from cluster import Problem
from inputs import Inputs

Capability = Literal["native", "classic", "unknown"]

_NOT_SERVED: Final = (
    'admission: "policy": expected auto or webhook, for the API server does not serve'
    " MutatingAdmissionPolicy v1, as Kubernetes 1.36 does"
)


def resolve(
    client: Client, inputs: Inputs, transport: httpx2.BaseTransport | None = None
) -> Inputs | Problem:
    """Return the leader's `inputs` with `admission` as the cluster has it; ask it each time.

    So an upgrade of the cluster is noticed. `policy` where it is not served is an option that is
    not valid: what was there before goes on. A policy cannot find out what cluster and Istio can
    do: the workload is asked, to which `transport` leads.
    """
    if not inputs.leader or inputs.config is None:
        return inputs
    labels = manifests.labels(inputs.app, inputs.model)
    policies = cluster.owned(client, MutatingAdmissionPolicy, labels, inputs.model)
    if isinstance(policies, Problem):
        return policies
    if inputs.config.admission == "policy" and policies is None:
        return dataclasses.replace(inputs, config=None, invalid=_NOT_SERVED)
    if policies is None or inputs.config.admission == "webhook":
        return dataclasses.replace(inputs, admission="webhook")
    capability = _told(inputs, transport) or _kept(policies)
    return dataclasses.replace(inputs, admission="policy", capability=capability)


def _told(inputs: Inputs, transport: httpx2.BaseTransport | None) -> Capability | None:
    """Return what the workload of this unit says, None while it does not know yet."""
    if not inputs.container_ready:
        return None
    return probe.ask(workload.STATUS_URL, transport).capability


def _kept(policies: list[Any]) -> Capability:
    """Return what the policy was rendered for, if there is one.

    While a workload restarts, or istiod does, nothing is known: a policy that changed then would
    change twice for nothing. Istio refuses pods meanwhile or makes them as it did before. A
    workload that looked and could not find out says `unknown`, for which the policy holds.
    """
    for policy in policies:
        annotations: dict[str, str] = (policy.metadata and policy.metadata.annotations) or {}
        known = annotations.get(manifests.CAPABILITY)
        for capability in get_args(Capability):
            if known == capability:
                return capability
    return "unknown"
