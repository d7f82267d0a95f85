"""What Istio's charms tell reaches the workload; what the workload finds out, the user."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import yaml
from ops import testing

from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import ROOT, WELL, Files, Workload, injector

Context = testing.Context[IstioAuxCharm]


def recorded(endpoint: str) -> dict[str, str]:
    """The databag that the provider wrote (tests/data/relations/README.md)."""
    return json.loads((ROOT / f"tests/data/relations/{endpoint}.json").read_text())


PILOT = testing.Relation("istio-pilot", remote_app_data=recorded("istio-pilot"))
METADATA = testing.Relation("istio-metadata", remote_app_data=recorded("istio-metadata"))
SILENT = testing.Relation("istio-metadata")


def related(state: testing.State, *relations: testing.Relation) -> testing.State:
    return dataclasses.replace(state, relations={*state.relations, *relations})


def settings(files: Files) -> dict[str, Any]:
    return yaml.safe_load(files()["config.yaml"])


@pytest.mark.parametrize(
    ("relations", "namespace"),
    [
        ([], None),
        ([PILOT], "kubeflow"),
        ([METADATA], "istio-system"),
        ([PILOT, SILENT], "kubeflow"),
        ([SILENT], None),
        ([PILOT, METADATA], None),
    ],
    ids=["none", "istio-pilot", "istio-metadata", "one is silent", "silent", "disagreeing"],
)
def test_the_workload_learns_where_the_control_plane_is(
    relations: list[testing.Relation],
    namespace: str | None,
    ctx: Context,
    fresh: testing.State,
    files: Files,
) -> None:
    ctx.run(ctx.on.config_changed(), related(fresh, *relations))

    assert settings(files).get("root-namespace") == namespace


def test_a_relation_that_goes_tells_nothing_any_more(
    ctx: Context, settled: testing.State, files: Files
) -> None:
    before = ctx.run(ctx.on.relation_changed(METADATA), related(settled, METADATA))
    assert settings(files)["root-namespace"] == "istio-system"

    out = ctx.run(ctx.on.relation_broken(before.get_relation(METADATA.id)), before)

    assert "root-namespace" not in settings(files)
    assert out.unit_status == testing.ActiveStatus(WELL)


def test_control_planes_that_disagree_block_and_name_each_other(
    ctx: Context, settled: testing.State
) -> None:
    out = ctx.run(ctx.on.relation_changed(PILOT), related(settled, PILOT, METADATA))

    assert out.unit_status == testing.BlockedStatus(
        "istio-pilot: root namespace kubeflow, istio-metadata: root namespace istio-system:"
        " expected one control plane: remove one of these relations"
    )


NO_ENDPOINT = injector("no-endpoint", "Service istiod has no ready endpoint")
TROUBLE = (
    "2 namespaces selected;"
    " istio-sidecar-injector: Service istiod has no ready endpoint, since 2026-11-21 19:40Z"
)


def test_who_is_related_with_istio_waits_for_its_injector(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.injectors, process.injects = [NO_ENDPOINT], False

    out = ctx.run(ctx.on.update_status(), related(settled, PILOT))

    assert out.unit_status == testing.WaitingStatus(f"waiting for Istio; {TROUBLE}")


def test_who_is_not_related_with_istio_says_what_it_finds(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.injectors, process.injects = [NO_ENDPOINT], False

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.ActiveStatus(TROUBLE)


def test_what_is_not_known_is_not_live(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.injectors, process.injects = [], None

    out = ctx.run(ctx.on.update_status(), related(settled, PILOT))

    assert out.unit_status == testing.WaitingStatus(
        "waiting for Istio; 2 namespaces selected; not known yet whether Istio injects"
    )


def test_a_cluster_without_istio_is_said_to_be_one(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    why = "there is no webhook configuration of Istio's injector"
    process.injectors, process.injects = [injector("absent", why, name="")], False

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.ActiveStatus(
        f"2 namespaces selected; Istio: {why}, since 2026-11-21 19:40Z"
    )


def test_a_live_injector_is_enough_and_a_relation_that_tells_nothing_says_why(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.injectors = [injector(), injector("no-ca-bundle", "no caBundle", name="istio-old")]

    out = ctx.run(ctx.on.update_status(), related(settled, SILENT))

    assert out.unit_status == testing.ActiveStatus(
        "2 namespaces selected; istio-metadata: the root namespace is not set yet;"
        " istio-sidecar-injector live since 2026-11-21 19:40Z,"
        " istio-old: no caBundle, since 2026-11-21 19:40Z"
    )


def test_an_image_that_knows_no_injectors_is_not_waited_for(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.unsaid = {"injectors", "injector-live", "race", "unmeshed-pods", "unmeshed-total"}
    process.unsaid |= {"applications"}

    out = ctx.run(ctx.on.update_status(), related(settled, PILOT))

    assert out.unit_status == testing.ActiveStatus("2 namespaces selected")


def test_pods_without_a_sidecar_are_counted_and_jobs_that_were_suspended_for_it(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.unmeshed_total = 612
    process.suspended = [{"namespace": "a", "kind": "TFJob", "name": "mnist"}]

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.ActiveStatus(
        f"{WELL}; 612 without sidecar; suspended for their sidecar: a/mnist"
    )


def with_revision(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "labels": labels}
    return {"kind": "MutatingWebhookConfiguration", "metadata": metadata}


def test_the_workload_may_read_the_policies_of_all_revisions(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    base = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    for name, revision in {"a": "1-28", "tag": "1-29", "default": "default"}.items():
        api.objects[f"{base}/{name}"] = with_revision(name, **{"istio.io/rev": revision})
    api.objects[f"{base}/foreign"] = with_revision("foreign")

    ctx.run(ctx.on.update_status(), settled)

    named = [
        rule["resourceNames"]
        for rule in api.one("ClusterRole")["rules"]
        if rule["resources"] == ["configmaps"]
    ]
    assert named == [
        ["istio-sidecar-injector", "istio-sidecar-injector-1-28", "istio-sidecar-injector-1-29"]
    ]


@pytest.mark.parametrize(
    ("options", "rights"),
    [
        ({}, set[str]()),
        ({"race-policy": "restart"}, {"pods/eviction"}),
        ({"race-policy": "restart", "restart-jobs": True}, {"pods/eviction", "tfjobs"}),
        # Jobs that were suspended under another policy have to be resumed.
        ({"restart-jobs": True}, {"tfjobs"}),
    ],
    ids=["by default", "restart", "restart jobs", "only resume jobs"],
)
def test_the_workload_may_restart_what_the_options_say(
    options: dict[str, str | int | float | bool],
    rights: set[str],
    ctx: Context,
    settled: testing.State,
    api: ApiServer,
) -> None:
    ctx.run(ctx.on.config_changed(), dataclasses.replace(settled, config=options))

    granted = {name for rule in api.one("ClusterRole")["rules"] for name in rule["resources"]}
    assert granted & {"pods/eviction", "tfjobs"} == rights
