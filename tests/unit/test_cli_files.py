"""`istio-aux explain` and `istio-aux mutate`, as a user runs them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from istio_aux.cli import main
from istio_aux.model.policy import Start
from istio_aux.start import review
from unit.rules.pods import RECORDS, RUNNING, document, exited
from unit.test_cli_usage import COMMANDS

HANGING = document({"main": exited(0, "Completed"), "istio-proxy": RUNNING})
NEW = document({"main": None}, phase=None)


class Outcome(NamedTuple):
    """What a run leaves behind."""

    status: int
    lines: list[dict[str, Any]]
    errors: list[str]


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Run the command line with some standard input."""

    def run(*argv: str, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        status = main(argv)
        out, err = capfd.readouterr()
        return Outcome(status, [json.loads(line) for line in out.splitlines()], err.splitlines())

    return run


def test_explain_prints_one_object_a_pod(run: Callable[..., Outcome]) -> None:
    """Its fields are a contract."""
    outcome = run("explain", "-f", "-", "-o", "json", stdin=json.dumps(HANGING))
    assert outcome == Outcome(
        0,
        [
            {
                "namespace": "training",
                "name": "job-x7k2p",
                "uid": "u-1",
                "action": "quit",
                "reason": "every payload container is finished",
                "containers": {
                    "main": {
                        "role": "payload",
                        "finished": True,
                        "why": "exited 0 (Completed), not restarted (restartPolicy Never)",
                    },
                    "istio-proxy": {"role": "sidecar", "finished": False, "why": "running"},
                },
            }
        ],
        [],
    )


def test_explain_knows_all_four_actions(run: Callable[..., Outcome]) -> None:
    """quit, wait, ignore and report, in the order of the input."""
    found = [
        HANGING,
        document({"main": RUNNING, "istio-proxy": RUNNING}),
        document({"main": RUNNING}),
        document({"main": RUNNING, "istio-proxy": exited(0)}),
    ]
    outcome = run("explain", "-f", "-", stdin="\n".join(json.dumps(pod) for pod in found))
    assert [line["action"] for line in outcome.lines] == ["quit", "wait", "ignore", "report"]


def test_explain_takes_the_options_of_serve(run: Callable[..., Outcome]) -> None:
    """Containers that nobody has to wait for, by name."""
    pod = document({"main": exited(0), "vault": RUNNING, "istio-proxy": RUNNING})
    told = ["--ignore-containers", "cloud-sql-proxy, vault"]
    outcomes = [run("explain", "-f", "-", *more, stdin=json.dumps(pod)) for more in ([], told)]
    assert [outcome.lines[0]["action"] for outcome in outcomes] == ["wait", "quit"]


def test_the_example_shows_every_action(run: Callable[..., Outcome]) -> None:
    """examples/pods.yaml, as its comments say."""
    outcome = run("explain", "-f", str(Path(__file__).parents[2] / "examples/pods.yaml"))
    assert [(line["name"], line["action"]) for line in outcome.lines] == [
        ("mnist-worker-0", "quit"),
        ("import-5xk2d", "wait"),
        ("evaluate-9qzlp", "report"),
        ("report-b7w4m", "ignore"),
    ]


def test_explain_reads_files_in_order(run: Callable[..., Outcome]) -> None:
    """Several ``-f`` are answered one after the other."""
    names = ["pod-classic-before-quit.json", "pod-native.json"]
    files = [argument for name in names for argument in ("-f", str(RECORDS / name))]
    outcome = run("explain", *files)
    assert [line["action"] for line in outcome.lines] == ["quit", "ignore"]


def test_a_bad_document_is_named_and_the_others_are_answered(
    run: Callable[..., Outcome], tmp_path: Path
) -> None:
    """The line names file, document and fault; the status is 2."""
    file = tmp_path / "pods.yaml"
    file.write_text(f"kind: Job\n---\n{json.dumps(HANGING)}\n---\nkind: Pod\nspec: []\n---\n7\n")
    outcome = run("explain", "-f", str(file))
    assert outcome.status == 2
    assert [line["action"] for line in outcome.lines] == ["quit"]
    assert outcome.errors == [
        f'{file}: document 1: kind is "Job", expected Pod',
        f"{file}: document 3: Expected `object`, got `array` - at `$.spec`",
        f"{file}: document 4: Expected `object`, got `int`",
    ]


def test_a_bad_line_does_not_stop_the_others(run: Callable[..., Outcome]) -> None:
    """Each line of JSON lines stands alone, and is counted."""
    lines = [json.dumps(HANGING), '{"kind": "Pod"', "pod", json.dumps(HANGING)]
    outcome = run("explain", "-f", "-", stdin="\n".join(lines))
    assert [line["action"] for line in outcome.lines] == ["quit", "quit"]
    assert outcome.errors == [
        "stdin: document 2: Input data was truncated",
        "stdin: document 3: JSON is malformed: invalid character (byte 0)",
    ]


def test_a_file_that_is_not_there_is_named(run: Callable[..., Outcome], tmp_path: Path) -> None:
    """And the next file is read."""
    missing = tmp_path / "missing.yaml"
    outcome = run("explain", "-f", str(missing), "-f", str(RECORDS / "pod-native.json"))
    assert outcome.status == 2
    assert outcome.errors == [f"{missing}: No such file or directory"]
    assert len(outcome.lines) == 1


def test_a_kind_of_another_group_is_no_pod(run: Callable[..., Outcome]) -> None:
    """A kind alone says little."""
    outcome = run("explain", "-f", "-", stdin='{"apiVersion":"x.io/v1","kind":"Pod"}')
    assert outcome.errors == [
        'stdin: document 1: apiVersion of the Pod is "x.io/v1", expected v1',
    ]


def test_items_of_a_list_need_no_kind(run: Callable[..., Outcome]) -> None:
    """The API server leaves it out in a PodList."""
    item = {key: value for key, value in HANGING.items() if key not in {"kind", "apiVersion"}}
    outcome = run("explain", "-f", "-", stdin=json.dumps({"kind": "PodList", "items": [item]}))
    assert (outcome.status, len(outcome.lines)) == (0, 1)


def test_a_field_left_empty_by_hand_counts_as_absent(run: Callable[..., Outcome]) -> None:
    """YAML makes it null."""
    text = "kind: Pod\nmetadata:\n  name:\n  annotations:\nspec:\n  containers:\nstatus:\n"
    assert run("explain", "-f", "-", stdin=text).status == 0


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        ([], "proxy.istio.io/config", "holdApplicationUntilProxyStarts: true"),
        (["--capability", "classic"], "proxy.istio.io/config",
         "holdApplicationUntilProxyStarts: true"),
        (["--capability", "native"], "sidecar.istio.io/nativeSidecar", "true"),
        (["--start-mode", "native"], "sidecar.istio.io/nativeSidecar", "true"),
    ],
)  # fmt: skip
def test_mutate_prints_the_pod_as_it_would_be_created(
    run: Callable[..., Outcome], arguments: list[str], key: str, value: str
) -> None:
    """With everything that we do not read kept as it was."""
    pod = {**NEW, "spec": {**NEW["spec"], "nodeSelector": {"a": "b"}, "priority": 7}}
    outcome = run("mutate", "-f", "-", *arguments, stdin=json.dumps(pod))
    expected = json.loads(json.dumps(pod))
    used = "native" if "native" in arguments else "hold"
    expected["metadata"]["annotations"] = {key: value, "istio-aux.io/started-with": used}
    assert outcome == Outcome(0, [expected], [])


