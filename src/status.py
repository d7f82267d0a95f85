"""What `juju status` says. No other module makes a status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import ops
from istio_aux.model import selectors
from istio_aux.model.answers import Injector
from istio_aux.model.text import listed

from cluster import ReconcileError
from inputs import CONTAINER, Inputs
from probe import Probe
from relations import istio

# Keeps a row of `juju status` short; the workload's /status lists all.
_LONGEST_LIST: Final = 3

logger = logging.getLogger(__name__)


@dataclass
class Notes:
    """What an event observed beside the workload's answer.

    Attributes:
        labels: namespaces of `inject-namespaces` that are not labelled, with the reason.
        unapplied: the object that somebody else's webhook refused, with the reason.
        silent: units that do not answer the leader, with their addresses.
    """

    labels: Sequence[str] = ()
    unapplied: str = ""
    silent: Sequence[str] = ()

    def facts(self) -> list[str]:
        """Return what the status says of them."""
        facts = {
            "inject-namespaces: ": _some(self.labels),
            "not applied: ": self.unapplied,
            "": _some(self.silent),
        }
        return [what + fact for what, fact in facts.items() if fact]


def of_unit(
    inputs: Inputs,
    problem: ReconcileError | None,
    probe: Probe | None,
    notes: Notes,
) -> ops.StatusBase:
    """Return the unit's status.

    It is the first problem that needs the user, else the first that passes by itself, else the
    facts about a unit that works.

    Args:
        inputs: what the charm observed.
        problem: why its work in the cluster failed.
        probe: the workload's answer, None before the workload is set up.
        notes: what an admin should know of a unit that works.
    """
    blocked = (
        inputs.invalid,
        f"Trust not granted: run `juju trust {inputs.app} --scope=cluster` ({problem})"
        if problem and problem.refused
        else "",
        # Meanwhile the workload watches every injector that it finds.
        istio.disagreement(inputs.control_planes),
    )
    if why := next(filter(None, blocked), ""):
        return ops.BlockedStatus(why)
    waiting = (
        "" if inputs.container_ready else f"waiting for Pebble in container {CONTAINER}",
        str(problem or ""),
        inputs.issuers.missing,
        "" if probe else "workload is not set up yet",
        f"workload: {probe.missing}" if probe and not probe.ready else "",
    )
    if why := next(filter(None, waiting), ""):
        return ops.WaitingStatus(why)
    return _working(inputs, probe, notes)


def of_leaving(jobs: Sequence[str] = ()) -> ops.StatusBase:
    """Return the status of a unit that stops or is removed, and waits for the pods of `jobs`."""
    waits = f": waits for the pods of suspended Jobs: {_some(jobs)}" if jobs else ""
    return ops.WaitingStatus(f"the unit is being removed{waits}")


def tell_leaving(unit: ops.Unit) -> Callable[[Sequence[str]], None]:
    """Return what shows while a hook runs which Jobs it waits for: their pods may have an hour."""

    def tell(jobs: Sequence[str]) -> None:
        unit.status = of_leaving(jobs)
        logger.info("%s", unit.status.message)

    return tell


def _working(inputs: Inputs, probe: Probe | None, notes: Notes) -> ops.StatusBase:
    # Earlier checks make sure of both.
    assert inputs.config is not None
    assert probe is not None
    facts = [_selected(probe.selected_namespaces, inputs.config.namespace_selectors)]
    facts += _mesh(inputs, probe)
    if inputs.ambient:
        facts.append("ambient mesh: its pods have nothing to quit, pods with a sidecar have")
    if inputs.config.start_mode != "auto":
        facts.append(f"start: {inputs.config.start_mode}")
    elif probe.capability not in {"native", None}:
        facts.append(f"pods are held, not native: {probe.capability_why}")
    # A policy comes before all webhooks, and only the leader knows whether there is one. After
    # Istio's webhook, ours can still move the sidecar first and hold the payload.
    native = inputs.config.start_mode in {"auto", "native"}
    if native and probe.called_before_us and inputs.leader and inputs.admission == "webhook":
        facts.append(f"called after {_some(probe.called_before_us)}, so pods are held, not native")
    if inputs.config.quit != "enabled":
        facts.append(f"quit: {inputs.config.quit}")
    if probe.stuck_pods:
        facts.append(f"stuck: {_some(probe.stuck_pods)}")
    counts = {
        "lost their proxy": probe.lost_pods,
        "blocked": 0 if probe.holders else probe.blocked_pods,
        "without sidecar": probe.unmeshed_total,
    }
    facts += [f"{count} {what}" for what, count in counts.items() if count]
    facts += probe.holders[:_LONGEST_LIST]
    if more := probe.holders[_LONGEST_LIST:]:
        facts.append(f"and {len(more)} more holders: list-stuck has them")
    if probe.suspended_jobs:
        facts.append(f"suspended for their sidecar: {_some(probe.suspended_jobs)}")
    facts += notes.facts()
    if inputs.issuers.refused:
        facts.append(f"certificates: {inputs.issuers.refused}")
    # Without a relation to Istio, missing injectors may be on purpose.
    if inputs.control_planes and not probe.live:
        return ops.WaitingStatus("; ".join(["waiting for Istio", *facts]))
    return ops.ActiveStatus("; ".join(facts))


def _selected(count: int | None, option: str) -> str:
    """Return how many namespaces are selected, and of none which labels are missing."""
    if count != 0:
        return f"{count} namespace{'' if count == 1 else 's'} selected"
    wanted = [str(each) for each in selectors.parse_namespaces(option).alternatives]
    labels = listed(wanted, " or ", most=_LONGEST_LIST)
    return f"0 namespaces selected: none has the labels {labels}"


def _mesh(inputs: Inputs, probe: Probe) -> list[str]:
    """Return the state of Istio and of the applications that ask for sidecars."""
    # The relations that do not name the root namespace.
    facts = [plane.reason for plane in inputs.control_planes if not plane.root_namespace]
    facts.append(
        _some([_injector(injector) for injector in probe.injectors])
        or "not known yet whether Istio injects"
    )
    # While Istio injects nothing, single applications are not listed.
    left_out = [
        f"{app.namespace}/{app.name}: {app.live_reason}"
        for app in probe.applications
        if probe.live and app.live is False
    ]
    if left_out:
        facts.append(f"not injected: {_some(left_out)}")
    if refused := [one.refusal for one in inputs.requesters if one.refusal]:
        facts.append(f"not granted: {_some(refused)}")
    return facts


def _injector(injector: Injector) -> str:
    since = f"since {injector.since:%Y-%m-%d %H:%M}Z" if injector.since else "not yet"
    if injector.live:
        return f"{injector.configuration} live {since}"
    return f"{injector.configuration or 'Istio'}: {injector.why}, {since}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _LONGEST_LIST
    return ", ".join(names[:_LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")
