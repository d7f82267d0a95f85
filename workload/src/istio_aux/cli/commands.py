"""The commands and their arguments."""

from __future__ import annotations

import argparse
import gc
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from msgspec import structs

from istio_aux import revision, settings
from istio_aux.cli import files, report
from istio_aux.cli.installation import Installation, Installations, Labels, name_of
from istio_aux.cli.texts import TEXTS
from istio_aux.model import applications, selectors
from istio_aux.model.answers import STATES
from istio_aux.model.applications import Applications
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Capability, Start
from istio_aux.model.text import quoted
from istio_aux.quit.facts import OBEYS, Kubelet

_PLUGIN = "kubectl-istio_aux"  # kubectl runs it as `kubectl istio-aux`.
_WIDEST = 100  # Columns: longer lines are hard to read.
_CALL = re.compile(r"(?m)(?<=^  )istio-aux\b|(?<=\| )istio-aux\b")  # In examples.

_INTERRUPTED = 130  # Exit status after Ctrl-C, as shells have it: 128 + SIGINT.

_VALUES = {
    "namespace-selectors": "SELECTORS", "pod-selector": "SELECTOR", "inject-selector": "SELECTOR",
    "sidecars": "NAME=HOW,...",
}  # fmt: skip
"""How values of the options look that are no choice among a few."""

