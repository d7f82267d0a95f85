"""Other sidecars than Istio's become native ones at a real API server, which accepts the pods."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import lab.istio
import lightkube
import pytest
from istio_aux.model import resources
from istio_aux.model.annotations import NATIVE_SIDECAR, START
from istio_aux.model.pod import convert
from lab import creation, meshed, workloads
from lab.creation import Creation
from lab.fixtures import await_account
from lab.hooks import mutating
from lab.sidecar_cases import CASES, OPTION, Case, container, outcome
from lab.workload import Programs, ask
from lab.workload import Workload as Program
from lab.workloads import job, template
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

# The revision of an Istio of its own: the workloads ignore those of other modules.
ISTIO = "sidecars-istio"
NAME = "sidecars"
# It sorts after our webhook and after Istio's.
INJECTOR = "vault-agent-injector"
SIDECAR = ["vault-agent*"]
BY_OPTION = [case for case in CASES if case.option == OPTION]


@pytest.fixture(scope="module")
def istio(cluster: lab.Cluster) -> Iterator[lab.istio.Istio]:
    istio = lab.istio.install(cluster, ISTIO, revision=ISTIO, native="default")
    yield istio
    istio.remove()


@pytest.fixture(scope="module")
def program(istio: lab.istio.Istio, programs: Programs) -> Program:
    """A workload with the option in force, which knows that sidecars can be native."""
    settings = {"quit": "disabled", "root-namespace": ISTIO, "sidecars": OPTION}
    return programs(NAME, settings, revisions=(ISTIO,))


@pytest.fixture(scope="module")
def namespace(cluster: lab.Cluster, client: lightkube.Client, program: Program) -> Iterator[str]:
    """A namespace that it looks after."""
    workload, team = program, f"{NAME}-team"
    labels = {f"lab.test/{NAME}": "yes", "istio.io/rev": ISTIO}
    client.create(Namespace(metadata=ObjectMeta(name=team, labels=labels)))
    await_account(client, team)
    workload.await_capability("unasked")
    workload.publish()
    workload.await_admission(team)
    lab.until(
        lambda: became(create(cluster, team, Case(name=""))[0]) == (["main"], SIDECAR),
        what="the webhook to be known",
    )
    yield team
    workload.withdraw()


def create(cluster: lab.Cluster, namespace: str, *cases: Case) -> list[Creation]:
    pods = [meshed.written(case.pod, namespace) for case in cases]
    return creation.create(cluster, *pods, dry_run=True)


def became(made: Creation) -> tuple[list[str], list[str]]:
    return outcome(made.pod.to_dict()["spec"])


def test_pods_become_and_authors_are_told_what_the_table_says(
    cluster: lab.Cluster, namespace: str
) -> None:
    """None is refused: the API server's validation comes after the webhook."""
    made = list(zip(BY_OPTION, create(cluster, namespace, *BY_OPTION), strict=True))

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
    cluster: lab.Cluster, namespace: str, program: Program
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
    cluster: lab.Cluster, namespace: str, start: str
) -> None:
    """KEP-2837, istio#57393, istio#58769. Limits count beside a classic proxy alone."""
    pods = [Case(name="").pod for _ in range(2 * len(OWN))]
    annotations = {START: start} | ({NATIVE_SIDECAR: "false"} if start == "hold" else {})
    for number, pod in enumerate(pods):
        pod["metadata"]["annotations"] = annotations
        main = {"name": "main", "image": "busybox"}
        requests = {"resources": {"requests": SMALL}} if number % 2 else {}
        pod["spec"] |= {"containers": [main | requests], "resources": OWN[number // 2]}
    written = [meshed.written(pod, namespace) for pod in pods]

    made = creation.create(cluster, *written, dry_run=True)

    foreseen = [resources.too_small(convert(pod), native=start == "native") for pod in pods]
    said = [(each.status, json.loads(each.body).get("message", "")[:300]) for each in made]
    assert [status == 422 for status, _ in said] == [*map(bool, foreseen)], (said, foreseen)
    assert 0 < sum(map(bool, foreseen)) < len(pods)


def test_istio_refuses_a_pod_whose_configuration_takes_the_status_port_away(
    client: lightkube.Client, namespace: str
) -> None:
    """So nothing is decided about it: neither hold nor a native sidecar would be ready there."""
    asked = {"proxy.istio.io/config": "statusPort: 0"}
    pod = meshed.pod(namespace, "portless", annotations=asked, sidecar=None)

    with pytest.raises(lightkube.ApiError, match="invalid status port: port number 0"):
        client.create(pod)


def counting(
    client: lightkube.Client,
    namespace: str,
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
    written["metadata"] = {"name": name, "namespace": namespace}
    made = client.create(workloads.Job.from_dict(written))["metadata"]
    about = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made["uid"]}
    return {**about, "controller": True}


@pytest.mark.parametrize(("named", "expected"), [(None, []), ("main", SIDECAR)], ids=str)
def test_a_sidecar_stays_if_its_job_would_count_its_exit_code(
    cluster: lab.Cluster,
    client: lightkube.Client,
    namespace: str,
    named: str | None,
    expected: list[str],
) -> None:
    """A rule that names no container counts 143 of a sidecar that ends at SIGTERM.

    cloud-sql-proxy#1803.
    """
    owner = counting(client, namespace, f"counts-{named}".lower(), named)
    pod = Case(name="").pod
    pod["metadata"]["ownerReferences"] = [owner]

    [made] = creation.create(cluster, meshed.written(pod, namespace), dry_run=True)

    assert became(made)[1] == expected


def test_explain_and_check_name_jobs_that_count_the_exit_codes_of_native_sidecars(
    cluster: lab.Cluster, client: lightkube.Client, namespace: str, program: Program
) -> None:
    """cloud-sql-proxy#1803: the proxy of its pod is native in any case."""
    counting(client, namespace, "explained", suspend=False)
    made: dict[str, Any] = {"batch.kubernetes.io/job-name": "explained"}
    lab.until(lambda: [*client.list(Pod, namespace=namespace, labels=made)], what="its pod")

    def said(*argv: str) -> str:
        return ask(cluster.kubeconfig, *argv, "--config", program.config).stdout

    why = "istio-proxy: a rule of podFailurePolicy that names no container counts its exit code"
    assert why in said("explain", "-n", namespace, "job/explained")
    assert f"{namespace}/explained" in said("check", "-o", "json")


def added(pod: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """What an injector of sidecars adds to a pod that has none of its own yet."""
    every = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    if any(each["name"] == "vault-agent" for each in every):
        return []
    return [{"op": "add", "path": "/spec/containers/-", "value": container("vault-agent")}]


@pytest.fixture
def injector(cluster: lab.Cluster, namespace: str) -> Iterator[None]:
    """A webhook that is called after Istio's, and adds a sidecar."""
    ours = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    with mutating(cluster, INJECTOR, {INJECTOR: added}, {INJECTOR: ours}):
        yield


@pytest.mark.usefixtures("injector")
def test_a_sidecar_that_a_later_webhook_adds_becomes_native(
    cluster: lab.Cluster, namespace: str
) -> None:
    """The API server calls again only webhooks that it has called before."""
    plain = Case(name="", containers=[container("main")])

    def sidecar() -> bool:
        [made] = create(cluster, namespace, plain)
        regular, init = became(made)
        return len(regular + init) == 2

    lab.until(sidecar, what="the injector to be known")
    [made] = create(cluster, namespace, plain)

    assert became(made) == (["main"], SIDECAR)
