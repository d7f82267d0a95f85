"""Which namespaces there are, with their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from istio_aux.core.webhooks import Namespace
from istio_aux.kube.objects import Key


class Namespaces(Mapping[str, Mapping[str, str]]):
    """Labels by the name of the namespace; handles a watch of all namespaces."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        """Begin empty; ``changed`` is called with the name when labels change, or exist no more."""
        self._found: dict[str, Namespace] = {}
        self._changed = changed

    def __getitem__(self, name: str) -> Mapping[str, str]:
        return self._found[name].labels

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def apply(self, resource: Namespace) -> None:
        """A namespace exists and looks like this."""
        name = resource.metadata.name
        known = self._found.get(name)
        self._found[name] = resource
        if known is None or known.labels != resource.labels:
            self._changed(name)

    def delete(self, key: Key, _last: Namespace | None) -> None:
        """A namespace is gone, unless there is a new one of the same name."""
        known = self._found.get(key.name)
        if known and known.metadata.uid == key.uid:
            del self._found[key.name]
            self._changed(key.name)
