"""The lab: a real Kubernetes in one process tree, for tests, the demo and work by hand.

    with lab.cluster(level="api") as cluster:
        cluster.client().list(...)

Level `api` is etcd, API server and controller manager, without root; level `node` adds all that it
takes to run pods, in namespaces of its own.

What waits raises TimeoutError, and ChildProcessError when a program ended: both name its log. What
needs a program or a manifest raises `tools.BuildError` or `toolchain.ToolchainError`, what needs a
Debian package `debian.PackageError`. A machine that cannot run pods raises
`node.UnavailableError`.
"""

from lab import models
from lab.clusters import Cluster, Level, cluster
from lab.processes import Process
from lab.waiting import ending, until

__all__ = ["Cluster", "Level", "Process", "cluster", "ending", "until"]

# Here, because every module that starts a thread imports this package first.
models.learn()
