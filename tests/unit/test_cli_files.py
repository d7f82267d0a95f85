"""`istio-aux explain` and `mutate` of files, arguments and help; each wrong value of a file."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from istio_aux import settings
from istio_aux.cli import main
from istio_aux.cli.commands import parser
from istio_aux.cli.output import Cell, Style, Terminal
from istio_aux.kube import access
from istio_aux.kube.errors import AccessError
from istio_aux.model.policy import StartPolicy
from istio_aux.model.text import quoted
from istio_aux.start import review
from unit.apiserver import certificate
from unit.rules.pods import DATA, RUNNING, document, exited
from unit.screens import Run, Screen

# `istio-aux explain` and `istio-aux mutate` of files, arguments and help, as a user sees them.

HANGING = document({"main": exited(0, "Completed"), "istio-proxy": RUNNING})
PLAIN = json.dumps(HANGING)
NEW = document({"main": None}, phase=None)
COMMANDS = [
    "", "explain", "mutate", "serve", "audit", "check", "quit", "completion", "restart-unmeshed",
]  # fmt: skip
EXAMPLE = str(Path(__file__).parents[2] / "examples/pods.yaml")
HOLD = ("proxy.istio.io/config", "holdApplicationUntilProxyStarts: true")
NATIVE = ("sidecar.istio.io/nativeSidecar", "true")
PROGRAM = (sys.executable, "-c", "import sys; from istio_aux.cli import main; sys.exit(main())")


class Outcome(NamedTuple):
    """What a run leaves behind."""

    status: int
    lines: list[dict[str, Any]]
    errors: list[str]

    @property
    def actions(self) -> list[str]:
        return [line["action"] for line in self.lines]


Answer = Callable[..., Outcome]


@pytest.fixture
def answer(run: Run) -> Answer:
    """Run the command line in pipes, for a document on standard input if there is one."""

    def answer(*argv: str, stdin: object = None) -> Outcome:
        text = stdin if isinstance(stdin, str) else json.dumps(stdin)
        piped = () if stdin is None else ("-f", "-")
        argv = (*argv, "-o", "json", *piped)
        status, out, err = run(*argv, columns=None, errors=None, stdin=text)
        return Outcome(status, [json.loads(line) for line in out.splitlines()], err.splitlines())

    return answer


def deep(text: str, levels: int = 2_000) -> str:
    return text.replace('"@"', "[" * levels + "]" * levels)


def test_a_pipe_is_read_once(answer: Answer) -> None:
    """As a shell passes `-f <(kubectl get pod x -o json)`: its beginning is not read twice."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as file:
        file.write(PLAIN)
    outcome = answer("explain", "-f", f"/dev/fd/{read}")
    os.close(read)
    assert (outcome.actions, outcome.errors) == (["quit"], [])


def test_explain_prints_one_object_a_pod(answer: Answer) -> None:
    """Its fields are a contract."""
    why = "exited 0 (Completed), not restarted (restartPolicy Never)"
    shown = {
        "namespace": "training", "name": "job-x7k2p", "uid": "u-1", "action": "quit",
        "state": "stuck", "code": "IA0101", "codes": ["IA0101"], "requests": {},
        "since": "2026-11-21T08:16:29Z",
        "reason": "the program finished (exit 0); istio-proxy still runs",
        "containers": {
            "main": {"role": "payload", "finished": True, "why": why},
            "istio-proxy": {"role": "sidecar", "finished": False, "why": "running"},
        },
    }  # fmt: skip
    assert answer("explain", stdin=PLAIN) == Outcome(0, [shown], [])


