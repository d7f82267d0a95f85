"""What an event of a unit that has nothing to do costs: requests, and what it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import manifests

from .conftest import ROOT, Unit, active

NAMESPACED = "/namespaces/kubeflow"
RBAC, ISTIO = "/apis/rbac.authorization.k8s.io/v1", f"/apis/security.istio.io/v1{NAMESPACED}"
ADMISSION, CORE = "/apis/admissionregistration.k8s.io/v1", "/api/v1"
REVIEWS = {
    "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "POST /apis/authentication.k8s.io/v1/tokenreviews",
}
# One list for each kind that the charm owns or reads.
LISTS = {
    f"GET {path}"
    for path in (
        f"{CORE}/namespaces",
        f"{CORE}{NAMESPACED}/serviceaccounts",
        f"/apis/discovery.k8s.io/v1{NAMESPACED}/endpointslices",
        f"{ADMISSION}/mutatingadmissionpolicies",
        f"{ADMISSION}/mutatingadmissionpolicybindings",
        f"{ADMISSION}/mutatingwebhookconfigurations",
        f"{ADMISSION}/validatingadmissionpolicies",
        f"{ADMISSION}/validatingadmissionpolicybindings",
        f"{RBAC}/clusterroles",
        f"{RBAC}/clusterrolebindings",
        f"{RBAC}{NAMESPACED}/roles",
        f"{RBAC}{NAMESPACED}/rolebindings",
        f"{ISTIO}/peerauthentications",
        f"{ISTIO}/authorizationpolicies",
    )
}
# Each takes at least as long as all that the charm itself has.
HEAVY = ("charmlibs.interfaces.tls_certificates", "jinja2", "ops_tracing", "pydantic")


@pytest.fixture
def quiet(unit: Unit) -> Unit:
    """The leader after an event that had nothing to change."""
    unit.run()
    unit.api.calls.clear()
    return unit


def test_a_quiet_leader_reads_each_kind_once_and_writes_nothing(quiet: Unit) -> None:
    assert quiet.run() == active()

    assert Counter(quiet.api.calls) == Counter({*REVIEWS, *LISTS})


def test_a_quiet_unit_that_does_not_lead_asks_about_trust_and_token_only(quiet: Unit) -> None:
    quiet.follow()
    quiet.api.calls.clear()

    quiet.follow()

    assert Counter(quiet.api.calls) == Counter(REVIEWS)


@pytest.mark.parametrize("kind", ["ClusterRole", "MutatingWebhookConfiguration", "Role"])
@pytest.mark.parametrize("how", ["emptied", "deleted", "without its labels"])
def test_what_somebody_does_to_an_object_is_undone_by_the_next_event(
    kind: str, how: str, quiet: Unit
) -> None:
    before = dict(quiet.api.objects)
    path = next(path for path, each in before.items() if each["kind"] == kind)
    named = {key: before[path][key] for key in ("apiVersion", "kind", "metadata")}
    metadata = {k: v for k, v in named["metadata"].items() if k != "labels"}
    changed = {"emptied": named, "without its labels": {**before[path], "metadata": metadata}}
    if how == "deleted":
        del quiet.api.objects[path]
    else:
        quiet.api.objects[path] = changed[how]

    quiet.run()

    uid = {"uid": quiet.api.objects[path]["metadata"]["uid"]}
    whole = {**before[path], "metadata": before[path]["metadata"] | uid}
    assert quiet.api.objects[path] == whole


def test_an_event_writes_again_when_an_option_has_changed(quiet: Unit) -> None:
    quiet.configure(race_policy="restart")
    written = [call for call in quiet.api.calls if call.startswith("PATCH")]
    quiet.api.calls.clear()

    quiet.configure(race_policy="restart")
    quiet.api.calls.clear()
    quiet.configure(race_policy="restart")

    assert written
    assert not [call for call in quiet.api.calls if call.startswith("PATCH")]


def test_another_revision_of_the_charm_writes_what_it_renders(quiet: Unit) -> None:
    quiet.run(quiet.on.upgrade_charm())

    assert [call for call in quiet.api.calls if call.startswith("PATCH")]


def test_a_quiet_leader_renders_nothing(quiet: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    for cached in (manifests._environment, manifests._rendered):
        cached.cache_clear()
    for module in ("jinja2", "relations.pki"):
        monkeypatch.setitem(sys.modules, module, None)

    assert quiet.run() == active()


@pytest.mark.parametrize(("listed", "imported"), [("[]", False), ('["charm-tracing:7"]', True)])
def test_the_charm_does_not_import_what_few_events_need(
    listed: str, *, imported: bool, tmp_path: Path
) -> None:
    """Only Juju knows before ops is imported whether anybody takes traces."""
    tool = tmp_path / "relation-ids"
    tool.write_text(f"#!/bin/sh\necho '{listed}'\n")
    tool.chmod(0o755)
    path = os.pathsep.join(str(ROOT / name) for name in ("src", "lib", "workload/src"))

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys, charm; print([m for m in {HEAVY} if sys.modules.get(m)])",
        ],
        env={"PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]]), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == str(["ops_tracing", "pydantic"] if imported else [])
