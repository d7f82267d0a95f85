"""What the leader does in the cluster for an event, and in which order.

The API server learns of each object separately, within a second and in any order. So the webhook
leaves to the policy only pods that the policy has changed, and the policy is deleted one event
after the webhook took over.

Objects that another operator's webhook validates come last: while that webhook has no endpoint, the
API server refuses them.

Every `transport` is where requests go, None for the network; tests set it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Generator
from typing import Any, Final

import httpx2
from istio_aux.model.policy import Capability, RacePolicy
from lightkube import Client
from lightkube.resources.admissionregistration_v1 import (
    MutatingAdmissionPolicy,
    MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy,
)
from lightkube.resources.core_v1 import Namespace

import cluster
import injectionlabels
import manifests
import suspended
from cluster import Problem
from inputs import Inputs
from relations import sidecar

_NOT_SERVED: Final = (
    'admission: "policy": expected auto or webhook, because the API server does not serve'
    " MutatingAdmissionPolicy v1 (Kubernetes 1.36 does)"
)
# Every injector's configuration has it, revision tags included (istio-discovery chart
# mutatingwebhook.yaml, revision-tags-mwc.yaml).
_REVISION: Final = "istio.io/rev"
# Seconds that the API server has to ask Istio's validator. An istiod that hangs takes the 10 s of
# its configuration (istio-discovery chart validatingwebhookconfiguration.yaml).
_VALIDATOR_PATIENCE: Final = 3.0

logger = logging.getLogger(__name__)


def resolve(client: Client, inputs: Inputs) -> Inputs | Problem:
    """Return `inputs` with what the cluster says.

    The cluster is asked on every event, because it may be upgraded.
    """
    known = _with_verified(client, inputs)
    if isinstance(known, Problem) or not inputs.leader:
        return known
    inputs = known
    owner = cluster.namespace_uid(client, inputs.model)
    if isinstance(owner, Problem):
        return owner
    decided = _with_admission(client, dataclasses.replace(inputs, owner=owner))
    if isinstance(decided, Problem):
        return decided
    return cluster.attempt(
        "MutatingWebhookConfiguration and suspended Jobs", lambda: _with_others(client, decided)
    )


def ensure(client: Client, inputs: Inputs) -> Problem | None:
    """Apply what needs no workload, and the webhook configuration if it exists already."""
    values = _values(client, inputs)
    if values is None or isinstance(values, Problem):
        return values
    standing = manifests.render_access(values) + manifests.render_start_policy(values)
    webhook = manifests.render_webhook(values)
    if problem := cluster.apply(client, standing, manager=inputs.app):
        return problem
    present = cluster.any_exists(client, webhook)
    if isinstance(present, Problem):
        return present
    return cluster.apply(client, webhook, manager=inputs.app) if present else None


@contextlib.contextmanager
def evicting(client: Client, inputs: Inputs) -> Generator[Problem | None]:
    """Let the workload evict pods while the context lasts; leader only, whose hooks wait for it.

    If this process is killed meanwhile, the next event takes the right away: `ensure` applies the
    role as the options say.
    """
    resolved = resolve(client, inputs)
    values = resolved if isinstance(resolved, Problem) else _values(client, resolved)
    if isinstance(values, Problem):
        yield values
        return
    if values is None:
        yield Problem(inputs.invalid or "waiting for the leader's certificate authority")
        return

    def apply(values: manifests.Values) -> Problem | None:
        access = manifests.render_access(values)
        roles = [each for each in access if each.kind == "ClusterRole"]
        return cluster.apply(client, roles, manager=inputs.app)

    try:
        yield apply(dataclasses.replace(values, repairs=True))
    finally:
        if problem := apply(values):
            logger.warning("%s: the next event takes the right to evict away", problem.reason)


def complete(client: Client, inputs: Inputs, waits: Problem | None) -> Problem | None:
    """Create the webhook configuration, or, once it exists, delete objects that are not wanted.

    Call it when this unit serves. The configuration is created unless the unit `waits` for its
    endpoints: without a workload, each new pod costs a call that fails. It stays when a unit
    restarts.
    """
    values = inputs.values()
    if values is None:
        return None
    webhook = manifests.render_webhook(values)
    present = cluster.any_exists(client, webhook)
    if isinstance(present, Problem):
        return present
    if not present:
        return waits or cluster.apply(client, webhook, manager=inputs.app)
    labels = manifests.labels(inputs.app, inputs.model)
    return cluster.prune(client, labels, inputs.model, keep=manifests.render(values))


def admit_api_server(
    client: Client, inputs: Inputs, transport: httpx2.BaseTransport | None = None
) -> str:
    """Let the API server reach a workload whose own pods are in a mesh; leader only.

    Istio's validator checks the object and refuses it while istiod is away, so it is written only
    when it differs. The next event tries again; the workload's notice that an injector is live is
    one.

    Returns:
        Which object was not applied and why, in one line, or the empty text.
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
            with cluster.connect(transport, patience=_VALIDATOR_PATIENCE) as hasty:
                problem = cluster.apply(hasty, [wanted], manager=inputs.app)
        except httpx2.HTTPStatusError as error:
            problem = Problem(f"{wanted.kind} {inputs.app}: {str(error).partition(chr(10))[0]}")
        if problem:
            logger.warning("%s: not applied", problem.reason)
            return problem.reason
    return ""


