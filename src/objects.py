"""The order in which the leader's objects come and go, so that no pod finds neither form of start.

The API server learns of each object by itself, within a second and in any order: that a form was
written does not mean that it applies. So the webhook leaves to the policy only what the policy has
changed, and the policy goes only once the webhook has been there for an event.
"""

from __future__ import annotations

import dataclasses

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
    standing = (
        manifests.render_access(values)
        + manifests.render_start_policy(values)
        + manifests.render_mesh(values)
    )
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
