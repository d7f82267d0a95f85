"""What is found out about pods, Jobs and applications without a sidecar, as ``/status`` shows it.

Pure: small structs, nothing else.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class Unmeshed(msgspec.Struct, frozen=True):
    """A pod that should have a sidecar and has none.

    Attributes:
        owner: kind and name of its controller, ``StatefulSet/web``; empty for a bare pod.
        reason: why it should have one, and why it is not restarted.
        since: when it was created, for a sidecar comes at no other time.
    """

    namespace: str
    name: str
    owner: str
    reason: str
    since: datetime


class ApplicationMesh(msgspec.Struct, frozen=True, rename="kebab"):
    """An application that asks for sidecars, and whether it has them.

    Attributes:
        live: whether a new pod of it would get its sidecar now; None: not known.
        live_reason: what makes it so, or is not known; one line, for people.
        revision: of the Istio whose injector selects its pods, empty while that is not known.
        root_namespace: of that Istio's control plane, empty as well.
        meshed: whether each of its pods has a sidecar; None: not known.
        meshed_reason: what makes it so; one line, for people.
    """

    namespace: str
    name: str
    live: bool | None
    live_reason: str
    revision: str
    root_namespace: str
    meshed: bool | None
    meshed_reason: str


class Suspended(msgspec.Struct, frozen=True):
    """A Job that was suspended for the sake of its pods, and will be resumed.

    Attributes:
        since: when it was suspended.
        reason: what is waited for.
    """

    namespace: str
    kind: str
    name: str
    since: datetime
    reason: str
