"""Which revisions of Istio there are, by the webhook configurations of their injectors."""

from __future__ import annotations

import dataclasses
from typing import Final

from lightkube import Client
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration

import cluster
from cluster import Problem
from found import listed
from inputs import Inputs

# Every configuration of an injector has it, one of a tag as well (istio-discovery chart
# mutatingwebhook.yaml, revision-tags-mwc.yaml). Without it, the revision is `default`.
_REVISION: Final = "istio.io/rev"


def resolve(client: Client, inputs: Inputs) -> Inputs | Problem:
    """Return the leader's `inputs` with the revisions as the cluster has them; ask each time.

    They are part of a role of the workload, which sees new ones itself and wakes the charm.
    """
    if not inputs.leader:
        return inputs

    def look() -> Inputs:
        found = listed(client, MutatingWebhookConfiguration, _REVISION)
        named = {configuration.labels[_REVISION] for configuration in found}
        return dataclasses.replace(inputs, revisions=tuple(sorted(named)))

    return cluster.attempt("MutatingWebhookConfiguration", look)
