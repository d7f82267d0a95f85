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

In the charm, one object asks for the sidecar and reads the answer:

```python
import ops
from charmlibs.interfaces.istio_sidecar import SidecarRequirer


class Charm(ops.CharmBase):
    def __init__(self, framework: ops.Framework):
        super().__init__(framework)
        self.sidecar = SidecarRequirer(self, "sidecar")
        framework.observe(self.sidecar.on.changed, self._reconcile)
        framework.observe(self.on.collect_unit_status, self._on_collect_unit_status)

    def _reconcile(self, _: ops.EventBase):
        ...  # Whatever depends on the mesh.

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent):
        mesh = self.sidecar.mesh()
        if mesh and not mesh.live:
            event.add_status(ops.WaitingStatus(mesh.reason))
        elif mesh and mesh.meshed is False:
            event.add_status(ops.WaitingStatus(mesh.meshed_reason))
        event.add_status(ops.ActiveStatus())
```

The library sets no status and restarts nothing. istio-aux replaces pods that ran before the mesh
was live, if its administrator allows that (`race-policy`).

Requirer application databag, written by the leader:

| key | value |
|---|---|
| `application` | name of the asking application, which Juju hides across models |
| `model` | name of its model |

istio-aux grants nothing but that: it compares the request with what Juju says of the other side,
and finds the namespace of the pods by the UUID of the model.

Provider application databag, written by the leader:

| key | value |
|---|---|
| `live` | `true` when a pod that is created now gets its sidecar, else `false` |
| `reason` | one line for a status: why the mesh is not live, or what injects |
| `meshed` | `true`: each running pod of the application has its sidecar; `false`; `unknown` |
| `meshed-reason` | one line for a status: which pods have none, or why that is unknown |
| `root-namespace` | namespace of the control plane, absent while unknown |
| `revision` | revision that injects into the asking application's pods, absent while unknown |

Readers ignore keys that they do not know. A missing key means "unknown", and so does any other
value of `live` or `meshed`. Unknown is never live.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

import ops

# The names become the value of a label and the name of a namespace (apimachinery
# pkg/util/validation IsDNS1123Label). Juju's own rules are stricter, except for the length.
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_TRUTH = {"true": True, "false": False}
_SHOWN = 60  # Characters of a bad name that a message shows.

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SidecarRequest:
    """What the requirer writes: the application whose pods should get a sidecar, and its model."""

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
    """The answer of `SidecarRequirer.mesh` may have changed."""


class SidecarRequirerEvents(ops.ObjectEvents):
    """The events of `SidecarRequirer`."""

    changed = ops.EventSource(SidecarChangedEvent)


class SidecarRequirer(ops.Object):
    """For the charm that asks: the leader asks once there is a relation; each unit may read.

    It sets no status and restarts nothing. It emits `on.changed` when the answer may have changed,
    also when the relation goes. The event carries no data and may come without a change.

    Args:
        charm: the charm whose pods should get a sidecar.
        endpoint: name of the endpoint with the interface `istio_sidecar` in its metadata.
    """

    on = SidecarRequirerEvents()

    def __init__(self, charm: ops.CharmBase, endpoint: str = "sidecar") -> None:
        super().__init__(charm, endpoint)
        self._endpoint = endpoint
        events = charm.on[endpoint]
        # The request never changes. It is missing in a new relation and when the old leader did not
        # write it; an earlier revision of the charm may have written another one.
        for event in (events.relation_created, charm.on.leader_elected, charm.on.upgrade_charm):
            self.framework.observe(event, self._ask)
        for event in (events.relation_changed, events.relation_broken):
            self.framework.observe(event, self._on_answer)

    def mesh(self) -> Mesh | None:
        """Return the state of the mesh for this application.

        Returns:
            None while the state is unknown: while there is no valid answer, when the relation goes,
            and while two relations have an answer. One that was removed by force may be listed
            beside its successor, and has none.
        """
        relations = _active(self.model, self._endpoint)
        answers = [Mesh.from_databag(relation.data[relation.app]) for relation in relations]
        known = [mesh for mesh in answers if mesh]
        return known[0] if len(known) == 1 else None

    def _ask(self, _: ops.EventBase) -> None:
        if self.model.unit.is_leader():
            request = SidecarRequest(self.model.app.name, self.model.name)
            for relation in _active(self.model, self._endpoint):
                _write(relation, self.model.app, request.to_databag())

    def _on_answer(self, event: ops.EventBase) -> None:
        self._ask(event)
        self.on.changed.emit()


@dataclass(frozen=True)
class Asked:
    """The request in one relation of the provider.

    Attributes:
        relation: that one, for `SidecarProvider.publish`.
        request: None when it cannot be read.
        reason: why it cannot be read, one line; else empty.
    """

    relation: ops.Relation
    request: SidecarRequest | None
    reason: str = ""


class SidecarProvider:
    """For istio-aux. It observes no event; the charm reads the requests when it reconciles.

    Args:
        charm: the charm that provides.
        endpoint: name of the endpoint with the interface `istio_sidecar` in its metadata.
    """

    def __init__(self, charm: ops.CharmBase, endpoint: str = "sidecar") -> None:
        self._charm = charm
        self._endpoint = endpoint

    def requests(self) -> list[Asked]:
        """Return the requests of all relations, ordered by id; every unit may read them.

        Relations that are going and relations without a request are left out.
        """
        asked: list[Asked] = []
        relations = _active(self._charm.model, self._endpoint)
        for relation in sorted(relations, key=lambda relation: relation.id):
            if databag := relation.data[relation.app]:
                request, trouble = SidecarRequest.from_databag(databag), _trouble(databag)
                reason = f"{relation.app.name}: {trouble}" if trouble else ""
                asked.append(Asked(relation, request, reason))
        return asked

    def publish(self, relation: ops.Relation, mesh: Mesh) -> None:
        """Write the state of the mesh for the application that asks there; leader only."""
        _write(relation, self._charm.app, mesh.to_databag())


def _active(model: ops.Model, endpoint: str) -> list[ops.Relation]:
    """Return the relations without those that go or whose application is gone."""
    return [each for each in model.relations[endpoint] if each.active and each.app]


def _trouble(databag: Mapping[str, str]) -> str:
    """Return why the databag holds no valid request, or the empty text."""
    for key in ("application", "model"):
        value = databag.get(key)
        if not value:
            return f"{key}: missing"
        if not _NAME.fullmatch(value):
            shown = json.dumps(value[:_SHOWN]) + ("…" if len(value) > _SHOWN else "")
            return f"{key} {shown}: expected up to 63 lower-case letters, digits and hyphens"
    return ""


def _write(relation: ops.Relation, app: ops.Application, wanted: Mapping[str, str]) -> None:
    """Write keys; the empty text removes one.

    A relation that was removed by force may still be listed, and refuses this (juju#23246).
    """
    try:
        relation.data[app].update(wanted)
    except ops.ModelError as error:
        logger.warning("%s:%d: not written: %r", relation.name, relation.id, error)
