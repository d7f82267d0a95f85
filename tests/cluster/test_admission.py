"""The webhook behind a real API server, and what it makes of which pod: one table.

A webhook in trouble blocks no pod (istio#26380). Most pods are real ones: no node runs them.
"""

from __future__ import annotations

import signal
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import lab.istio
import lightkube
import pytest
import yaml
from istio_aux.model.annotations import START, STARTED_WITH
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.start.hold import HOLD
from lab import creation, meshed, start_cases
from lab.creation import Creation, Stream
from lab.fixtures import await_account
from lab.meshed import annotations_of
from lab.scene import Scene
from lab.start_cases import HELD, Case, Outcome, outcome
from lab.workload import Programs, Stages, Workload, end_at_once, renamed
from lightkube.codecs import AnyResource, from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

import certificates
import config
import manifests


def create_in(scene: Scene, **what: Any) -> Pod:
    return scene.client.create(meshed.nameless(scene.namespace, sidecar=None, **what))


@pytest.mark.parametrize(
    ("labels", "host_network"),
    [
        ({}, True),
        ({"app.kubernetes.io/name": "istio-aux"}, False),
        ({"model.juju.is/disable-webhook": "true"}, False),
    ],
)
def test_pods_that_have_no_sidecar_or_are_needed_for_repair_are_not_even_reviewed(
    cluster: lab.Cluster, served: Scene, labels: dict[str, str], host_network: bool
):
    """The application's own pods and its model's operator come up whatever the webhook does."""
    pod = meshed.nameless(served.namespace, sidecar=None, labels=labels)
    assert pod.spec
    pod.spec.hostNetwork = host_network

    [made] = creation.create(cluster, pod)

    assert annotations_of(made.pod) == {}
    assert not any("webhook" in key for key in made.audit(cluster))


def test_the_audit_log_says_what_was_done_and_why(cluster: lab.Cluster, served: Scene):
    changed, unchanged = creation.create(
        cluster,
        meshed.nameless(served.namespace, sidecar=None),
        meshed.nameless(served.namespace, sidecar=None, annotations={START: "none"}),
    )

    assert ours(changed.audit(cluster)) == {"reason": f"added {HOLD}", "started-with": "hold"}
    assert ours(unchanged.audit(cluster)) == {"reason": 'annotation istio-aux.io/start: "none"'}
    assert changed.warnings == ()


def ours(audit: dict[str, str]) -> dict[str, str]:
    own = "start.istio-aux.io/"
    return {key.partition(own)[2]: text for key, text in audit.items() if own in key}