_TARGET = re.compile(r"(?:[A-Za-z0-9][-.A-Za-z0-9]*/)?[A-Za-z0-9][-.A-Za-z0-9]*")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status.

    0; 1 if the API server refuses or does not answer; 2 for bad arguments or bad input.
    """
    if "_ARGCOMPLETE" in os.environ:  # A shell asks what may come next.
        import argcomplete  # noqa: PLC0415 - no other call needs it

        argcomplete.autocomplete(parser())
    args, unknown = parser().parse_known_args(argv)
    if unknown:  # The parser of all commands would show its own usage.
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
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
    live = args.targets or args.all_namespaces or args.label_selector.requirements
    live = live or (args.namespace and not args.files)
    if not live and not args.files:
        args.parser.error("expected a POD, TYPE/NAME, -l SELECTOR, -n NAMESPACE, -A, or -f FILE")
    shown = 0

    def show(
        pod: Pod, found: Installations, labels: Labels | None = None, now: Moment | None = None,
        kubelet: Kubelet = OBEYS, *, start: str | None = None, note: str = "",
    ) -> None:  # fmt: skip
        nonlocal shown
        if shown and args.output == "text":
            report.write(sys.stdout, "")
        judged = found.judge(pod, labels, now, args.sidecars, kubelet=kubelet)
        report.show(sys.stdout, report.explain(pod, judged, start, note), args.output)
        shown += 1

    # A file has no namespaces, which count as selected. It may be older than a grace period is
    # long, so that each counts as over.
    ours = args.config or Installation()
    how = structs.replace(ours.settings.start(Capability.UNKNOWN), pods=ours.settings.pod_selector)
    if args.sidecars is not None:
        how = structs.replace(how, sidecars=args.sidecars)
    told = Installations((ours,))
    status = files.explain(args.files, lambda pod, start: show(pod, told, start=start), how)
    if live:
        from istio_aux.cli import cluster  # noqa: PLC0415 - files need no client

        live = cluster.explain(_credentials(args), _chosen(args), args.config, show)
        status = max(status, live)
    return status


def _chosen(args: argparse.Namespace) -> Any:
    """The pods that are named, as a `cluster.Chosen`."""
    from istio_aux.cli import cluster  # noqa: PLC0415 - files need no client

    return cluster.Chosen(
        targets=tuple(args.targets), namespace=args.namespace,
        all_namespaces=args.all_namespaces, selector=args.label_selector,
    )  # fmt: skip


def _mutate(args: argparse.Namespace) -> int:
    how = Start(
        mode=args.start_mode, capability=args.capability, peers=args.peers,
        pods=args.pod_selector, inject=args.inject_selector, sidecars=args.sidecars,
    )  # fmt: skip
    return files.mutate(args.files, how, args.output)


def _serve(args: argparse.Namespace) -> int:
    gc.disable()  # To look through what is imported takes a fifth of the CPU of a start.
    from istio_aux import serve  # noqa: PLC0415 - explain and mutate need no server

    gc.freeze()
    gc.enable()
    return serve.serve(args.config, args.kubeconfig)


def _audit(args: argparse.Namespace) -> int:
    from istio_aux.cli import cluster  # noqa: PLC0415 - explain and mutate need no client

    scope = cluster.Scope(
        namespace=None if args.all_namespaces else args.namespace,
        labels=args.label_selector,
        selectors=args.namespace_selectors,
    )
    request = cluster.AuditRequest(
        output=args.output, holders=args.holders, fail_on=args.fail_on, watch=args.watch
    )
    return cluster.audit(_credentials(args), scope, args.config, request)


def _completion(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - as above

    report.write(sys.stdout, shellcode(["istio-aux"], shell=args.shell).strip())
    return 0


def _check(args: argparse.Namespace) -> int:
    from istio_aux.cli import check  # noqa: PLC0415 - as above

    request = check.CheckRequest(
        config=args.config, selectors=args.namespace_selectors, patience=args.timeout,
        pre=args.pre, wait=args.wait,
    )  # fmt: skip
    return check.check(_credentials(args), request, args.output)


def _quit(args: argparse.Namespace) -> int:
    from istio_aux.cli import free  # noqa: PLC0415 - as above

    request = free.QuitRequest(
        chosen=_chosen(args), patience=args.timeout, dry_run=not args.yes,
        config=args.config, sidecars=args.sidecars,
    )  # fmt: skip
    return free.free(_credentials(args), request, args.output)


def _restart(args: argparse.Namespace) -> int:
    from istio_aux.cli import restart  # noqa: PLC0415 - as above

    request = restart.RestartRequest(
        namespace=None if args.all_namespaces else args.namespace,
        limit=args.limit, patience=args.timeout, dry_run=not args.yes,
    )  # fmt: skip
    return restart.restart_unmeshed(_credentials(args), args.config, request, args.output)


def _credentials(args: argparse.Namespace) -> Callable[[], Any]:
    """Return a function that finds the credentials, as kubectl does."""
    from istio_aux.kube import access  # noqa: PLC0415 - explain and mutate need no client

    config: Installation = args.config or Installation()

    def credentials() -> access.Access:
        found = access.find(args.kubeconfig or config.settings.kubeconfig, context=args.context)
        return access.acting(found, user=args.user or "", request=args.request_timeout)

    return credentials


class _Version(argparse.Action):
    """Shows the version; to read it takes longer than `explain` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - see above

        sys.stdout.write(f"istio-aux {version('istio-aux')}, revision {revision()}\n")
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
    summary, epilog = TEXTS[command]
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
    about = "TYPE/NAME, such as job/x; TYPE NAME; a pod, NAME or NAMESPACE/NAME; or a TYPE"
    explain.add_argument("targets", nargs="*", type=_checked(_target), metavar="TARGET", help=about)
    about = "pods or workloads: JSON, JSON lines or YAML; one, many or in lists; - is stdin"
    _add(explain, "file", default=[], help=about)
    _add_output(explain)
    about = "this namespace (default: the kubeconfig's)"
    _add(explain, "namespace", help=about)
    _add(explain, "all-namespaces", "selector", "config", *_CLUSTER)
    _add(explain, "sidecars", default=None)

    mutate = command("mutate", _mutate)
    about = "pods and workloads, as for explain, or AdmissionReviews; - is stdin"
    _add(mutate, "file", required=True, help=about)
    about = "diff: what would change (default: yaml); a review is answered in json"
    _add(mutate, "output", choices=["yaml", "json", "diff"], default="yaml", help=about)
    _add(mutate, "capability", "pod-selector", "inject-selector", "start-mode", "peers", "sidecars")

    serve = command("serve", _serve)
    _add(serve, "config", type=Path, required=True, default=None, help="settings, YAML")
    _add(serve, "kubeconfig")

    audit = command("audit", _audit)
    _add(audit, "namespace", "all-namespaces", "selector", *_CLUSTER)
    _add_output(audit)
    about = "show only what keeps stuck and blocked pods, and what these request"
    audit.add_argument("--holders", action="store_true", help=about)
    about = "exit with 3 if a pod has one of these states, such as stuck,lost"
    audit.add_argument(
        "--fail-on", type=_checked(_states), default=frozenset(), metavar="STATE,...", help=about
    )
    about = "look again and again, and show what has changed (default: every 15 s)"
    audit.add_argument(
        "--watch", nargs="?", type=_checked(_interval), const=15.0, metavar="SECONDS", help=about
    )
    # Without selectors `audit` looks everywhere, unlike `serve`.
    _add(audit, "namespace-selectors", default=None)
    _add(audit, "config")

    check = command("check", _check)
    _add(check, "pre", "wait")
    _add(check, "timeout", help="when to answer with what is known (default: 300)")
    _add(check, "namespace-selectors", default=None)
    _add(check, "config", *_CLUSTER)
    _add_output(check)

    _add_quit(command("quit", _quit))
    completion = command("completion", _completion)
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    _add_restart(command("restart-unmeshed", _restart))
    return root