def test_explain_leaves_out_what_is_ignored_and_says_so(answer: Answer, run: Run) -> None:
    """A pod has several findings: its state, what its author wishes, and its end."""
    pod = document(
        {"main": exited(0), "istio-proxy": RUNNING},
        annotations={"istio-aux.io/start": "soon"}, spec={"terminationGracePeriodSeconds": 90},
    )  # fmt: skip
    for given, codes, ignored in (
        ([], ["IA0101", "IA0204", "IA0108"], None),
        (["IA0101,IA0108"], ["IA0204"], ["IA0101", "IA0108"]),
        (["IA0204", "IA0108", "IA0101"], None, ["IA0101", "IA0204", "IA0108"]),
    ):
        argv = [word for code in given for word in ("--ignore", code)]
        [shown] = answer("explain", *argv, stdin=pod).lines
        assert (shown.get("codes"), shown.get("ignored")) == (codes, ignored)
        assert ("state" in shown) is ("IA0101" in (codes or ()))
        assert ("IA0204: " in shown.get("start", "")) is ("IA0204" in (codes or ()))
        assert ("IA0108: " in shown.get("end", "")) is ("IA0108" in (codes or ()))
        assert shown["action"] == "quit"
    text = run("explain", "--ignore", "IA0108", "-f", "-", stdin=json.dumps(pod)).out
    assert "\n  ignored: 1 (IA0108)\n" in text


def test_files_are_read_in_order_and_one_that_is_not_there_is_named(
    answer: Answer, tmp_path: Path
) -> None:
    """examples/pods.yaml shows every action, as its comments say."""
    missing, record = str(tmp_path / "missing.yaml"), str(DATA / "demo/pod-native.json")
    outcome = answer("explain", "-f", EXAMPLE, "-f", missing, "-f", record)
    assert (outcome.status, outcome.errors) == (2, [f"{missing}: No such file or directory"])
    assert outcome.actions == ["quit", "wait", "report", "ignore", "ignore"]


ITEM = {key: value for key, value in HANGING.items() if key not in {"kind", "apiVersion"}}


@pytest.mark.parametrize(
    ("text", "actions", "errors"),
    [
        (
            f"kind: Job\n---\n{PLAIN}\n---\nkind: Pod\nspec: []\n---\n7\n",
            ["quit"],
            ['1: left out: "Job" (no apiVersion): no kind whose pods are known',
             "5: Expected `object`, got `array` - at `$.spec`",
             "8: Expected `object`, got `int`"],
        ),
        (json.dumps({"kind": "PodList", "items": [ITEM]}), ["quit"], []),
        (
            json.dumps({"apiVersion": review.API_VERSION, "kind": review.KIND}),
            [],
            ['1: left out: "AdmissionReview" (admission.k8s.io/v1): no kind whose pods are known'],
        ),
        (
            "kind: Pod\nmetadata:\n  name:\n  annotations:\nspec:\n  containers:\nstatus:\n",
            ["ignore"],
            [],
        ),
    ],
    ids=["YAML", "a list without kinds", "a review", "nulls of people"],
)  # fmt: skip
def test_a_bad_document_is_named_and_the_others_are_answered(
    text: str, actions: list[str], errors: list[str], answer: Answer
) -> None:
    outcome = answer("explain", stdin=text)
    assert (outcome.status, outcome.actions) == (2 if errors else 0, actions)
    assert outcome.errors == [f"stdin:{error}" for error in errors]


@pytest.mark.parametrize(
    ("arguments", "annotation", "order"),
    [
        ([], HOLD, "hold"),
        (["--capability", "native"], NATIVE, "native"),
        (["--start-mode", "native"], NATIVE, "native"),
    ],
)
def test_mutate_prints_the_pod_as_it_would_be_created(
    answer: Answer, arguments: list[str], annotation: tuple[str, str], order: str
) -> None:
    """With everything that we do not read kept as it was."""
    pod = {**NEW, "spec": {**NEW["spec"], "nodeSelector": {"a": "b"}, "priority": 7}}
    outcome = answer("mutate", *arguments, stdin=pod)
    annotations = dict([annotation]) | {"istio-aux.io/started-with": order}
    expected = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}
    assert outcome == Outcome(0, [expected], [])


def reviewed(pod: object) -> str:
    request = {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "object": pod}
    found = {"kind": review.KIND, "apiVersion": review.API_VERSION, "request": request}
    return json.dumps(found, separators=(",", ":"))


