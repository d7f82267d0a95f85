"""Which namespaces are selected now.

Only the set may live here; the API server evaluates the selector.
"""

from __future__ import annotations

from collections.abc import Callable

from istio_aux.core.namespace import Namespace
from istio_aux.kube.resources import Key


class Selection:
    """The names of the selected namespaces, fed by a watch that carries the selector.

    A namespace that loses its label leaves the watch's selection and comes here as a deletion.
    """

    def __init__(self, changed: Callable[[str], None] = lambda _name: None) -> None:
        """``changed`` is called with the name of each namespace that comes or goes."""
        self._uids: dict[str, str] = {}
        self.changed = changed

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._uids

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._uids)

    def apply(self, resource: Namespace) -> None:
        """A namespace is selected."""
        name = resource.metadata.name
        known = name in self._uids
        self._uids[name] = resource.metadata.uid
        if not known:
            self.changed(name)

    def delete(self, key: Key) -> None:
        """A namespace is not selected any more, unless a new one of the same name is."""
        if self._uids.get(key.name) == key.uid:
            del self._uids[key.name]
            self.changed(key.name)
