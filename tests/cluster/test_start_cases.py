"""What the webhook makes of pods, at a real API server: one table."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import lab
import lab.istio
import lightkube
import pytest
from istio_aux.model.annotations import START, STARTED_WITH
from istio_aux.model.policy import Capability, StartPolicy
from lab import creation, meshed, start_cases
from lab.creation import Creation
from lab.fixtures import await_account
from lab.start_cases import Case, Outcome, outcome
from lab.workload import Workload, renamed
from lightkube.codecs import AnyResource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

import config
import manifests

SETTING: Final = "lab.test/setting"
# Without native sidecars and without knowing of any, pods start alike (`unit/rules/test_start.py`).
CASES = [case for case in start_cases.CASES if case.capability is not Capability.CLASSIC]
SETTINGS = tuple(dict.fromkeys(case.setting for case in CASES))
# Namespaces of the Istio that a workload looks at, by what can be had; one of them has none.
ROOTS = {Capability.NATIVE: "start-istio", Capability.UNKNOWN: "start-nowhere"}


def called(setting: StartPolicy) -> str:
    """The name of the workload with that setting; the API server chooses pods for it."""
    asking = "-asking" if setting.inject else ""
    return f"start-{setting.mode}-{setting.capability}-{setting.peers}{asking}"


def name(setting: StartPolicy) -> str:
    return f"{called(setting)}{'-chosen' if setting.pods.requirements else ''}-pods"


def objects(workload: Workload, setting: StartPolicy) -> list[AnyResource]:
    """What the charm makes for a setting, under a name of its own."""
    values = manifests.Values(
        workload.name,
        workload.model,
        # Two select each namespace: what a second webhook does must not show.
        namespace_selectors=[
            {"matchLabels": {SETTING: name(setting)}},
            {"matchLabels": {"kubernetes.io/metadata.name": name(setting)}},
        ],
        pod_selector=config.parse_selector(str(setting.pods)),
        ca_bundle=workload.authority.certificate,
    )
    return renamed(manifests.render_webhook(values), values, name(setting))


def create(cluster: lab.Cluster, *cases: Case, dry_run: bool = True) -> list[Creation]:
    pods = [meshed.written(case.pod, name(case.setting)) for case in cases]
    return creation.create(cluster, *pods, dry_run=dry_run)


def became(made: Creation) -> Outcome:
    pod = made.pod.to_dict()
    return outcome(pod["metadata"].get("annotations", {}), pod["spec"]["containers"])


@pytest.fixture(scope="module")
def in_force(
    cluster: lab.Cluster, client: lightkube.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Workload]]:
    """Every setting of the table, in a namespace of its own; their workloads."""

    def served(setting: StartPolicy) -> Workload:
        name = called(setting)
        more = {
            "start-mode": setting.mode.value,
            "peers": setting.peers.value,
            "inject-selector": str(setting.inject or ""),
            "quit": "disabled",
            "root-namespace": ROOTS[setting.capability],
        }
        return Workload(cluster, tmp_path_factory.mktemp(name), name=name, model=name, more=more)

    workloads = {called(setting): served(setting) for setting in SETTINGS}

    def install() -> lab.istio.Istio:
        root = ROOTS[Capability.NATIVE]
        return lab.istio.install(cluster, root, revision=root, native="on request")

    def begin(workload: Workload) -> None:
        workload.deploy()
        workload.start()
        workload.enlist()

    with ThreadPoolExecutor() as pool:
        installing = pool.submit(install)
        begun = pool.map(begin, workloads.values())
        made = [each for by in SETTINGS for each in objects(workloads[called(by)], by)]
        for by in SETTINGS:
            label = {SETTING: name(by)}
            client.create(Namespace(metadata=ObjectMeta(name=name(by), labels=label)))
        for resource in made:
            client.apply(resource, field_manager="lab")
        for by in SETTINGS:
            await_account(client, name(by))
        list(begun)
    istio = installing.result()
    for setting, workload in ((setting, workloads[called(setting)]) for setting in SETTINGS):
        workload.await_ready()
        workload.await_capability(setting.capability)
    await_reviews(cluster)
    yield workloads
    for resource in made:
        assert resource.metadata
        client.delete(type(resource), str(resource.metadata.name))
    for by in SETTINGS:
        client.delete(Namespace, name(by))
    for workload in workloads.values():
        workload.process.kill()
        workload.process.wait(30)
    istio.remove()


def await_reviews(cluster: lab.Cluster) -> None:
    """Return when the API server knows of all webhooks."""
    probe = Case(name="probe", labels={"team": "a"}, annotations={START: "hold"})
    probes = [
        replace(
            probe, mode=by.mode, capability=by.capability, peers=by.peers,
            pods=str(by.pods), inject=str(by.inject or ""),
        )
        for by in SETTINGS
    ]  # fmt: skip
    lab.until(
        lambda: all(STARTED_WITH in became(made)[0] for made in create(cluster, *probes)),
        what="all webhooks to be in force",
    )


@pytest.fixture(scope="module")
def table(cluster: lab.Cluster, in_force: dict[str, Workload]) -> dict[str, Creation]:
    """What became of each case while each workload knew what its Istio can do.

    On a machine so busy that istiod answers no dry run in time, a workload does not know it.
    """

    def known() -> list[Any]:
        """The injectors of each and since when they are so; nothing unless all capabilities are."""
        told = [in_force[called(by)].status() for by in SETTINGS]
        found = [status.get("capability") for status in told]
        wanted = [by.capability for by in SETTINGS]
        return [status["injectors"] for status in told] if found == wanted else []

    def created() -> list[Creation]:
        before = known()
        made = create(cluster, *CASES) if before else []
        return made if known() == before else []

    made = lab.until(created, what="the table, with all capabilities known")
    return {case.name: each for case, each in zip(CASES, made, strict=True)}


def test_pods_become_what_the_table_says(table: dict[str, Creation]):
    """community-distribution#2040."""
    found = {case: became(made) for case, made in table.items()}

    assert found == {case.name: case.expected for case in CASES}


def test_pods_get_the_labels_that_the_table_says(table: dict[str, Creation]):
    found = {case: made.pod.to_dict()["metadata"].get("labels", {}) for case, made in table.items()}

    assert found == {case.name: case.labelled for case in CASES}


def test_authors_are_told_what_the_table_says(table: dict[str, Creation]):
    said = {
        case: " ".join(text for text in made.warnings if "istio-aux: " in text)
        for case, made in table.items()
    }
    told = {case: text for case, text in said.items() if text}

    assert told.keys() == {case.name for case in CASES if case.warns}
    assert all(case.warns in told[case.name] for case in CASES if case.warns)


def test_pods_that_are_made_are_as_those_that_are_tried(
    table: dict[str, Creation], cluster: lab.Cluster
):
    """The table is run with dry runs."""
    cases = [case for case in CASES if case.name in {"hold holds", "a text: one line"}]
    assert len(cases) == 2

    made = create(cluster, *cases, dry_run=False)

    assert [became(each) for each in made] == [became(table[case.name]) for case in cases]
