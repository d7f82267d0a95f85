"""The commands and their arguments."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from istio_aux import revision, settings
from istio_aux.cli import files, report
from istio_aux.cli.output import FORMATS, Output, read_format, read_unnamed
from istio_aux.cli.texts import TEXTS
from istio_aux.judge.installation import Installation, Judgement
from istio_aux.model import applications, findings, selectors
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.text import one_line, quoted

FAULT = "a fault of istio-aux"  # Prefix of the line about an exception that no command expects.

_CALL = re.compile(r"(?m)(?<=^  )istio-aux\b|(?<=\| )istio-aux\b")  # In examples.


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status.

    0, or 130 after Ctrl-C; 1 if something failed or is not known; 2 for bad arguments or input.
    """
    if "_ARGCOMPLETE" in os.environ:  # A shell asks what may come next.
        import argcomplete  # noqa: PLC0415 - no other call needs it

        argcomplete.autocomplete(parser())
    root = parser()
    args, unknown = root.parse_known_args(_command_first(sys.argv[1:] if argv is None else argv))
    if unknown:  # `parse_args` would show the usage of all commands, not of this one.
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if not args.command:
        root.print_help()
        return 0
    if "output" in args and "context" in args:
        args.output = Output.reached_by(
            args.output, kubeconfig=args.kubeconfig, context=args.context
        )
    if getattr(args, "all_namespaces", False):  # It overrides -n, as for kubectl.
        args.namespace = None
    try:
        status = cast("int", args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader left, as `head` does. Python flushes stdout again at exit: give it a sink.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130  # As shells have it: 128 + SIGINT.
    except Exception as error:
        if args.debug or args.run is _serve:  # `serve` logs the trace.
            raise
        why = one_line(f"{type(error).__name__}: {error}")
        report.complain(
            f"{FAULT}: {why}: run `istio-aux --debug COMMAND` and report what it prints"
        )
        return 1
    return status


def _explain(args: argparse.Namespace) -> int:
    live = (
        args.targets
        or args.all_namespaces
        or args.selector.requirements
        or (args.namespace and not args.files)
    )
    if not live and not args.files:
        args.parser.error("expected a POD, TYPE/NAME, -l SELECTOR, -n NAMESPACE, -A, or -f FILE")
    if args.files and (args.all_namespaces or args.selector.requirements):
        args.parser.error("expected -l SELECTOR or -A, or -f FILE, not both")
    status, shown, kept = 0, False, list[report.Explanation]()
    at_once = args.output.format in {"text", "json"}  # Show each pod before the next is known.

    def show(pod: Pod, judged: Judgement, **facts: Any) -> None:
        nonlocal shown
        explained = report.explain(pod, judged, ignore=args.ignore, **facts)
        if not at_once:
            kept.append(explained)
            return
        if shown and args.output.format == "text":
            report.write("")
        args.output.show([explained], report.explain_text)
        shown = True

    if args.files:
        status = files.explain(args.files, args.config or Installation(), args.sidecars, show)
    if live:
        from istio_aux.cli import cluster, workloads  # noqa: PLC0415 - they bring the client

        answer, request = partial(cluster.explain, show=show), workloads.ClusterRequest.of(args)
        status = max(status, cluster.run(answer, request, patient=True))
    if not at_once:
        args.output.show(kept, report.explain_text)
    return status


def _audit(args: argparse.Namespace) -> int:
    from istio_aux.cli import snapshot, workloads  # noqa: PLC0415 - as above

    if args.files and args.targets:
        args.parser.error("expected TARGETs or -f FILE, not both")
    if args.files:
        return snapshot.audit(args.files, workloads.ClusterRequest.of(args))
    return _ask(args)


def _ask(args: argparse.Namespace) -> int:
    """Ask a cluster; return the exit status."""
    from istio_aux.cli import check, cluster, once, workloads  # noqa: PLC0415 - as above

    answers: dict[str, workloads.Answer] = {
        "audit": cluster.audit,
        "check": check.check,
        "quit": once.free,
        "restart-unmeshed": once.restart_unmeshed,
    }
    return cluster.run(
        answers[args.command],
        workloads.ClusterRequest.of(args),
        patient="dry_run" not in args,  # Controllers try again themselves.
    )


def _mutate(args: argparse.Namespace) -> int:
    return files.mutate(
        args.files,
        StartPolicy(
            mode=args.start_mode,
            capability=args.capability,
            peers=args.peers,
            pods=args.pod_selector,
            inject=args.inject_selector,
            sidecars=args.sidecars or (),
        ),
        args.output,
    )


def _serve(args: argparse.Namespace) -> int:
    from istio_aux import serve  # noqa: PLC0415 - explain and mutate need no server

    return serve.serve(args.config, args.kubeconfig)


def _completion(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - as above

    report.write(shellcode(["istio-aux"], shell=args.shell).strip())
    return 0


class _Version(argparse.Action):
    """Shows the version, which is read only on demand: that takes longer than `explain`."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - see above

        sys.stdout.write(f"istio-aux {version('istio-aux')}, revision {revision()}\n")
        parser.exit()


def _program() -> str:
    """The name by which the user calls this program, which may be a kubectl plugin."""
    return "kubectl istio-aux" if Path(sys.argv[0]).name == "kubectl-istio_aux" else "istio-aux"


def _command_first(argv: Sequence[str]) -> list[str]:
    """Move options from before the command to behind it: kubectl takes them in both places."""
    before, rest = list[str](), [*argv]
    while rest and (name := rest[0].partition("=")[0]) in _BEFORE:
        taken = _BEFORE[name] if name == rest[0] else 1  # An option has its value behind a `=`.
        before, rest = before + rest[:taken], rest[taken:]
    return [*rest[:1], *before, *rest[1:]]


_BEFORE = {
    **dict.fromkeys(("-n", "--namespace", "--context", "--kubeconfig"), 2),
    **dict.fromkeys(("-A", "--all-namespaces", "--debug"), 1),
}
"""Options that may stand before the command, and how many words each is."""


class _Parser(argparse.ArgumentParser):
    """Names a command that is written alike; `suggest_on_error` does so from Python 3.14 on."""

    def error(self, message: str) -> NoReturn:
        if (found := _CHOICE.search(message)) and (near := get_close_matches(found[1], _COMMANDS)):
            message = f"there is no command {quoted(found[1])}: did you mean {near[0]}?"
        super().error(message)


_CHOICE = re.compile("argument COMMAND: invalid choice: '(.*?)'")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line; in its result ``run`` is the function of the ``command``."""
    layout = partial(
        argparse.RawDescriptionHelpFormatter,
        max_help_position=26,
        width=min(shutil.get_terminal_size().columns, 100),  # Longer lines are hard to read.
    )
    root = _Parser(
        prog=_program(),
        formatter_class=layout,
        description="Lets Job-like pods run on Istio unchanged: payloads start after their proxy,\n"
        "and proxies exit after their payload.",
        epilog="Each command has its own --help with examples. Colour is for terminals; NO_COLOR\n"
        "turns it off, FORCE_COLOR on.",
    )
    root.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    root.add_argument(
        "--debug", action="store_true", help="print the trace of a fault of istio-aux"
    )
    root.set_defaults(parser=root)
    add = root.add_subparsers(title="commands", metavar="COMMAND", dest="command").add_parser
    for name, (run, arguments, changes) in _COMMANDS.items():
        summary, epilog = TEXTS[name]
        command = add(
            name,
            formatter_class=layout,
            help=summary,
            description=textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", 80),
            epilog=_CALL.sub(_program(), epilog),
        )
        command.set_defaults(run=run, parser=command)
        # Without a default of its own this keeps what the one before the command has set.
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
        either = command.add_mutually_exclusive_group() if " yes " in arguments else command
        for each in arguments.split():
            flags = [each] if each in _POSITIONAL else [*_SHORT.get(each, "").split(), f"--{each}"]
            given = _ARGUMENTS.get(each) or _option(each)
            at = either if each in {"yes", "dry-run"} else command
            at.add_argument(*flags, **{**given, **changes.get(each, {})})
    return root


def _option(name: str) -> dict[str, Any]:
    """What argparse gets for an option of `serve`."""
    default, option = settings.default(name), settings.OPTIONS[name]
    return _value(
        "|".join(type(default)) if isinstance(default, StrEnum) else _VALUES[name],
        option.read,
        f"as for serve: {option.meaning}",
        default=default,
    )


def _checked(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse show the message of a ValueError."""

    def parse(text: str) -> object:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _config(path: str) -> Installation:
    """The installation whose settings file this is; its file of applications may be missing."""
    found = settings.load(Path(path), required=())
    asked, problems, file = applications.Applications(), (), found.applications
    if file and file.exists():
        try:
            asked, problems = applications.parse(file.read_text(errors="replace"))
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror or error}") from None
    if problems:
        raise ValueError(f"{file}: {problems[0]}")
    return Installation(source=path, settings=found, applications=asked)


_NAME = "[A-Za-z0-9][-.A-Za-z0-9]*"


def _value(metavar: str, read: Callable[[str], Any], about: str, **more: Any) -> dict[str, Any]:
    return {"metavar": metavar, "type": _checked(read), "help": about, **more}


def _flag(about: str, **more: Any) -> dict[str, Any]:
    return {"action": "store_true", "help": about, **more}


_VALUES = {
    "namespace-selectors": "SELECTORS",
    "pod-selector": "SELECTOR",
    "inject-selector": "SELECTOR",
    "sidecars": "NAME=HOW,...",
}
_POSITIONAL = {"targets", "shell"}
_SHORT = {
    "all-namespaces": "-A",
    "file": "-f",
    "namespace": "-n",
    "output": "-o",
    "selector": "-l",
}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "targets": _value(
        "TARGET",
        settings.matching(
            f"(?:{_NAME}/)?{_NAME}",
            "TYPE/NAME, the name of a pod, or a TYPE",
            lambda found: found[0],
        ),
        "TYPE/NAME, such as job/x; TYPE NAME; a pod, NAME or NAMESPACE/NAME; or a TYPE",
        nargs="*",
    ),
    "shell": {"choices": ["bash", "zsh", "fish"]},
    "file": {
        "action": "append",
        "dest": "files",
        "default": [],
        "metavar": "FILE",
        "help": "pods or workloads: JSON, JSON lines or YAML; one, many or in lists; - is stdin",
    },
    # Those of the settings, unless it is given.
    "namespace-selectors": {**_option("namespace-selectors"), "default": None, "dest": "selectors"},
    "sidecars": {**_option("sidecars"), "default": None},
    "output": _value(
        "FORMAT",
        read_format,
        "text, wide (a row for each pod, with its node), json (one object a line), yaml or name "
        "(default: %(default)s)",
        choices=FORMATS,  # `read_format` refuses others: these are for argcomplete.
        default="text",
    ),
    "all-namespaces": _flag("all namespaces"),
    "yes": _flag("do it; default: only show it", action="store_false", dest="dry_run"),
    # For kubectl's users. Without a default of its own argparse refuses it beside `--yes`.
    "dry-run": _value(
        "client",
        settings.matching("client|server", "client or server", lambda _found: True),
        argparse.SUPPRESS,
        nargs="?",
        const=True,
        default=argparse.SUPPRESS,
    ),
    "namespace": _value(
        "NS",
        settings.namespace,
        "only this namespace; default: all, or with a TARGET the kubeconfig's",
    ),
    "kubeconfig": _value(
        "FILE",
        Path,
        "overrides the settings; default: $KUBECONFIG, else ~/.kube/config, else the pod's own",
    ),
    "context": _value("NAME", str, "the context of the kubeconfig; default: its current one"),
    "as": _value(
        "USER",
        settings.matching(r"[^\x00-\x1f\x7f-\x9f]+", "the name of a user", lambda found: found[0]),
        "ask as this user (impersonation), as for kubectl",
        dest="user",
    ),
    "config": _value(
        "FILE",
        _config,
        "the settings of `serve` (default: those that the installation says it has)",
    ),
    "pre": _flag("before an install: check the rights of the account for that"),
    "to": {
        "choices": ["native", "ambient"],
        "metavar": "WHERE",
        "default": "",
        "help": "native or ambient: what breaks or stays behind on the way there, by namespace",
    },
    "ignore": _value(
        "CODE,...",
        findings.parse,
        "leave these findings out, such as IA0105; the summary counts them",
        action="extend",
        default=[],
    ),
    "timeout": _value(
        "SECONDS",
        settings.seconds,
        "when to answer with what is known or done (default: %(default)g)",
        default=300.0,
        dest="patience",
    ),
    "limit": _value(
        "N",
        settings.matching(
            "0*[1-9][0-9]{0,8}", "a number of 1 or more", lambda found: int(found[0])
        ),
        "how many pods to restart at most (default: 10)",
        default=10,
    ),
    "report": _value("FILE", Path, "write also a page of HTML for people without a cluster"),
    "holders": _flag("show only what keeps pods, and what these pods request"),
    "capability": _value(
        "unasked|native|classic",
        settings.matching(
            "unasked|native|classic",
            "unasked, native or classic",
            lambda found: Capability(found[0]),
        ),
        "what cluster and Istio do: sidecars are native unasked, or where a pod asks for that, or "
        "only classic, which hold the payload back (default: classic)",
        default=Capability.CLASSIC,
    ),
    "selector": _value(
        "SELECTOR",
        selectors.parse,
        "only pods whose labels match, as for kubectl",
        default=selectors.Selector(),
    ),
}
"""Arguments of commands, beside the options of `serve`."""

_CLUSTER = "config kubeconfig context as"  # How to reach a cluster, and whose settings count.
_OF_PODS = "namespace all-namespaces"
_HERE = {"help": "this namespace (default: the kubeconfig's)"}
_COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int], str, dict[str, dict[str, Any]]]] = {
    "explain": (
        _explain,
        f"targets file output {_OF_PODS} selector ignore {_CLUSTER} sidecars",
        {
            "namespace": _HERE,
            "output": {"help": "text, wide (nothing is cut), json, yaml or name (default: text)"},
        },
    ),
    "mutate": (
        _mutate,
        "file output capability pod-selector inject-selector start-mode peers sidecars",
        {
            "file": {"required": True},
            "output": {
                "type": str,
                "metavar": None,
                "choices": ["yaml", "json", "diff"],
                "default": "yaml",
                "help": "diff: what would change (default: yaml); a review is answered in json",
            },
        },
    ),
    "serve": (
        _serve,
        "config kubeconfig",
        {"config": {"type": Path, "required": True, "help": "settings, YAML"}},
    ),
    "audit": (
        _audit,
        f"targets file {_OF_PODS} selector output holders report ignore {_CLUSTER}",
        {
            "file": {
                "help": "output of kubectl get, JSON or YAML, instead of a cluster; - is stdin",
            }
        },
    ),
    "check": (
        _ask,
        f"pre to timeout ignore output namespace-selectors {_CLUSTER}",
        {
            "output": {
                "type": _checked(read_unnamed),
                "help": "text, wide (nothing is cut), json or yaml (default: text)",
            }
        },
    ),
    "quit": (
        _ask,
        f"targets namespace timeout all-namespaces selector yes dry-run output {_CLUSTER} sidecars",
        {"namespace": _HERE, "timeout": {"default": 120.0}},
    ),
    "completion": (_completion, "shell", {}),
    "restart-unmeshed": (
        _ask,
        f"targets limit timeout yes dry-run namespace all-namespaces output {_CLUSTER}",
        {},
    ),
}
"""The function of each command, its arguments, and how these differ from `_ARGUMENTS`."""
