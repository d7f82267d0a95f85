"""What Kubernetes before the lab's newest one lacks, and what is true of the product there.

A test that cannot run on an older one has the mark of its difference, whose reason says what
happens instead. `make matrix` makes a table of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lab import tools


@dataclass(frozen=True)
class Difference:
    """Something that Kubernetes has from 1.`since` on."""

    what: str  # What is lacking before.
    since: int
    instead: str  # What the product does there, or what happens.
    shown: str  # The test that shows it.

    @property
    def there(self) -> bool:
        return not tools.before(self.since)

    @property
    def needed(self) -> pytest.MarkDecorator:
        """The mark of a test that takes it."""
        reason = f"{tools.VERSION}: no {self.what}: {self.instead} ({self.shown})"
        return pytest.mark.skipif(not self.there, reason=reason)


NATIVE = Difference(
    "native sidecar by default (Istio wants kubelets of 1.33)",
    33,
    "sidecars are classic unless asked for otherwise, so pods are held, or ask",
    "unit/test_injector_watcher.py",
)
CONTAINER_RESTARTS = Difference(
    "restart policy and restart rules of a single container",
    35,
    "1.34 drops them unless its gate ContainerRestartRules is on, others refuse the pod",
    "oracle/",
)
RESTART_ALL = Difference(
    "restart of all containers by a rule",
    36,
    "the API server refuses the pod, or drops the rule",
    "oracle/",
)
WEBSOCKETS = Difference(
    "WebSocket from the API server to the kubelet",
    36,
    "the API server translates exec into SPDY; quitting does not differ",
    "cluster/test_quit.py",
)
EVENTS = Difference(
    "right of ClusterRole edit to write Events of events.k8s.io",
    35,
    "quit by a person writes none",
    "cluster/test_free_my_job.py",
)
DIFFERENCES = (NATIVE, CONTAINER_RESTARTS, RESTART_ALL, WEBSOCKETS)
