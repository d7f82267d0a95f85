"""The command line: arguments in, text or JSON lines out, an exit status.

`commands` parses arguments, `texts` has the help, `files` answers for files, `cluster`, `check` and
`once` for a live cluster, in which `workloads` finds the pods that are named, and `snapshot` for
what kubectl has read of one. `judge` judges what they read, and `tally` adds up what `audit` finds.
`report` makes text of all answers, with `sentences` for people, for a `terminal` with columns and
colours, and `page` HTML; `output` shows them as `-o` asks for. Only what is for a cluster imports
the Kubernetes client, and only on demand: `explain` of a file starts fast.
"""

from istio_aux.cli.commands import main

__all__ = ["main"]
