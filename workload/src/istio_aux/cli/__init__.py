"""The command line: arguments in, text or JSON lines out, an exit status.

`commands` parses arguments, `texts` has the help, `files` answers for files, `cluster`, `check` and
`once` for a live cluster, in which `workloads` finds the pods that are named, and `snapshot` for
what kubectl has read of one. They judge by the settings of its `installation`; `tally` adds up what
`audit` finds. `preflight` judges what `check` reads, and `moving` what stands in the way to native
sidecars or an ambient mesh. `report` makes text of all answers, with `sentences` for people, for a
`terminal` with columns and colours, and `page` HTML; `output` shows them as `-o` asks for. Only
what is for a cluster imports the Kubernetes client, and only on demand: `explain` of a file starts
fast.
"""

from istio_aux.cli.commands import main

__all__ = ["main"]
