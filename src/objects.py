"""The order in which the leader's objects come and go, so that no pod finds neither form of start.

The API server learns of each object by itself, within a second and in any order: that a form was
written does not mean that it applies. So the webhook leaves to the policy only what the policy has
changed, and the policy goes only once the webhook has been there for an event.

Objects of kinds that somebody else's webhook validates come after everything else: while that
webhook has no endpoint, the API server refuses them.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

import httpx2
from lightkube import Client
from lightkube.resources.admissionregistration_v1 import ValidatingAdmissionPolicy

import cluster
import injectionlabels
import manifests
import readiness
import suspended
from cluster import Problem
from inputs import Inputs

# Seconds for the API server to ask Istio's validator. An istiod that hangs takes the 10 of its
# configuration (istio-discovery chart validatingwebhookconfiguration.yaml has the default).
_PATIENCE: Final = 3.0

logger = logging.getLogger(__name__)


def ensure(client: Client, inputs: Inputs) -> Problem | None:
    """Make what needs no workload; bring the webhook configuration up to date if there is one."""
    values = inputs.values()
    if values is None:
        return None
    labels = manifests.labels(inputs.app, inputs.model)
    narrowed = cluster.serves(client, ValidatingAdmissionPolicy, labels, inputs.model)
    if isinstance(narrowed, Problem):
        return narrowed
    values = dataclasses.replace(values, dry_runs=narrowed)
    standing = manifests.render_access(values) + manifests.render_start_policy(values)
    webhook = manifests.render_webhook(values)
    if problem := cluster.apply(client, standing, manager=inputs.app):
        return problem
    present = cluster.any_exists(client, webhook)
    if isinstance(present, Problem):
        return present
    return cluster.apply(client, webhook, manager=inputs.app) if present else None


def remove(client: Client, app: str, model: str, patience: suspended.Patience) -> None:
    """Take back all that the application has made or changed, and resume the Jobs it suspended.

    Raises:
        httpx2.HTTPError: the API server fails; Juju tries the hook again.
    """
    # Before the rights go, so that the workload does it should this end half-way; and after, for
    # until then the workload of another unit may have suspended one more.
    suspended.resume(client, patience)
    cluster.delete_owned(client, manifests.labels(app, model), model, manifests.lease(app))
    suspended.resume(client, patience)
    injectionlabels.take_back(client, model, app)


def complete(
    client: Client, inputs: Inputs, transport: httpx2.BaseTransport | None = None
) -> Problem | None:
    """Make the webhook configuration, or delete what is not owned now if it is there already.

    Only for a unit that serves, and once every other that is ready does, which `transport` is for.
    With `Fail`, a configuration without a workload behind it stops every pod of the selected
    namespaces; with `Ignore`, pods slip through for as long. One that is there already stays when
    a unit restarts: others may serve.
    """
    values = inputs.values()
    if values is None:
        return None
    webhook = manifests.render_webhook(values)
    present = cluster.any_exists(client, webhook)
    if isinstance(present, Problem):
        return present
    if not present:
        return readiness.missing(client, inputs.app, inputs.model, transport) or cluster.apply(
            client, webhook, manager=inputs.app
        )
    labels = manifests.labels(inputs.app, inputs.model)
    return cluster.prune(client, labels, inputs.model, keep=manifests.render(values))


def admit_api_server(
    client: Client, inputs: Inputs, transport: httpx2.BaseTransport | None = None
) -> str:
    """Let the API server through to a workload that is in the mesh itself.

    Istio's validator is asked about the object, and refuses it for as long as istiod is away. So it
    is written only when it differs. The next event tries again; the workload's notice is one when
    the injector is live again.

    Args:
        client: of the API server.
        inputs: the leader's; with others, and without valid options, nothing is done.
        transport: where the write goes, None for the network.

    Returns:
        Which object could not be applied and why, one line; nothing where all is well.
    """
    values = inputs.values()
    if values is None:
        return ""
    for wanted in manifests.render_mesh(values):
        differs = cluster.differs(client, wanted, inputs.model)
        if differs is False:
            continue
        if isinstance(differs, Problem):
            return differs.reason
        try:
            with cluster.connect(transport, patience=_PATIENCE) as hasty:
                problem = cluster.apply(hasty, [wanted], manager=inputs.app)
        except httpx2.HTTPStatusError as error:
            problem = Problem(f"{wanted.kind} {inputs.app}: {str(error).partition(chr(10))[0]}")
        if problem:
            logger.warning("%s: not applied", problem.reason)
            return problem.reason
    return ""
