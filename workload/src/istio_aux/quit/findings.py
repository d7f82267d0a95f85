"""Pods that a person should look at, as ``/status`` shows them.

Pure: small structs, nothing else.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class Stuck(msgspec.Struct, frozen=True):
    """A pod whose proxy withstands; ``since`` is the end of its payload."""

    namespace: str
    name: str
    uid: str
    since: datetime
    attempts: int
    reason: str


class Blocked(msgspec.Struct, frozen=True):
    """A pod that runs on because of the containers ``by``, although another one is finished."""

    namespace: str
    name: str
    uid: str
    by: list[str]
    reason: str


class Lost(msgspec.Struct, frozen=True):
    """A pod whose proxy is gone for good while a payload container may still run."""

    namespace: str
    name: str
    uid: str
    reason: str
