"""What can go wrong between us and the API server, as exceptions whose text is one clear line.

Only exception types, and what to read of them, may live here. Decide by type and code of one, never
by its text.
"""

from __future__ import annotations

LONGEST_WAIT = 300.0
"""Seconds. The API server asks for 1 to 10; a proxy in between must not stop us for a day."""


class KubeError(Exception):
    """A request to the API server did not succeed; ``str()`` says why in one line."""


class AccessError(KubeError):
    """A kubeconfig or a service account's files cannot be used; trying again does not help."""


class InvalidNameError(KubeError):
    """No object of the API can have that name; nothing was asked."""


class UnreachableError(KubeError):
    """No complete answer: refused, reset, cut in the middle, or TLS failed. May pass by itself."""


class NoConnectionError(UnreachableError):
    """No connection to the API server could be made, so that it has heard nothing."""


class SilentError(UnreachableError):
    """The connection stands, but not one byte came for as long as a healthy one may be quiet."""


class UnreadableError(UnreachableError):
    """The answer is complete, but cannot be read. Nothing is known of the object by it."""


class ApiError(KubeError):
    """The API server answered with an error: its Status, or what could be made of its answer.

    Attributes:
        code: HTTP status, or the code in a Status that came inside a watch stream.
        reason: machine-readable reason such as ``NotFound``; empty when unknown.
        retry_after: seconds that the server asks us to wait, at most `LONGEST_WAIT`, or None.
    """

    def __init__(
        self, code: int, message: str, *, reason: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(f"{code} {reason}: {message}" if reason else f"{code}: {message}")
        self.code = code
        self.reason = reason
        self.retry_after: float | None = None
        if retry_after is not None and retry_after >= 0:  # Which NaN is not.
            self.retry_after = min(retry_after, LONGEST_WAIT)

    @property
    def unknown(self) -> bool:
        """Whether a change that was asked for may have been made all the same.

        The API server answers 504 while the request may still be on its way to etcd, and any other
        server error may come after the change.
        """
        return self.code >= 500


def asked(error: Exception) -> float:
    """Return the seconds that the API server asks us to wait after ``error``; 0: it does not."""
    return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
