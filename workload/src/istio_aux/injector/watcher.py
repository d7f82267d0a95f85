"""Know of each of Istio's injectors whether it is live, and tell whenever that changes.

Only the telling may live here: `following` gathers the facts, `core.liveness` decides. One loop
looks at all there is and tells what follows from it; which event woke it does not matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from istio_aux.core import liveness
from istio_aux.core.checkpoint import Since
from istio_aux.core.liveness import Injector, State
from istio_aux.core.mesh import Mesh
from istio_aux.core.policy import Capability
from istio_aux.core.selectors import Selector
from istio_aux.core.webhooks import Configuration
from istio_aux.injector.findings import InjectorStatus
from istio_aux.injector.following import Following
from istio_aux.injector.inquiry import RHYTHM, Rhythm
from istio_aux.kube.client import Client
from istio_aux.kube.resources import Key, key_of
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)

SETTLE = 0.5
"""Seconds that what is told waits for answers that are due: a new endpoint of an injector that goes
on to be live, or the first list of a new Service, is no news by itself."""

LONGEST = 60.0
"""Seconds between two looks at most: clocks are set, and certificates expire by them."""

_EXPECTED = frozenset({State.LIVE, State.ABSENT, State.DEACTIVATED})
"""States that are nobody's mistake."""


class Watcher:
    """Fed by a watch of all configurations: vendors' have names and labels of their own.

    Attributes:
        mesh: all that is known, replaced whenever it changes.
        changed: is called, on the loop, whenever `mesh` was replaced.
        listed: is set once all configurations have been told.
    """

    def __init__(
        self,
        client: Client,
        namespaces: Mapping[str, Mapping[str, str]],
        telemetry: Telemetry,
        *,
        root: str | None = None,
        selector: Selector | None = None,
        rhythm: Rhythm = RHYTHM,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; nothing is asked before `run`.

        Args:
            client: an open client, once `run` is called.
            namespaces: labels of all of them by name, kept in step by somebody else.
            telemetry: where states and answers are counted.
            root: the namespace of the only control plane that matters; None for all of them.
            selector: of the namespaces in which native sidecars will be asked for.
            rhythm: how often injectors are asked.
            changed: see the attribute.
        """
        self.mesh = Mesh()
        self.changed = changed
        self.listed = asyncio.Event()
        self._news = asyncio.Event()
        self._telemetry, self._root, self._rhythm = telemetry, root, rhythm
        self._configurations: dict[Key, Configuration] = {}
        self._following = Following(
            client, namespaces, telemetry,
            root=root, selector=selector, rhythm=rhythm, news=self._news.set,
        )  # fmt: skip
        self._since: dict[str, Since] = {}
        self._recalled: Mapping[str, Since] = {}
        self._logged: dict[str, State] = {}
        self._told: tuple[Capability, str] | None = None

    def apply(self, resource: Configuration) -> None:
        """A configuration exists and looks like this."""
        self._configurations[key_of(resource)] = resource
        self._news.set()

    def delete(self, key: Key, _last: Configuration | None) -> None:
        """A configuration is gone."""
        self._configurations.pop(key, None)
        self._news.set()

    def shown(self) -> list[InjectorStatus]:
        """What `/status` says of the injectors; nothing before it is known."""
        return [
            InjectorStatus(
                configuration=found.configuration,
                revision=found.revision,
                state=found.state,
                why=found.why,
                since=self._since[found.configuration].since,
                native=found.native,
                native_why=found.native_why,
            )
            for found in (self.mesh.injectors if self.mesh.known else ())
        ]

    @property
    def since(self) -> Mapping[str, Since]:
        """Since when injectors are in their states, by configuration, or what `recall` was told."""
        return self._since if self.mesh.known else self._recalled

    def recall(self, since: Mapping[str, Since]) -> None:
        """Take what who leads, or led last, says of that; what is known better stays."""
        if not self.mesh.known:
            self._recalled = since
            return
        for name, known in self._since.items():
            told = since.get(name)
            if told and told.state is known.state:
                self._since[name] = told

    async def run(self) -> None:
        """Follow and tell until cancelled. It raises nothing; an error is counted and logged."""
        await self.listed.wait()
        clock = asyncio.get_running_loop().time
        deadline = clock() + SETTLE
        try:
            while True:
                patience = self._rhythm.other
                self._news.clear()
                try:
                    self._following.look(tuple(self._configurations.values()), datetime.now(UTC))
                    if not await self._settled(deadline - clock()):
                        continue
                    patience = self._tell(datetime.now(UTC))
                # What trips us must not end the process, which serves admission too.
                except Exception as error:
                    self._telemetry.internal_errors.inc()
                    extra = {"event": "internal-error"}
                    _log.exception("injector watcher: %s", error, extra=extra)
                    await asyncio.sleep(self._rhythm.other)
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await self._news.wait()
                deadline = clock() + SETTLE
        finally:
            await self._following.stop()

    async def _settled(self, patience: float) -> bool:
        """Wait for the answers that are due, but not for ever; False if there is news meanwhile."""
        if patience <= 0 or all(event.is_set() for event in self._following.due):
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._news.wait()
                return False
        return True

    def _tell(self, now: datetime) -> float:
        """Publish what is known now; returns the seconds after which to look again at the latest.

        They are those until time alone may change a state.
        """
        following, facts = self._following, self._following.facts()
        found = liveness.evaluate(self._configurations.values(), facts, now, root=self._root)
        mesh = Mesh(
            injectors=found,
            hooks=following.hooks,
            policies=dict(following.policies),
            known=self.mesh.known or following.asked(facts, now),
        )
        if mesh != self.mesh:
            self.mesh = mesh
            self._record(now)
            self.changed()
        if following.unlisted:
            return self._rhythm.other  # Nobody tells that they cannot be read.
        until = min((each.until for each in found if each.until), default=None)
        return min(LONGEST, max(0.0, (until - now).total_seconds())) if until else LONGEST

    def _record(self, now: datetime) -> None:
        """Keep since when injectors are in their states; log and count these."""
        injectors = self.mesh.injectors
        states = {found.configuration: found.state for found in injectors}
        if self.mesh.known:
            # What was recalled counts for the first look only: later ones see changes themselves.
            before, self._recalled = self._since or self._recalled, {}
            self._since = {
                name: known if (known := before.get(name)) and known.state is state
                else Since(state, now)
                for name, state in states.items()
            }  # fmt: skip
        for state in State:
            self._telemetry.injectors.labels(state).set(list(states.values()).count(state))
        if self.mesh.known:
            for found in injectors:
                if self._logged.get(found.configuration) is not found.state:
                    _report(found)
            self._logged = states
            self._report_capability()

    def _report_capability(self) -> None:
        """Log what pods get that ask for a native sidecar, when that changes and is known."""
        told = self.mesh.capability, self.mesh.capability_why
        if told[1] and told != self._told:
            self._told = told
            _log.log(
                logging.WARNING if told[0] is Capability.UNKNOWN else logging.INFO,
                "start: %s: %s", *told,
                extra={"event": "capability", "capability": told[0], "why": told[1]},
            )  # fmt: skip


def _report(found: Injector) -> None:
    _log.log(
        logging.INFO if found.state in _EXPECTED else logging.WARNING,
        "%s: %s: %s", found.configuration or "no injector", found.state, found.why,
        extra={
            "event": "injector",
            "configuration": found.configuration,
            "revision": found.revision,
            "state": found.state,
            "why": found.why,
            "native": found.native,
        },
    )  # fmt: skip
