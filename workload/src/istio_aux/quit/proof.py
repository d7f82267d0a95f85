"""What a pod's container statuses prove about its proxy, and the ways in which a quit can end.

Pure: a pod in, facts out.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from istio_aux.core.pod import PROXY, ContainerStatus, Pod


class ProxyExit(msgspec.Struct, frozen=True):
    """The proxy has exited.

    Attributes:
        exit_code: of the proxy's container.
        after_payload: seconds from the last other container's exit to the proxy's, or None when a
            time is missing. The kubelet reports whole seconds.
    """

    exit_code: int
    after_payload: float | None


class Gone(msgspec.Struct, frozen=True):
    """The pod exists no more, or another one has its name."""


class Superseded(msgspec.Struct, frozen=True):
    """The pod was read again, and nothing is to be done about it any more."""

    reason: str


Outcome = ProxyExit | Gone | Superseded


def proxy_exit(pod: Pod) -> ProxyExit | None:
    """The exit of the proxy, or None as long as its status does not show one."""
    status = pod.container_status(PROXY)
    if status is None or status.state is None or status.state.terminated is None:
        return None
    ended = status.state.terminated.finished_at
    others = [
        time
        for other in pod.status.container_statuses or ()
        if other.name != PROXY and (time := _finished_at(other)) is not None
    ]
    after = max((ended - max(others)).total_seconds(), 0.0) if ended and others else None
    return ProxyExit(exit_code=status.state.terminated.exit_code, after_payload=after)


def _finished_at(status: ContainerStatus) -> datetime | None:
    terminated = status.state.terminated if status.state else None
    return terminated.finished_at if terminated else None
