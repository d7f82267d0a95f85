"""A model: where applications are deployed, related and looked at, and the agent of its units.

The agent's loop and the readiness probe have a thread each. A unit runs one hook at a time, and the
units of a model run theirs at the same time, in rounds. What a Pebble or another unit gives rise to
is queued and run in order. A hook that fails is shown in the status, raised by `settle`, and tried
again with backoff while the unit's later events wait.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace
from lightkube.types import CascadeType

from lab import Cluster, ending, meshed

from . import kubernetes
from .app import App, consequences
from .container import Image, of_workload
from .store import State, Store, application, new_relation
from .unit import DispatchError, Event, Metadata, Outcome, Unit

_POLL_SECONDS = 0.1
_PROBE_SECONDS = 0.25
# From deploy to the last event of a unit takes 5 to 10 s, 40 s beside much else.
_SETTLE_SECONDS = 400
# Between the attempts of a hook, doubled each time. Juju: 5 s, doubled up to 5 minutes.
_RETRY_SECONDS, _RETRY_MOST = 1.0, 60.0
# A workload starts in 1 to 3 s; the charm is woken 2 and 9 s after it began to wait.
_EXPECTED_SECONDS = 8


class Agent:
    """Runs the events of all units of a model; made and driven by `Model`."""

    def __init__(self, store: Store, publish: Callable[[], None]) -> None:
        """Start both threads; `publish` shows Kubernetes which units are ready."""
        self.units: dict[str, Unit] = {}
        # Guards units and queues. Never hold it while waiting for a hook, which needs it to end.
        self.lock = threading.RLock()
        # Called without the lock after each round of hooks, before that may count as quiet.
        self.after_hooks: list[Callable[[], None]] = []
        self._store = store
        # No event is run while it is not set.
        self.controller = threading.Event()
        self.controller.set()
        self._stopping = threading.Event()
        self._turn = threading.Condition()
        self._quiet_rounds = 0
        self._last_event = time.monotonic()
        self._failures: list[BaseException] = []
        self._hooks = ThreadPoolExecutor(thread_name_prefix="juju hook")
        self._threads = [
            threading.Thread(target=self._forever, args=(work, pause), name=name, daemon=True)
            for work, pause, name in (
                (self._round, _POLL_SECONDS, "juju agent"),
                (publish, _PROBE_SECONDS, "readiness probe"),
            )
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._hooks.shutdown()

    def run(self, unit: Unit, event: Event) -> Outcome:
        """Dispatch one event before what is queued, then queue what follows; DispatchError."""
        with unit.turn:
            self._last_event = time.monotonic()
            self._say(unit, "executing", event.name)
            try:
                outcome = unit.run(event, self._store)
            except DispatchError:
                self._say(unit, "error", f'hook failed: "{event.name}"')
                raise
            self._say(unit, "idle", "")
        with self.lock:
            for before, after, by in self._store.take_commits():
                for name, following in consequences(before, after, by):
                    if name in self.units:
                        self.units[name].queue.append(following)
        return outcome

    def settle(self, *, failing: bool, waiting: bool) -> None:
        """Return when every queue is empty and no Pebble has news; as `Model.settle`."""
        with self._turn:
            # The round that runs now may have looked before the caller's change.
            goal = self._quiet_rounds + 2
            calm = self._turn.wait_for(
                lambda: (
                    (self._failures and not failing)
                    or (self._quiet_rounds >= goal and (waiting or self._expects_nothing()))
                ),
                _SETTLE_SECONDS,
            )
            if failing:
                self._failures.clear()
        if self._failures:
            raise self._failures.pop(0)
        if not calm:
            recent = [
                (name, o.event, *o.log[-1:]) for name, u in self._each() for o in u.history[-3:]
            ]
            raise TimeoutError(f"events still come after {_SETTLE_SECONDS} s; last: {recent}")

    def _expects_nothing(self) -> bool:
        """Whether no unit is waiting, or all have been quiet for long."""
        waits = any(
            unit["status"]["status"] == "waiting" for unit in self._store.read()["units"].values()
        )
        return not waits or time.monotonic() - self._last_event > _EXPECTED_SECONDS

    @contextlib.contextmanager
    def edit(self) -> Iterator[State]:
        """Let the caller change the model's state together with the queues."""
        with self.lock, self._store.edit() as state:
            yield state

    def _round(self) -> None:
        """Run one event of each unit, all at the same time, or count a quiet round."""
        if not self.controller.is_set():
            return
        busy = any([*self._hooks.map(self._step, [unit for _, unit in self._each()])])
        for call in self.after_hooks:
            call()
        if not busy:
            with self._turn:
                self._quiet_rounds += 1
                self._turn.notify_all()

    def _step(self, unit: Unit) -> bool:
        """Run the unit's next event if that is due; return whether there is anything to come."""
        if unit.away or unit.leaving:
            return True
        unit.poll()
        # The state is changed before an event is queued, or both under the lock.
        with self.lock:
            if not unit.queue or unit.away or unit.leaving or unit.name not in self.units:
                return False
            if time.monotonic() < unit.retry_at:
                return True
            event = unit.queue.popleft()
        try:
            self.run(unit, event)
        except DispatchError as error:
            with self.lock:
                # A removal by force kills the hook that runs.
                if unit.name not in self.units:
                    return False
                unit.fail(event, _RETRY_SECONDS, _RETRY_MOST)
            self._fail(error)
        else:
            unit.succeed()
        return True

    def _forever(self, work: Callable[[], None], pause: float) -> None:
        while not self._stopping.is_set():
            try:
                work()
            except httpx2.TransportError:
                pass  # The API server is down: the next round asks it again.
            # Any error is raised in the test that waits for the agent.
            except Exception as error:
                if not self._stopping.is_set():
                    self._fail(error)
                return
            self._stopping.wait(pause)

    def _fail(self, error: BaseException) -> None:
        with self._turn:
            self._failures.append(error)
            self._turn.notify_all()

    def _say(self, unit: Unit, status: str, message: str) -> None:
        with self._store.edit() as state:
            if unit.name in state["units"]:
                state["units"][unit.name]["agent"] = {"status": status, "message": message}

    def _each(self) -> list[tuple[str, Unit]]:
        with self.lock:
            return sorted(self.units.items())


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
        kubernetes.create_model(
            self.client, name, self.store.read()["model"]["uuid"], namespace=self.namespace
        )
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
            images = dict.fromkeys(metadata.containers, of_workload(_ROOT / "workload"))
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
