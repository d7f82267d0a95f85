"""What can go wrong between us and the API server, as exceptions whose text is one clear line.

Only exception types may live here. Whoever catches one decides by its type and code, never by text.
"""

from __future__ import annotations


class KubeError(Exception):
    """A request to the API server did not succeed; ``str()`` says why in one line."""


class AccessError(KubeError):
    """A kubeconfig or a service account's files cannot be used; trying again does not help."""


class UnreachableError(KubeError):
    """No complete answer: refused, reset, cut in the middle, or TLS failed. May pass by itself."""


class SilentError(UnreachableError):
    """The connection stands, but not one byte came for as long as a healthy one may be quiet."""


class ApiError(KubeError):
    """The API server answered with an error: its Status, or what could be made of its answer.

    Attributes:
        code: HTTP status, or the code in a Status that came inside a watch stream.
        reason: machine-readable reason such as ``NotFound``; empty when unknown.
        retry_after: seconds that the server asks us to wait, or None.
    """

    def __init__(
        self, code: int, message: str, *, reason: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(f"{code} {reason}: {message}" if reason else f"{code}: {message}")
        self.code = code
        self.reason = reason
        self.retry_after = retry_after

    @property
    def unknown(self) -> bool:
        """Whether a change that was asked for may have been made all the same.

        The API server answers 504 while the request may still be on its way to etcd, and any other
        server error may come after the change.
        """
        return self.code >= 500
