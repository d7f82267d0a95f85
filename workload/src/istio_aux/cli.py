"""The command line: arguments to calls. `explain` and `mutate` need no cluster.

Only parsing of arguments, input and output may live here. `serve` and `audit` are handed to
`istio_aux.app`, which is imported only then, so that the other two start fast.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import cast

from istio_aux import offline
from istio_aux.core.policy import Capability

AddParser = Callable[..., argparse.ArgumentParser]

_DEFAULT_ACCESS = "default: $KUBECONFIG, else ~/.kube/config, else the pod's own"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0, or 2 for bad arguments and bad input."""
    args = _parser().parse_args(argv)
    try:
        status = cast("int", args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader left, as `head` does. Python flushes stdout once more at exit: give it a sink.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _explain(args: argparse.Namespace) -> int:
    return offline.explain(args.files)


def _mutate(args: argparse.Namespace) -> int:
    return offline.mutate(args.files, args.capability)


def _serve(args: argparse.Namespace) -> int:
    from istio_aux import app  # noqa: PLC0415 - explain and mutate need no server

    return app.serve(args.config, args.kubeconfig)


def _audit(args: argparse.Namespace) -> int:
    from istio_aux import app  # noqa: PLC0415 - explain and mutate need no client

    return app.audit(args.kubeconfig, args.namespace, args.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="istio-aux",
        description="Lets Job-like pods live on Istio unchanged: payloads start after their "
        "proxy, and proxies end after their payload.",
        epilog="Each command has its own --help with examples.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('istio-aux')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    explain = _command(
        commands.add_parser,
        "explain",
        "say what would be done about pods, and why",
        """\
        examples:
          kubectl get pods -A -o json | istio-aux explain -f -
          kubectl -n training get pod mnist-worker-0 -o yaml | istio-aux explain -f -
          istio-aux explain -f pods.yaml | jq -r 'select(.action == "wait") | .reason'

        One JSON object a line: namespace, name, uid, action (quit, wait, ignore, report), reason,
        containers. The exit status is 2 when a document was bad; the others are answered.""",
    )
    _add_files(explain, "pods: JSON, JSON lines or YAML, single, many or in lists; - is stdin")
    explain.set_defaults(run=_explain)

    mutate = _command(
        commands.add_parser,
        "mutate",
        "say how pods would be changed when they are created",
        """\
        examples:
          istio-aux mutate -f pod.yaml
          istio-aux mutate -f review.json --capability native | jq -r .response.patch | base64 -d

        A pod gives the changed pod; an AdmissionReview (admission.k8s.io/v1) gives the answer of
        the webhook. One JSON object a line. The exit status is 2 when a document was bad.""",
    )
    _add_files(mutate, "pods or AdmissionReviews, as for explain; - is stdin")
    mutate.add_argument(
        "--capability",
        type=_capability,
        default=Capability.CLASSIC,
        metavar="native|classic",
        help="what cluster and Istio can do: native sidecars, or only classic ones, which hold "
        "the payload back (default: classic)",
    )
    mutate.set_defaults(run=_mutate)

    serve = _command(
        commands.add_parser,
        "serve",
        "run the admission webhook and the quit controller",
        """\
        examples:
          istio-aux serve --config /etc/istio-aux/config.yaml
          istio-aux serve --config config.yaml --kubeconfig ~/.kube/config

        Logs JSON lines on stdout. SIGTERM lets work in flight end; a second one ends at once.""",
    )
    serve.add_argument("--config", type=Path, required=True, metavar="FILE", help="settings, YAML")
    _add_kubeconfig(serve, f"wins over the settings; {_DEFAULT_ACCESS}")
    serve.set_defaults(run=_serve)

    audit = _command(
        commands.add_parser,
        "audit",
        "list the pods of a cluster whose proxy outlived their payload, or the reverse",
        """\
        examples:
          istio-aux audit
          istio-aux audit -n training -o json""",
    )
    _add_kubeconfig(audit, _DEFAULT_ACCESS)
    audit.add_argument("-n", "--namespace", metavar="NS", help="only this namespace; default: all")
    audit.add_argument("-o", "--output", choices=["table", "json"], default="table")
    audit.set_defaults(run=_audit)
    return parser


def _command(add: AddParser, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    return add(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=textwrap.dedent(epilog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_files(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "-f", "--file", action="append", dest="files", required=True, metavar="FILE", help=what
    )
    parser.add_argument("-o", "--output", choices=["json"], default="json")


def _add_kubeconfig(parser: argparse.ArgumentParser, otherwise: str) -> None:
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help=otherwise)


def _capability(text: str) -> Capability:
    try:
        return Capability(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}": expected native or classic') from None
