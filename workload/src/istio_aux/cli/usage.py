"""What `--help` says: what each command does, examples, and how to read its answer."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

_PLUGIN = "kubectl-istio_aux"  # kubectl runs it as `kubectl istio-aux`.
_WIDEST = 100  # Columns: longer lines are hard to read.
_CALL = re.compile(r"(?m)(?<=^  )istio-aux\b|(?<=\| )istio-aux\b")  # In examples.


class HelpText(argparse.RawDescriptionHelpFormatter):
    """Formats the help for a terminal of any width; texts and examples keep their lines."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        super().__init__(prog, max_help_position=26, width=width)
        self._action_max_length = 20  # argparse forgets how far commands are indented.

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def program() -> str:
    """Return how the user calls this program."""
    return "kubectl istio-aux" if Path(sys.argv[0]).name == _PLUGIN else "istio-aux"


def texts(command: str) -> dict[str, Any]:
    """Return argparse's arguments for the help of a command."""
    summary, epilog = _TEXTS[command]
    return {
        "help": summary,
        "description": textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", 80),
        "epilog": _CALL.sub(program(), epilog),
    }


_TEXTS = {
    "explain": (
        "say what would be done about pods, and why",
        """\
examples:
  istio-aux explain -n training mnist-worker-0
  istio-aux explain training/mnist-worker-0 training/mnist-worker-1
  istio-aux explain -f pods.yaml --sidecars cloud-sql-proxy=ignore
  kubectl get pods -A -o json | istio-aux explain -f -
  istio-aux explain -f pods.yaml | jq -r 'select(.action == "wait") | .reason'

Pods are read from the cluster by name and judged as of now; in files, grace
periods count as over. A terminal shows text: a headline, and a table of the
containers. A pipe gets one JSON object a line: namespace, name, uid, action
(quit, wait, ignore, report), reason, containers; start.
Colour is for terminals; NO_COLOR turns it off, FORCE_COLOR on.

The exit status is 2 if a document is bad, 1 if a pod cannot be read; all others
are answered.""",
    ),
    "mutate": (
        "show how pods would be changed when they are created",
        """\
examples:
  istio-aux mutate -f pod.yaml --capability native
  istio-aux mutate -f review.json | jq -r .response.patch | base64 -d

The answer to a pod is the changed pod; to an AdmissionReview
(admission.k8s.io/v1), the review that the webhook returns. One JSON object a
line. The exit status is 2 if a document is bad.""",
    ),
    "serve": (
        "run the admission webhook and the quit and repair controllers",
        """\
examples:
  istio-aux serve --config /etc/istio-aux/config.yaml
  istio-aux serve --config config.yaml --kubeconfig ~/.kube/config

Logs JSON lines on stdout. SIGTERM stops it after the work in flight; a second
SIGTERM stops it at once.""",
    ),
    "audit": (
        "list the pods of a cluster whose proxy outlived their payload, or is missing",
        """\
examples:
  istio-aux audit
  istio-aux audit -n training -o json | jq -r .name
  istio-aux audit --selector io.datastrophic/istio-aux=enabled --quit-grace 30
  istio-aux audit --sidecars cloud-sql-proxy=ignore,vault-agent=quit
  istio-aux audit --holders -o json | jq .requests.gpus

Reads all unfinished pods once, and changes nothing. States:
  stuck     every payload container is finished, and the proxy still runs
  blocked   some payload containers are finished, and others, which the reason
            names, are not; or an annotation is invalid
  lost      the proxy ended, and a payload container may still run
  unmeshed  there is no proxy, although Istio would inject one today
AGE is the time since the last finished container ended; for a lost pod, since
its proxy ended; for an unmeshed pod, since it was created. Below the table,
stuck and blocked pods are counted by what holds them, with the CPUs, the memory
and the GPUs that they request.
Colour is for terminals; NO_COLOR turns it off, FORCE_COLOR on.

The exit status is 0 whatever is found, 1 if the API server refuses or does not
answer, 2 if the credentials cannot be used. If webhook configurations,
namespaces or Istio's injection policy cannot be read, a line on stderr says how
many pods may be unmeshed; the rest is shown, and the exit status is 1.""",
    ),
    "check": (
        "say what would keep istio-aux from working in a cluster, and what to do about it",
        """\
examples:
  istio-aux check
  istio-aux check -o json | jq -r 'select(.result != "ok") | .what'
  istio-aux check --config /etc/istio-aux/config.yaml

Changes nothing, and needs no istio-aux in the cluster. It looks at versions of
Kubernetes, the account's rights, webhooks and their order, Istio's injectors,
selected namespaces, the way from the API server to the webhook (by dry runs of
pods), and the Lease. Results:
  ok       nothing to do
  note     istio-aux works, but not all of it, or not everywhere
  problem  istio-aux does not work
  unknown  this could not be found out
JSON has one object a line: check, result, what, do.
Colour is for terminals; NO_COLOR turns it off, FORCE_COLOR on.

The exit status is 0 if everything is ok or a note, 1 if there is a problem,
something is unknown or the API server does not answer, 2 if settings or
credentials cannot be used.""",
    ),
    "restart-unmeshed": (
        "restart pods that should have a sidecar and have none, once",
        """\
examples:
  istio-aux restart-unmeshed --dry-run
  istio-aux restart-unmeshed -n team --limit 5

Does once what `serve` does all the time with race-policy: restart, by the same
rules: only while the injector is live, only pods whose controller makes new
ones, one at a time for each controller, by evictions within
PodDisruptionBudgets, and never pods of Jobs. The next pod of a controller
follows when the new one is Ready with its sidecar. Outcomes:
  restarted      the pod was evicted
  would-restart  with --dry-run: it would be
  kept           it was not, or not yet; the reason says why not
JSON has one object a line: namespace, name, outcome, reason.
Colour is for terminals; NO_COLOR turns it off, FORCE_COLOR on.

The exit status is 0 when it is done, 1 if pods may not be restarted or not all
were in time, 2 if settings or credentials cannot be used.""",
    ),
}
