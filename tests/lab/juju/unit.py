"""One unit: its pod with charm and containers, and the queue of events that it has yet to see."""

from __future__ import annotations

import collections
import contextlib
import datetime
import ipaddress
import itertools
import os
import shlex
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from lab import Cluster

from .container import GONE, Container, Image
from .dispatch import Charm, Event, Outcome
from .store import Store

# Changes that Pebble's checks make, with the status that tells (Juju's agent, 3.6).
_CHECKS = {"perform-check": ("Error", "failed"), "recover-check": ("Done", "recovered")}
# One number for each pod of the process, for networks that must not collide.
_INDICES = itertools.count(1)
# From a container's start to its first probe; until then it is not ready. Juju: 30 s.
_PROBE_SECONDS = 3.0
# Seconds that a pod has from SIGTERM to SIGKILL (Kubernetes' default, which Juju keeps).
GRACE = 30

# Apart from the lab's own bridge and its pods; one small network a pod.
_NETWORKS = ipaddress.ip_network("10.251.0.0/16")


class Unit:
    """A unit of an application; `Model` drives it.

    Attributes:
        address: that of its present pod.
        queue: the events that it has yet to see.
        history: how its dispatches went.
        turn: the lock of the hook that runs.
        containers: those of its present pod, by name.
        away: it has no pod, or one that terminates.
        leaving: it is removed, and sees nothing more of what is queued.
        retry_at: when, by the monotonic clock, the hook that failed may be tried again.
    """

    def __init__(
        self, cluster: Cluster, name: str, folder: Path, environment: Mapping[str, str]
    ) -> None:
        """Make a unit without a pod; `environment` is that of each container."""
        self.name, self.folder, self.address = name, folder, ""
        self.queue: collections.deque[Event] = collections.deque()
        self.history: list[Outcome] = []
        self.turn = threading.Lock()
        self.away, self.leaving = True, False
        self.retry_at = 0.0
        self._attempts = 0
        self.charm = Charm(cluster, folder, label=f"juju-{name.replace('/', '-')}")
        self._cluster, self._environment = cluster, environment
        self._network = Path()  # See `start`.
        self.containers: dict[str, Container] = {}
        self._booted: dict[str, str] = {}
        self._noticed: dict[str, datetime.datetime] = {}
        self._probed: dict[str, tuple[str | None, float]] = {}

    def start(self, charm: Path, images: Mapping[str, Image]) -> None:
        """Start a pod with this charm and a container for each image; nothing is left of before."""
        self._network, self.address = _network(self._cluster, self.folder, next(_INDICES))
        self.charm.place(charm, self._network)
        self._booted.clear()
        self._noticed.clear()
        self.containers.clear()
        self.boot(images)
        self.away = False

    def boot(self, images: Mapping[str, Image]) -> None:
        for name, image in images.items():
            self.containers[name] = Container(
                self._cluster,
                name,
                self.folder,
                label=f"{self.name.replace('/', '-')}-{name}",
                image=image,
                environment=self._environment,
                network=self._network,
                user=self.charm.metadata.containers[name],
            )

    def terminate(self) -> None:
        """Let the containers end by themselves, as the kubelet does first; then kill them."""
        for container in self.containers.values():
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(container.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            for container in self.containers.values():
                container.process.wait(GRACE)
        self._kill_containers()

    def kill(self) -> None:
        """Kill the containers and the hook that runs, as a node does that fails."""
        self.charm.kill()
        self._kill_containers()

    def _kill_containers(self) -> None:
        for container in self.containers.values():
            container.process.end()

    def ready(self) -> bool:
        """Say whether the pod is there and every container passes its readiness probe."""
        containers = self.containers.values()
        return not self.away and bool(containers) and all(map(self._probe, containers))

    def _probe(self, container: Container) -> bool:
        boot, now = container.boot_id(), time.monotonic()
        known, since = self._probed.get(container.name, (None, now))
        if boot is None or boot != known:
            self._probed[container.name] = boot, now
            return False
        return now > since + _PROBE_SECONDS and container.ready()

    def run(self, event: Event, store: Store) -> Outcome:
        """Dispatch one event now and remember its outcome. Raises as `Charm.run` does."""
        outcome = self.charm.run(self.name, event, store, self._environment)
        self.history.append(outcome)
        return outcome

    def fail(self, event: Event, first: float, most: float) -> None:
        """Put an event that failed before all others, until its next attempt is due."""
        self.queue.appendleft(event)
        self.retry_at = time.monotonic() + min(first * 2**self._attempts, most)
        self._attempts += 1

    def succeed(self) -> None:
        """Forget that a hook has failed."""
        self._attempts, self.retry_at = 0, 0.0

    def poll(self) -> None:
        """Queue the events that the containers' Pebbles give rise to."""
        for container in self.containers.values():
            try:
                self._poll(container)
            except GONE:
                continue

    def _poll(self, container: Container) -> None:
        workload = {"JUJU_WORKLOAD_NAME": container.name}
        if (boot := container.boot_id()) and boot != self._booted.get(container.name):
            self._booted[container.name] = boot
            self.queue.append(Event(f"{container.name}-pebble-ready", workload))
        for notice in container.notices(self._noticed.get(container.name)):
            self._noticed[container.name] = notice.last_repeated
            if str(notice.type) in ("custom", "NoticeType.CUSTOM"):
                details = {"ID": notice.id, "TYPE": "custom", "KEY": notice.key}
                extra = {f"JUJU_NOTICE_{key}": value for key, value in details.items()}
                event = Event(f"{container.name}-pebble-custom-notice", {**workload, **extra})
                self.queue.append(event)
                continue
            telling, happened = _CHECKS.get(notice.last_data.get("kind", ""), ("", ""))
            change = container.change(notice.key) if telling else None
            if change and change.status == telling:
                check = {"JUJU_PEBBLE_CHECK_NAME": notice.last_data["check-name"]}
                self.queue.append(
                    Event(f"{container.name}-pebble-check-{happened}", {**workload, **check})
                )


def _network(cluster: Cluster, folder: Path, index: int) -> tuple[Path, str]:
    """Make a pod's network namespace; return its file, which the cluster sees, and address."""
    path = folder / f"network-{index}"
    ours, theirs = (_NETWORKS[4 * index + end] for end in (1, 2))
    path.touch()
    file, link = shlex.quote(str(path)), f"unit{index}"
    inside = f"nsenter --net={file} ip"
    script = f"""
        unshare --net={file} ip link set lo up
        ip link add {link} type veth peer name eth0 netns {file}
        ip address add {ours}/30 dev {link}
        ip link set {link} up
        {inside} address add {theirs}/30 dev eth0
        {inside} link set eth0 up
        {inside} route add default via {ours}
    """
    process = cluster.spawn(f"network-{index}", ["sh", "-euxc", script])
    if status := process.wait(30):
        raise ChildProcessError(f"network {index}: exit status {status}: {process.log}")
    return path, str(theirs)
