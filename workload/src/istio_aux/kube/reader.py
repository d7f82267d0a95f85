"""Decode what the API server answers: the one place where bytes of the API become structs.

Tenants write most of what an object holds. Whatever one of them makes of it, at most that object
cannot be read. The plain decoder comes first; only a text that it cannot read is cut (`shallow`).
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

import msgspec

from istio_aux.core.nesting import DEEPEST, cutting, shallow
from istio_aux.kube.errors import UnreadableError

S = TypeVar("S")

_SAID = 200
"""Characters of an error that a line for a person has room for; a part may be the tenant's."""


class Reader(Generic[S]):
    """Decodes answers that hold one object of a kind."""

    def __init__(self, kind: type[S], name: str) -> None:
        """Decode to ``kind``, a struct that error messages call ``name``."""
        self._decoder = msgspec.json.Decoder(kind)
        self._name = name

    def read(self, body: bytes) -> S:
        """Decode one answer.

        Raises:
            UnreadableError: it cannot be decoded, for whatever reason.
        """
        try:
            return self._decoder.decode(body)
        except Exception:  # Decoders raise many things; what matters is whether the second can.
            return self._read_cut(body)

    def _read_cut(self, body: bytes) -> S:
        try:
            return self._decoder.decode(shallow(body))
        except Exception as error:
            raise UnreadableError(f"the answer is no {self._name}: {brief(error)}") from error


async def cut(body: bytes, deepest: int = DEEPEST) -> bytes:
    """`shallow` for a text of any size, which leaves the event loop to others now and then."""
    work = cutting(body, deepest)
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value
        await asyncio.sleep(0)


def brief(error: Exception) -> str:
    """Say in one line why something could not be decoded."""
    text = " ".join((str(error) or type(error).__name__).split())
    return text if len(text) <= _SAID else f"{text[:_SAID]} ..."
