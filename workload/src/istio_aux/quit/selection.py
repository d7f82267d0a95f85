"""Whose proxies are ours to quit: pods of selected namespaces, and those that we had injected.

The selector is evaluated here: the watch of namespaces brings all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from istio_aux.core.applications import Applications
from istio_aux.core.selectors import Selector
from istio_aux.core.webhooks import Namespace
from istio_aux.kube.resources import Key, key_of


class Selection:
    """Selected namespaces, fed by a watch of all of them, and injected applications."""

    def __init__(
        self,
        selector: Selector | None = None,
        changed: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """Begin empty.

        Args:
            selector: of namespaces; without one all are selected.
            changed: is called with the name of each namespace that is selected or no longer so.
        """
        self._selector = selector or Selector()
        self._uids: dict[str, str] = {}
        self._applications = Applications()
        self.changed = changed

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._uids

    def covers(self, namespace: str, application: str) -> bool:
        """Whether pods of the application, empty for none, are ours to act on in the namespace."""
        return namespace in self._uids or self._applications.covers(namespace, application)

    def ask(self, applications: Applications) -> None:
        """These are injected now, whatever namespaces are selected."""
        before, self._applications = self._applications, applications
        if applications != before:
            for namespace in sorted(before.places() | applications.places()):
                self.changed(namespace)

    def names(self) -> list[str]:
        """Return the names of the selected namespaces, sorted."""
        return sorted(self._uids)

    def apply(self, resource: Namespace) -> None:
        """A namespace exists and looks like this."""
        if not self._selector.matches(resource.labels):
            self.delete(key_of(resource), resource)
            return
        name = resource.metadata.name
        known = name in self._uids
        self._uids[name] = resource.metadata.uid
        if not known:
            self.changed(name)

    def delete(self, key: Key, _last: Namespace | None) -> None:
        """A namespace is not selected any more, unless a new one of the same name is."""
        if self._uids.get(key.name) == key.uid:
            del self._uids[key.name]
            self.changed(key.name)
