"""What `juju status` says. No other module makes a status."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import istio_aux
import ops
from istio_aux.model import selectors
from istio_aux.model.answers import Injector, ProcessStatus
from istio_aux.model.found import Found
from istio_aux.model.text import listed, shortened

from cluster import ReconcileError
from container import CONTAINER
from inputs import Inputs
from relations import istio

# Keeps a row of `juju status` short; the workload's /status lists all.
_LONGEST_LIST: Final = 3
_BY_HAND: Final = "see docs/how-to/clean-up-by-hand.md"
# Characters of a row, and of a pod in it: tenants choose names, of up to 253 characters.
_LONGEST: Final = 400
_NAME: Final = 60

logger = logging.getLogger(__name__)


@dataclass
class Notes:
    """What an event observed beside the inputs."""

    labels: Sequence[str] = ()  # Namespaces of `inject-namespaces` without their label, and why.
    unapplied: str = ""  # The object that another operator's webhook refused, and why.
    runs: bool = False  # Pebble runs the workload now: it is not in a restart backoff.
    starting: bool = False  # Pebble's check has not failed yet.


def of_unit(
    inputs: Inputs,
    problem: ReconcileError | None,
    notes: Notes,
) -> ops.StatusBase:
    """Return the unit's status; `problem` is why its work in the cluster failed.

    It is the first problem that needs the user, else the first that passes by itself, else the
    facts about a unit that works.
    """
    works = inputs.answer and inputs.answer.status
    runs = (
        "the last good configuration runs" if works else "nothing runs: no quits and no admission"
    )
    blocked = (
        inputs.invalid and f"{inputs.invalid}; {runs}",
        f"Trust not granted: run `juju trust {inputs.app} --scope=cluster` ({problem})"
        if problem and problem.refused
        else "",
        str(problem) if problem and problem.taken else "",
    )
    if why := next(filter(None, blocked), ""):
        return ops.BlockedStatus(shortened(why, _LONGEST))
    waiting = (
        "" if inputs.answer else f"waiting for Pebble in container {CONTAINER}",
        str(problem or ""),
        inputs.issuers.missing,
        _unready(inputs, notes),
    )
    if why := next(filter(None, waiting), ""):
        said = "; ".join(filter(None, (_skew(inputs), why)))
        return ops.WaitingStatus(shortened(said, _LONGEST))
    # Earlier checks make sure of both.
    assert inputs.answer
    assert inputs.answer.status
    facts = "; ".join(filter(None, _facts(inputs, inputs.answer.status, notes)))
    facts = shortened(facts, _LONGEST)
    if awaited := _awaited(inputs, inputs.answer.status):
        return ops.WaitingStatus(f"waiting for {awaited}; {facts}")
    return ops.ActiveStatus(facts)


def _awaited(inputs: Inputs, status: ProcessStatus) -> str:
    """Return what a unit that works waits for, or the empty text.

    A unit waits for Istio while pods that should get a sidecar get none, or are refused. Without a
    relation, an Istio that is absent or switched off may be on purpose. Then new pods do not need
    this application, but pods that still have a sidecar need it to the end.
    """
    if not status.injector_live and inputs.control_planes:
        return "" if status.ambient else "Istio"
    if status.absent:
        return "pods with a sidecar to end" if status.sidecars and status.sidecars.pods else ""
    return "Istio" if status.injector_live is False and not status.ambient else ""


def _sidecars(inputs: Inputs, status: ProcessStatus) -> str:
    """Return how many pods still have a sidecar during a migration, and whether it is done."""
    # If a relation promises an injector, its absence is temporary.
    over = status.ambient or (status.absent and not inputs.control_planes)
    migrating = inputs.ambient or status.ambient_total or istio.migration(inputs.control_planes)
    if not (status.selected_namespaces and (over or migrating)):
        return ""
    if status.sidecars is None:
        return "not known how many pods still have a sidecar"
    needed = status.sidecars.pods or status.applications or status.unmeshed_total
    done = over and not needed
    return status.sidecars.text("still ") + (": this application may go" if done else "")


def _unready(inputs: Inputs, notes: Notes) -> str:
    answer = inputs.answer
    if not (answer and answer.missing):
        return ""
    if answer.speaks and not answer.status:
        return f"workload: {answer.missing}: {_refresh(inputs)}"
    if answer.speaks:
        return f"workload: {answer.missing}"
    if notes.runs:
        return "workload has started: it answers within seconds"
    return f"workload does not run: see {inputs.log} ({answer.missing})"


def _skew(inputs: Inputs) -> str:
    """Return what to do if image and charm are of different revisions, or the empty text."""
    status = inputs.answer and inputs.answer.status
    ours = istio_aux.revision()
    theirs = status and (status.revision or status.version)
    if not (status and theirs) or theirs == ours:
        return ""
    unknown = listed(status.unknown_keys)
    lacks = f" (it does not know {unknown})" if unknown else ""
    return f"image is of revision {theirs}, charm of {ours}: {_refresh(inputs)}{lacks}"


def _refresh(inputs: Inputs) -> str:
    return f"juju refresh {inputs.app} --resource {CONTAINER}-image=IMAGE"


def of_leaving(left: Sequence[str]) -> ops.StatusBase:
    """Return the status of a unit that stops or is removed.

    `left`: kinds of objects that it could not delete, which the log names, too.
    """
    if left:
        every, some = (
            f"left in the cluster: {kinds}: {_BY_HAND}" for kinds in (", ".join(left), _some(left))
        )
        logger.error("%s", every)
        return ops.BlockedStatus(f"the unit is being removed; {some}")
    return ops.WaitingStatus("the unit is being removed")


def _facts(inputs: Inputs, status: ProcessStatus, notes: Notes) -> Iterator[str]:
    """Yield what is true of a unit that works; an empty text says nothing."""
    assert inputs.config  # An invalid option blocks.
    yield _skew(inputs)
    # An older image does not report `selected_total`.
    yield _selected(
        max(status.selected_total, len(status.selected_namespaces)),
        inputs.config.namespace_selectors,
    )
    yield _some(inputs.shared)
    # Why relations with Istio name no root namespace.
    yield from (plane.reason for plane in inputs.control_planes if not plane.root_namespace)
    yield (
        _some([_injector(injector) for injector in status.injectors])
        or "not known yet whether Istio injects"
    )
    # While Istio injects nothing, single applications are not listed.
    left_out = [
        f"{app.namespace}/{app.name}: {app.live_reason}"
        for app in status.applications
        if status.injector_live and app.live is False
    ]
    yield _some(left_out, "not injected: ")
    yield _some([one.refusal for one in inputs.requesters if one.refusal], "not granted: ")
    yield istio.migration(inputs.control_planes)
    yield _sidecars(inputs, status)
    mode = inputs.config.start_mode
    if mode != "auto":
        yield f"start: {mode}"
    # While the capability is unknown there is no reason.
    elif not status.capability.can and status.capability_why:
        yield f"pods are held, not native: {status.capability_why}"
    # Called after Istio's webhook, ours can still move the sidecar first and hold the payload.
    if mode in {"auto", "native"} and status.called_before_us:
        yield f"called after {_some(status.called_before_us)}, so pods are held, not native"
    if inputs.config.quit != "enabled":
        yield f"quit: {inputs.config.quit}"
    unlisted = status.stuck_total - len(status.stuck_pods)
    yield _some(_names(status.stuck_pods) + [""] * unlisted, "stuck: ")
    yield _count(status.lost_total, "lost their proxy")
    yield "" if status.holders else _count(status.blocked_total, "blocked")
    yield _count(status.unstarted_total, "not started")
    yield _count(status.unmeshed_total, "outside the mesh")
    yield from (holder.text for holder in status.holders[:_LONGEST_LIST])
    more = len(status.holders[_LONGEST_LIST:])
    yield f"and {more} more holders: list-stuck has them" if more else ""
    yield _some(notes.labels, "inject-namespaces: ")
    yield f"not applied: {notes.unapplied}" if notes.unapplied else ""
    yield f"certificates: {inputs.issuers.refused}" if inputs.issuers.refused else ""


def _selected(count: int, option: str) -> str:
    """Return how many namespaces are selected; if none is, which labels none has."""
    if count:
        return f"{count} namespace{'' if count == 1 else 's'} selected"
    wanted = [str(each) for each in selectors.parse_namespaces(option).alternatives]
    labels = listed(wanted, " or ", most=_LONGEST_LIST)
    return f"0 namespaces selected: no namespace has the labels {labels}"


def _injector(injector: Injector) -> str:
    since = f"since {injector.since:%Y-%m-%d %H:%M}Z" if injector.since else "not yet"
    if injector.live:
        return f"{injector.configuration} live {since}"
    return f"{injector.configuration or 'Istio'}: {injector.why}, {since}"


def _names(objects: Sequence[Found]) -> list[str]:
    return [shortened(f"{each.namespace}/{each.name}", _NAME) for each in objects]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number else ""


def _some(names: Sequence[str], what: str = "") -> str:
    return what + listed(names, most=_LONGEST_LIST) if names else ""
