"""The fuzzer, the oracle and the benchmarks find what is wrong; short runs find nothing."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import matrix
import msgspec
import pytest
from fuzz import stored
from fuzz.bodies import INJECT, Ask
from fuzz.play import CORPUS, Answer, findings, play, serving
from lab import nightly
from lab.nightly import NIGHT, NIGHTLY, sampled
from oracle.play import KUBELETS, Explained, Judged, Verdict, compare
from soak import play as soak
from unit import hooked
from unit.rules.pods import RUNNING, State, document, exited, waiting

from benchmarks import tables

SCALE = Path(__file__).parents[2] / "benchmarks/results/scale.md"
CASES = 2_000 if NIGHTLY else 500
"""`tox -e fuzz` plays as many as one likes."""
MUTATION, INJECTION = Ask(hooked.review()), Ask(hooked.review(), INJECT)


def answer(status: int = 200, **response: Any) -> Answer:
    """A correct answer, changed by the arguments."""
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u-1", "allowed": True, "auditAnnotations": {}, **response},
    }
    return Answer(status, "application/json", json.dumps(body).encode())


def patched(path: str, value: object) -> dict[str, Any]:
    """A patch that adds this below the metadata."""
    text = json.dumps([{"op": "add", "path": f"/metadata/{path}", "value": value}])
    return {"patchType": "JSONPatch", "patch": base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    ("ask", "faulty", "finding"),
    [
        (MUTATION, answer(400), "expected {200}"),
        (MUTATION, answer(allowed=False), "allowed: False"),
        (MUTATION, answer(warnings=["a\nb"]), "not a short line"),
        (MUTATION, answer(**patched("annotations/a", "b")), "does not apply"),
        (MUTATION, answer(**patched("annotations", {})), "started-with is missing"),
        (
            INJECTION,
            answer(**patched("labels", {"sidecar.istio.io/inject": "yes"})),
            "not the inject label alone",
        ),
    ],
)
def test_a_fault_in_an_answer_is_found(ask: Ask, faulty: Answer, finding: str) -> None:
    assert finding in " ".join(findings(ask, faulty))


async def test_a_few_hundred_cases_find_nothing(tmp_path: Path) -> None:
    """Nor do those of the corpus. The seed is fixed, so a finding is a regression."""
    assert {file.suffix for file in CORPUS.iterdir()} == {".body", ".pod"}
    async with serving(tmp_path) as server:
        findings, answers = await play(server, CASES, 42)
    assert findings == []
    assert answers.total() > CASES


async def test_stored_pods_are_read_and_judged_within_their_budget() -> None:
    """Random ones, those of the corpus, and some of those that were made to be slow."""
    assert await stored.play(CASES // 2, 42, nth=29 if NIGHTLY else 211) == []


AGAIN = f"tox -e fuzz -- --bodies 10000 --seed {NIGHT} --target"


@pytest.mark.nightly("500 reviews of one seed")
async def test_ten_thousand_reviews_of_this_night_find_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        findings, _ = await play(server, 10_000, NIGHT)
    assert sampled(f"{AGAIN} reviews", findings) == []


@pytest.mark.nightly("250 pods of one seed")
async def test_ten_thousand_stored_pods_of_this_night_find_nothing() -> None:
    assert sampled(f"{AGAIN} pods", await stored.play(10_000, NIGHT, nth=29)) == []


PODS = 1_500
"""In one part. Each pod has several texts of its own, and caches hold 4,096."""


async def test_pods_that_come_and_go_leave_nothing_behind() -> None:
    _, warm, then = await soak(3 * PODS, 3)
    assert then.blocks - warm.blocks < PODS / 2


def test_what_a_night_finds_is_kept_with_the_command_that_finds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "results" / "night.txt"
    monkeypatch.setattr(nightly, "_KEPT", kept)

    assert nightly.sampled("tox -e fuzz -- --seed 1", []) == []
    assert nightly.sampled("tox -e fuzz -- --seed 2", ["it exited: 1"]) == ["it exited: 1"]
    assert kept.read_text().splitlines() == [
        "tox -e fuzz -- --seed 1: good", "tox -e fuzz -- --seed 2: NOT GOOD", "it exited: 1",
    ]  # fmt: skip


# The oracle sees where the workload judges otherwise than the kubelet.


def verdict(main: State, *, done: bool = False, **found: Any) -> Verdict:
    """Of a kubelet on a pod with this payload container and a running proxy."""
    stored = json.dumps(document({"main": main, "istio-proxy": RUNNING}))
    found = {"restarting": False, "completes": done, **found}
    states = {"main": done, "istio-proxy": False}
    return Verdict(done=states, phase="Running", pod=msgspec.Raw(stored.encode()), **found)


def explained(action: str, *, finished: bool) -> Explained:
    """The same by the workload."""
    judged = {
        "main": Judged("payload", finished, "why"),
        "istio-proxy": Judged("sidecar", finished=False, why="running"),
    }
    return Explained("u-1", action, "reason", judged)


@pytest.mark.parametrize(
    ("kubelet", "ours", "disagreements", "cautions"),
    [
        (verdict(exited(1)), explained("wait", finished=True),
         ["main: finished (why), but the kubelet may start it again"], 0),
        (verdict(exited(1)), explained("quit", finished=False),
         ["quit, but the kubelet may start again main"], 0),
        (verdict(exited(0), done=True), explained("wait", finished=False),
         ["main: not finished (why), but the kubelet is done with it",
          "wait (reason), but only the proxy keeps the pod from completing"], 0),
        (verdict(exited(0), done=True, completes=False), explained("quit", finished=True),
         ["quit, but the pod does not complete when only the proxy exits"], 0),
        (verdict(waiting("CrashLoopBackOff"), done=True), explained("wait", finished=False), [], 1),
    ],
)  # fmt: skip
def test_a_wrong_decision_is_a_disagreement_and_caution_needs_a_reason(
    kubelet: Verdict, ours: Explained, disagreements: list[str], cautions: int
) -> None:
    """In both directions: too early, and without a reason too late."""
    found = compare(KUBELETS[-1], kubelet, ours)
    assert (list(found.disagreements), len(found.cautions)) == (disagreements, cautions)


# Benchmarks and the matrix of versions.


def test_a_benchmark_says_in_words_what_became_slower_beside_another_program() -> None:
    """A number that both programs share, such as that of a slow night, says nothing."""
    kept, now = (
        tables.table(
            ("", "controller-runtime", "istio-aux"),
            [
                ("CPU of a quit, ms", "2.0", f"{quits} ({quits / 2:.2f}x)"),
                ("resident at the start, MiB", "100", f"{memory} ({memory / 100:.2f}x)"),
                ("p99 ms, median of 6 rounds", "10", "10 (1.00x)"),
                ("taken by the API server, other 100/s", "100", f"{quits} ({quits / 100:.2f}x)"),
            ],
        )
        for quits, memory in ((3.0, 90), (4.0, 50))
    )
    assert tables.compared(kept, now).splitlines() == [
        "Beside the kept table, 3 costs compared:",
        "* slower by a third: CPU of a quit, ms: 2.00 of controller-runtime's, 1.50 kept",
        "* smaller by a third: resident at the start, MiB: 0.50 of controller-runtime's, 0.90 kept",
    ]
    assert tables.compared(kept, kept).endswith("compared:\n* as before")
    measured = tables.compared(SCALE.read_text(), SCALE.read_text())
    assert re.fullmatch(r"Beside the kept table, \d\d costs compared:\n\* as before", measured)


def test_the_table_of_versions_has_the_numbers_that_were_kept() -> None:
    numbers = json.loads(matrix.NUMBERS.read_text())
    document = matrix.TABLE.read_text()

    assert numbers.keys() <= set(matrix.ROWS)
    assert matrix.written(document, numbers) == document