def test_the_namespaces_label_can_change_under_way(webhook: Workload, scene: Scene):
    """Pods are changed while it is selected. One of an ambient mesh has no sidecars."""
    assert annotations_of(create_in(scene)) == {}
    webhook.select(scene.namespace)
    webhook.await_admission(scene.namespace)
    assert annotations_of(create_in(scene)) == HELD
    webhook.select(scene.namespace, selected=False)
    await_left_alone(scene)

    webhook.select(scene.namespace)
    webhook.await_admission(scene.namespace)
    scene.client.patch(
        Namespace, scene.namespace, {"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}}}
    )
    await_left_alone(scene)


def await_left_alone(scene: Scene) -> None:
    lab.until(
        lambda: annotations_of(create_in(scene)) == {},
        what="pods of the namespace to be left alone",
    )


@pytest.fixture(scope="module")
def mortal(programs: Programs) -> Workload:
    """A workload of this file's own, with its webhook in force."""
    return programs("mortal", publish=True)


@pytest.fixture(scope="module")
def its_scene(mortal: Workload, stages: Stages) -> Scene:
    """A namespace whose pods that webhook changes, while it can."""
    return stages(mortal, changed=True)


def await_unchanged(cluster: lab.Cluster, scene: Scene) -> None:
    """Create a pod, which comes without hold; the audit log says that a webhook was given up."""
    [made] = creation.create(cluster, meshed.nameless(scene.namespace, sidecar=None))
    assert annotations_of(made.pod) == {}
    assert any(key.startswith("failed-open.") for key in made.audit(cluster))


def test_a_webhook_that_does_not_answer_blocks_no_pod(
    cluster: lab.Cluster, mortal: Workload, its_scene: Scene
):
    """istio#26380: failurePolicy Ignore, after its timeout."""
    mortal.process.kill(signal.SIGSTOP)
    try:
        await_unchanged(cluster, its_scene)
    finally:
        mortal.process.kill(signal.SIGCONT)


def test_a_webhook_that_was_killed_blocks_no_pod_and_is_used_once_it_is_back(
    cluster: lab.Cluster, mortal: Workload, its_scene: Scene
):
    """istio#26380: nobody listens; nothing has to be repaired by hand."""
    mortal.process.end()

    await_unchanged(cluster, its_scene)

    mortal.start()
    mortal.await_admission(its_scene.namespace)


# Creations a second, and at once; a machine that is busy with other things makes fewer.
SOME = 50
MANY = 200


@pytest.fixture(scope="module")
def replicas(programs: Programs) -> Iterator[list[Workload]]:
    """Two processes of one application, with their webhook in force."""
    first = programs("replicated", publish=True)
    second = first.replica("replicated-1")
    second.start()
    second.await_ready()
    second.enlist()
    yield [first, second]
    end_at_once(second)


@pytest.fixture(scope="module")
def replicated(replicas: list[Workload], stages: Stages) -> Scene:
    return stages(replicas[0], changed=True)


def refused(creations: list[Creation]) -> list[bytes]:
    return [creation.body for creation in creations if creation.status != 201]


def unchanged(creations: list[Creation]) -> list[Creation]:
    return [creation for creation in creations if HOLD.encode() not in creation.body]


def test_a_certificate_of_a_new_authority_misses_no_pod(
    cluster: lab.Cluster, replicas: list[Workload], replicated: Scene
):
    """The API server trusts both, then each process changes, then it forgets the old."""
    old = replicas[0].authority.certificate
    new = certificates.make_authority("replicated", "replicated")
    with Stream(cluster, meshed.nameless(replicated.namespace, sidecar=None), rate=SOME) as pods:
        pods.await_more(SOME // 5)
        for replica in replicas:
            replica.authority = new
        replicas[0].trusted = (old,)
        replicas[0].publish()
        chains = [replica.renew_certificate() for replica in replicas]
        lab.until(
            lambda: all(served_by(r) in chain for r, chain in zip(replicas, chains, strict=True)),
            what="both to serve their new certificates",
        )
        pods.await_more(SOME // 5)
        replicas[0].trusted = ()
        replicas[0].publish()
        pods.await_more(SOME // 5)

    assert refused(pods.creations) == []
    assert unchanged(pods.creations) == []


def served_by(replica: Workload) -> str:
    return ssl.get_server_certificate((replica.cluster.host, replica.webhook_port)).strip()


def test_a_killed_replica_fails_no_creation(
    cluster: lab.Cluster, replicas: list[Workload], replicated: Scene
):
    """istio#26380: pods may be unchanged, but only until the dead process is out of the Service."""
    replicas[1].process.end()

    # More at once than the API server has connections to the other one: some go to the dead one.
    burst = [meshed.nameless(replicated.namespace, sidecar=None) for _ in range(MANY)]
    assert refused(creation.create(cluster, *burst)) == []

    replicas[1].enlist(ready=False)
    lab.until(
        lambda: unchanged(creation.create(cluster, *burst[:SOME])) == [],
        what="every pod to be changed by the one that is left",
    )


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
            client.create(Namespace(metadata=ObjectMeta(name=name(by), labels={SETTING: name(by)})))
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


POLICIES = Path(__file__).parents[2] / "examples/training-peers.yaml"


@pytest.mark.parametrize("document", [*yaml.safe_load_all(POLICIES.read_text())])
def test_the_network_policies_that_we_ship_are_accepted(
    client: lightkube.Client, namespace: str, document: dict[str, Any]
):
    """Nothing in them is dropped as unknown."""
    document["metadata"]["namespace"] = namespace

    made = client.create(from_dict(document)).to_dict()

    assert made["spec"] == document["spec"]
