"""Everything that is known about Istio's injectors at one moment, as one value.

`injector.watcher` replaces the value as a whole, so a decision never mixes two moments.
"""

from __future__ import annotations

import msgspec

from istio_aux.core import liveness
from istio_aux.core.injection import Hook, Policies
from istio_aux.core.liveness import Injector, State
from istio_aux.core.policy import Capability


class Mesh(msgspec.Struct, frozen=True, kw_only=True):
    """Which injectors there are, which of them are live, and which pods they select.

    Attributes:
        injectors: see `liveness.evaluate`; empty until the configurations are listed.
        hooks: of all configurations, whatever their state (`injection.hooks_of`).
        policies: of the istiods, as far as they can be read.
        known: whether the configurations are listed and each injector was probed once. Before that
            nothing must be done because of this value.
    """

    injectors: tuple[Injector, ...] = ()
    hooks: tuple[Hook, ...] = ()
    policies: Policies = {}
    known: bool = False

    @property
    def capability(self) -> Capability:
        """The sidecar of a new pod that asks for a native one."""
        return liveness.capability(self.injectors).capability

    @property
    def capability_why(self) -> str:
        """The reason, one line; empty until it was checked."""
        return liveness.capability(self.injectors).why

    @property
    def any_live(self) -> bool | None:
        """Whether an injector is live; None if none is known to be, and of some it is unknown."""
        answers = {self.live(found.configuration) for found in self.injectors} or {None}
        return True if True in answers else None if None in answers else False

    def live(self, configuration: str) -> bool | None:
        """Whether the injector of ``configuration`` is live; None if that is unknown.

        One that has proven itself is live even before the others were probed. One that is not in
        `injectors` is not live: its configuration is gone, or is not Istio's.
        """
        for injector in self.injectors:
            if injector.configuration == configuration:
                if injector.live:
                    return True
                if injector.state is State.NOT_PROBED:
                    return None
        return False if self.known else None
