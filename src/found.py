"""What others own in the cluster and the charm only looks at: name, labels and annotations.

Here lightkube's untyped maps end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightkube import Client, operators


@dataclass(frozen=True)
class Found:
    """The metadata of one object."""

    name: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def listed(client: Client, kind: type[Any], label: str | None = None) -> list[Found]:
    """Return all objects of `kind`, one without namespaces; with `label`, those that have it.

    Raises:
        httpx2.HTTPError: the API server did not answer, or refused.
    """
    labels: dict[str, Any] = {label: operators.exists()} if label else {}
    objects = client.list(kind, labels=labels)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  see above
    metadata: list[dict[str, Any]] = [each.to_dict()["metadata"] for each in objects]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  see above
    return [
        Found(one["name"], one["uid"], one.get("labels", {}), one.get("annotations", {}))
        for one in metadata
    ]
