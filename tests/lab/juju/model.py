"""A model: where applications are deployed, related and looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace
from lightkube.types import CascadeType

from lab import Cluster, ending, meshed

from . import kubernetes
from .agent import Agent
from .app import App
from .image import Image, of_workload
from .packed import Metadata
from .store import Store, application, new_relation

_ROOT = Path(__file__).resolve().parents[3]
MODEL = "istio-aux.io/model"  # The charm's own label.


class Model:
    """A model in its namespace; what it runs dies with the cluster, at the latest."""

    def __init__(self, cluster: Cluster, name: str, *, namespace: str = "") -> None:
        """Make the model, its namespace (`controller-<name>` for a controller) and agent."""
        self.cluster, self.name, self.namespace = cluster, name, namespace or name
        self.folder = cluster.state / "juju" / self.namespace
        self.store = Store(self.folder, name)
        self.client = cluster.client()
        self.apps: dict[str, App] = {}
        uuid = self.store.read()["model"]["uuid"]
        kubernetes.create_model(self.client, name, uuid, namespace=self.namespace)
        self.agent = Agent(self.store, self.publish)

    def __enter__(self) -> Self:
        """Return the model; the block's end stops its agent and its units."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything. Objects stay in the cluster, but for webhooks that serve no more."""
        with ending(f"model {self.name}"):
            self.close()

    def close(self) -> None:
        """End the agent, then the units' containers; safe to repeat."""
        self.agent.stop()
        for unit in self.agent.units.values():
            unit.kill()
        self.agent.units.clear()
        labels: Any = {MODEL: self.name}
        meshed.delete(self.client, self.client.list(MutatingWebhookConfiguration, labels=labels))

    def deploy(
        self,
        charm: Path,
        *,
        trust: bool = False,
        config: Mapping[str, Any] | None = None,
        units: int = 1,
        images: Mapping[str, Image] | None = None,
    ) -> App:
        """Deploy a packed charm and return at once; `settle` waits for what follows."""
        metadata = Metadata.read(charm)
        options = metadata.config(config or {})
        name = metadata.name
        if images is None:
            image = of_workload(_ROOT / "workload")
            images = dict.fromkeys(metadata.containers, image)
        objects = kubernetes.Objects(self.client, self.name, name, namespace=self.namespace)
        objects.create(trust=trust)
        with self.agent.edit() as state:
            state["applications"][name] = application(config=options)
            for endpoint in metadata.peers:
                new_relation(state, {name: endpoint})
        app = App(self, name, charm, metadata, objects=objects, images=images)
        self.apps[name] = app
        for _ in range(units):
            app.add_unit()
        return app

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Be without a controller for a while: no hook runs (juju#21512)."""
        self.agent.controller.clear()
        try:
            # The hooks that run end before the controller goes.
            for unit in list(self.agent.units.values()):
                with unit.turn:
                    pass
            yield
        finally:
            self.agent.controller.set()

    def destroy(self) -> None:
        """Take all away as `juju destroy-model --force --no-wait` does; not awaited."""
        for app in list(self.apps.values()):
            app.remove(force=True)
        self.close()
        self.client.delete(Namespace, self.namespace, cascade=CascadeType.FOREGROUND)

    def settle(self, *, failing: bool = False, waiting: bool = False) -> None:
        """Return when no unit has anything left to do, and Kubernetes knows which are ready.

        ``failing``: hooks may fail meanwhile. ``waiting``: a unit's status may be that in the end.
        Raises DispatchError: a hook failed since the last call; TimeoutError has the last events.
        """
        self.agent.settle(failing=failing, waiting=waiting)
        self.publish()

    def environment(self) -> dict[str, str]:
        """Return where the API server is, as every container of a pod is told."""
        server = urlsplit(self.cluster.server)
        return {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port or 443),
        }

    def publish(self) -> None:
        state = self.store.read()
        for app in list(self.apps.values()):
            app.publish(state)
