"""The webhooks among others, and what they make beside a real Istio.

One is called before ours, which is reported; later ones undo what it did, or add more.

Applications whose pods are to get a sidecar, past Istio: the configurations are the charm's, one
for each form of admission; the pods are those of charms as Juju labels them.

Other sidecars than Istio's become native ones, and the API server accepts the pods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lab.istio
import lightkube
import pytest
from istio_aux.model import resources
from istio_aux.model.annotations import INJECT, NATIVE_SIDECAR, START, STARTED_WITH
from istio_aux.model.pod import convert
from istio_aux.start.hold import ANNOTATION as CONFIG, HOLD
from lab import creation, meshed, workloads
from lab.creation import Creation
from lab.fixtures import await_account, make_namespace
from lab.hooks import mutating
from lab.meshed import PROXY, annotations_of, has_sidecar, typed
from lab.scene import Scene
from lab.sidecar_cases import CASES, OPTION, Case, container, outcome
from lab.start_cases import HELD
from lab.workload import Programs, Workload, ask, metric, renamed
from lab.workloads import job, template
from lightkube import codecs
from lightkube.codecs import AnyResource
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace, Pod

import manifests
from config import Applications


def await_told(workload: Workload, *names: str) -> None:
    """Return when /status names these configurations and no other, and metric and log agree."""
    lab.until(
        lambda: workload.status()["called-before-us"] == [*names],
        what=f"/status to name {names or 'no configuration'}",
    )
    assert metric(workload, "istio_aux_configurations_called_before_ours") == len(names)
    told = [line["before"] for line in workload.lines() if line["event"] == "order"]
    assert (told or [[]])[-1] == [*names]


def test_a_configuration_that_is_called_before_ours_is_reported_until_it_is_deactivated(
    client: lightkube.Client, programs: Programs
):
    """A vendor may call it anything. One that is called after ours is none of our business.

    istio#43074.
    """
    workload = programs("ordered", {"quit": "disabled"})
    before: list[str] = workload.status()["called-before-us"]
    made: dict[str, MutatingWebhookConfiguration] = {}
    for name in ("zzz-sidecar-injector", "aaa-sidecar-injector"):
        webhook = {
            "name": "namespace.sidecar-injector.istio.io",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:9/inject"},
            "namespaceSelector": {"matchLabels": {"lab.test/nobody": "yes"}},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                 "resources": ["pods"]},
            ],
            "sideEffects": "None",
        }  # fmt: skip
        made[name] = client.create(
            typed(MutatingWebhookConfiguration, {"metadata": {"name": name}, "webhooks": [webhook]})
        )
    await_told(workload, "aaa-sidecar-injector", *before)

    [first] = made["aaa-sidecar-injector"].webhooks or []
    # As istioctl does.
    first.namespaceSelector = first.objectSelector = LabelSelector(
        matchLabels={"istio.io/deactivated": "never-match"}
    )
    client.replace(made["aaa-sidecar-injector"])
    await_told(workload, *before)

    for name in made:
        client.delete(MutatingWebhookConfiguration, name)


def replace(pod: dict[str, Any]) -> list[dict[str, Any]]:
    path = "/metadata/annotations/proxy.istio.io~1config"
    return [{"op": "replace", "path": path, "value": "concurrency: 2 # theirs\n"}]


def remove(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"op": "remove", "path": "/metadata/annotations"}]


def annotate(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"op": "add", "path": "/metadata/annotations/theirs", "value": "added"}]


def contain(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"op": "add", "path": "/spec/containers/0", "value": {"name": "agent", "image": "none"}}
    ]


LATER = {make.__name__: make for make in (replace, remove, annotate, contain)}


@pytest.fixture(scope="module")
def later(cluster: lab.Cluster, served: Scene) -> Iterator[None]:
    """Webhooks that are called after ours, for pods that ask for one by label `lab.test/later`."""
    asked = {name: {"objectSelector": {"matchLabels": {"lab.test/later": name}}} for name in LATER}
    with mutating(cluster, "later", LATER, asked) as calls:
        lab.until(
            lambda: create_for(cluster, served, "annotate") and calls["annotate"],
            what="the later webhooks to be called",
        )
        yield


def create_for(cluster: lab.Cluster, scene: Scene, later: str) -> creation.Creation:
    """Create a pod that is shown to this later webhook, too."""
    [made] = creation.create(
        cluster, meshed.nameless(scene.namespace, sidecar=None, labels={"lab.test/later": later})
    )
    return made


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ("replace", {CONFIG: f"concurrency: 2 # theirs\n{HOLD}: true\n", STARTED_WITH: "hold"}),
        ("remove", HELD),
        ("annotate", {**HELD, "theirs": "added"}),
        ("contain", HELD),
    ],
)
@pytest.mark.usefixtures("later")
def test_what_a_later_webhook_changes_is_looked_at_again(
    cluster: lab.Cluster, served: Scene, webhook: Workload, change: str, made: dict[str, str]
):
    """Called twice, hold is in the pod once, beside all that the other webhook did."""
    pod = create_for(cluster, served, change)

    assert annotations_of(pod.pod) == made
    assert pod.pod.spec
    assert ("agent" in {c.name for c in pod.pod.spec.containers}) is (change == "contain")
    ours = manifests.webhook_configuration(webhook.name, webhook.model)
    calls = {k: json.loads(v) for k, v in pod.audit(cluster).items() if k.startswith("mutation.")}
    mine = {key: call for key, call in calls.items() if call["configuration"] == ours}
    assert [key.partition("/")[2].split("_")[1] for key in sorted(mine)] == ["0", "1"]
    again = [call["mutated"] for _, call in sorted(mine.items())]
    assert again == [True, change in {"replace", "remove"}]


def test_check_finds_a_second_installation_and_one_without_a_ready_pod(
    cluster: lab.Cluster, client: lightkube.Client, webhook: Workload
):
    """It has the settings of the first one, and its pods are gone."""
    first = manifests.webhook_configuration(webhook.name, webhook.model)
    second = f"{first}-left"
    made = client.get(MutatingWebhookConfiguration, first).to_dict()
    made["metadata"] = {"name": second, "annotations": made["metadata"]["annotations"]}
    for hook in made["webhooks"]:
        hook["clientConfig"]["service"]["name"] = "gone"
    client.create(codecs.from_dict(made))

    said = ask(cluster.kubeconfig, "check", "-o", "json").stdout.splitlines()

    client.delete(MutatingWebhookConfiguration, second)
    found = [each for line in said if (each := json.loads(line))["check"] == "installation"]
    shared, alone = sorted(each["what"] for each in found if each["result"] == "problem")
    assert shared.startswith(f"{first} and {second} select the same namespaces: ")
    assert f"{second}: no pod of Service " in alone
    assert alone.endswith("/gone is ready: new pods are not changed")


AMBIENT = {"istio.io/dataplane-mode": "ambient"}
# Namespaces of each mode, with their labels, and whose pods are asked for there.
MODELS: Mapping[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "named": ({}, ("db", "web")),
    "every": ({}, ("*",)),
    "disabled": ({"istio-injection": "disabled"}, ("*",)),
    "ambient": (AMBIENT, ("*",)),
    "both": ({**AMBIENT, "istio-injection": "enabled"}, ("*",)),
}


@dataclass(frozen=True)
class Asking:
    model: str
    app: str | None = "web"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])
    asks: bool = False
    meshed: bool = False


# Juju adds the controller's label, which is below. Either is enough.
MODELOPERATOR = {"operator.juju.is/name": "modeloperator", "operator.juju.is/target": "model"}
ASKING = {
    "a pod of a named application": Asking("named", asks=True, meshed=True),
    "another named application": Asking("named", "db", asks=True, meshed=True),
    "an application that nobody named": Asking("named", "cache"),
    "a pod of no application": Asking("named", None),
    "the same application of another model": Asking("other"),
    "any application of a model": Asking("every", "anything", asks=True, meshed=True),
    "no application in a model of which all are asked for": Asking("every", None),
    "a label that says no": Asking("named", labels={INJECT: "false"}),
    "an annotation that says no": Asking("named", annotations={INJECT: "false"}),
    "a label that says yes": Asking("named", labels={INJECT: "true"}, asks=True, meshed=True),
    "host network": Asking("named", spec={"hostNetwork": True}),
    "a pod that is ambient": Asking("named", labels=AMBIENT),
    "a pod that is ambient and injected": Asking("both", labels=AMBIENT, meshed=True),
    "a pod that is ambient and asks itself": Asking(
        "named", labels={**AMBIENT, INJECT: "true"}, asks=True, meshed=True
    ),
    "the operator of a model": Asking("every", "modeloperator", MODELOPERATOR),
    "an operator of an old Juju": Asking("every", "x", {"juju-modeloperator": "modeloperator"}),
    "an operator of an application": Asking(
        "every", labels={"operator.juju.is/name": "web"}, asks=True, meshed=True
    ),
    "the controller": Asking("every", "controller", {"model.juju.is/disable-webhook": "true"}),
    "we ourselves": Asking("ours", "istio-aux"),
    "a neighbour of ours": Asking("ours", asks=True, meshed=True),
    "an application in another model that has our name": Asking(
        "every", "istio-aux", asks=True, meshed=True
    ),
    "a namespace that forbids it": Asking("disabled", asks=True),
    "an ambient namespace": Asking("ambient"),
    "an ambient namespace that is injected": Asking("both", asks=True, meshed=True),
    "a pod that asks in an ambient namespace": Asking(
        "ambient", labels={INJECT: "true"}, asks=True, meshed=True
    ),
}


def model(name: str) -> str:
    return "istio-aux" if name == "ours" else f"inject-{name}"


LONGEST = "z" * 63


def pod_of(case: Asking) -> Pod:
    labels = {"app.kubernetes.io/name": case.app} if case.app else {}
    pod = meshed.nameless(
        model(case.model),
        labels={**labels, **case.labels},
        sidecar=None,
        annotations=case.annotations,
    ).to_dict()
    pod["spec"] |= case.spec
    return meshed.written(pod, model(case.model))


def asks(pod: Pod) -> bool:
    return (meshed.meta(pod).labels or {}).get(INJECT) == "true"


@pytest.fixture(scope="module")
def in_force(
    cluster: lab.Cluster, client: lightkube.Client, workload: Workload, istio: lab.istio.Istio
) -> Iterator[list[AnyResource]]:
    namespaces = {model(name): labels for name, (labels, _) in MODELS.items()}
    for name, labels in (namespaces | {model("other"): {}}).items():
        client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
    workload.enlist()
    asked = [Applications(model(name), names) for name, (_, names) in MODELS.items()]
    values = manifests.Values(
        workload.name,
        workload.model,
        # Of none of these namespaces.
        namespace_selectors=[{"matchLabels": {"lab.test/inject": "unselected"}}],
        ca_bundle=workload.authority.certificate,
        inject=(*asked, Applications(workload.model, ("*",))),
    )
    # Before Istio's.
    made = renamed(manifests.render_webhook(values), values, "inject")
    for resource in made:
        client.apply(resource, field_manager="lab", force=True)
    for name in (*MODELS, "other"):
        await_account(client, model(name))
    await_account(client, workload.model)
    probe = pod_of(ASKING["a pod of a named application"])
    lab.until(
        lambda: has_sidecar(client.create(probe, dry_run=True)),
        what="the configuration to be in force",
    )
    yield made
    meshed.delete(client, made)


@pytest.fixture(scope="module")
def created(cluster: lab.Cluster, in_force: list[AnyResource]) -> dict[str, Creation]:
    what = {name: pod_of(case) for name, case in ASKING.items()}
    return dict(zip(what, creation.create(cluster, *what.values(), dry_run=True), strict=True))


def test_who_asks_for_a_sidecar_gets_it_where_istio_may_and_starts_after_it(
    created: dict[str, Creation],
):
    """Whatever namespace-selectors are, and injection beats the ambient label."""
    pods = {case: created[case].pod for case in ASKING}

    found = {name: (asks(pod), has_sidecar(pod)) for name, pod in pods.items()}
    assert found == {name: (case.asks, case.meshed) for name, case in ASKING.items()}
    held = {n for n, pod in pods.items() if meshed.annotations_of(pod).get(STARTED_WITH) == "hold"}
    assert held == {name for name, case in ASKING.items() if case.asks or case.meshed}
    specs = [pod.spec for name, pod in pods.items() if ASKING[name].meshed]
    assert {spec.containers[0].name for spec in specs if spec} == {PROXY}


def test_names_may_be_as_long_as_names_may_be(client: lightkube.Client):
    names = tuple(f"{LONGEST[:60]}{i:03}" for i in range(300))
    asked = (Applications(LONGEST, names), Applications("a", ("*",)), Applications("1-a", ("1",)))

    (configuration,) = manifests.render_webhook(
        manifests.Values(LONGEST, LONGEST, ca_bundle="", inject=asked)
    )

    made = client.create(configuration, dry_run=True).to_dict()
    assert [webhook["name"] for webhook in made["webhooks"][1:]] == [
        f"{LONGEST}.inject.istio-aux.io",
        "a.inject.istio-aux.io",
        "1-a.inject.istio-aux.io",
    ]


# The revision of an Istio of its own: the workloads ignore those of other modules.
ISTIO = "sidecars-istio"
NAME = "sidecars"
# It sorts after our webhook and after Istio's.
INJECTOR = "vault-agent-injector"
SIDECAR = ["vault-agent*"]
BY_OPTION = [case for case in CASES if case.option == OPTION]


@pytest.fixture(scope="module")
def own_istio(cluster: lab.Cluster) -> Iterator[lab.istio.Istio]:
    istio = lab.istio.install(cluster, ISTIO, revision=ISTIO, native="default")
    yield istio
    istio.remove()


@pytest.fixture(scope="module")
def program(own_istio: lab.istio.Istio, programs: Programs) -> Workload:
    """A workload with the option in force, which knows that sidecars can be native."""
    return programs(
        NAME, {"quit": "disabled", "root-namespace": ISTIO, "sidecars": OPTION}, revisions=(ISTIO,)
    )


@pytest.fixture(scope="module")
def team(cluster: lab.Cluster, client: lightkube.Client, program: Workload) -> Iterator[str]:
    """A namespace that it looks after."""
    workload, team = program, f"{NAME}-team"
    make_namespace(client, team, {f"lab.test/{NAME}": "yes", "istio.io/rev": ISTIO})
    workload.await_capability("unasked")
    workload.publish()
    workload.await_admission(team)
    lab.until(
        lambda: became(create(cluster, team, Case(name=""))[0]) == (["main"], SIDECAR),
        what="the webhook to be known",
    )
    yield team
    workload.withdraw()


def create(cluster: lab.Cluster, team: str, *cases: Case) -> list[Creation]:
    return creation.create(
        cluster, *[meshed.written(case.pod, team) for case in cases], dry_run=True
    )


def became(made: Creation) -> tuple[list[str], list[str]]:
    return outcome(made.pod.to_dict()["spec"])


def test_pods_become_and_authors_are_told_what_the_table_says(
    cluster: lab.Cluster, team: str
) -> None:
    """None is refused: the API server's validation comes after the webhook."""
    made = list(zip(BY_OPTION, create(cluster, team, *BY_OPTION), strict=True))

    found = {case.name: became(each) for case, each in made}
    assert found == {case.name: case.expected for case in BY_OPTION}
    told = {
        case.name: " ".join(text for text in each.warnings if "istio-aux: " in text)
        for case, each in made
    }
    assert {name for name, text in told.items() if text} == {
        case.name for case in BY_OPTION if case.warns
    }
    assert all(case.warns in told[case.name] for case in BY_OPTION)