def test_mutate_answers_a_malformed_review_and_names_it(answer: Answer) -> None:
    """The answer allows the pod; the status says that the input was bad."""
    outcome = answer("mutate", stdin=reviewed(7))
    assert (outcome.status, outcome.lines[0]["response"]["allowed"]) == (2, True)
    (error,) = outcome.errors
    assert error.startswith("stdin:1: left alone: malformed AdmissionReview:")


@pytest.mark.parametrize("levels", [0, 60, 990, 1_500, 9_990])
@pytest.mark.parametrize("innermost", ["{}", "[[[[]]]]," * 30_000 + '""'], ids=["one", "many"])
@pytest.mark.parametrize("where", ["metadata", "spec"])
def test_mutate_answers_a_review_as_the_webhook_does_however_deep_it_is(
    levels: int, innermost: str, where: str, answer: Answer
) -> None:
    """Byte for byte: whether it is cut, changed, or left alone because it has too much."""
    pod = document({"main": None}, phase=None, annotations={"istio-aux.io/start": "hold"})
    pod[where]["managedFields"] = ["@"]
    nested = '{"f:a":' * levels + f"[{innermost}]" + "}" * levels
    text = reviewed(pod).replace('"@"', nested)
    outcome = answer("mutate", stdin=text)
    assert outcome.lines == [json.loads(review.answer(text.encode(), lambda _: StartPolicy()).body)]


def test_a_pod_that_is_nested_deeply_costs_no_other_pod_of_its_list(answer: Answer) -> None:
    """`kubectl get pods -o json | istio-aux explain -f -`: anybody can put it there."""
    text = deep(json.dumps({"kind": "PodList", "items": [HANGING, {**HANGING, "a": "@"}, HANGING]}))
    outcome = answer("explain", stdin=text)
    assert (outcome.status, outcome.actions) == (0, ["quit"] * 3)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        # From Python 3.13 on it can be decoded, and the item is too deep by itself.
        ({"kind": "PodList", "items": [{**HANGING, "a": "@"}]}, "is nested too deeply"),
        ({**NEW, "a": "@"}, "stdin:1: it is nested too deeply"),
    ],
)
def test_mutate_prints_no_pod_without_what_is_nested_deeply(
    body: dict[str, Any], why: str, answer: Answer
) -> None:
    outcome = answer("mutate", stdin=deep(json.dumps(body)))
    assert (outcome.status, outcome.lines) == (2, [])
    # Garbage of other tests that is collected so deep down complains, too.
    assert why in "".join(outcome.errors)