def test_mutate_has_the_inbound_ports_of_the_option(run: Callable[..., Outcome]) -> None:
    outcome = run("mutate", "-f", "-", "--peers", "direct", stdin=json.dumps(NEW))

    (made,) = outcome.lines
    assert made["metadata"]["annotations"]["traffic.sidecar.istio.io/includeInboundPorts"] == ""


def test_mutate_makes_other_sidecars_native(run: Callable[..., Outcome]) -> None:
    spec = {"restartPolicy": "Never", "containers": [{"name": "main"}, {"name": "vault-agent"}]}
    options = ("--native-sidecars", "vault-agent", "--capability", "native")

    outcome = run("mutate", "-f", "-", *options, stdin=json.dumps({**NEW, "spec": spec}))

    (made,) = outcome.lines
    assert made["spec"]["initContainers"] == [{"name": "vault-agent", "restartPolicy": "Always"}]


def test_mutate_answers_a_review(run: Callable[..., Outcome]) -> None:
    """The whole AdmissionReview, as the webhook would send it."""
    found = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "r-1", "object": NEW},
    }
    outcome = run("mutate", "-f", "-", stdin=json.dumps(found))
    assert outcome.status == 0
    [answer] = outcome.lines
    assert answer["response"].keys() == {
        "uid", "allowed", "patchType", "patch", "auditAnnotations",
    }  # fmt: skip


def test_mutate_answers_a_malformed_review_and_names_it(run: Callable[..., Outcome]) -> None:
    """The answer allows the pod; the status says that the input was bad."""
    found = (
        '{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",'
        '"request":{"uid":"r-1","object":7}}'
    )
    outcome = run("mutate", "-f", "-", stdin=found)
    assert outcome.status == 2
    assert outcome.lines[0]["response"]["allowed"] is True
    assert len(outcome.errors) == 1
    assert outcome.errors[0].startswith("stdin: document 1: left alone: malformed AdmissionReview:")