def test_the_address_that_brings_a_dry_run_of_ours_is_known_as_the_api_servers(
    cluster: lab.Cluster, team: str, program: Workload
) -> None:
    """The injector is probed in the namespace that is selected."""

    def known() -> list[str]:
        return [line["message"] for line in program.lines() if line["event"] == "api-server"]

    lab.until(known, what="an API server to be known")

    assert known() == [f"{cluster.host} is an API server's"]


SMALL, LARGE = {"cpu": "500m", "memory": "512Mi"}, {"cpu": "2500m", "memory": "2Gi"}
OWN: list[dict[str, Any]] = [
    {"requests": SMALL}, {"requests": LARGE}, {"requests": {"cpu": "599m"}}, {"limits": LARGE},
    {"requests": {"cpu": "600m"}}, {"requests": {"cpu": "600m"}, "limits": {"cpu": "1"}},
    {"limits": SMALL, "requests": SMALL}, {"limits": {"memory": "512Mi"}},
]  # fmt: skip


@pytest.mark.parametrize("start", ["native", "hold"])
def test_a_pod_whose_own_resources_are_too_small_for_its_sidecar_is_refused_as_foreseen(
    cluster: lab.Cluster, team: str, start: str
) -> None:
    """KEP-2837, istio#57393, istio#58769. Limits count beside a classic proxy alone."""
    pods = [Case(name="").pod for _ in range(2 * len(OWN))]
    annotations = {START: start} | ({NATIVE_SIDECAR: "false"} if start == "hold" else {})
    for number, pod in enumerate(pods):
        pod["metadata"]["annotations"] = annotations
        main = {"name": "main", "image": "busybox"}
        requests = {"resources": {"requests": SMALL}} if number % 2 else {}
        pod["spec"] |= {"containers": [main | requests], "resources": OWN[number // 2]}
    written = [meshed.written(pod, team) for pod in pods]

    made = creation.create(cluster, *written, dry_run=True)

    foreseen = [resources.too_small(convert(pod), native=start == "native") for pod in pods]
    said = [(each.status, json.loads(each.body).get("message", "")[:300]) for each in made]
    assert [status == 422 for status, _ in said] == [*map(bool, foreseen)], (said, foreseen)
    assert 0 < sum(map(bool, foreseen)) < len(pods)


def test_istio_refuses_a_pod_whose_configuration_takes_the_status_port_away(
    client: lightkube.Client, team: str
) -> None:
    """So nothing is decided about it: neither hold nor a native sidecar would be ready there."""
    pod = meshed.pod(
        team, "portless", annotations={"proxy.istio.io/config": "statusPort: 0"}, sidecar=None
    )

    with pytest.raises(lightkube.ApiError, match="invalid status port: port number 0"):
        client.create(pod)


def counting(
    client: lightkube.Client,
    team: str,
    name: str,
    container_name: str | None = None,
    *,
    suspend: bool = True,
) -> dict[str, Any]:
    """A new Job whose failure policy counts the exit codes of this container, or of all."""
    codes: dict[str, Any] = {"operator": "NotIn", "values": [3]}
    named = {"containerName": container_name} if container_name else {}
    policy = {"rules": [{"action": "FailJob", "onExitCodes": {**codes, **named}}]}
    ends = template(container("main"), terminationGracePeriodSeconds=30)
    written = job(ends, suspend=suspend, podFailurePolicy=policy)
    written["metadata"] = {"name": name, "namespace": team}
    made = client.create(workloads.Job.from_dict(written))["metadata"]
    about = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made["uid"]}
    return {**about, "controller": True}


@pytest.mark.parametrize(("named", "expected"), [(None, []), ("main", SIDECAR)], ids=str)
def test_a_sidecar_stays_if_its_job_would_count_its_exit_code(
    cluster: lab.Cluster,
    client: lightkube.Client,
    team: str,
    named: str | None,
    expected: list[str],
) -> None:
    """A rule that names no container counts 143 of a sidecar that ends at SIGTERM.

    cloud-sql-proxy#1803.
    """
    owner = counting(client, team, f"counts-{named}".lower(), named)
    pod = Case(name="").pod
    pod["metadata"]["ownerReferences"] = [owner]

    [made] = creation.create(cluster, meshed.written(pod, team), dry_run=True)

    assert became(made)[1] == expected


def test_explain_and_check_name_jobs_that_count_the_exit_codes_of_native_sidecars(
    cluster: lab.Cluster, client: lightkube.Client, team: str, program: Workload
) -> None:
    """cloud-sql-proxy#1803: the proxy of its pod is native in any case."""
    counting(client, team, "explained", suspend=False)
    made: dict[str, Any] = {"batch.kubernetes.io/job-name": "explained"}
    lab.until(lambda: [*client.list(Pod, namespace=team, labels=made)], what="its pod")

    def said(*argv: str) -> str:
        return ask(cluster.kubeconfig, *argv, "--config", program.config).stdout

    why = "istio-proxy: a rule of podFailurePolicy that names no container counts its exit code"
    assert why in said("explain", "-n", team, "job/explained")
    assert f"{team}/explained" in said("check", "-o", "json")


def added(pod: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """What an injector of sidecars adds to a pod that has none of its own yet."""
    every = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    if any(each["name"] == "vault-agent" for each in every):
        return []
    return [{"op": "add", "path": "/spec/containers/-", "value": container("vault-agent")}]


@pytest.fixture
def injector(cluster: lab.Cluster, team: str) -> Iterator[None]:
    """A webhook that is called after Istio's, and adds a sidecar."""
    ours = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team}}}
    with mutating(cluster, INJECTOR, {INJECTOR: added}, {INJECTOR: ours}):
        yield


@pytest.mark.usefixtures("injector")
def test_a_sidecar_that_a_later_webhook_adds_becomes_native(
    cluster: lab.Cluster, team: str
) -> None:
    """The API server calls again only webhooks that it has called before."""
    plain = Case(name="", containers=[container("main")])

    def sidecar() -> bool:
        [made] = create(cluster, team, plain)
        regular, init = became(made)
        return len(regular + init) == 2

    lab.until(sidecar, what="the injector to be known")
    [made] = create(cluster, team, plain)

    assert became(made) == (["main"], SIDECAR)
