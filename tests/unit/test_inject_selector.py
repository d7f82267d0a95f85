"""Option `inject-selector`: pods that get a sidecar although their annotation says no."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from istio_aux.cli import cluster as reading
from istio_aux.cli import main
from istio_aux.cli.cluster import Scope
from istio_aux.model.applications import PodOptions
from istio_aux.model.applications import parse as applications
from istio_aux.model.policy import Policy
from istio_aux.model.selectors import parse
from unit.asynchronous import driven, until
from unit.repairing import cluster
from unit.rules.mesh import ENABLED, INJECT
from unit.rules.pods import document
from unit.rules.unmeshed import REPORT
from unit.test_cli_unmeshed import Istio, states

STEP = {"step": "train"}
NO = {INJECT: "false"}
STEPS = PodOptions(namespaces=parse("team"), inject=parse("step"))
SELECTED = {**ENABLED, "team": "a"}


@driven
async def test_a_pod_that_it_matches_is_unmeshed_though_its_annotation_says_no() -> None:
    async with cluster(policy=REPORT, options=STEPS) as world:
        await world.relabel("shop", SELECTED)
        await world.pod("step", labels=STEP, annotations=NO)
        await world.pod("plain", annotations=NO)
        await world.pod("refused", labels={**STEP, **NO})
        await world.known(3)
        await world.found("step")


@driven
async def test_it_counts_where_the_namespace_is_selected() -> None:
    async with cluster(policy=REPORT, options=STEPS) as world:
        await world.pod("step", labels=STEP, annotations=NO)
        await world.pod("says-nothing")
        await world.found("says-nothing")
        await world.relabel("shop", SELECTED)
        await world.found("step", "says-nothing")
        await world.relabel("shop", ENABLED)
        await world.found("says-nothing")


@driven
async def test_it_counts_for_an_injected_application_wherever_that_is() -> None:
    async with cluster(policy=REPORT, options=STEPS) as world:
        await world.pod("web", labels={**STEP, "app.kubernetes.io/name": "web"}, annotations=NO)
        await world.known(1)
        await world.found()
        world.repair.set_applications(applications("shop/web")[0])
        await world.found("web")


@driven
async def test_such_a_pod_is_restarted_once_a_dry_run_shows_that_it_gets_its_sidecar() -> None:
    async with cluster(options=STEPS) as world:
        world.api.injects = False
        await world.relabel("shop", SELECTED)
        await world.pod("step", labels=STEP, annotations=NO)
        why = "a new pod would get no sidecar"
        await until(lambda: why in world.unmeshed.get("step", ""), "it waits")
        assert world.api.evictions == []
        world.api.injects = True
        await until(lambda: world.restarts("evicted") == 1, "it is evicted")


@driven
async def test_audit_knows_it() -> None:
    async with Istio() as api:
        await api.fill()
        await api.run_pod("step", labels=STEP, annotations=NO)
        await api.run_pod("other", annotations=NO)
        scope = Scope(pods=parse("!sidecar.istio.io/inject"), inject=parse("step"))
        found = await reading.audit_pods(api.access(), scope, Policy())

    assert "step" in states(found)
    assert "other" not in states(found)


@pytest.mark.parametrize(("selector", "value"), [("step", "true"), ("", None), ("!step", None)])
def test_mutate_shows_the_label(
    selector: str, value: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(document({"main": None}, labels=STEP, annotations=NO)))

    assert main(["mutate", "-f", str(file), "--inject-selector", selector]) == 0

    metadata = json.loads(capfd.readouterr().out)["metadata"]
    assert metadata["labels"].get(INJECT) == value
    assert ("istio-aux.io/started-with" in metadata["annotations"]) is (value == "true")
