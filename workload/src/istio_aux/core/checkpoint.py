"""What a process leaves to the next leader and to its own successor, as text of bounded size.

All else is found in the cluster again. The text is an annotation of the Lease (`kube.lease`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

ANNOTATION = "istio-aux.io/checkpoint"

FAILED = 100
"""Controllers that are remembered, those that failed last: 8 KiB, in a Lease that is written every
2 s."""

INJECTORS = 20
"""Webhook configurations that are remembered; a cluster has one for each revision and tag."""

OWNER = 128
"""Characters of a controller's namespace and UID that are remembered: the API server's UIDs have
36, those in an ownerReference of a pod are the author's."""

LONGEST = 64 * 1024
"""Characters of a text that is read. What this process writes is shorter."""

Name = Annotated[str, Meta(max_length=253)]


class Since(msgspec.Struct, frozen=True, array_like=True):
    """The state of an injector, of this version or another one, and since when it is in it."""

    state: Annotated[str, Meta(max_length=40)]
    since: Annotated[datetime, Meta(tz=True)]


class Checkpoint(msgspec.Struct, frozen=True):
    """What is remembered.

    Attributes:
        failed: controllers, by namespace/UID, whose new pod had no sidecar either, and when that
            was created.
        injectors: of Istio, by the name of the configuration.
    """

    failed: Mapping[Name, Annotated[datetime, Meta(tz=True)]] = {}
    injectors: Mapping[Name, Since] = {}

    def text(self) -> str:
        """As `read` reads it."""
        failed = [(key, at) for key, at in self.failed.items() if len(key) <= OWNER]
        newest = sorted(failed, key=lambda item: item[1], reverse=True)[:FAILED]
        known = sorted(self.injectors.items())[:INJECTORS]
        return msgspec.json.encode(Checkpoint(dict(newest), dict(known))).decode()


_decoder = msgspec.json.Decoder(Checkpoint)


def read(text: str) -> Checkpoint:
    """Read an annotation; nothing is remembered where it is none of ours, or was changed."""
    try:
        return _decoder.decode(text) if 0 < len(text) <= LONGEST else Checkpoint()
    except (msgspec.DecodeError, RecursionError):
        return Checkpoint()
