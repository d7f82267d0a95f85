"""How much a client may cost: the webhook's bounds, and the memory that bodies may take together.

Only figures and their reasons may live here. They follow the API server's behaviour as a client
(apiserver pkg/util/webhook/client.go) and bound everybody else, who can reach the port as well.
"""

from __future__ import annotations

import msgspec

UNCOUNTED = 64 << 10
"""Bytes of a body that `Budget` does not count: reviews are smaller, so that whoever fills the
budget stands in the way of large bodies only. Connections, too, are bounded."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, seconds, and numbers of connections."""

    body: int = 4 << 20
    """The API server takes objects of 3 MiB, and etcd stores 1.5 MB; the core looks at 2 MiB."""
    bodies: int = 128 << 20
    """Of all bodies that are still arriving; the next one is asked to come again (503)."""
    head: int = 64 << 10
    """What a request says beside its body: head, chunks' sizes, trailers. It may exceed this by
    what was read together with it, at most a TLS record."""
    connections: int = 2048
    """Whose handshake is over. The API server keeps 25 and opens one for each review above that, in
    bursts. Half as many more may be on their way to that, or silent."""
    handshake: float = 10.0
    """As long as the API server waits for it (apimachinery util/net/http.go)."""
    request: float = 10.0
    """From a request's first byte to its last, however steadily the bytes drip. The API server
    gives up after its webhook's timeoutSeconds, by default 10."""
    idle: float = 120.0
    """Must exceed the API server's 90 s: a review on a connection that is being closed is not
    always sent again, and the pod would be created without us."""
    unread: float = 10.0
    """For a client to take what was sent to it."""
    linger: float = 1.0
    """For which what still comes is dropped after the last answer. A connection that is closed with
    bytes unread is reset, and the answer may be lost by that."""
    sweep: float = 0.5
    """Between looks at all deadlines; none is kept more exactly."""


DEFAULTS = Limits()


class Budget:
    """Memory for bodies. A class because all connections share it."""

    def __init__(self, allowed: int) -> None:
        self.free = allowed

    def take(self, size: int) -> bool:
        """Take ``size`` bytes, or nothing if there are not as many; returns whether so."""
        if size > self.free:
            return False
        self.free -= size
        return True

    def give_back(self, size: int) -> None:
        """Give back what was taken."""
        self.free += size
