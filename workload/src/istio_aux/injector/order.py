"""Tell, whenever it changes, which of Istio's webhook configurations are called before ours.

Only the keeping and the telling may live here; the rule is `core.webhooks.sorted_before`.
"""

from __future__ import annotations

import logging

from istio_aux.core.webhooks import Configuration, sorted_before
from istio_aux.kube import actions
from istio_aux.kube.resources import Key, key_of
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)

CONFIGURATIONS = actions.collection(
    "admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"
)


class Order:
    """Fed by a watch of all configurations: vendors' have names and labels of their own.

    Attributes:
        called_before: names of the configurations, sorted.
    """

    def __init__(self, ours: str, telemetry: Telemetry) -> None:
        """Compare with the configuration called ``ours``."""
        self.called_before: tuple[str, ...] = ()
        self._ours, self._telemetry = ours, telemetry
        self._found: dict[Key, Configuration] = {}

    def apply(self, resource: Configuration) -> None:
        """A configuration exists and looks like this."""
        self._found[key_of(resource)] = resource
        self._compare()

    def delete(self, key: Key, _last: Configuration | None) -> None:
        """A configuration is gone."""
        del self._found[key]
        self._compare()

    def _compare(self) -> None:
        names = sorted_before(self._ours, self._found.values())
        if names == self.called_before:
            return
        self.called_before = names
        self._telemetry.called_before.set(len(names))
        _log.log(
            logging.WARNING if names else logging.INFO,
            "%s: called before it: %s",
            self._ours,
            ", ".join(names) or "none of Istio's configurations",
            extra={"event": "order", "before": names},
        )
