"""The command line: arguments in, text or JSON lines out, an exit status.

`commands` parses arguments and `texts` has the help. `files` reads manifests, and `snapshot` reads
what `kubectl get` wrote. `cluster`, `check` and `once` read a live cluster, where `workloads` finds
the pods that the user names. The package `judge` judges what they read. `report` writes answers as
text, `page` as HTML, and `output` in the format of `-o`. Modules that need the Kubernetes client
are imported on demand, so that `explain` of a file starts fast.
"""

from istio_aux.cli.commands import main

__all__ = ["main"]
