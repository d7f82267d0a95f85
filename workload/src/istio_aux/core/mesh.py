"""All that is known of Istio's injectors at one moment, as one value.

Only that value and plain questions to it may live here; `injector.watcher` makes it, and replaces
it as a whole, so that whoever decides by it sees one moment and not two.
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
        injectors: as `liveness.evaluate` gives them; empty until the configurations are listed.
        hooks: of all configurations, whatever their state (`injection.hooks_of`).
        policies: of the istiods, as far as they could be read.
        known: False until the configurations have been listed and each injector that can be asked
            was asked once. What is said before is no reason to do anything.
    """

    injectors: tuple[Injector, ...] = ()
    hooks: tuple[Hook, ...] = ()
    policies: Policies = {}
    known: bool = False

    @property
    def capability(self) -> Capability:
        """What the sidecar of a new pod would be that asks for a native one."""
        return liveness.capability(self.injectors).capability

    @property
    def capability_why(self) -> str:
        """What makes it so, one line; empty while that has not been found out."""
        return liveness.capability(self.injectors).why

    @property
    def any_live(self) -> bool | None:
        """Whether some injector is live; None while it is not known of all that are not."""
        answers = {self.live(found.configuration) for found in self.injectors} or {None}
        return True if True in answers else None if None in answers else False

    def live(self, configuration: str) -> bool | None:
        """Whether the injector of ``configuration`` is live; None while that is not known.

        One that has proven itself is live even before the others have been asked. One that there is
        no word of is not live: its configuration is gone, or was never Istio's.
        """
        for injector in self.injectors:
            if injector.configuration == configuration:
                if injector.live:
                    return True
                if injector.state is State.NOT_PROBED:
                    return None
        return False if self.known else None
