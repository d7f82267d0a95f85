"""The command line: arguments to calls. `mutate`, and `explain` of files, need no cluster.

Only commands and their options may live here. What speaks to an API server is imported only when it
is asked for, so that the rest starts fast.
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

from istio_aux import arguments, explanation, offline
from istio_aux.core.applications import Applications
from istio_aux.core.policy import Capability, Policy, Start, StartMode
from istio_aux.core.selectors import Selector

AddParser = Callable[..., argparse.ArgumentParser]

_INTERRUPTED = 130

_COLOUR = "Colour is for terminals; NO_COLOR turns it off, FORCE_COLOR on."

_DEFAULT_ACCESS = "default: $KUBECONFIG, else ~/.kube/config, else the pod's own"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status.

    That is 0; 1 if the API server refused or did not answer; 2 for bad arguments and bad input; 130
    after Ctrl-C, as shells say it (128 + SIGINT).
    """
    args = _parser().parse_args(argv)
    try:
        status = cast("int", args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader left, as `head` does. Python flushes stdout once more at exit: give it a sink.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


def _explain(args: argparse.Namespace) -> int:
    if not args.pods and not args.files:
        args.parser.error("expected a POD, or -f FILE")
    show = explanation.printer(sys.stdout, args.output)
    policy = Policy(ignore_containers=args.ignore_containers)
    status = offline.explain(args.files, policy, show)
    if args.pods:
        from istio_aux import online  # noqa: PLC0415 - files need no client

        status = max(
            status, online.explain(args.kubeconfig, args.namespace, args.pods, policy, show)
        )
    return status


def _mutate(args: argparse.Namespace) -> int:
    return offline.mutate(args.files, Start(mode=args.start_mode, capability=args.capability))


def _serve(args: argparse.Namespace) -> int:
    from istio_aux import app  # noqa: PLC0415 - explain and mutate need no server

    return app.serve(args.config, args.kubeconfig)


def _audit(args: argparse.Namespace) -> int:
    from istio_aux import online  # noqa: PLC0415 - explain and mutate need no client
    from istio_aux.audit import Scope  # noqa: PLC0415 - likewise

    scope = Scope(namespace=args.namespace, selector=args.selector, applications=args.applications)
    policy = Policy(ignore_containers=args.ignore_containers, grace=args.quit_grace)
    return online.audit(args.kubeconfig, scope, policy, args.output)


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
        f"""\
        examples:
          istio-aux explain -n training mnist-worker-0
          istio-aux explain training/mnist-worker-0 training/mnist-worker-1
          istio-aux explain -f pods.yaml --ignore-containers cloud-sql-proxy
          kubectl get pods -A -o json | istio-aux explain -f -
          istio-aux explain -f pods.yaml | jq -r 'select(.action == "wait") | .reason'

        Pods named are read from the cluster and judged as of now; in files, grace periods count as
        over. In a terminal the answer is text: a headline, and a table of the containers. In a
        pipe it is one JSON object a line: namespace, name, uid, action (quit, wait, ignore,
        report), reason, containers.
        {_COLOUR}

        The exit status is 2 when a document was bad, 1 when a pod could not be read; the others
        are answered.""",
    )
    explain.add_argument(
        "pods", nargs="*", type=arguments.pod, metavar="POD", help="a pod: NAMESPACE/NAME, or NAME"
    )
    _add_files(
        explain,
        "pods: JSON, JSON lines or YAML, single, many or in lists; - is stdin",
        required=False,
    )
    explain.add_argument(
        "-o",
        "--output",
        choices=["text", "json"],
        help="default: text in a terminal, json in a pipe or a file",
    )
    _add_namespace(explain, "of pods named without one; default: the kubeconfig's")
    _add_kubeconfig(explain, _DEFAULT_ACCESS)
    _add_ignored(explain)
    explain.set_defaults(run=_explain, parser=explain)

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
    _add_files(mutate, "pods or AdmissionReviews, as for explain; - is stdin", required=True)
    mutate.add_argument("-o", "--output", choices=["json"], default="json")
    mutate.add_argument(
        "--capability",
        type=arguments.capability,
        default=Capability.CLASSIC,
        metavar="native|classic",
        help="what cluster and Istio can do: native sidecars, or only classic ones, which hold "
        "the payload back (default: classic)",
    )
    mutate.add_argument(
        "--start-mode",
        type=arguments.setting("start-mode"),
        default=StartMode.AUTO,
        metavar="auto|native|hold|off",
        help="as for serve (default: auto)",
    )
    mutate.set_defaults(run=_mutate)

    serve = _command(
        commands.add_parser,
        "serve",
        "run the admission webhook and the controllers of quit and repair",
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
        "list the pods of a cluster whose proxy outlived their payload, or is missing",
        f"""\
        examples:
          istio-aux audit
          istio-aux audit -n training -o json | jq -r .name
          istio-aux audit --selector io.datastrophic/istio-aux=enabled --quit-grace 30
          istio-aux audit --ignore-containers cloud-sql-proxy,vault-agent

        Looks at all pods that are not over, once, and changes nothing. States:
          stuck     every payload container is finished, and the proxy still runs
          blocked   some payload containers are finished, others are not: the reason names them;
                    or an annotation that cannot be understood keeps us away
          lost      the proxy is gone for good, and a payload container may still run
          unmeshed  there is no proxy, although Istio would inject one today
        AGE is the time since the last of the finished containers ended, or the proxy if it is lost;
        of an unmeshed pod, since it was created.
        {_COLOUR}

        The exit status is 0 whatever was found, 1 when the API server refused or did not answer,
        2 when the credentials cannot be used. Where webhook configurations, namespaces or Istio's
        injection policy may not be read, a line on stderr says of how many pods it is not known
        whether they are unmeshed; the rest is shown, and the exit status is 1.""",
    )
    _add_kubeconfig(audit, _DEFAULT_ACCESS)
    _add_namespace(audit, "only this namespace; default: all")
    audit.add_argument(
        "-o",
        "--output",
        choices=["table", "json"],
        default="table",
        help="json is one object a line (default: table)",
    )
    audit.add_argument(
        "--selector",
        type=arguments.setting("namespace-selector"),
        default=Selector(),
        metavar="SELECTOR",
        help="only namespaces with such labels: give serve's namespace-selector to see what serve "
        "looks after; default: all",
    )
    _add_ignored(audit)
    audit.add_argument(
        "--applications",
        type=arguments.applications,
        default=Applications(),
        metavar="FILE",
        help="as for serve: applications whose pods are to get a sidecar",
    )
    audit.add_argument(
        "--quit-grace",
        type=arguments.setting("quit-grace"),
        default=0.0,
        metavar="SECONDS",
        help="as for serve: pods are not stuck until it is over (default: 0)",
    )
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


def _add_files(parser: argparse.ArgumentParser, what: str, *, required: bool) -> None:
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        dest="files",
        required=required,
        default=None if required else [],
        metavar="FILE",
        help=what,
    )


def _add_kubeconfig(parser: argparse.ArgumentParser, otherwise: str) -> None:
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help=otherwise)


def _add_namespace(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("-n", "--namespace", type=arguments.namespace, metavar="NS", help=what)


def _add_ignored(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ignore-containers",
        type=arguments.setting("ignore-containers"),
        default=frozenset[str](),
        metavar="NAME,NAME",
        help="as for serve: containers that nobody has to wait for",
    )
