"""Commands that are to be pasted: what others write is a word of them, never an option or more."""

from __future__ import annotations

import re
import shlex
from html import unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.cli.output import Output, Terminal
from istio_aux.cli.page import page
from istio_aux.cli.report import Audit, audit_text
from istio_aux.model.text import command, commands
from msgspec.structs import replace
from sizes import ROOT
from unit.rules.pods import RUNNING, exited, job
from unit.test_cli_audit import NOON, finding
from unit.test_cli_installation import found

HOSTILE = (
    "x;touch PWNED;:", "$(id)", "`id`", "a b", "'; id; '", '"', "a\nid", "\x1b[2J", "a\u202eb", "",
    "-A", "--all", "--context=arn:aws:eks:eu-west-1:1:cluster/prod", "é" * 900, "&& id", "#", "~",
)  # fmt: skip


def is_of(line: str, words: str) -> bool:
    """Whether a shell makes of a line these words, of which any may stand for one of others."""
    said, meant = shlex.split(line), words.split()
    pairs = zip(said, meant, strict=False)
    return len(said) == len(meant) and all(
        a == b or (b == "{}" and not a.startswith("-")) for a, b in pairs
    )


@given(st.sampled_from(HOSTILE) | st.text(max_size=20))
def test_a_word_of_others_stays_a_word_or_there_is_no_command(word: str) -> None:
    made = command("istio-aux explain -n {} {}", word, "pod")
    assert made == "" or shlex.split(made) == ["istio-aux", "explain", "-n", word, "pod"]
    assert (made == "") == (not made.isprintable() or not word or bad(word))
    assert "\n" not in made


def bad(word: str) -> bool:
    return word.startswith("-") or not word.isprintable() or len(word) > 500


def test_of_several_words_each_is_quoted() -> None:
    made = command("kubectl label namespace {} a=b", ["x", "y z"])
    assert shlex.split(made) == ["kubectl", "label", "namespace", "x", "y z", "a=b"]
    assert commands(made, command("kubectl get {}", "--all")) == made


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize("state", ["stuck", "blocked", "lost", "unmeshed"])
def test_a_page_and_a_table_have_no_other_command(state: Any, word: str) -> None:
    """An ownerReference has a kind and a name that the API server does not check."""
    for field in ("owner", "name", "namespace"):
        for value in {word, f"{word}/prod", f"Job/{word}"}:
            audit = Audit([finding(state, **{"owner": "Job/x", field: value})], 1)
            shown = re.findall("<code>(.*?)</code>", page(audit, NOON), re.DOTALL)
            for each in map(unescape, shown):
                assert is_of(each, "istio-aux quit -n {} {} --yes") or is_of(
                    each, "istio-aux explain -n {} {}"
                ), each
            text = audit_text(audit.findings, Terminal(), audit=audit, now=NOON)
            for each in re.findall(r"(?m)^ *((?:istio-aux|kubectl) .*)$", text):
                assert is_of(each, "istio-aux quit -n {} --yes"), each


@pytest.mark.parametrize("word", HOSTILE)
def test_who_looks_after_a_pod_is_changed_by_no_other_command(word: str) -> None:
    told = {"namespace-selectors": "a=b", "pod-selector": "c=d"}
    over = job({"main": exited(0), "istio-proxy": RUNNING})
    for fields in ({"name": word}, {"namespace": word}):
        pod = replace(over, metadata=replace(over.metadata, **fields))
        for line in found(told).judge(pod, {}, None).change.splitlines():
            assert is_of(line, "kubectl label pod {} -n {} c=d") or is_of(
                line, "kubectl label namespace {} a=b"
            ), line


def test_only_one_function_makes_commands() -> None:
    files = [*(ROOT / "workload/src").rglob("*.py")]
    made = [str(file) for file in files if re.search(r"\bCommand\(", file.read_text())]
    assert [file.rpartition("/")[2] for file in made] == ["text.py"]
    assert Output.reached_by("text", context="a b").flags == " --context 'a b'"
