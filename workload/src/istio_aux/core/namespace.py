"""The namespace as it comes over the wire, reduced to the fields we read.

Only the struct and plain accessors may live here.
"""

from __future__ import annotations

from collections.abc import Mapping

from istio_aux.core.pod import Metadata, Struct


class Namespace(Struct, frozen=True):
    """A namespace: webhooks select by its labels."""

    metadata: Metadata = Metadata()

    @property
    def labels(self) -> Mapping[str, str]:
        """``metadata.labels``, empty when absent or null."""
        return self.metadata.labels or {}
