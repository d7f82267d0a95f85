"""Whom istio-aux looks after by default, at a real API server: Kubeflow's profiles, and labels."""

from __future__ import annotations

from collections.abc import Iterator

import lab
import lightkube
import pytest
from istio_aux.model.annotations import STARTED_WITH
from istio_aux.model.selectors import LONGEST_SELECTOR, MOST_SELECTORS
from lab import creation, meshed
from lab.fixtures import await_account
from lab.served import Programs
from lab.trainer import PROFILE
from lab.workload import DEFAULT, Workload
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

import config
import manifests

OURS = "io.datastrophic/istio-aux"
# Their labels, and whether they are looked after.
NAMESPACES = {
    "profile": (PROFILE, True),
    "profile-disabled": ({**PROFILE, OURS: "disabled"}, False),
    "profile-enabled": ({**PROFILE, OURS: "enabled"}, True),
    "labelled": ({OURS: "enabled"}, True),
    "injected": ({"istio-injection": "enabled"}, False),
}
SELECTED = {name for name, (_, selected) in NAMESPACES.items() if selected}


@pytest.fixture(scope="module")
def namespaces(client: lightkube.Client) -> Iterator[None]:
    for name, (labels, _) in NAMESPACES.items():
        client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
    for name in NAMESPACES:
        await_account(client, name)
    yield
    for name in NAMESPACES:
        client.delete(Namespace, name)


@pytest.fixture
def by_default(namespaces: None, programs: Programs) -> Iterator[Workload]:
    """A workload with the default selectors, in force."""
    workload = programs("profiles", selector=DEFAULT)
    workload.publish()
    for name in SELECTED:
        workload.await_admission(name)
    yield workload
    workload.withdraw()


def test_profiles_and_labelled_namespaces_are_looked_after_and_no_others(
    cluster: lab.Cluster, by_default: Workload
) -> None:
    pods = [meshed.nameless(name, sidecar=None) for name in NAMESPACES]
    made = creation.create(cluster, *pods, dry_run=True)
    changed = {
        name
        for name, each in zip(NAMESPACES, made, strict=True)
        if STARTED_WITH in meshed.annotations_of(each.pod)
    }

    assert changed == SELECTED
    assert {*by_default.status()["selected-namespaces"]} & NAMESPACES.keys() == SELECTED


def test_the_api_server_takes_as_many_and_as_long_selectors_as_are_allowed(
    client: lightkube.Client,
) -> None:
    values = ",".join(f"{number:0>63}" for number in range(31))
    texts = [f"k{number:02} in ({values})" for number in range(MOST_SELECTORS)]
    assert LONGEST_SELECTOR - 64 < len(texts[0]) <= LONGEST_SELECTOR
    wanted = manifests.Values(
        "longest",
        "longest",
        namespace_selectors=config.parse_namespaces_selected(";".join(texts)),
    )

    admission = [each for each in manifests.render(wanted) if "Admission" in type(each).__name__]
    for resource in [*admission, *manifests.render_webhook(wanted)]:
        assert client.create(resource, dry_run=True)
    assert len(admission) == 4