def test_a_manifest_is_bounded_as_a_review_is(answer: Answer) -> None:
    containers = [{"name": f"c{number}", "image": "x"} for number in range(20_000)]
    made = {**NEW, "spec": {"containers": containers}}
    outcome = answer("mutate", stdin=made)
    assert (outcome.status, outcome.lines) == (2, [])
    assert "the Pod has" in outcome.errors[0]
    assert "strings, not at most 30000" in outcome.errors[0]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["mutate", "-f", "-", "--capability", "modern"],
            '"modern": expected unasked, native or classic',
        ),
        (["mutate", "-f", "-", "--start-mode", "on"], '"on": expected auto, native'),
        (["mutate"], "required: -f"),
        (["explain"], "expected a POD, TYPE/NAME, -l SELECTOR, -n NAMESPACE, -A, or -f FILE"),
        (["explain", "-f", "-", "-l", "a=b"], "expected -l SELECTOR or -A, or -f FILE, not both"),
        (["explain", "-f", "-", "-A"], "expected -l SELECTOR or -A, or -f FILE, not both"),
        (["explain", "../secrets/x"], '"../secrets/x": expected TYPE/NAME, the name of a pod'),
        (["explain", "x", "-n", "a/b"], '"a/b": expected the name of a namespace'),
        (["explain", "-f", "-", "--sidecars", "a=b"], '"a=b": expected native, ignore,'),
        (["audit", "--config", "/none"], "/none: No such file or directory"),
        (["check", "--ignore", "IA0101,IA9999"], '--ignore: "IA9999": expected codes of findings'),
        (["check", "--namespace-selectors", "a in"], '"a in": expected KEY'),
        (["dance"], "invalid choice: 'dance'"),
        (["quit", "--yes", "--dry-run"], "not allowed with argument --yes"),
        (["quit", "--dry-run=none"], '"none": expected client or server'),
        (["qiut"], 'there is no command "qiut": did you mean quit?'),
        (["--dance"], "unrecognized arguments: --dance"),
        (["audit", "--dance"], "istio-aux audit: error: unrecognized arguments: --dance"),
        (["audit", "--dance"], "usage: istio-aux audit [-h]"),
    ],
)
def test_bad_arguments_end_with_status_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a line that names them."""
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_options_may_stand_before_the_command_and_without_one_there_is_help(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """As kubectl takes them. A namespace may have the name of a command."""
    assert main([]) == 0
    assert "restart-unmeshed" in capsys.readouterr().out
    for before in (["-n", "quit"], ["-A"], ["--namespace=quit"], ["--debug", "-n", "quit"]):
        shown = run(*before, "--kubeconfig", "/none", "audit")
        assert shown == (2, "", "/none: No such file or directory\n")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """What a terminal of so many columns shows of an option that ends the program."""

    def shown(*argv: str, columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as caught:
            main([*filter(None, argv)])
        assert caught.value.code == 0
        return capsys.readouterr().out

    return shown


CAPITALS = r"\b[A-Z]{2,}\b"
WORDS = {"API", "HTML", "JSON", "KUBECONFIG", "PATH", "PORT", "SIGTERM", "SINCE", "YAML"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_fits_a_terminal_of_eighty_columns(shown, command: str) -> None:
    """It fills no more than a hundred: longer lines are hard to read."""
    text = shown(command, "--help")
    assert not command or "examples:\n  istio-aux " in text
    assert max(map(len, text.splitlines())) <= 80
    usage = re.findall(CAPITALS, text.partition("\n\n")[0])
    of_targets = {"NAMESPACE", "TYPE"} if "TARGET" in usage else set[str]()
    assert {*re.findall(CAPITALS, text)} - {*usage, *of_targets} <= WORDS
    assert max(map(len, shown(command, "--help", columns=200).splitlines())) <= 100


@pytest.mark.parametrize("command", [*filter(None, COMMANDS)])
def test_the_examples_of_help_are_commands_that_the_program_takes(
    shown, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("quit: dry-run")
    examples = shown(command, "--help").partition("examples:\n")[2].partition("\n\n")[0]
    lines = re.findall(r"istio-aux (.*?)(?: [|>]|\)|$)", examples, re.MULTILINE)
    assert lines
    for line in lines:
        parser().parse_args(shlex.split(line))


@pytest.mark.parametrize("command", ["quit", "restart-unmeshed"])
@pytest.mark.parametrize(
    ("asked", "changes"),
    [("", False), ("--dry-run", False), ("--dry-run=client", False), ("--yes", True)],
)
def test_nothing_is_changed_unless_yes_is_said(command: str, asked: str, *, changes: bool) -> None:
    """kubectl's users ask for the default by its name."""
    request = parser().parse_args([command, *filter(None, [asked])])
    assert request.dry_run is not changes


def test_the_version_is_that_of_the_package(shown) -> None:
    assert shown("--version").startswith("istio-aux 0.")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("istio-aux au", {"audit "}),
        ("istio-aux audit --ho", {"--holders "}),
        ("istio-aux explain -o ", {"text", "json"}),
    ],
)
def test_a_shell_completes_commands_and_options(
    line: str, expected: set[str], tmp_path: Path
) -> None:
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line,
        "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "out"),
    }  # fmt: skip
    subprocess.run([*PROGRAM], env={**os.environ, **asked}, check=True)
    assert expected <= {*(tmp_path / "out").read_text().split("\n")}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(run: Run, shell: str) -> None:
    shown = run("completion", shell, columns=None)
    assert (shown.status, shown.err) == (0, "")
    assert "_ARGCOMPLETE" in shown.out
    assert "istio-aux" in shown.out


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    """`istio-aux explain -f pods.json | head -1`, with more output than a pipe holds."""
    read, write = os.pipe()
    os.close(read)
    argv, text = [*PROGRAM, "explain", "-f", "-"], "\n".join([PLAIN] * 2000)
    pipe = subprocess.PIPE
    done = subprocess.run(argv, input=text, stdout=write, stderr=pipe, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["explain", "mutate"])
