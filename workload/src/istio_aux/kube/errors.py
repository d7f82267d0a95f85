"""Errors of requests to the API server, and how long to wait after them.

The text of each error is one clear line. Decide by its type and code, never by its text.
"""

from __future__ import annotations

import random

from istio_aux.model.text import MAY_NOT, printable

# Longest Retry-After in seconds. The API server asks for 1 to 10, a proxy perhaps for a day.
LONGEST_WAIT = 300.0
LONGEST = 1000  # Characters of a stored message, which may repeat the whole object.


class KubeError(Exception):
    """A request to the API server failed, or cannot be made.

    ``code`` is 0 unless the API server answered: see `ApiError`.
    """

    code = 0

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class AccessError(KubeError):
    """A kubeconfig or the files of a service account cannot be used; a retry does not help."""


class InvalidNameError(KubeError):
    """No object of the API can have that name; no request was sent."""


class UnreachableError(KubeError):
    """There is no complete answer: refused, reset, cut, or TLS failed. A retry may help."""


class NoConnectionError(UnreachableError):
    """No connection to the API server could be made, so it received nothing."""


class LateError(NoConnectionError):
    """The request was not sent, because the read that it is based on is too old now."""


class SilentError(UnreachableError):
    """The connection is open, but a read timed out."""


class UnreadableError(UnreachableError):
    """The answer is complete, but cannot be decoded: it says nothing about the object."""


class OversizedError(UnreadableError):
    """The answer is longer than is read; ``beginning`` has its first bytes."""

    def __init__(self, longest: int, beginning: bytes) -> None:
        super().__init__(f"the answer is longer than {longest >> 20} MiB")
        self.beginning = beginning


class ApiError(KubeError):
    """The API server answered with an error.

    ``code`` is the HTTP status, or that of a Status inside a watch, ``reason`` a word such as
    ``NotFound``, or empty. ``retry_after``: seconds that the server asks us to wait, at most
    `LONGEST_WAIT`, or None.
    """

    def __init__(
        self, code: int, message: str, *, reason: str = "", retry_after: float | None = None
    ) -> None:
        if len(message) > LONGEST:
            message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"
        super().__init__(f"{code} {reason}: {message}" if reason else f"{code}: {message}")
        self.code = code
        self.reason = reason
        self.retry_after: float | None = None
        if retry_after is not None and retry_after >= 0:  # The comparison is False for NaN.
            self.retry_after = min(retry_after, LONGEST_WAIT)

    @property
    def unknown(self) -> bool:
        """Whether the change may have been made despite the error, or may still be on its way."""
        return self.code >= 500


# A request failed, or its answer did not come within the caller's time.
UNANSWERED = (KubeError, TimeoutError)
# One object cannot be read. The API server answers, so others may be.
UNREAD = (ApiError, InvalidNameError, UnreadableError)


def gap(error: KubeError, right: str) -> str:
    """Say why something is not known; ``right`` is what reads it."""
    return f"{MAY_NOT}{right}" if error.code == 403 else f"cannot {right}: {error}"


def retry_after(error: Exception) -> float:
    """Return the seconds that the API server asks us to wait after ``error``, or 0."""
    return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0


class Backoff:
    """Counts consecutive failures and says how long to wait after each."""

    def __init__(self, first: float, longest: float) -> None:
        """Wait about ``first`` seconds after the first failure, never more than ``longest``."""
        self._first = first
        self._longest = longest
        self.failures = 0  # Since the last success.

    def next(self) -> float:
        """Count a failure; returns the seconds to wait, between half the step and all of it."""
        step = min(self._first * 2 ** min(self.failures, 32), self._longest)
        self.failures += 1
        # Jitter: clients that failed together must not come back together.
        return step * random.uniform(0.5, 1.0)  # noqa: S311  (spreads load, guards nothing)

    def reset(self) -> None:
        """Forget the failures: something succeeded."""
        self.failures = 0


def jittered(seconds: float) -> float:
    """Return ``seconds``, give or take a tenth."""
    return seconds * random.uniform(0.9, 1.1)  # noqa: S311  (spreads load, guards nothing)
