"""The relation interface `istio_sidecar`: ask for a sidecar, learn when the mesh is live.

`_sidecar` explains the interface, with a charm that uses it.
"""

from ._sidecar import (
    Asked,
    Mesh,
    SidecarChangedEvent,
    SidecarProvider,
    SidecarRequest,
    SidecarRequirer,
    SidecarRequirerEvents,
)
from ._version import __version__ as __version__

__all__ = [
    "Asked",
    "Mesh",
    "SidecarChangedEvent",
    "SidecarProvider",
    "SidecarRequest",
    "SidecarRequirer",
    "SidecarRequirerEvents",
]
