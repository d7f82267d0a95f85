"""Wakes the charm while it waits for something that brings no event, with growing pauses.

A hook must not sleep, and a hook that notifies the charm at once makes the agent run hooks back to
back. So Pebble keeps the time. Its service `wake` sleeps, notifies the charm and ends; Pebble
starts it again after 5 s, 10 s, 20 s and so on. The running service is the only state: a Pebble
that restarts has forgotten it, and pebble-ready begins again.
"""

from __future__ import annotations

import logging
from typing import Final

import ops

SERVICE: Final = "wake"
KEY: Final = "istio-aux.io/wake"

# Where Juju mounts Pebble and its socket in a workload's container.
PEBBLE: Final = "/charm/bin/pebble"
SOCKET: Final = "/charm/container/pebble.socket"

LAYER: Final[ops.pebble.LayerDict] = {
    "summary": "istio-aux: wake the charm",
    "services": {
        SERVICE: {
            "override": "replace",
            "summary": "wakes the charm while it waits for what brings no event",
            # Pebble counts a service that ends in its first second as failed.
            "command": f"sh -c 'sleep 2; exec {PEBBLE} notify {KEY}'",
            "startup": "disabled",
            "environment": {"PEBBLE_SOCKET": SOCKET},
            "on-success": "restart",
            "on-failure": "restart",
            "backoff-delay": "5s",
            "backoff-factor": 2,
            # As often as update-status by default.
            "backoff-limit": "5m",
        }
    },
}

# Events that come by themselves: they leave the delay as it has grown. All others are news, such as
# `juju trust`, whose config-changed may come before the rights: then the delays begin again.
_BY_THEMSELVES: Final = (ops.UpdateStatusEvent, ops.PebbleNoticeEvent, ops.PebbleCheckEvent)

logger = logging.getLogger(__name__)


def ensure(container: ops.Container, event: ops.EventBase, *, wanted: bool) -> None:
    """Have Pebble wake the charm while that is `wanted`; this `event` may reset the pauses."""
    try:
        service = container.get_services(SERVICE).get(SERVICE)
        stopped = service is None or service.current is ops.pebble.ServiceStatus.INACTIVE
        if wanted and (stopped or not isinstance(event, _BY_THEMSELVES)):
            container.add_layer(SERVICE, LAYER, combine=True)
            # Nobody waits for the change: its result is the notice.
            container.pebble.restart_services([SERVICE], timeout=0)
        elif not wanted and not stopped:
            container.pebble.stop_services([SERVICE], timeout=0)
    except ops.pebble.Error as error:
        # The next event tries again, update-status at the latest.
        logger.warning("service %s: %s", SERVICE, error)
