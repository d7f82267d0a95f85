"""The commands, their arguments, and what `--help` says: examples, and how to read an answer."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, cast

from istio_aux import settings
from istio_aux.cli import files, report
from istio_aux.model import applications
from istio_aux.model.applications import Applications
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Capability, Policy, Start

_PLUGIN = "kubectl-istio_aux"  # kubectl runs it as `kubectl istio-aux`.
_WIDEST = 100  # Columns: longer lines are hard to read.
_CALL = re.compile(r"(?m)(?<=^  )istio-aux\b|(?<=\| )istio-aux\b")  # In examples.

_INTERRUPTED = 130  # Exit status after Ctrl-C, as shells have it: 128 + SIGINT.

_VALUES = {
    "namespace-selectors": "SELECTORS", "pod-selector": "SELECTOR", "inject-selector": "SELECTOR",
    "applications": "FILE", "quit-grace": "SECONDS", "sidecars": "NAME=HOW,...",
}  # fmt: skip
"""How values of the options look that are no choice among a few."""

_POD = re.compile(rf"(?:({settings.LABEL})/)?({settings.SUBDOMAIN})")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status.

    0; 1 if the API server refuses or does not answer; 2 for bad arguments or bad input.
    """
    args = parser().parse_args(argv)
    try:
        status = cast("int", args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader left, as `head` does. Python flushes stdout again at exit: give it a sink.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


def _explain(args: argparse.Namespace) -> int:
    if not args.pods and not args.files:
        args.parser.error("expected a POD, or -f FILE")
    output = args.output or ("text" if sys.stdout.isatty() else "json")
    shown = 0

    def show(pod: Pod, now: Moment | None = None) -> None:
        nonlocal shown
        if shown and output == "text":
            report.write(sys.stdout, "")
        left_out = applications.left_out(pod, args.pod_selector, args.applications)
        explanation = report.explain(pod, _policy(args), now, left_out=left_out)
        report.show(sys.stdout, explanation, output)
        shown += 1

    # Grace periods count as over: a file may be older than they are long.
    status = files.explain(args.files, show)
    if args.pods:
        from istio_aux.cli import cluster  # noqa: PLC0415 - files need no client

        live = cluster.explain(_credentials(args), args.namespace, args.pods, show)
        status = max(status, live)
    return status


def _mutate(args: argparse.Namespace) -> int:
    how = Start(
        mode=args.start_mode, capability=args.capability, peers=args.peers,
        pods=args.pod_selector, inject=args.inject_selector, sidecars=args.sidecars,
    )  # fmt: skip
    return files.mutate(args.files, how)


def _serve(args: argparse.Namespace) -> int:
    from istio_aux import serve  # noqa: PLC0415 - explain and mutate need no server

    return serve.serve(args.config, args.kubeconfig)


def _audit(args: argparse.Namespace) -> int:
    from istio_aux.cli import cluster  # noqa: PLC0415 - explain and mutate need no client

    scope = cluster.Scope(
        namespace=args.namespace, selectors=args.namespace_selectors, pods=args.pod_selector,
        inject=args.inject_selector, applications=args.applications,
    )  # fmt: skip
    policy = _policy(args, grace=args.quit_grace)
    return cluster.audit(_credentials(args), scope, policy, args.output, holders=args.holders)


def _check(args: argparse.Namespace) -> int:
    from istio_aux.cli import check  # noqa: PLC0415 - as above

    return check.check(_credentials(args), args.config, args.output, args.timeout)


def _quit(args: argparse.Namespace) -> int:
    from istio_aux.cli import free  # noqa: PLC0415 - as above

    order = free.FreeOrder(
        pods=tuple(args.pods), namespace=args.namespace, all_namespaces=args.all_namespaces,
        labels=args.label_selector, patience=args.timeout, dry_run=not args.yes,
        policy=_policy(args, args.quit_grace),
    )  # fmt: skip
    return free.free(_credentials(args), order, args.output)


def _restart(args: argparse.Namespace) -> int:
    from istio_aux.cli import restart  # noqa: PLC0415 - as above

    order = restart.Order(
        namespace=args.namespace, limit=args.limit, patience=args.timeout, dry_run=not args.yes
    )
    return restart.restart_unmeshed(_credentials(args), args.config, order, args.output)


def _policy(args: argparse.Namespace, grace: float = 0.0) -> Policy:
    return Policy(sidecars=args.sidecars, grace=grace)


def _credentials(args: argparse.Namespace) -> Callable[[], Any]:
    """Return a function that finds the credentials, as kubectl does."""
    from istio_aux.kube import access  # noqa: PLC0415 - explain and mutate need no client

    config: settings.Settings = getattr(args, "config", settings.DEFAULTS)
    return partial(access.find, args.kubeconfig or config.kubeconfig, context=args.context)


class _Version(argparse.Action):
    """Shows the version; to read it takes longer than `explain` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - see above

        sys.stdout.write(f"istio-aux {version('istio-aux')}\n")
        parser.exit()


class _HelpText(argparse.RawDescriptionHelpFormatter):
    """Formats the help for a terminal of any width; texts and examples keep their lines."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        super().__init__(prog, max_help_position=26, width=width)
        self._action_max_length = 20  # argparse forgets how far commands are indented.

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _program() -> str:
    """Return how the user calls this program."""
    return "kubectl istio-aux" if Path(sys.argv[0]).name == _PLUGIN else "istio-aux"


def _texts(command: str) -> dict[str, Any]:
    """Return argparse's arguments for the help of a command."""
    summary, epilog = _TEXTS[command]
    return {
        "help": summary,
        "description": textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", 80),
        "epilog": _CALL.sub(_program(), epilog),
    }


def parser() -> argparse.ArgumentParser:
    """The parser of the command line; what it returns has the command as ``run``."""
    root = argparse.ArgumentParser(
        prog=_program(),
        formatter_class=_HelpText,
        description="Lets Job-like pods run on Istio unchanged: payloads start after their proxy,\n"
        "and proxies exit after their payload.",
        epilog="Each command has its own --help with examples.",
    )
    about = "show program's version number and exit"
    root.add_argument("--version", action=_Version, nargs=0, help=about)
    add = root.add_subparsers(title="commands", required=True, metavar="COMMAND").add_parser

    def command(name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        made = add(name, formatter_class=_HelpText, **_texts(name))
        made.set_defaults(run=run, parser=made)
        return made

    explain = command("explain", _explain)
    about = "a pod: NAMESPACE/NAME, or NAME"
    explain.add_argument("pods", nargs="*", type=_checked(_pod), metavar="POD", help=about)
    about = "pods: JSON, JSON lines or YAML; one, many or in lists; - is stdin"
    _add(explain, "file", default=[], help=about)
    about = "default: text in a terminal, json in a pipe or a file"
    _add(explain, "output", choices=["text", "json"], help=about)
    about = "of pods that are named without one; default: the kubeconfig's"
    _add(explain, "namespace", help=about)
    _add(explain, "kubeconfig", "context", "applications", "pod-selector", "sidecars")

    mutate = command("mutate", _mutate)
    about = "pods or AdmissionReviews, as for explain; - is stdin"
    _add(mutate, "file", required=True, help=about)
    _add(mutate, "output", choices=["json"], default="json")
    _add(mutate, "capability", "pod-selector", "inject-selector", "start-mode", "peers", "sidecars")

    serve = command("serve", _serve)
    _add(serve, "config", type=Path, required=True, default=None, help="settings, YAML")
    _add(serve, "kubeconfig")

    audit = command("audit", _audit)
    _add(audit, "kubeconfig", "context", "namespace")
    _add_output(audit, "table")
    about = "show only what holds stuck and blocked pods, and what these hold by their requests"
    audit.add_argument("--holders", action="store_true", help=about)
    # Without selectors `audit` looks everywhere, unlike `serve`.
    _add(audit, "selector", default=None)
    _add(audit, "applications", "pod-selector", "inject-selector", "sidecars", "quit-grace")

    check = command("check", _check)
    _add(check, "timeout", help="when to answer with what is known (default: 300)")
    _add(check, "config", "kubeconfig", "context")
    _add_output(check, "text")

    _add_quit(command("quit", _quit))
    restart = command("restart-unmeshed", _restart)
    about = "how many pods to restart at most (default: 10)"
    restart.add_argument("--limit", type=_checked(_count), default=10, metavar="N", help=about)
    about = "when to answer, with what is done; new pods and budgets take time (default: 300)"
    _add(restart, "timeout", help=about)
    _add(restart, "yes", "namespace", "config", "kubeconfig", "context")
    _add_output(restart, "table")
    return root


def _add_quit(command: argparse.ArgumentParser) -> None:
    about = "a pod: NAMESPACE/NAME, or NAME; default: all that hang in the namespace"
    command.add_argument("pods", nargs="*", type=_checked(_pod), metavar="POD", help=about)
    chosen: dict[str, Any] = {"dest": "label_selector", "help": "only pods with such labels"}
    command.add_argument("-l", "--selector", **{**_option("pod-selector"), **chosen})
    _add(command, "namespace", help="this namespace (default: the kubeconfig's)")
    _add(command, "timeout", default=120.0, help="when to answer at the latest (default: 120)")
    _add(command, "all-namespaces", "yes", "sidecars", "quit-grace", "kubeconfig", "context")
    _add_output(command, "table")


def _add(command: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add arguments by name; ``changes`` override what argparse gets for them."""
    for name in names:
        given = _ARGUMENTS[name] if name in _ARGUMENTS else _option(name)
        flags = [*([_SHORT[name]] if name in _SHORT else []), f"--{name}"]
        command.add_argument(*flags, **{**given, **changes})


def _add_output(command: argparse.ArgumentParser, kind: str) -> None:
    about = f"json is one object a line (default: {kind})"
    _add(command, "output", choices=[kind, "json"], default=kind, help=about)


def _option(name: str) -> dict[str, Any]:
    """What argparse gets for an option of `serve`."""
    default = settings.default(name)
    return {
        "type": _checked(settings.OPTIONS[name].read),
        "default": default,
        "metavar": "|".join(type(default)) if isinstance(default, StrEnum) else _VALUES[name],
        "help": f"as for serve: {settings.OPTIONS[name].meaning}",
    }


def _checked(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse show the message of a ValueError."""

    def parse(text: str) -> object:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _pod(text: str) -> tuple[str | None, str]:
    match = _POD.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}": expected the name of a pod, or NAMESPACE/NAME')
    return match[1], match[2]


def _capability(text: str) -> Capability:
    if text not in {Capability.NATIVE, Capability.CLASSIC}:
        raise ValueError(f'"{text}": expected native or classic')
    return Capability(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) == int(text)):
        raise ValueError(f'"{text}": expected a number of 1 or more')
    return int(text)


def _settings(text: str) -> settings.Settings:
    return settings.load(Path(text))


def _applications(text: str) -> Applications:
    try:
        named, problems = applications.parse(Path(text).read_text(errors="replace"))
    except OSError as error:
        raise ValueError(f"{text}: {error.strerror or error}") from None
    if problems:
        raise ValueError(f"{text}: {problems[0]}")
    return named


_SHORT = {"all-namespaces": "-A", "file": "-f", "namespace": "-n", "output": "-o"}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "file": {"action": "append", "dest": "files", "metavar": "FILE"},
    "output": {},
    "all-namespaces": {"action": "store_true", "help": "all namespaces"},
    "yes": {"action": "store_true", "help": "do it; default: only show it"},
    "namespace": {
        "type": _checked(settings.namespace),
        "metavar": "NS",
        "help": "only this namespace; default: all",
    },
    "kubeconfig": {
        "type": Path,
        "metavar": "FILE",
        "help": "wins over the settings; default: $KUBECONFIG, else ~/.kube/config, else the "
        "pod's own",
    },
    "context": {
        "metavar": "NAME",
        "help": "the context of the kubeconfig; default: its current one",
    },
    "config": {
        "type": _checked(_settings),
        "default": settings.DEFAULTS,
        "metavar": "FILE",
        "help": "the settings of `serve` (default: those without a file)",
    },
    "timeout": {"type": _checked(settings.seconds), "default": 300.0, "metavar": "SECONDS"},
    "capability": {
        "type": _checked(_capability),
        "default": Capability.CLASSIC,
        "metavar": "native|classic",
        "help": "what cluster and Istio support: native sidecars, or only classic ones, which hold "
        "the payload back (default: classic)",
    },
    "selector": {**_option("namespace-selectors"), "dest": "namespace_selectors"},
    "applications": {
        **_option("applications"),
        "type": _checked(_applications),
        "default": Applications(),
    },
}
"""Arguments that several commands have, beside the options of `serve`."""


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
    "quit": (
        "free the pods that hang: tell the proxies of finished pods to exit, once",
        """\
examples:
  istio-aux quit -n training
  istio-aux quit -n training mnist-worker-0 --yes

Does once what `serve` does all the time, by its rules, with your own rights, in
any namespace. A pod that still works is left alone. Outcomes:
  would-free  without --yes: its proxy would be told to exit
  freed       its proxy has exited, and the pod has ended
  stuck       the pod is still there; the reason says why
  kept        the pod was left alone; the reason says why
  gone        the pod ended otherwise
JSON has one object a line: namespace, name, uid, outcome, reason, requests.

The exit status is 1 if a pod is stuck or a named pod is kept, rights are
missing or the API server does not answer; 2 if the credentials cannot be used.""",
    ),
    "restart-unmeshed": (
        "restart pods that should have a sidecar and have none, once",
        """\
examples:
  istio-aux restart-unmeshed
  istio-aux restart-unmeshed -n team --limit 5 --yes

Does once what `serve` does all the time with race-policy: restart, by its rule:
while the injector is live, one pod of a controller at a time, by evictions
within PodDisruptionBudgets. Pods of Jobs are left alone. Outcomes:
  restarted      the pod was evicted
  would-restart  without --yes: it would be
  kept           it was not, or not yet; the reason says why not
JSON has one object a line: namespace, name, outcome, reason.

The exit status is 0 when it is done, 1 if pods may not be restarted or not all
were in time, 2 if settings or credentials cannot be used.""",
    ),
}
