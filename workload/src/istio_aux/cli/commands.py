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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec import Struct, structs

from istio_aux import revision, settings
from istio_aux.cli import files, report
from istio_aux.cli.installation import Installation, Installations, Judgement
from istio_aux.cli.texts import TEXTS
from istio_aux.model import applications, selectors
from istio_aux.model.answers import STATES
from istio_aux.model.applications import Applications
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Capability, Start
from istio_aux.settings import matching

T = TypeVar("T", bound=Struct)
_Add = Callable[..., None]
"""Adds arguments to a command, as `_add` does."""

_PLUGIN = "kubectl-istio_aux"  # kubectl runs it as `kubectl istio-aux`.
_WIDEST = 100  # Columns: longer lines are hard to read.
_CALL = re.compile(r"(?m)(?<=^  )istio-aux\b|(?<=\| )istio-aux\b")  # In examples.

_INTERRUPTED = 130  # Exit status after Ctrl-C, as shells have it: 128 + SIGINT.


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
        return _INTERRUPTED
    return status


def _explain(args: argparse.Namespace) -> int:
    live = args.targets or args.all_namespaces or args.selector.requirements
    live = live or (args.namespace and not args.files)
    if not live and not args.files:
        args.parser.error("expected a POD, TYPE/NAME, -l SELECTOR, -n NAMESPACE, -A, or -f FILE")
    status, shown = 0, False

    def show(pod: Pod, judged: Judgement, *, start: str | None = None, note: str = "") -> None:
        nonlocal shown
        if shown and args.output == "text":
            report.write(sys.stdout, "")
        explained = report.explain(pod, judged, start, note)
        report.show(sys.stdout, args.output, [explained], explained.text)
        shown = True

    if args.files:
        # A file has no namespaces, which count as selected. It may be older than a grace period is
        # long, so that each counts as over.
        ours = args.config or Installation()
        told, chosen = ours.settings.start(Capability.UNKNOWN), ours.settings.pod_selector
        sidecars = told.sidecars if args.sidecars is None else args.sidecars
        how, found = structs.replace(told, pods=chosen, sidecars=sidecars), Installations((ours,))

        def show_new(pod: Pod, start: str | None) -> None:
            show(pod, found.judge(pod, None, None, args.sidecars), start=start)

        status = files.explain(args.files, show_new, how)
    if live:
        from istio_aux.cli import cluster  # noqa: PLC0415 - files need no client

        request = _request(cluster.Chosen, args)
        status = max(status, cluster.explain(_credentials(args), request, show))
    return status


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

    return cluster.audit(_credentials(args), _request(cluster.AuditRequest, args))


