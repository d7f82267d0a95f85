"""Tell the owner of a pod that a container has kept it from completing for long.

Only the waiting may live here; `core.quit.decide` says which pods are blocked, and by whom.
"""

from __future__ import annotations

import asyncio

from istio_aux.quit.ledger import Ledger
from istio_aux.quit.narrator import Narrator
from istio_aux.quit.record import Record


class Patience:
    """One timer a blocked pod. A class because it owns them."""

    def __init__(self, ledger: Ledger, narrator: Narrator, seconds: float) -> None:
        """Tell of pods that have been blocked for so many ``seconds``."""
        self._ledger, self._narrator, self._seconds = ledger, narrator, seconds

    def look(self, record: Record) -> None:
        """Set or stop the pod's timer, by what is known of it now."""
        since = record.blocked_since
        concerned = since is not None and not record.left and self._ledger.concerns(record)
        if record.alarm and not concerned:
            record.alarm.cancel()
            record.alarm = None
        elif (
            concerned and since and not record.alarm and "ProxyQuitBlocked" not in record.announced
        ):
            waited = (self._ledger.clock() - since).total_seconds()
            loop = asyncio.get_running_loop()
            record.alarm = loop.call_later(max(0.0, self._seconds - waited), self._ring, record)

    def _ring(self, record: Record) -> None:
        record.alarm = None
        self._narrator.blocked(record)