def _add_restart(restart: argparse.ArgumentParser) -> None:
    about = "how many pods to restart at most (default: 10)"
    restart.add_argument("--limit", type=_checked(_count), default=10, metavar="N", help=about)
    about = "when to answer, with what is done; new pods and budgets take time (default: 300)"
    _add(restart, "timeout", help=about)
    _add(restart, "yes", "namespace", "all-namespaces", "config", *_CLUSTER)
    _add_output(restart)


def _add_quit(command: argparse.ArgumentParser) -> None:
    about = "as for explain (default: all pods that hang in the namespace)"
    command.add_argument("targets", nargs="*", type=_checked(_target), metavar="TARGET", help=about)
    _add(command, "namespace", help="this namespace (default: the kubeconfig's)")
    _add(command, "timeout", default=120.0, help="when to answer at the latest (default: 120)")
    _add(command, "all-namespaces", "selector", "yes", "config", *_CLUSTER)
    _add(command, "sidecars", default=None)
    _add_output(command)


def _add(command: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add arguments by name; ``changes`` override what argparse gets for them."""
    for name in names:
        given = _ARGUMENTS[name] if name in _ARGUMENTS else _option(name)
        flags = [*([_SHORT[name]] if name in _SHORT else []), f"--{name}"]
        command.add_argument(*flags, **{**given, **changes})


def _add_output(command: argparse.ArgumentParser) -> None:
    about = "json is one object a line (default: text)"
    _add(command, "output", choices=["text", "json"], default="text", help=about)


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


def _target(text: str) -> str:
    if not _TARGET.fullmatch(text):
        raise ValueError(f"{quoted(text)}: expected TYPE/NAME, the name of a pod, or a TYPE")
    return text


def _capability(text: str) -> Capability:
    if text not in {Capability.NATIVE, Capability.CLASSIC}:
        raise ValueError(f'"{text}": expected native or classic')
    return Capability(text)


def _states(text: str) -> frozenset[str]:
    states = frozenset(text.split(","))
    if not states <= {*STATES}:
        raise ValueError(
            f"{quoted(text)}: expected some of {', '.join(STATES)}, with commas between"
        )
    return states


def _interval(text: str) -> float:
    if (seconds := settings.seconds(text)) <= 0:
        raise ValueError(f'"{text}": expected seconds, more than 0')
    return seconds


def _user(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(f"{quoted(text)}: expected the name of a user")
    return text


_DURATION = re.compile(r"([0-9]{1,6})(ms|s|m|h)?")


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if not match or not int(match[1]):
        raise ValueError(f"{quoted(text)}: expected a time such as 30s, 2m or 1h")
    return int(match[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(match[2], 1)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) == int(text)):
        raise ValueError(f'"{text}": expected a number of 1 or more')
    return int(text)


def _config(path: str) -> Installation:
    """The installation whose settings file this is; its file of applications may be missing."""
    found = settings.load(Path(path), required=())
    asked, problems = Applications(), ()
    if file := found.applications:
        try:
            asked, problems = applications.parse(file.read_text(errors="replace"))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror or error}") from None
    if problems:
        raise ValueError(f"{found.applications}: {problems[0]}")
    return Installation(name=name_of(found) or path, settings=found, applications=asked)


_SHORT = {
    "all-namespaces": "-A", "file": "-f", "namespace": "-n", "output": "-o", "selector": "-l",
}  # fmt: skip
_CLUSTER = ("kubeconfig", "context", "as", "request-timeout")  # How to reach a cluster.
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
    "as": {
        "type": _checked(_user),
        "dest": "user",
        "metavar": "USER",
        "help": "ask as this user (impersonation), as for kubectl",
    },
    "request-timeout": {
        "type": _checked(_duration),
        "metavar": "DURATION",
        "help": "of a single request, such as 30s or 2m (default: 90s)",
    },
    "config": {
        "type": _checked(_config),
        "metavar": "FILE",
        "help": "the settings of `serve` (default: those that the installation says it has)",
    },
    "pre": {
        "action": "store_true",
        "help": "before an install: ask what the account that installs needs",
    },
    "wait": {
        "action": "store_true",
        "help": "check again until istio-aux works, or --timeout is over",
    },
    "timeout": {"type": _checked(settings.seconds), "default": 300.0, "metavar": "SECONDS"},
    "capability": {
        "type": _checked(_capability),
        "default": Capability.CLASSIC,
        "metavar": "native|classic",
        "help": "what cluster and Istio support: native sidecars, or only classic ones, which hold "
        "the payload back (default: classic)",
    },
    "selector": {
        "type": _checked(selectors.parse),
        "default": selectors.Selector(),
        "dest": "label_selector",
        "metavar": "SELECTOR",
        "help": "only pods whose labels match, as for kubectl",
    },
}
"""Arguments that several commands have, beside the options of `serve`."""
