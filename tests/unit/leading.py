"""Leadership of which a test says what it is, instead of a Lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from istio_aux.kube.lease import Leadership


class Led(Leadership):
    """A controller begins to lead if it is ``leading``, and then when a test calls its `lead`.

    ``leads`` says whether it may act at this moment, and ``store`` stores what the next one needs.
    """

    def __init__(
        self,
        leading: bool = False,
        leads: Callable[[], bool] = lambda: True,
        store: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(held=leading)
        self._leads, self._store = leads, store

    def leads(self) -> bool:
        return self._leads()

    async def save(self) -> None:
        if self._store:
            await self._store()
