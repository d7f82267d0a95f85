"""What is found out about Istio's injectors, as ``/status`` shows it.

Pure: small structs, nothing else.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from istio_aux.core.liveness import State
from istio_aux.core.policy import Capability


class InjectorStatus(msgspec.Struct, frozen=True):
    """One of Istio's webhook configurations and the istiod behind it (`liveness.Injector`).

    Attributes:
        since: when it was first seen in this state, by the leader of that time.
        native: what pods get that ask for a native sidecar.
        native_why: what makes it so; empty while that has not been found out.
    """

    configuration: str
    revision: str
    state: State
    why: str
    since: datetime
    native: Capability
    native_why: str = ""
