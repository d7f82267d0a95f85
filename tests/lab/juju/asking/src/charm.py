#!/usr/bin/env python3
"""As little as a charm needs that asks istio-aux for a sidecar: its status is the answer."""

from __future__ import annotations

import ops
from charmlibs.interfaces.istio_sidecar import SidecarRequirer


class AskingCharm(ops.CharmBase):
    """Asks over its one endpoint, whatever that is called."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        (endpoint,) = self.meta.requires
        self._sidecar = SidecarRequirer(self, endpoint)
        framework.observe(self.on.collect_unit_status, self._on_collect_unit_status)

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent) -> None:
        mesh = self._sidecar.mesh()
        if mesh is None:
            event.add_status(ops.ActiveStatus("nobody says whether there is a mesh"))
        elif not mesh.live:
            event.add_status(ops.WaitingStatus(mesh.reason))
        elif not mesh.meshed:
            event.add_status(ops.WaitingStatus(mesh.meshed_reason))
        else:
            event.add_status(ops.ActiveStatus("meshed"))


if __name__ == "__main__":
    ops.main(AskingCharm)
