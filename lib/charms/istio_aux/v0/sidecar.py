"""The relation interface `istio_sidecar`: ask for a sidecar, learn when the mesh is live.

A charm whose pods should be part of an Istio mesh *requires* this interface; istio-aux *provides*
it, in the same model or in another one. The charm needs no Kubernetes permission: istio-aux marks
its pods at admission.

In `charmcraft.yaml` (or `metadata.yaml`), under any name:

```yaml
requires:
  sidecar:
    interface: istio_sidecar
    optional: true
    limit: 1
```

In the charm, one object asks, and answers:

```python
import ops
from charms.istio_aux.v0.sidecar import SidecarRequirer


class Charm(ops.CharmBase):
    def __init__(self, framework: ops.Framework):
        super().__init__(framework)
        self.sidecar = SidecarRequirer(self, "sidecar")
        framework.observe(self.sidecar.on.changed, self._reconcile)
        framework.observe(self.on.collect_unit_status, self._on_collect_unit_status)

    def _reconcile(self, _: ops.EventBase):
        ...  # What depends on the mesh, if anything does.

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent):
        mesh = self.sidecar.mesh()
        if mesh and not mesh.live:
            event.add_status(ops.WaitingStatus(mesh.reason))
        elif mesh and mesh.meshed is False:
            event.add_status(ops.WaitingStatus(mesh.meshed_reason))
        event.add_status(ops.ActiveStatus())
```

The library sets no status, and restarts nothing: pods that ran before the mesh was live are
replaced by istio-aux, by the policy of its administrator.

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
| `meshed` | `true`: each running pod of the application has its sidecar; `false`; `unknown` |
| `meshed-reason` | one line for a status: which pods have none, or why that is unknown |
| `root-namespace` | namespace of the control plane, absent while unknown |
| `revision` | revision that injects into the asking application's pods, absent while unknown |

Readers ignore keys that they do not know. A key that is missing, or a `live` that is neither
`true` nor `false`, means "unknown", and unknown is never live; a `meshed` likewise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import ops

# The unique identifier of the library on Charmhub, never changed.
LIBID = "5d0f6f0c3b5a4b0f9d6c2a7e8b1f4c93"
# Incremented with every incompatible change of the interface or of this module.
LIBAPI = 0
# Incremented with every other change.
LIBPATCH = 3
PYDEPS: list[str] = []

# The names become the value of a label and the name of a namespace (apimachinery
# pkg/util/validation IsDNS1123Label). Juju's own rules are narrower, but for the length.
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_TRUTH = {"true": True, "false": False}
# Of a name that is wrong, so much is shown.
_SHOWN = 60


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
        """Return the request, None while the requirer has not written one that can be read."""
        return None if _trouble(databag) else cls(databag["application"], databag["model"])


@dataclass(frozen=True)
class Mesh:
    """What the provider writes: the state of the mesh for the asking application.

    Attributes:
        live: a pod that is created now gets its sidecar.
        reason: why it does not, or what injects; one line.
        root_namespace: namespace of the control plane, None while unknown.
        revision: revision that injects into the application's pods, None while unknown.
        meshed: every running pod of the application has its sidecar, None while unknown.
        meshed_reason: which pods have none, or why that is unknown; one line.
    """

    live: bool
    reason: str = ""
    root_namespace: str | None = None
    revision: str | None = None
    meshed: bool | None = None
    meshed_reason: str = ""

    def to_databag(self) -> dict[str, str]:
        """Return the keys of the provider's application databag; the empty text deletes a key."""
        return {
            "live": "true" if self.live else "false",
            "reason": self.reason,
            "meshed": {True: "true", False: "false", None: "unknown"}[self.meshed],
            "meshed-reason": self.meshed_reason,
            "root-namespace": self.root_namespace or "",
            "revision": self.revision or "",
        }

    @classmethod
    def from_databag(cls, databag: Mapping[str, str]) -> Mesh | None:
        """Return the state, None while it is unknown whether the mesh is live."""
        live = _TRUTH.get(databag.get("live", ""))
        if live is None:
            return None
        return cls(
            live=live,
            reason=databag.get("reason", ""),
            root_namespace=databag.get("root-namespace") or None,
            revision=databag.get("revision") or None,
            meshed=_TRUTH.get(databag.get("meshed", "")),
            meshed_reason=databag.get("meshed-reason", ""),
        )


class SidecarChangedEvent(ops.EventBase):
    """What `SidecarRequirer.mesh` answers may have changed."""