def withdraw(client: Client, app: str, model: str, patience: suspended.Patience) -> None:
    """Delete what changes new pods, and return when no API server asks the workload any more.

    See `remove` for what follows.

    Raises:
        httpx2.HTTPError: the API server fails; Juju retries the hook.
    """
    labels = manifests.labels(app, model)
    if cluster.delete_owned(client, labels, model, cluster.CHANGING_PODS):
        # Nothing tells when every API server has noticed, and the last hook has no next event.
        time.sleep(patience.webhook_gone)


def remove(
    client: Client,
    app: str,
    model: str,
    patience: suspended.Patience,
    tell: Callable[[list[str]], None],
) -> None:
    """Delete what the application owns, revert its labels, and resume the Jobs it suspended.

    Call it after `withdraw`, when the workload of the unit has stopped. `tell` gets the Jobs whose
    pods it waits for.

    Raises:
        httpx2.HTTPError: the API server fails; Juju retries the hook.
    """
    # The order of a removal, which may fail and begin again at any point:
    # 1. What changes new pods goes: nobody would quit what the policy holds, and calls of the
    #    webhook would fail. What follows may take as long as pods take to end.
    # 2. The workload stops, so that it suspends no more Jobs.
    # 3. Suspended Jobs are resumed while the workload still has its rights: if this hook never
    #    gets further, a workload that runs again can do it.
    # 4. The workload's account loses its roles, then the policies that narrow them go.
    # 5. Jobs are resumed again: another unit's workload may have suspended one more until then.
    # 6. The labels of namespaces go. Somebody else's webhook may refuse that.
    suspended.resume(client, patience, tell)
    labels = manifests.labels(app, model)
    cluster.delete_owned(client, labels, model, cluster.OWNED, manifests.lease(app))
    suspended.resume(client, patience, tell)
    injectionlabels.take_back(client, model, app)


def _with_verified(client: Client, inputs: Inputs) -> Inputs | Problem:
    """Return `inputs` with requests of other models granted or refused; asks only if there are."""
    if all(one.application or one.refusal for one in inputs.requesters):
        return inputs
    namespaces = cluster.attempt("Namespace", lambda: cluster.listed(client, Namespace))
    if isinstance(namespaces, Problem):
        return namespaces
    return dataclasses.replace(inputs, requesters=sidecar.verified(inputs.requesters, namespaces))


def _values(client: Client, inputs: Inputs) -> manifests.Values | Problem | None:
    """Return what the owned objects depend on, with whether pods may be created by dry runs."""
    values = inputs.values()
    if values is None:
        return None
    labels = manifests.labels(inputs.app, inputs.model)
    policies = cluster.owned(client, ValidatingAdmissionPolicy, labels, inputs.model)
    if isinstance(policies, Problem):
        return policies
    return dataclasses.replace(values, dry_runs=policies is not None)


def _with_admission(client: Client, inputs: Inputs) -> Inputs | Problem:
    if inputs.config is None:
        return inputs
    labels = manifests.labels(inputs.app, inputs.model)
    policies = cluster.owned(client, MutatingAdmissionPolicy, labels, inputs.model)
    if isinstance(policies, Problem):
        return policies
    if inputs.config.admission == "policy" and policies is None:
        return dataclasses.replace(inputs, config=None, invalid=_NOT_SERVED)
    if policies is None or inputs.config.admission == "webhook":
        return dataclasses.replace(inputs, admission="webhook")
    status = inputs.answer and inputs.answer.status
    # It has no reason while it does not know.
    known = status.capability if status and status.capability_why else _rendered_for(policies)
    return dataclasses.replace(inputs, admission="policy", capability=known)


def _rendered_for(policies: list[Any]) -> Capability:
    """Return the capability that the policy was rendered for; it stays while nothing is known.

    Nothing is known while the workload or istiod restarts. `unknown` is an answer of the workload:
    it cannot find out.
    """
    for policy in policies:
        annotations: dict[str, str] = (policy.metadata and policy.metadata.annotations) or {}
        known = annotations.get(manifests.CAPABILITY)
        if known in tuple(Capability):
            return Capability(known)
    return Capability.UNKNOWN


def _with_others(client: Client, inputs: Inputs) -> Inputs:
    """Return `inputs` with Istio's revisions and whether Jobs are left suspended."""
    configurations = cluster.listed(client, MutatingWebhookConfiguration, _REVISION)
    left = (
        inputs.config is not None
        and inputs.config.race_policy != RacePolicy.RESTART_JOBS
        and suspended.any_left(client)
    )
    return dataclasses.replace(
        inputs,
        revisions=tuple(
            sorted({configuration.labels[_REVISION] for configuration in configurations})
        ),
        jobs_suspended=left,
    )
