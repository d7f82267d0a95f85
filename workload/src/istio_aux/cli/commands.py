"""The commands and their arguments."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, cast

from istio_aux import settings
from istio_aux.cli import files, render, report
from istio_aux.cli.usage import HelpText, program, texts
from istio_aux.model import applications
from istio_aux.model.applications import Applications
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Capability, Policy, Start

AddParser = Callable[..., argparse.ArgumentParser]

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


def _restart(args: argparse.Namespace) -> int:
    from istio_aux.cli import restart  # noqa: PLC0415 - as above

    order = restart.Order(
        namespace=args.namespace, limit=args.limit, patience=args.timeout, dry_run=args.dry_run
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


def parser() -> argparse.ArgumentParser:
    """The parser of the command line; what it returns has the command as ``run``."""
    root = argparse.ArgumentParser(
        prog=program(),
        formatter_class=HelpText,
        description="Lets Job-like pods run on Istio unchanged: payloads start after their proxy,\n"
        "and proxies exit after their payload.",
        epilog="Each command has its own --help with examples.",
    )
    about = "show program's version number and exit"
    root.add_argument("--version", action=_Version, nargs=0, help=about)
    add = root.add_subparsers(title="commands", required=True, metavar="COMMAND").add_parser
    for command in (_add_explain, _add_mutate, _add_serve, _add_audit, _add_check, _add_restart):
        command(add)
    return root


def _add_explain(add: AddParser) -> None:
    explain = _command(add, "explain", _explain)
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
    _add_applications(explain)
    _add_options(explain, "pod-selector", "sidecars")
    explain.set_defaults(parser=explain)


def _add_mutate(add: AddParser) -> None:
    mutate = _command(add, "mutate", _mutate)
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
    _add_options(mutate, "pod-selector", "inject-selector", "start-mode", "peers", "sidecars")


def _add_serve(add: AddParser) -> None:
    serve = _command(add, "serve", _serve)
    serve.add_argument("--config", type=Path, required=True, metavar="FILE", help="settings, YAML")
    _add_kubeconfig(serve, "overrides the settings; ")


def _add_audit(add: AddParser) -> None:
    audit = _command(add, "audit", _audit)
    _add_credentials(audit)
    _add_namespace(audit, "only this namespace; default: all")
    _add_output(audit, "table")
    only = "show only what holds stuck and blocked pods, and what these hold by their requests"
    audit.add_argument("--holders", action="store_true", help=only)
    # Without selectors `audit` looks everywhere, unlike `serve`.
    _add_option(audit, "namespace-selectors", flag="--selector", default=None)
    _add_applications(audit)
    _add_options(audit, "pod-selector", "inject-selector", "sidecars", "quit-grace")


def _add_check(add: AddParser) -> None:
    check = _command(add, "check", _check)
    _add_timeout(check, "when to answer with what is known")
    _add_config(check)
    _add_credentials(check, "overrides the settings; ")
    _add_output(check, "text")


def _add_restart(add: AddParser) -> None:
    restart = _command(add, "restart-unmeshed", _restart)
    restart.add_argument("--dry-run", action="store_true", help="only show what would be done")
    most = "how many pods to restart at most (default: 10)"
    restart.add_argument("--limit", type=_checked(_count), default=10, metavar="N", help=most)
    _add_timeout(restart, "when to answer, with what is done; new pods and budgets take time")
    _add_namespace(restart, "only this namespace; default: all")
    _add_config(restart)
    _add_credentials(restart, "overrides the settings; ")
    _add_output(restart, "table")


def _command(
    add: AddParser, name: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    command = add(name, formatter_class=HelpText, **texts(name))
    command.set_defaults(run=run)
    return command


def _add_option(
    command: argparse.ArgumentParser, name: str, flag: str = "", **options: Any
) -> None:
    """Add an option of `serve`; ``options`` of argparse override what the option has."""
    default = settings.default(name)
    given: dict[str, Any] = {
        "type": _checked(settings.OPTIONS[name].read),
        "default": default,
        "metavar": "|".join(type(default)) if isinstance(default, StrEnum) else _VALUES[name],
        "help": f"as for serve: {settings.OPTIONS[name].meaning}",
        **options,
    }
    command.add_argument(flag or f"--{name}", dest=name.replace("-", "_"), **given)


def _add_options(command: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        _add_option(command, name)


def _add_applications(command: argparse.ArgumentParser) -> None:
    _add_option(command, "applications", type=_checked(_applications), default=Applications())


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


def _add_timeout(command: argparse.ArgumentParser, meaning: str) -> None:
    command.add_argument(
        "--timeout", type=_checked(settings.seconds), default=300.0, metavar="SECONDS",
        help=f"{meaning} (default: 300)",
    )  # fmt: skip


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