def test_a_command_for_files_starts_fast(command: str) -> None:
    """Neither the client nor the server is imported, nor what is slow and not needed.

    Coverage has imported some of that before.
    """
    slow = {"aiohttp", "asyncio", "importlib.metadata", "prometheus_client", "socket", "ssl"}
    code = (
        "import sys; before = {*sys.modules}; from istio_aux.cli import main\n"
        f"main([{command!r}, '-o', 'json', '-f', '-'])\n"
        f"print(sorted({slow} & {{*sys.modules}} - before), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=PLAIN, capture_output=True, text=True, check=True
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "[]\n")


# What a terminal shows that a pipe does not, on real pseudo-terminals.

GREEN, RED, FAINT = "\x1b[32m", "\x1b[31m", "\x1b[2m"


@pytest.fixture
def pods(tmp_path: Path) -> str:
    """A file with a pod to quit, and one to leave alone."""
    file = tmp_path / "pods.json"
    found = [
        document({"main": exited(0, "Completed"), "istio-proxy": RUNNING}),
        document({"main": RUNNING}),
    ]
    file.write_text("\n".join(map(json.dumps, found)))
    return str(file)


def test_explain_tells_a_person_in_a_terminal(
    run: Run, pods: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A headline, and an aligned table of the containers."""
    monkeypatch.setenv("NO_COLOR", "1")
    shown = run("explain", "-f", pods)
    assert (shown.status, shown.err) == (0, "")
    assert (
        shown.out
        == """\
training/job-x7k2p  STUCK  the program finished (exit 0); istio-proxy still runs, since 2026-11-21
                           08:16Z
  istio-aux: quit
  IA0101  the proxy runs on after its payload:
          https://github.example/istio-aux/istio-aux/blob/main/docs/findings/pods.md#ia0101
  CONTAINER    ROLE     FINISHED  WHY
  main         payload  yes       exited 0 (Completed), not restarted (restartPolicy Never)
  istio-proxy  sidecar  no        running

training/job-x7k2p  IGNORE  the pod has no container istio-proxy
  CONTAINER  ROLE     FINISHED  WHY
  main       payload  no        running
"""
    )


def test_explain_does_as_it_is_asked_and_a_terminal_shows_colours(run: Run, pods: str) -> None:
    """JSON in a terminal, text in a pipe; neither has colours that were not asked for."""
    json_in_a_terminal = run("explain", "-f", pods, "-o", "json").out
    text_in_a_pipe = run("explain", "-f", pods, "-o", "text", columns=None).out
    assert (json_in_a_terminal[0], text_in_a_pipe[0]) == ("{", "t")
    assert "\x1b" not in json_in_a_terminal + text_in_a_pipe
    shown = run("explain", "-f", pods).out
    assert f"{RED}STUCK\x1b[0m" in shown
    assert f"{FAINT}IGNORE\x1b[0m" in shown


@pytest.mark.parametrize(
    ("environ", "columns", "coloured"),
    [
        ({"NO_COLOR": "1"}, 100, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, 100, True),
        ({"FORCE_COLOR": "1"}, None, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, 100, False),
    ],
)
def test_the_environment_has_a_say_in_colours(
    run: Run,
    pods: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    environ: dict[str, str],
    columns: int | None,
    coloured: bool,
) -> None:
    """no-color.org and force-color.org: an empty value counts as none."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    shown = run("explain", "-o", "text", "-f", pods, columns=columns)
    assert ("\x1b[" in shown.out) is coloured


def test_a_reason_wraps_in_its_column_or_below_its_row_if_that_is_too_narrow() -> None:
    """Names of people and pods are long, and a reason that is cut says nothing."""
    rows = [[Cell("pod"), Cell("not finished: cloud-sql-proxy (running)")], [Cell("b"), Cell("no")]]
    beside, below = (
        list(Terminal(width=width).table("", rows, indent=indent))
        for width, indent in ((46, " "), (44, "  "))
    )
    assert beside == [" pod  not finished: cloud-sql-proxy (running)", " b    no"]
    words = ["      not finished: cloud-sql-proxy", "      (running)"]
    assert below == ["  pod", *words, "  b    no"]
    rows = [[Cell("a", Style.GOOD), Cell("b")], [Cell("long"), Cell("c")]]
    coloured = list(Terminal(colour=True).table("", rows))
    assert coloured == [f"{GREEN}a\x1b[0m     b", "long  c"], "colours take no columns"


@pytest.mark.parametrize(
    ("columns", "environ", "width"),
    [(0, {}, None), (90, {}, 90), (90, {"COLUMNS": "40"}, 40), (90, {"COLUMNS": "0"}, 90)],
)
def test_a_table_fits_the_width_that_is_known(
    columns: int, environ: dict[str, str], width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pseudo-terminal that nobody has given a size says 0: all is shown."""
    screen = Screen(columns)
    rows = [[Cell("a"), Cell("b " * 300)]]
    monkeypatch.delenv("COLUMNS", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen.stream)
        patch.setattr(sys, "__stdout__", screen.stream)
        lines = list(Terminal.stdout().table("", rows))
    screen.close()
    longest = max(map(len, lines))
    assert (longest > 600) if width is None else (width - 2 <= longest <= width)


# Each field of a file that people write, with each kind of wrong value: one line, no trace.

DEEP: list[Any] = []
for _ in range(100):
    DEEP = [DEEP]
WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1 << 63, 1 << 70, 0.5, float("inf"), float("nan"),
    "", " ", "a", "A b", "-", "--all", "$(id)", "x;y", "a/b", "a\nb", "\0", "\ud7ff", "é" * 5_000,
    "https://[fd00::1:6443", "https://host:abc", "https://user:word@host", "http://", "://", "%zz",
    "socks5://p", "=", "a=b", "a=b,", "1/2", "1e999", [], [None], ["a", 7], [[]], {}, {"a": None},
    {"": ""}, {"a": {"b": ["c"]}}, DEEP,
)  # fmt: skip
KUBECONFIG: dict[str, Any] = {
    "current-context": "here",
    "clusters": [{"name": "c", "cluster": {
        "server": "https://host", "certificate-authority": "ca", "certificate-authority-data": "",
        "insecure-skip-tls-verify": False, "tls-server-name": "", "proxy-url": "http://p",
        "disable-compression": True, "extensions": [{"name": "client.authentication.k8s.io/exec"}],
    }}],
    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
    "users": [{"name": "u", "user": {
        "token": "t", "tokenFile": "", "client-certificate": "", "client-certificate-data": "",
        "client-key": "", "client-key-data": "", "exec": {
            "command": "sh", "apiVersion": "client.authentication.k8s.io/v1", "args": ["a"],
            "env": [{"name": "a", "value": "b"}], "installHint": "", "provideClusterInfo": True,
            "interactiveMode": "Never",
        },
    }}],
}  # fmt: skip
POD = document({"main": RUNNING, "istio-proxy": RUNNING}, annotations={"a": "b"}, labels={"c": "d"})
Place = tuple[str | int, ...]


def places(value: Any, above: Place = ()) -> list[Place]:
    """Where each value of a document is."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = list[Place]()
    for key, item in items:
        found.append((*above, key))
        if isinstance(item, (dict, list)):
            found += places(item, (*above, key))
    return found


def changed(value: Any, place: Place, wrong: Any) -> Any:
    copy = deepcopy(value)
    at = copy
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = wrong
    return copy


def named(place: Place) -> str:
    return ".".join(map(str, place))


def said(read: Callable[[Path], object], file: Path) -> str:
    """What a reader says of a file that it refuses; empty if it understands it."""
    try:
        read(file)
    except (AccessError, settings.SettingsError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("place", places(KUBECONFIG), ids=named)
def test_a_kubeconfig_is_understood_or_refused_in_one_line(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "config"
    certificate(tmp_path)[0].rename(tmp_path / "ca")  # Without one, those of the system are read.
    for wrong in WRONG:
        file.write_text(json.dumps(changed(KUBECONFIG, place, wrong)))
        found = said(access.load, file)
        assert not found or str(tmp_path) in found, (wrong, found)
        assert "\n" not in found, (wrong, found)


@pytest.mark.parametrize("option", settings.OPTIONS)
def test_a_settings_file_is_understood_or_refused_in_one_line(option: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for wrong in WRONG:
        file.write_text(json.dumps({option: wrong}))
        found = said(partial(settings.load, required=()), file)
        assert not found or found.startswith("config.yaml: "), (wrong, found)
        assert not found or option in found or "not YAML" in found, (wrong, found)
        assert "\n" not in found, (wrong, found)


@pytest.mark.parametrize("command", ["explain", "mutate"])
def test_a_manifest_is_answered_or_refused_in_one_line(command: str, run: Run) -> None:
    for place in places(POD):
        lines = [json.dumps(changed(POD, place, wrong)) for wrong in WRONG]
        shown = run(command, "-f", "-", stdin="\n".join(lines), columns=None, errors=None)
        refused = [line for line in shown.err.splitlines() if "Traceback" in line]
        assert refused == [], (place, refused)
        assert all(line.startswith("stdin:") for line in shown.err.splitlines()), shown.err


OWNED = document({"main": RUNNING}, owner=("batch/v1", "Job"))
OWNED["metadata"]["ownerReferences"][0] |= {"name": "night"}
JOB = {
    "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "night", "namespace": "training"},
    "spec": {"template": {"spec": {"containers": [{"name": "main"}]}}},
}  # fmt: skip
SUBDOMAIN = "a DNS subdomain of at most 253 characters (RFC 1123)"
LABEL = "a DNS label of at most 63 characters (RFC 1123)"


NO_NAMES = ("$(id)", "--all", "A b", "a\x1b[2J", "a\n", "a_b", "é" * 900)


@pytest.mark.parametrize(
    ("commands", "manifest", "place", "allowed"),
    [
        ("explain mutate audit", OWNED, ("metadata", "name"), SUBDOMAIN),
        ("explain mutate audit", OWNED, ("metadata", "namespace"), LABEL),
        ("explain mutate audit", OWNED, ("metadata", "ownerReferences", 0, "name"), SUBDOMAIN),
        ("explain mutate audit", OWNED, ("metadata", "ownerReferences", 0, "kind"),
         "letters, digits and '-'"),
        ("explain mutate", JOB, ("metadata", "name"), SUBDOMAIN),
        ("explain mutate", JOB, ("metadata", "namespace"), LABEL),
        ("audit", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}},
         ("metadata", "name"), LABEL),
    ],
    ids=lambda each: named(each) if isinstance(each, tuple) else None,
)  # fmt: skip
def test_a_name_that_no_object_can_have_is_refused_in_one_short_line(
    commands: str, manifest: Any, place: Place, allowed: str, run: Run
) -> None:
    """They are part of commands that people paste, also where the API server checks no owner."""
    bad = [changed(manifest, place, value) for value in NO_NAMES]
    field = named(place).replace(".0", "[0]")
    about = [f"{each['kind']} {quoted(each['metadata']['name'])}: {field}" for each in bad]
    said = [
        f"stdin:{line}: {about[line - 1]}: {quoted(value)}: expected {allowed}"
        for line, value in enumerate(NO_NAMES, start=1)
    ]
    for command in commands.split():
        stdin = "\n".join(map(json.dumps, bad))
        shown = run(command, "-f", "-", stdin=stdin, columns=None, errors=None)
        assert (shown.status, shown.err.splitlines()[: len(said)]) == (2, said)
