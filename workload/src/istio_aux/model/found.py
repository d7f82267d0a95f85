"""The one shape of a finding about a pod, for all rules that raise it and all that show it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from istio_aux.model.findings import Code
from istio_aux.model.resources import Requests
from istio_aux.model.text import NO_COMMAND, Command

# `audit --help` says what they mean.
State = Literal["stuck", "blocked", "lost", "unstarted", "unmeshed", "failed"]
SERVED: tuple[State, ...] = ("unmeshed", "stuck", "blocked", "lost", "unstarted")
"""States that `serve` knows: it does not watch pods that are over."""
HELD = frozenset[str]({"stuck", "blocked", "unstarted"})
"""States of pods that something keeps, with what they request."""

Role = Literal["payload", "sidecar", "ignored", "init"]


class ContainerVerdict(msgspec.Struct, frozen=True):
    """The role of a container, and whether the kubelet is done with it."""

    role: Role
    finished: bool
    why: str


class Found(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finding about a pod. The JSON names are a contract; `audit` prints all of them.

    The rules of quit and repair make one for `serve`, and `judge.pods` for commands. What shows it
    (lists, pages, Events, the charm) judges nothing.
    """

    namespace: str
    name: str
    uid: str = ""
    owner: str = ""  # The pod's controller, such as TFJob/mnist.
    created: datetime | None = None
    node: str = ""  # Empty: it has none yet, or nobody asked.
    # Empty: worth a note, but the pod neither hangs nor lacks anything. A dry run has `would quit`.
    state: State | Literal["would quit", ""] = ""
    code: str = ""  # One of `findings.Code`; the charm may read one of another version.
    # When the payload ended; of a lost pod, when its proxy did; of an unstarted one, when it could
    # have started; of an unmeshed one, its creation; of a deleted one, the deletion; of a failed
    # one, when it failed. None: unknown.
    since: datetime | None = None
    action: str = ""  # What is done about the pod: see `judge.installation.Judgement`.
    reason: str = ""
    # What a blocked pod waits for: containers, an annotation with a bad value, its node, or
    # finalizers. Of a stuck pod, the containers that keep it after its proxy, or the sidecar that
    # does not exit.
    by: tuple[str, ...] = ()
    containers: dict[str, ContainerVerdict] = {}
    configuration: str = ""  # The webhook configuration that selects an unmeshed pod.
    requests: Requests | None = None  # What a pod of `HELD` holds; None: unknown.
    fix: str = ""  # The setting that ends what blocks the pod, or how it gets its sidecar.
    left_out: str = ""  # Why no installation looks after the pod, or why that is not known.
    # Commands, to be pasted: to free a pod which no installation looks after, to restart one that
    # lacks its sidecar, to have an installation look after it.
    free: Command = NO_COMMAND
    restart: Command = NO_COMMAND
    change: Command = NO_COMMAND
    policy: str = ""  # A podFailurePolicy in YAML, for the pod's next Job.
    attempts: int | None = None  # Attempts to make the proxy of a stuck pod exit.
    # False while it may pass: most containers end a little apart, and so do a proxy and its payload
    # (`QuitLimits.blocked_after`, `lost_after`).
    lasting: bool = True

    @property
    def in_doubt(self) -> bool:
        """Whether the finding only says that the pod's membership in its mesh is unknown."""
        return not self.state and self.code == str(Code.MESH_UNKNOWN)
