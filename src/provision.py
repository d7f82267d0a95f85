"""A unit's workload, set up in its container: credentials, files and service."""

from __future__ import annotations

import ops
from lightkube import Client

import credentials
import workload
from cluster import Problem
from inputs import Inputs


def ensure(
    client: Client, container: ops.Container, inputs: Inputs, *, granted: bool
) -> Problem | None:
    """Bring the workload to what `inputs` say; nothing happens before there is an authority.

    Args:
        client: of the API server.
        container: the workload's.
        inputs: what was observed.
        granted: the cluster has the rights and policies that the settings need. Without them, a
            workload that has settings keeps these; one that has none, as after a restart of its
            container, gets them: without a workload every Job would hang.

    Returns:
        What stood in the way, if anything did.
    """
    if not inputs.container_ready or inputs.authority is None:
        return None
    try:
        present = workload.read(container)
        access = credentials.access(client, present, inputs)
        if isinstance(access, Problem):
            return access
        leaf = credentials.leaf(present, inputs, inputs.authority)
        has_settings = bool(present[workload.CONFIG]) and workload.is_planned(container)
        config = inputs.config if granted or not has_settings else None
        names = inputs.names()
        wanted = workload.files(config, names, access, leaf, inputs.applications())
        workload.write(container, present, wanted)
        if config:
            workload.run(container, workload.layer(config, names))
    except ops.pebble.ConnectionError as error:
        # The container went away under our hands; pebble-ready comes when it is back.
        return Problem(f"container {workload.CONTAINER}: {error}")
    return None
