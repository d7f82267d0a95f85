"""One unit: its charm, its containers, and the queue of events that it has yet to see."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path

from lab import Cluster

from .container import GONE, Container
from .dispatch import CREDENTIALS, Charm, Event, Outcome
from .image import Image
from .root import Bind
from .store import Store

# Changes that Pebble's checks make, with the status that tells (Juju's agent, 3.6).
_CHECKS = {"perform-check": ("Error", "failed"), "recover-check": ("Done", "recovered")}


class Unit:
    """A unit of an application; `Model` drives it."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        folder: Path,
        charm: Path,
        *,
        network: Path | None,
        address: str,
        environment: Mapping[str, str],
    ) -> None:
        self.name, self.folder, self.address = name, folder, address
        self.queue: collections.deque[Event] = collections.deque()
        self.history: list[Outcome] = []
        self.started = False
        self.charm = Charm(
            cluster, charm, folder, label=f"juju-{name.replace('/', '-')}", network=network
        )
        self._cluster, self._environment, self._network = cluster, environment, network
        self._containers: dict[str, Container] = {}
        self._booted: dict[str, str] = {}
        self._noticed: dict[str, datetime.datetime] = {}

    @property
    def containers(self) -> Mapping[str, Container]:
        """The unit's containers by name."""
        return self._containers

    def start_container(self, name: str, image: Image) -> None:
        """Start a container with what its image brings."""
        self._containers[name] = Container(
            self._cluster,
            name,
            self.folder,
            label=f"{self.name.replace('/', '-')}-{name}",
            # Without a ServiceAccount of its own the workload would have the application's.
            image=[*image.binds, Bind(self.folder / "serviceaccount", CREDENTIALS)],
            environment={**self._environment, "PATH": image.path},
            network=self._network,
            user=dataclasses.replace(self.charm.metadata.containers[name], owns=image.owns),
        )

    def stop(self) -> None:
        """Kill the containers, as the kubelet does in the end."""
        for container in self._containers.values():
            container.process.kill()
            container.process.wait(10)

    def ready(self) -> bool:
        """Say whether every container passes its readiness probe."""
        return all(container.ready() for container in self._containers.values())

    def run(self, event: Event, store: Store) -> Outcome:
        """Dispatch one event now and remember its outcome.

        Raises:
            DispatchError: see `Charm.run`.
        """
        outcome = self.charm.run(self.name, event, store, self._environment)
        self.history.append(outcome)
        return outcome

    def poll(self) -> None:
        """Queue the events that the containers' Pebbles give rise to."""
        for container in self._containers.values():
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
