"""The relation interface `istio_sidecar`: ask for a sidecar, learn when the mesh is live.

A charm whose pods should be part of an Istio mesh *requires* this interface; istio-aux *provides*
it. The charm needs no Kubernetes permission for it: istio-aux marks its pods at admission.

    requires:
      sidecar:
        interface: istio_sidecar
        optional: true
        limit: 1

This is the first version of the library. It holds the interface: the two databags, typed, written
and read by the classes `SidecarRequest` and `Mesh`. `SidecarRequirer` and `SidecarProvider`
document how the two ends will behave and refuse to be made: istio-aux has no endpoint for them
yet. Charms can write against the databags; nobody answers them so far.

Requirer application databag, written by the leader:

| key | value |
|---|---|
| `application` | name of the asking application; across models the relation does not tell it |
| `model` | name of its model, which is the namespace of its pods |

Provider application databag, written by the leader:

| key | value |
|---|---|
| `live` | `true` when a pod that is created now gets its sidecar, else `false` |
| `reason` | one line for a status: why the mesh is not live, or what injects |
| `root-namespace` | namespace of the control plane, absent while unknown |
| `revision` | revision that injects into the asking application's pods, absent while unknown |

Readers ignore keys that they do not know. A key that is missing, or a `live` that is neither
`true` nor `false`, means "unknown", and unknown is never live.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

# The unique identifier of the library on Charmhub, never changed.
LIBID = "5d0f6f0c3b5a4b0f9d6c2a7e8b1f4c93"
# Incremented with every incompatible change of the interface or of this module.
LIBAPI = 0
# Incremented with every other change.
LIBPATCH = 1
PYDEPS: list[str] = []


@dataclass(frozen=True)
class SidecarRequest:
    """What the requirer writes: whose pods should get a sidecar.

    Attributes:
        application: name of the asking application.
        model: name of its model.
    """

    application: str
    model: str

    def to_databag(self) -> dict[str, str]:
        """Return the keys of the requirer's application databag."""
        return {"application": self.application, "model": self.model}

    @classmethod
    def from_databag(cls, databag: Mapping[str, str]) -> SidecarRequest | None:
        """Return the request, None while the requirer has not written it."""
        application, model = databag.get("application"), databag.get("model")
        return cls(application, model) if application and model else None


@dataclass(frozen=True)
class Mesh:
    """What the provider writes: the state of the mesh for the asking application.

    Attributes:
        live: a pod that is created now gets its sidecar.
        reason: why it does not, or what injects; one line.
        root_namespace: namespace of the control plane, None while unknown.
        revision: revision that injects into the application's pods, None while unknown.
    """

    live: bool
    reason: str = ""
    root_namespace: str | None = None
    revision: str | None = None

    def to_databag(self) -> dict[str, str]:
        """Return the keys of the provider's application databag; the empty text deletes a key."""
        return {
            "live": "true" if self.live else "false",
            "reason": self.reason,
            "root-namespace": self.root_namespace or "",
            "revision": self.revision or "",
        }

    @classmethod
    def from_databag(cls, databag: Mapping[str, str]) -> Mesh | None:
        """Return the state, None while it is unknown."""
        live = databag.get("live")
        if live not in {"true", "false"}:
            return None
        return cls(
            live=live == "true",
            reason=databag.get("reason", ""),
            root_namespace=databag.get("root-namespace") or None,
            revision=databag.get("revision") or None,
        )


class SidecarRequirer:
    """For the charm that asks. Not implemented in this version.

    It will write `SidecarRequest` as leader whenever the relation appears, offer `mesh() -> Mesh |
    None` as a plain reader of the databag, and list in `refresh_events` the events after which the
    answer may differ. It will set no status, define no event and restart nothing: pods that already
    run are replaced by istio-aux once the mesh is live, by the policy of its administrator.
    """

    def __init__(self, *_: object, **__: object) -> None:
        _refuse("SidecarRequirer")


class SidecarProvider:
    """For istio-aux. Not implemented in this version.

    It will offer `requests() -> list[SidecarRequest]` over all relations, leaving out those that
    are not written yet or are going, and `publish(Mesh)` as leader, which writes only what differs.
    """

    def __init__(self, *_: object, **__: object) -> None:
        _refuse("SidecarProvider")


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}: this version of the library (LIBPATCH {LIBPATCH}) holds the databags only"
    )
