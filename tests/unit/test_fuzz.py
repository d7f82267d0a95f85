"""The fuzzer finds bad answers; short runs of the fuzzer and the soak find nothing."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fuzz import bodies, judge, pods, stored
from fuzz.bodies import INJECT, Ask
from fuzz.judge import Answer
from fuzz.play import CORPUS, play
from fuzz.server import serving
from soak import play as soak
from unit.hooked import review

MUTATION, INJECTION = Ask(review()), Ask(review(), INJECT)
PATCH = [{"op": "add", "path": "/metadata/annotations", "value": {}}]
SAID = {"istio-aux.io/started-with": "hold"}
DONE = [{"op": "add", "path": "/metadata/annotations", "value": SAID}]
LABELS = {"op": "add", "path": "/metadata/labels", "value": {"sidecar.istio.io/inject": "true"}}
NOT_TRUE = {**LABELS, "value": {"sidecar.istio.io/inject": "yes"}}
NOWHERE = [{"op": "add", "path": "/metadata/annotations/a", "value": "b"}]


def answer(status: int = 200, kind: str = "application/json", **response: Any) -> Answer:
    """A correct answer, changed by the arguments."""
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u-1", "allowed": True, "auditAnnotations": {}, **response},
    }
    return Answer(status, kind, json.dumps(body).encode())


def patched(*ops: dict[str, Any]) -> dict[str, Any]:
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(ops).encode()).decode()}


def spoil(found: Any) -> None:
    """Empty a container and everything in it."""
    for each in found.values() if isinstance(found, dict) else found:
        if isinstance(each, dict | list):
            spoil(each)
    found.clear()


def test_a_seed_repeats_its_reviews_and_pods() -> None:
    """Reviews share no objects: a change of one would show in later ones."""
    for seed in range(200):
        before = json.dumps(bodies.review(Random(seed)))
        spoil(bodies.review(Random(seed)))
        assert json.dumps(bodies.review(Random(seed))) == before
        assert pods.make(Random(seed)) == pods.make(Random(seed))


def test_a_correct_answer_is_no_finding() -> None:
    assert list(judge.of(MUTATION, answer(**patched(*DONE)))) == []
    for ops in ([LABELS], DONE, [LABELS, *DONE]):
        assert list(judge.of(INJECTION, answer(**patched(*ops)))) == []


@pytest.mark.parametrize(
    ("ask", "faulty", "finding"),
    [
        (MUTATION, answer(500), "status 500"),
        (MUTATION, answer(400), "expected {200}"),
        (MUTATION, answer(kind="text/html"), "Content-Type: text/html"),
        (MUTATION, answer(uid="u-2"), "uid 'u-2', expected 'u-1'"),
        (MUTATION, answer(allowed=False), "allowed: False"),
        (MUTATION, answer(warnings=["a\nb"]), "not a short line"),
        (MUTATION, answer(**patched(*NOWHERE)), "does not apply"),
        (MUTATION, answer(**patched(*PATCH)), "started-with is missing"),
        (
            INJECTION,
            answer(**patched(NOT_TRUE)),
            "not the inject label alone",
        ),
    ],
)
def test_a_fault_in_an_answer_is_found(ask: Ask, faulty: Answer, finding: str) -> None:
    assert finding in " ".join(judge.of(ask, faulty))


async def test_two_thousand_cases_find_nothing(tmp_path: Path) -> None:
    """Nor do those of the corpus. The seed is fixed, so a finding is a regression."""
    assert {file.suffix for file in CORPUS.iterdir()} == {".body", ".pod"}
    async with serving(tmp_path) as server:
        findings, answers = await play(server, 2000, 42)
    assert findings == []
    assert answers.total() > 2000


async def test_stored_pods_are_read_and_judged_within_their_budget() -> None:
    """Random ones, those of the corpus, and some of those that were made to be slow."""
    assert await stored.play(1_000, 42, nth=29) == []


PODS = 1_500
"""In one part. Each pod has several texts of its own, and caches hold 4,096."""


async def test_pods_that_come_and_go_leave_nothing_behind() -> None:
    _, warm, then = await soak(3 * PODS, 3)
    assert then.blocks - warm.blocks < PODS / 2
