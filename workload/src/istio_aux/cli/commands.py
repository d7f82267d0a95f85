"""The commands and their arguments."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from istio_aux import settings
from istio_aux.cli import files, render, report
from istio_aux.model import applications
from istio_aux.model.applications import Applications
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Capability, Policy, Start

AddParser = Callable[..., argparse.ArgumentParser]

_PLUGIN = "kubectl-istio_aux"  # kubectl runs it as `kubectl istio-aux`.
_WIDEST = 100  # Columns of help: longer lines are hard to read.
_INTERRUPTED = 130  # Exit status after Ctrl-C, as shells have it: 128 + SIGINT.

_COLOUR = "Colour is for terminals; NO_COLOR turns it off, FORCE_COLOR on."
_CALL = re.compile(r"(?m)(?<=^  )istio-aux\b|(?<=\| )istio-aux\b")  # In examples.
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
            render.write(sys.stdout, "")
        left_out = applications.left_out(pod, args.pod_selector, args.applications)
        explanation = report.explain(pod, _policy(args), now, left_out=left_out)
        render.show(sys.stdout, explanation, output)
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
        pods=args.pod_selector, inject=args.inject_selector, native_sidecars=args.native_sidecars,
    )  # fmt: skip
    return files.mutate(args.files, how)


def _serve(args: argparse.Namespace) -> int:
    from istio_aux import serve  # noqa: PLC0415 - explain and mutate need no server

    return serve.serve(args.config, args.kubeconfig)


def _audit(args: argparse.Namespace) -> int:
    from istio_aux.cli import cluster  # noqa: PLC0415 - explain and mutate need no client

    scope = cluster.Scope(
        namespace=args.namespace, selector=args.namespace_selector, pods=args.pod_selector,
        inject=args.inject_selector, applications=args.applications,
    )  # fmt: skip
    policy = _policy(args, grace=args.quit_grace)
    return cluster.audit(_credentials(args), scope, policy, args.output, holders=args.holders)


def _check(args: argparse.Namespace) -> int:
    from istio_aux.cli import check  # noqa: PLC0415 - as above

    return check.check(_credentials(args), args.config, args.output)


def _restart(args: argparse.Namespace) -> int:
    from istio_aux.cli import restart  # noqa: PLC0415 - as above

    order = restart.Order(
        namespace=args.namespace, limit=args.limit, patience=args.timeout, dry_run=args.dry_run
    )
    return restart.restart_unmeshed(_credentials(args), args.config, order, args.output)


def _policy(args: argparse.Namespace, grace: float = 0.0) -> Policy:
    return Policy(
        ignore_containers=args.ignore_containers, via=args.quit_via, sidecars=args.quit_sidecars,
        grace=grace,
    )  # fmt: skip


def _credentials(args: argparse.Namespace) -> Callable[[], Any]:
    """Return a function that finds the credentials, as kubectl does."""
    from istio_aux.kube import access  # noqa: PLC0415 - explain and mutate need no client

    config: settings.Settings = getattr(args, "config", settings.DEFAULTS)
    return partial(access.find, args.kubeconfig or config.kubeconfig, context=args.context)


class _HelpText(argparse.RawDescriptionHelpFormatter):
    """Formats the help for a terminal of any width; texts and examples keep their lines."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        super().__init__(prog, max_help_position=26, width=width)
        self._action_max_length = 20  # argparse forgets how far commands are indented.

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class _Version(argparse.Action):
    """Shows the version; to read it takes longer than `explain` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - see above

        sys.stdout.write(f"istio-aux {version('istio-aux')}\n")
        parser.exit()


def _program() -> str:
    """Return how the user calls this program."""
    return "kubectl istio-aux" if Path(sys.argv[0]).name == _PLUGIN else "istio-aux"


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
    _add_explain(add)
    _add_mutate(add)
    _add_serve(add)
    _add_audit(add)
    _add_check(add)
    _add_restart(add)
    return root


def _add_explain(add: AddParser) -> None:
    explain = _command(
        add,
        "explain",
        "say what would be done about pods, and why",
        f"""\
        examples:
          istio-aux explain -n training mnist-worker-0
          istio-aux explain training/mnist-worker-0 training/mnist-worker-1
          istio-aux explain -f pods.yaml --ignore-containers cloud-sql-proxy
          kubectl get pods -A -o json | istio-aux explain -f -
          istio-aux explain -f pods.yaml | jq -r 'select(.action == "wait") | .reason'

        Pods are read from the cluster by name and judged as of now; in files, grace
        periods count as over. A terminal shows text: a headline, and a table of the
        containers. A pipe gets one JSON object a line: namespace, name, uid, action
        (quit, wait, ignore, report), reason, containers; start.
        {_COLOUR}

        The exit status is 2 if a document is bad, 1 if a pod cannot be read; all others
        are answered.""",
        _explain,
    )
    explain.add_argument(
        "pods", nargs="*", type=_checked(_pod), metavar="POD", help="a pod: NAMESPACE/NAME, or NAME"
    )
    _add_files(
        explain, "pods: JSON, JSON lines or YAML; one, many or in lists; - is stdin", default=[]
    )
    output = "default: text in a terminal, json in a pipe or a file"
    explain.add_argument("-o", "--output", choices=["text", "json"], help=output)
    _add_namespace(explain, "of pods that are named without one; default: the kubeconfig's")
    _add_credentials(explain)
    _add_option(explain, "pod-selector", "SELECTOR")
    _add_applications(explain)
    _add_policy(explain)
    explain.set_defaults(parser=explain)


def _add_mutate(add: AddParser) -> None:
    mutate = _command(
        add,
        "mutate",
        "show how pods would be changed when they are created",
        """\
        examples:
          istio-aux mutate -f pod.yaml --capability native
          istio-aux mutate -f review.json | jq -r .response.patch | base64 -d

        The answer to a pod is the changed pod; to an AdmissionReview
        (admission.k8s.io/v1), the review that the webhook returns. One JSON object a
        line. The exit status is 2 if a document is bad.""",
        _mutate,
    )
    _add_files(mutate, "pods or AdmissionReviews, as for explain; - is stdin", required=True)
    mutate.add_argument("-o", "--output", choices=["json"], default="json")
    mutate.add_argument(
        "--capability",
        type=_checked(_capability),
        default=Capability.CLASSIC,
        metavar="native|classic",
        help="what cluster and Istio support: native sidecars, or only classic ones, which hold "
        "the payload back (default: classic)",
    )
    _add_option(mutate, "pod-selector", "SELECTOR")
    _add_option(mutate, "inject-selector", "SELECTOR")
    _add_option(mutate, "start-mode", "auto|native|hold|off")
    _add_option(mutate, "peers", "off|direct")
    _add_option(mutate, "native-sidecars", "NAME,...")


def _add_serve(add: AddParser) -> None:
    serve = _command(
        add,
        "serve",
        "run the admission webhook and the quit and repair controllers",
        """\
        examples:
          istio-aux serve --config /etc/istio-aux/config.yaml
          istio-aux serve --config config.yaml --kubeconfig ~/.kube/config

        Logs JSON lines on stdout. SIGTERM stops it after the work in flight; a second
        SIGTERM stops it at once.""",
        _serve,
    )
    serve.add_argument("--config", type=Path, required=True, metavar="FILE", help="settings, YAML")
    _add_kubeconfig(serve, "overrides the settings; ")


def _add_audit(add: AddParser) -> None:
    audit = _command(
        add,
        "audit",
        "list the pods of a cluster whose proxy outlived their payload, or is missing",
        f"""\
        examples:
          istio-aux audit
          istio-aux audit -n training -o json | jq -r .name
          istio-aux audit --selector io.datastrophic/istio-aux=enabled --quit-grace 30
          istio-aux audit --ignore-containers cloud-sql-proxy,vault-agent
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
        {_COLOUR}

        The exit status is 0 whatever is found, 1 if the API server refuses or does not
        answer, 2 if the credentials cannot be used. If webhook configurations,
        namespaces or Istio's injection policy cannot be read, a line on stderr says how
        many pods may be unmeshed; the rest is shown, and the exit status is 1.""",
        _audit,
    )
    _add_credentials(audit)
    _add_namespace(audit, "only this namespace; default: all")
    _add_output(audit, "table")
    only = "show only what holds stuck and blocked pods, and what these hold by their requests"
    audit.add_argument("--holders", action="store_true", help=only)
    # Without a selector `audit` looks everywhere, unlike `serve`.
    _add_option(audit, "namespace-selector", "SELECTOR", flag="--selector", default="")
    _add_option(audit, "pod-selector", "SELECTOR")
    _add_option(audit, "inject-selector", "SELECTOR")
    _add_applications(audit)
    _add_option(audit, "quit-grace", "SECONDS")
    _add_policy(audit)


def _add_check(add: AddParser) -> None:
    check = _command(
        add,
        "check",
        "say what would keep istio-aux from working in a cluster, and what to do about it",
        f"""\
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
        {_COLOUR}

        The exit status is 0 if everything is ok or a note, 1 if there is a problem,
        something is unknown or the API server does not answer, 2 if settings or
        credentials cannot be used.""",
        _check,
    )
    _add_config(check)
    _add_credentials(check, "overrides the settings; ")
    _add_output(check, "text")


def _add_restart(add: AddParser) -> None:
    restart = _command(
        add,
        "restart-unmeshed",
        "restart pods that should have a sidecar and have none, once",
        f"""\
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
        {_COLOUR}

        The exit status is 0 when it is done, 1 if pods may not be restarted or not all
        were in time, 2 if settings or credentials cannot be used.""",
        _restart,
    )
    restart.add_argument("--dry-run", action="store_true", help="only show what would be done")
    most = "how many pods to restart at most (default: 10)"
    restart.add_argument("--limit", type=_checked(_count), default=10, metavar="N", help=most)
    restart.add_argument(
        "--timeout", type=_checked(settings.seconds), default=300.0, metavar="SECONDS",
        help="how long to wait for new pods and disruption budgets (default: 300)",
    )  # fmt: skip
    _add_namespace(restart, "only this namespace; default: all")
    _add_config(restart)
    _add_credentials(restart, "overrides the settings; ")
    _add_output(restart, "table")


def _command(
    add: AddParser, name: str, summary: str, epilog: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    command = add(
        name,
        help=summary,
        description=textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", 80),
        epilog=_CALL.sub(_program(), textwrap.dedent(epilog)),
        formatter_class=_HelpText,
    )
    command.set_defaults(run=run)
    return command


def _add_option(
    command: argparse.ArgumentParser, name: str, metavar: str, flag: str = "", **options: Any
) -> None:
    """Add an option of `serve`; ``options`` of argparse override what the option has."""
    given: dict[str, Any] = {
        "type": _checked(settings.OPTIONS[name].read),
        "default": settings.default(name),
        "help": f"as for serve: {settings.OPTIONS[name].meaning}",
        **options,
    }
    command.add_argument(flag or f"--{name}", dest=name.replace("-", "_"), metavar=metavar, **given)


def _add_policy(command: argparse.ArgumentParser) -> None:
    _add_option(command, "ignore-containers", "NAME,NAME")
    _add_option(command, "quit-via", "auto|exec|port-forward")
    _add_option(command, "quit-sidecars", "NAME,NAME=PORT/PATH,NAME=COMMAND")


def _add_applications(command: argparse.ArgumentParser) -> None:
    read = _checked(_applications)
    _add_option(command, "applications", "FILE", type=read, default=Applications())


def _add_files(command: argparse.ArgumentParser, what: str, **options: Any) -> None:
    command.add_argument(
        "-f", "--file", action="append", dest="files", metavar="FILE", help=what, **options
    )


def _add_output(command: argparse.ArgumentParser, kind: str) -> None:
    what = f"json is one object a line (default: {kind})"
    command.add_argument("-o", "--output", choices=[kind, "json"], default=kind, help=what)


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", type=_checked(_settings), default=settings.DEFAULTS, metavar="FILE",
        help="the settings of `serve` (default: those without a file)",
    )  # fmt: skip


def _add_credentials(command: argparse.ArgumentParser, meaning: str = "") -> None:
    _add_kubeconfig(command, meaning)
    context = "the context of the kubeconfig; default: its current one"
    command.add_argument("--context", metavar="NAME", help=context)


def _add_kubeconfig(command: argparse.ArgumentParser, meaning: str) -> None:
    otherwise = "default: $KUBECONFIG, else ~/.kube/config, else the pod's own"
    command.add_argument("--kubeconfig", type=Path, metavar="FILE", help=f"{meaning}{otherwise}")


def _add_namespace(command: argparse.ArgumentParser, what: str) -> None:
    read = _checked(settings.namespace)
    command.add_argument("-n", "--namespace", type=read, metavar="NS", help=what)


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
