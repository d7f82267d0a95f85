"""The node level: what it takes to run pods, and whether this machine can."""

from __future__ import annotations

PROGRAMS = ("kube-scheduler", "kubelet", "coredns")


class UnavailableError(Exception):
    """This machine cannot run pods; the message is the reason, in one line."""


def unavailable() -> str | None:
    """Why this machine cannot run the node level, in one line; None when it can."""
    return "the node level is not written yet"


def prepare():
    raise UnavailableError(unavailable())
