"""Bounds on what the quit controller does: seconds to wait, and how much at once."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds and in numbers at once."""

    deadline: float = 10.0
    """For one exec or request. On a busy node of two cores twelve at once took 1.6 s each."""
    confirm: float = 8.0
    """For the status to show an exit after a command that seems to have worked: Istio <=1.25 drains
    for 5 s first (mesh terminationDrainDuration), and the kubelet reports about 1 s late."""
    doubt: float = 2.0
    """The same after a command that seems to have failed."""
    first_retry: float = 1.0
    last_retry: float = 300.0
    last_reading: float = 30.0
    """Longest wait after the pod could not be read: an API server that was away must not leave
    pods waiting for minutes once it is back."""
    at_once: int = 24
    """First attempts."""
    retries_at_once: int = 8
    """Apart from the first ones, so that pods which fail again and again keep nobody waiting."""
    reports_at_once: int = 8
    """Pods with a dead proxy that are read again, or deleted."""
    lost_after: float = 2.0
    """Between the report of a dead proxy and the look that confirms it: a payload that ends with
    its proxy is no loss, and the kubelet reports the two about a second apart."""
    blocked_after: float = 60.0
    """How long a pod is blocked before its owner is told: most containers end a little apart."""