def _completion(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - as above

    report.write(sys.stdout, shellcode(["istio-aux"], shell=args.shell).strip())
    return 0


def _check(args: argparse.Namespace) -> int:
    from istio_aux.cli import check  # noqa: PLC0415 - as above

    return check.check(_credentials(args), _request(check.CheckRequest, args))


def _quit(args: argparse.Namespace) -> int:
    from istio_aux.cli import once  # noqa: PLC0415 - as above

    return once.free(_credentials(args), _request(once.QuitRequest, args))


def _restart(args: argparse.Namespace) -> int:
    from istio_aux.cli import once  # noqa: PLC0415 - as above

    return once.restart_unmeshed(_credentials(args), _request(once.RestartRequest, args))


def _resume(args: argparse.Namespace) -> int:
    from istio_aux.cli import once  # noqa: PLC0415 - as above

    return once.resume_jobs(_credentials(args), args.patience)


def _request(kind: type[T], args: argparse.Namespace) -> T:
    """Make a request, whose fields have the names of arguments."""
    return kind(**{each.name: getattr(args, each.name) for each in structs.fields(kind)})


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
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    layout = partial(argparse.RawDescriptionHelpFormatter, max_help_position=26, width=width)
    root = argparse.ArgumentParser(
        prog=_program(),
        formatter_class=layout,
        description="Lets Job-like pods run on Istio unchanged: payloads start after their proxy,\n"
        "and proxies exit after their payload.",
        epilog="Each command has its own --help with examples. Colour is for terminals; NO_COLOR\n"
        "turns it off, FORCE_COLOR on.",
    )
    root.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    add = root.add_subparsers(title="commands", required=True, metavar="COMMAND").add_parser

    def command(name: str, run: Callable[[argparse.Namespace], int], *arguments: str) -> _Add:
        made = add(name, formatter_class=layout, **_texts(name))
        made.set_defaults(run=run, parser=made)
        adding = partial(_add, made)
        adding(*arguments)
        return adding

    add_to = command("explain", _explain, "targets")
    about = "pods or workloads: JSON, JSON lines or YAML; one, many or in lists; - is stdin"
    add_to("file", default=[], help=about)
    add_to("output")
    add_to("namespace", help=_HERE)
    add_to("all-namespaces", "selector", "config", *_CLUSTER)
    add_to("sidecars", default=None, metavar=_HOW)

    add_to = command("mutate", _mutate)
    add_to("file", required=True, help="as for explain, or AdmissionReviews; - is stdin")
    about = "diff: what would change (default: yaml); a review is answered in json"
    add_to("output", choices=["yaml", "json", "diff"], default="yaml", help=about)
    add_to("capability", "pod-selector", "inject-selector", "start-mode", "peers")
    add_to("sidecars", metavar=_HOW)

    add_to = command("serve", _serve)
    add_to("config", type=Path, required=True, default=None, help="settings, YAML")
    add_to("kubeconfig")

    add_to = command("audit", _audit, "namespace", "all-namespaces", "selector", *_CLUSTER)
    add_to("output", "holders", "fail-on", "watch")
    # Without selectors `audit` looks everywhere, unlike `serve`.
    add_to("namespace-selectors", default=None, dest="selectors", metavar="SELECTORS")
    add_to("config")

    add_to = command("check", _check, "pre", "wait")
    add_to("timeout", help="when to answer with what is known (default: 300)")
    add_to("namespace-selectors", default=None, dest="selectors", metavar="SELECTORS")
    add_to("config", *_CLUSTER, "output")

    add_to = command("quit", _quit)
    about = "as for explain (default: all pods that hang in the namespace)"
    add_to("targets", help=about)
    add_to("namespace", help=_HERE)
    add_to("timeout", default=120.0, help="when to answer at the latest (default: 120)")
    add_to("all-namespaces", "selector", "yes", "config", *_CLUSTER)
    add_to("sidecars", default=None, metavar=_HOW)
    add_to("output")

    command("completion", _completion, "shell")

    add_to = command("restart-unmeshed", _restart, "limit")
    about = "when to answer, with what is done; new pods and budgets take time (default: 300)"
    add_to("timeout", help=about)
    add_to("yes", "namespace", "all-namespaces", "config", *_CLUSTER, "output")

    about = "when to end, whatever is still suspended (default: 4500)"
    command("resume-jobs", _resume, "config", *_CLUSTER)("timeout", default=4500.0, help=about)
    return root


def _add(command: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add arguments by name; ``changes`` override what argparse gets for them."""
    for name in names:
        given = {**(_ARGUMENTS.get(name) or _option(name)), **changes}
        flags = [name] if name in _POSITIONAL else [*filter(None, [_SHORT.get(name)]), f"--{name}"]
        command.add_argument(*flags, **given)


def _option(name: str) -> dict[str, Any]:
    """What argparse gets for an option of `serve`."""
    default = settings.default(name)
    return {
        "type": _checked(settings.OPTIONS[name].read),
        "default": default,
        "metavar": "|".join(type(default)) if isinstance(default, StrEnum) else "SELECTOR",
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


def _config(path: str) -> Installation:
    """The installation whose settings file this is; its file of applications may be missing."""
    found = settings.load(Path(path), required=())
    asked, problems, file = Applications(), (), found.applications
    if file and file.exists():
        try:
            asked, problems = applications.parse(file.read_text(errors="replace"))
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror or error}") from None
    if problems:
        raise ValueError(f"{file}: {problems[0]}")
    return Installation(source=path, settings=found, applications=asked)


_NAME = "[A-Za-z0-9][-.A-Za-z0-9]*"
_UNITS = {"ms": 0.001, "m": 60, "h": 3600}
_STATE = f"(?:{'|'.join(STATES)})"

_target = matching(
    f"(?:{_NAME}/)?{_NAME}", "TYPE/NAME, the name of a pod, or a TYPE", lambda found: found[0]
)
_user = matching(r"[^\x00-\x1f\x7f-\x9f]+", "the name of a user", lambda found: found[0])
_count = matching("0*[1-9][0-9]{0,8}", "a number of 1 or more", lambda found: int(found[0]))
_duration = matching(
    "0*([1-9][0-9]{0,5})(ms|s|m|h)?",
    "a time such as 30s, 2m or 1h",
    lambda found: int(found[1]) * _UNITS.get(found[2], 1),
)
_capability = matching("native|classic", "native or classic", lambda found: Capability(found[0]))
_states = matching(
    f"{_STATE}(?:,{_STATE})*",
    f"some of {', '.join(STATES)}, with commas between",
    lambda found: frozenset(found[0].split(",")),
)


def _interval(text: str) -> float:
    if (seconds := settings.seconds(text)) <= 0:
        raise ValueError(f'"{text}": expected seconds, more than 0')
    return seconds


def _value(metavar: str, read: Callable[[str], Any], about: str, **more: Any) -> dict[str, Any]:
    return {"metavar": metavar, "type": _checked(read), "help": about, **more}


def _flag(about: str, **more: Any) -> dict[str, Any]:
    return {"action": "store_true", "help": about, **more}


_HOW = "NAME=HOW,..."
_HERE = "this namespace (default: the kubeconfig's)"
_POSITIONAL = {"targets", "shell"}
_SHORT = {"all-namespaces": "-A", "file": "-f", "namespace": "-n", "output": "-o", "selector": "-l"}
_CLUSTER = ("kubeconfig", "context", "as", "request-timeout")  # How to reach a cluster.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "targets": _value(
        "TARGET",
        _target,
        "TYPE/NAME, such as job/x; TYPE NAME; a pod, NAME or NAMESPACE/NAME; or a TYPE",
        nargs="*",
    ),
    "shell": {"choices": ["bash", "zsh", "fish"]},
    "file": {"action": "append", "dest": "files", "metavar": "FILE"},
    "output": {
        "choices": ["text", "json"],
        "default": "text",
        "help": "json is one object a line (default: text)",
    },
    "all-namespaces": _flag("all namespaces"),
    "yes": _flag("do it; default: only show it", action="store_false", dest="dry_run"),
    "namespace": _value("NS", settings.namespace, "only this namespace; default: all"),
    "kubeconfig": _value(
        "FILE",
        Path,
        "wins over the settings; default: $KUBECONFIG, else ~/.kube/config, else the pod's own",
    ),
    "context": _value("NAME", str, "the context of the kubeconfig; default: its current one"),
    "as": _value("USER", _user, "ask as this user (impersonation), as for kubectl", dest="user"),
    "request-timeout": _value(
        "DURATION", _duration, "of a single request, such as 30s or 2m (default: 90s)"
    ),
    "config": _value(
        "FILE",
        _config,
        "the settings of `serve` (default: those that the installation says it has)",
    ),
    "pre": _flag("before an install: ask what the account that installs needs"),
    "wait": _flag("check again until istio-aux works, or --timeout is over"),
    "timeout": _value("SECONDS", settings.seconds, "", default=300.0, dest="patience"),
    "limit": _value("N", _count, "how many pods to restart at most (default: 10)", default=10),
    "holders": _flag("show only what keeps stuck and blocked pods, and what these request"),
    "fail-on": _value(
        "STATE,...",
        _states,
        "exit with 3 if a pod has one of these states, such as stuck,lost",
        default=frozenset(),
    ),
    "watch": _value(
        "SECONDS",
        _interval,
        "look again and again, and show what has changed (default: every 15 s)",
        nargs="?",
        const=15.0,
    ),
    "capability": _value(
        "native|classic",
        _capability,
        "what cluster and Istio support: native sidecars, or only classic ones, which hold "
        "the payload back (default: classic)",
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