class SidecarRequirerEvents(ops.ObjectEvents):
    """The events of `SidecarRequirer`."""

    changed = ops.EventSource(SidecarChangedEvent)


class SidecarRequirer(ops.Object):
    """For the charm that asks: its leader asks as soon as there is a relation, each unit may read.

    It sets no status and restarts nothing. `on.changed` is emitted when the answer may have
    changed, also because the relation goes; it carries nothing and may come more often than that.

    Args:
        charm: the charm whose pods should get a sidecar.
        endpoint: name of the endpoint with the interface `istio_sidecar` in its metadata.
    """

    on = SidecarRequirerEvents()

    def __init__(self, charm: ops.CharmBase, endpoint: str = "sidecar") -> None:
        super().__init__(charm, endpoint)
        self._endpoint = endpoint
        events = charm.on[endpoint]
        # The request never changes. It may be missing when there is a relation, when another unit
        # leads, and when an earlier revision of the charm asked otherwise.
        for event in (events.relation_created, charm.on.leader_elected, charm.on.upgrade_charm):
            self.framework.observe(event, self._ask)
        for event in (events.relation_changed, events.relation_broken):
            self.framework.observe(event, self._on_answer)

    def mesh(self) -> Mesh | None:
        """Return the state of the mesh for this application.

        Returns:
            None while it is unknown: without a relation, or when it goes; with more than one;
            before istio-aux has answered, or when what it answered cannot be read.
        """
        relations = self.model.relations[self._endpoint]
        if len(relations) != 1:
            return None
        (relation,) = relations
        return Mesh.from_databag(relation.data[relation.app])

    def _ask(self, _: ops.EventBase) -> None:
        if self.model.unit.is_leader():
            request = SidecarRequest(self.model.app.name, self.model.name)
            for relation in self.model.relations[self._endpoint]:
                _write(relation.data[self.model.app], request.to_databag())

    def _on_answer(self, event: ops.EventBase) -> None:
        self._ask(event)
        self.on.changed.emit()


@dataclass(frozen=True)
class Asked:
    """What stands in one relation of the provider.

    Attributes:
        relation_id: which relation, for `SidecarProvider.publish`.
        request: what is asked for, None when that cannot be read.
        reason: why it cannot be read, else empty; one line.
    """

    relation_id: int
    request: SidecarRequest | None
    reason: str = ""


class SidecarProvider:
    """For istio-aux. It observes no event; the charm looks whenever it reconciles.

    Args:
        charm: the charm that provides.
        endpoint: name of the endpoint with the interface `istio_sidecar` in its metadata.
    """

    def __init__(self, charm: ops.CharmBase, endpoint: str = "sidecar") -> None:
        self._charm = charm
        self._endpoint = endpoint

    def requests(self) -> list[Asked]:
        """Return what all relations ask for, in the order of their ids; every unit may look.

        A relation that is going is left out, and one in which nothing is written yet.
        """
        asked: list[Asked] = []
        for relation in sorted(self._relations(), key=lambda relation: relation.id):
            if databag := relation.data[relation.app]:
                request, trouble = SidecarRequest.from_databag(databag), _trouble(databag)
                reason = f"{relation.app.name}: {trouble}" if trouble else ""
                asked.append(Asked(relation.id, request, reason))
        return asked

    def publish(self, relation_id: int, mesh: Mesh) -> bool:
        """Tell one relation the state of the mesh for the application that asks there.

        Returns:
            Whether anything was written: only the leader writes, only what differs, and nothing to
            a relation that is going.
        """
        if self._charm.unit.is_leader():
            for relation in self._relations():
                if relation.id == relation_id:
                    return _write(relation.data[self._charm.app], mesh.to_databag())
        return False

    def _relations(self) -> list[ops.Relation]:
        # Without those that are going.
        return self._charm.model.relations[self._endpoint]


def _trouble(databag: Mapping[str, str]) -> str:
    """Return why the databag holds no request, the empty text if it does."""
    for key in ("application", "model"):
        value = databag.get(key)
        if not value:
            return f"{key}: missing"
        if not _NAME.fullmatch(value):
            shown = json.dumps(value[:_SHOWN]) + ("…" if len(value) > _SHOWN else "")
            return f"{key} {shown}: expected up to 63 lower-case letters, digits and hyphens"
    return ""


def _write(databag: ops.RelationDataContent, wanted: Mapping[str, str]) -> bool:
    """Write what differs; the empty text stands for a key that is not there."""
    different = {key: value for key, value in wanted.items() if databag.get(key, "") != value}
    databag.update(different)
    return bool(different)
