"""The lab: a real Kubernetes in one process tree, for tests, the demo and work by hand.

Level `api` is etcd, API server and controller manager, without root; level `node` adds all that it
takes to run pods. See `lab/README.md`. What this machine lacks raises a `ToolError`.
"""

import importlib
import pkgutil

import lightkube.resources
import msgspec
from lightkube.core import decoders

from lab.clusters import Cluster, Level, cluster
from lab.processes import Process, ending, until

__all__ = ["Cluster", "Level", "Process", "cluster", "ending", "until"]


def _learn() -> None:
    """Use the model of every built-in resource once, alone and in a list; takes 0.15 s for all 224.

    lightkube decodes with msgspec, which analyses a type at its first use. In msgspec 0.22 the
    process crashes when two threads do this for types that share a part.
    """
    for module in pkgutil.iter_modules(lightkube.resources.__path__):
        resources = importlib.import_module(f"lightkube.resources.{module.name}")
        for resource in vars(resources).values():
            if isinstance(resource, type) and issubclass(resource, msgspec.Struct):
                # Lists are decoded by a type of their own, which contains the resource's.
                decoders.decode_list(b'{"items": []}', resource)


# Every module that starts a thread imports this package first.
_learn()
