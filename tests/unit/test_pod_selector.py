"""Options `pod-selector` and `inject-selector`: which pods start, quit and repair are for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from istio_aux.cli import main
from istio_aux.model.applications import PodOptions
from istio_aux.model.applications import parse as applications
from istio_aux.model.selectors import parse, parse_namespaces
from unit import repairing
from unit.rules.pods import ENABLED, INJECT, REPORT, RUNNING, document, exited

CHOOSE = ("--pod-selector", "team in (a,b),!hands-off")
OTHER: Mapping[str, str] = {"team": "c"}
WEB: Mapping[str, str] = {"app.kubernetes.io/name": "web"}
LABEL = "kubectl label{} pod job-x7k2p -n training team=a"
WHY = "pod-selector !hands-off,team in (a,b) does not match the pod's labels"
AUTHOR = f"{WHY}: its author labels the pod"


@pytest.mark.parametrize(
    ("labels", "asked", "expected"),
    [
        ({"team": "a"}, "", ("quit", None, None)),
        (OTHER, "", ("ignore", AUTHOR, LABEL.format(" --overwrite"))),
        ({}, "", ("ignore", AUTHOR, LABEL.format(""))),
        (WEB, "training/web", ("quit", None, None)),
    ],
    ids=["matched", "other labels", "no labels", "an injected application's"],
)
def test_explain_says_that_it_does_not_match(
    labels: dict[str, str],
    asked: str,
    expected: tuple[str, str | None, str | None],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "applications").write_text(asked)
    config = tmp_path / "config.yaml"
    config.write_text(f"pod-selector: {CHOOSE[1]!r}\napplications: {tmp_path}/applications\n")
    pod = document({"main": exited(0), "istio-proxy": RUNNING}, labels=labels)

    assert main(["explain", *given(tmp_path, pod), "--config", str(config), "-o", "json"]) == 0

    found = json.loads(capfd.readouterr().out)
    assert (found["action"], found.get("left_out"), found.get("change")) == expected
    assert found["containers"]["main"]["finished"]


def test_mutate_leaves_a_pod_that_it_does_not_match_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pod = document({"main": None}, labels=OTHER)
    argv = given(tmp_path, pod)

    assert main(["mutate", "-o", "json", *argv, *CHOOSE]) == 0

    out, err = capfd.readouterr()
    assert json.loads(out) == pod
    assert err == f"{argv[1]}:1: left alone: {WHY}\n"


def given(folder: Path, pod: dict[str, Any]) -> list[str]:
    """The arguments for a file with the pod."""
    file = folder / "pod.json"
    file.write_text(json.dumps(pod))
    return ["-f", str(file)]


# Option `inject-selector`: pods that get a sidecar although their annotation says no.

STEP = {"step": "train"}
NO = {INJECT: "false"}
STEPS = PodOptions(namespaces=parse_namespaces("team"), inject=parse("step"))
SELECTED = {**ENABLED, "team": "a"}


async def test_inject_selector_counts_where_the_namespace_or_the_application_is_selected() -> None:
    async with repairing.cluster(policy=REPORT, options=STEPS) as world:
        await world.pod("step", labels=STEP, annotations=NO)
        await world.pod("says-nothing")
        await world.known(2)
        await world.found("says-nothing")
        await world.relabel("shop", SELECTED)
        await world.found("step", "says-nothing")
        await world.relabel("shop", ENABLED)
        await world.found("says-nothing")
        await world.pod("web-0", labels={**STEP, **WEB}, annotations=NO)
        world.repair.store.set_applications(applications("shop/web")[0])
        await world.found("says-nothing", "web-0")


@pytest.mark.parametrize(("selector", "value"), [("step", "true"), ("", None), ("!step", None)])
def test_mutate_shows_the_label_that_it_gives(
    selector: str, value: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = given(tmp_path, document({"main": None}, labels=STEP, annotations=NO))
    assert main(["mutate", "-o", "json", *file, "--inject-selector", selector]) == 0
    metadata = json.loads(capfd.readouterr().out)["metadata"]
    assert metadata["labels"].get(INJECT) == value
    assert ("istio-aux.io/started-with" in metadata["annotations"]) is (value == "true")