@pytest.mark.parametrize("levels", [60, 990, 1_500, 9_990])
@pytest.mark.parametrize("innermost", ["{}", "[[[[]]]]," * 30_000 + '""'], ids=["one", "many"])
@pytest.mark.parametrize("where", ["metadata", "spec"])
def test_mutate_answers_a_review_that_is_nested_deeply_as_the_webhook_does(
    levels: int, innermost: str, where: str, run: Callable[..., Outcome]
) -> None:
    """Byte for byte: whether it is cut, changed, or left alone because it has too much."""
    pod = document({"main": None}, phase=None, annotations={"istio-aux.io/start": "hold"})
    pod[where]["managedFields"] = ["@"]
    request = {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "object": pod}
    found = {"kind": "AdmissionReview", "apiVersion": review.API_VERSION, "request": request}
    text = json.dumps(found, separators=(",", ":"))
    deep = '{"f:a":' * levels + f"[{innermost}]" + "}" * levels
    text = text.replace('"@"', deep)
    outcome = run("mutate", "-f", "-", stdin=text)
    assert outcome.lines == [json.loads(review.answer(text.encode(), Start()).body)]


def test_a_pod_that_is_nested_deeply_costs_no_other_pod_of_its_list(
    run: Callable[..., Outcome],
) -> None:
    """`kubectl get pods -o json | istio-aux explain -f -`: anybody can put it there."""
    items = json.dumps([HANGING, {**HANGING, "deep": "@"}, HANGING])
    deep = items.replace('"@"', "[" * 2_000 + "]" * 2_000)
    outcome = run("explain", "-f", "-", stdin=f'{{"kind":"PodList","items":{deep}}}')
    assert (outcome.status, [line["action"] for line in outcome.lines]) == (0, ["quit"] * 3)
    outcome = run("mutate", "-f", "-", stdin=f'{{"kind":"PodList","items":{deep}}}')
    assert (outcome.status, outcome.lines) == (2, [])
    assert "nested too deeply: give it alone" in outcome.errors[0]


def test_mutate_does_not_print_a_pod_without_what_is_nested_deeply(
    run: Callable[..., Outcome],
) -> None:
    text = json.dumps({**NEW, "deep": "@"}).replace('"@"', "[" * 2_000 + "]" * 2_000)
    outcome = run("mutate", "-f", "-", stdin=text)
    assert (outcome.status, outcome.lines) == (2, [])
    assert outcome.errors == ["stdin: document 1: it is nested too deeply"]


def test_mutate_tells_what_it_left_alone(run: Callable[..., Outcome]) -> None:
    """A warning is no error: the pod is printed as it is."""
    pod = document({"main": None}, annotations={"proxy.istio.io/config": "- a"})
    outcome = run("mutate", "-f", "-", stdin=json.dumps(pod))
    assert (outcome.status, outcome.lines) == (0, [pod])
    assert outcome.errors == [
        "stdin: document 1: annotation proxy.istio.io/config is left alone: it is not a mapping"
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["mutate", "-f", "-", "--capability", "modern"], '"modern": expected native or classic'),
        (["mutate", "-f", "-", "--start-mode", "on"], '"on": expected one of: auto, native'),
        (["mutate"], "required: -f"),
        (["explain"], "expected a POD, or -f FILE"),
        (["explain", "../secrets/x"], '"../secrets/x": expected the name of a pod'),
        (["explain", "x", "-n", "a/b"], '"a/b": expected the name of a namespace'),
        (["explain", "-f", "-", "--ignore-containers", "a,,b"], '"a,,b": expected a list of'),
        (["audit", "--quit-grace", "-1"], '"-1": expected seconds'),
        (["audit", "--quit-grace", "nan"], '"nan": expected seconds'),
        (["audit", "--quit-grace", "inf"], '"inf": expected seconds'),
        (["audit", "--quit-grace", "soon"], '"soon": expected seconds'),
        (["audit", "--selector", "a in"], '"a in": expected "("'),
        (["explain", "-f", "-", "-o", "yaml"], "invalid choice: 'yaml'"),
        (["serve"], "required: --config"),
        (["dance"], "invalid choice: 'dance'"),
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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With examples where there is something to show."""
    with pytest.raises(SystemExit) as caught:
        main([*filter(None, [command]), "--help"])
    assert caught.value.code == 0
    assert not command or "examples:\n  " in capsys.readouterr().out


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    """`istio-aux explain -f pods.json | head -1`, with more output than a pipe holds."""
    line = json.dumps(HANGING)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; from istio_aux.cli import main; sys.exit(main())",
         "explain", "-f", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write("\n".join([line] * 2000))
        process.stdin.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


def test_explain_and_mutate_need_no_server() -> None:
    """They start without the event loop and the client, hence fast."""
    code = (
        "import sys, istio_aux.cli\n"
        "print(sorted({'aiohttp', 'uvloop', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
