"""Relations of the interface `istio_sidecar` for state-transition tests of charms."""

from ._testing import relation_for_provider, relation_for_requirer
from ._version import __version__ as __version__

__all__ = ["relation_for_provider", "relation_for_requirer"]
