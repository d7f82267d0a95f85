"""Who wanted to exec into pods, or to forward their ports, from the API server's audit log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from lab.creation import audited

if TYPE_CHECKING:
    from lab.clusters import Cluster

SUBRESOURCES = {"exec", "attach", "portforward"}


@dataclass(frozen=True)
class Connection:
    """What somebody wanted of a pod; a port-forward has neither container nor command."""

    user: str
    namespace: str
    pod: str
    subresource: str
    container: str
    command: tuple[str, ...]


def connections(cluster: Cluster, *namespaces: str) -> Iterator[Connection]:
    """The connections to pods of these namespaces in order, also those that came to nothing."""
    # The API server notes the begin of a connection and its end.
    events = {event["auditID"]: event for event in audited(cluster, about='"subresource"')}
    for event in events.values():
        pod = event["objectRef"]
        if pod["subresource"] not in SUBRESOURCES or pod["namespace"] not in namespaces:
            continue
        query = parse_qs(urlsplit(event["requestURI"]).query)
        yield Connection(
            event["user"]["username"],
            pod["namespace"],
            pod["name"],
            pod["subresource"],
            "".join(query.get("container", [])),
            tuple(query.get("command", [])),
        )
