"""The agent's loop and the readiness probe of one model, each in a thread of its own.

One hook at a time in the whole model. What a Pebble or another unit gives rise to is queued and
run in order; a hook that fails is not tried again, but shown in the status and raised by `settle`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from .dispatch import DispatchError, Event, Outcome
from .events import consequences
from .store import State, Store
from .unit import Unit

_POLL_SECONDS = 0.1
_PROBE_SECONDS = 0.25


class Agent:
    """Runs the events of all units of a model; made and driven by `Model`."""

    def __init__(self, store: Store, publish: Callable[[], None]) -> None:
        """Start both threads; `publish` shows Kubernetes which units are ready."""
        self.units: dict[str, Unit] = {}
        self.lock = threading.RLock()
        # Called without the lock after each round of hooks, before that may count as quiet.
        self.after_hooks: list[Callable[[], None]] = []
        self._store, self._publish = store, publish
        self._stopping = threading.Event()
        self._turn = threading.Condition()
        self._quiet_rounds = 0
        self._failures: list[BaseException] = []
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
        """End both threads, after the hook that runs."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def run(self, unit: Unit, event: Event) -> Outcome:
        """Dispatch one event now, before what is queued; then queue what follows from it.

        Raises:
            DispatchError: the hook failed, or no handler ran.
        """
        with self.lock:
            before = self._store.read()
            self._say(unit, "executing", event.name)
            try:
                outcome = unit.run(event, self._store)
            except DispatchError:
                self._say(unit, "error", f'hook failed: "{event.name}"')
                raise
            self._say(unit, "idle", "")
            for name, following in consequences(before, self._store.read(), unit.name):
                if name in self.units:
                    self.units[name].queue.append(following)
            return outcome

    def settle(self, timeout: float) -> None:
        """Return when every queue is empty and no Pebble has anything new to tell.

        Raises:
            DispatchError: a hook failed since the last call.
            TimeoutError: events still come after so many seconds; the message has the last ones.
        """
        with self._turn:
            # The round that runs now may have looked before the caller's change.
            goal = self._quiet_rounds + 2
            calm = self._turn.wait_for(
                lambda: self._failures or self._quiet_rounds >= goal, timeout
            )
        if self._failures:
            raise self._failures.pop(0)
        if not calm:
            recent = [
                (name, o.event, *o.log[-1:]) for name, u in self._each() for o in u.history[-3:]
            ]
            raise TimeoutError(f"events still come after {timeout:g} s; last: {recent}")

    @contextlib.contextmanager
    def edit(self) -> Iterator[State]:
        """Let the caller change the model's state between two hooks."""
        with self.lock, self._store.edit() as state:
            yield state

    def _round(self) -> None:
        """Run one event of each unit, or count a quiet round."""
        ran = False
        with self.lock:
            for _, unit in self._each():
                unit.poll()
                if unit.queue:
                    ran = True
                    try:
                        self.run(unit, unit.queue.popleft())
                    except DispatchError as error:
                        self._fail(error)
        for call in self.after_hooks:
            call()
        if not ran:
            with self._turn:
                self._quiet_rounds += 1
                self._turn.notify_all()

    def _forever(self, work: Callable[[], None], pause: float) -> None:
        while not self._stopping.is_set():
            try:
                work()
            # Whatever it is, it belongs to the test that waits for the agent, not to this thread.
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
        return sorted(self.units.items())
