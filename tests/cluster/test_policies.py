"""What the workload's account may do when RBAC would let it do anything.

The account of a workload that does not run is made an administrator, by mistake as it were, so that
what is refused is refused by the charm's ValidatingAdmissionPolicies. Requests to pods are real up
to the upgrade to a stream, which they do not ask for. All others are dry runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import lab
import lightkube
import pytest
from lab import creation, meshed
from lab.creation import PODS, QUIT, Account, administrator
from lab.fixtures import await_account
from lab.kubelet import ScriptedKubelet
from lab.workload import Programs
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import ValidatingAdmissionPolicy
from lightkube.resources.core_v1 import Namespace, Pod, ServiceAccount

import manifests
from config import Applications

MODEL = "narrowed"
CHOSEN, OTHER, INJECTED = "narrowed-chosen", "narrowed-other", "narrowed-injected"
SEEN = ("uid", "resourceVersion")


@pytest.fixture(scope="module")
def pods(client: lightkube.Client, kubelet: ScriptedKubelet) -> None:
    """In a chosen and in other namespaces a pod with a proxy, and one without; and two by label.

    The proxies of those two, and of pods with the name `lost`, have terminated.
    """
    other = {"narrowed": "other"}
    for name, labels in {CHOSEN: {"narrowed": "chosen"}, OTHER: other, INJECTED: other}.items():
        client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
        account = ServiceAccount(metadata=ObjectMeta(name="default", namespace=name))
        client.apply(account, field_manager="lab")
        kubelet.run(client.create(meshed.pod(name, "meshed")))
        kubelet.run(client.create(meshed.pod(name, "plain", sidecar=None)))
        lose(kubelet, client.create(meshed.pod(name, "lost")))
    labelled = {"web": (INJECTED, "app.kubernetes.io/name"), "hands-off": (CHOSEN, "hands-off")}
    for name, (namespace, key) in labelled.items():
        lose(kubelet, client.create(meshed.pod(namespace, name, labels={key: name})))


def lose(kubelet: ScriptedKubelet, pod: Pod) -> None:
    kubelet.run(pod)
    kubelet.finish(pod, meshed.PROXY, 137)


@pytest.fixture(scope="module")
def account(
    cluster: lab.Cluster, client: lightkube.Client, programs: Programs, pods: None
) -> Iterator[Account]:
    """The workload's own, once its policies are in force."""
    deployed = programs(
        MODEL,
        {
            "pod-selector": "!hands-off",
            "race-policy": "restart",
            "sidecars": "helper=9000/stop",
        },
        start=False,
        selector="narrowed=chosen",
        inject=(Applications(INJECTED, ("web",)),),
    )
    await_account(client, MODEL)
    account = administrator(cluster, MODEL, manifests.service_account(deployed.name))
    lab.until(
        lambda: (
            "never attaches" in account.connect("attach", f"{CHOSEN}/meshed")
            and "denied request" in account.create_lease(MODEL, {"name": "another-controller"})
            and "403: " in account.create(nobody("kube-system"), dryRun="All")
        ),
        what="the policies to be in force",
    )
    yield account
    account.close()


def execute(where: str, *command: str, **options: str) -> Callable[[Account], str]:
    return lambda account: account.execute(f"{CHOSEN}/{where}", command, **options)


def delete(where: str) -> Callable[[Account], str]:
    return lambda account: account.delete(where, *SEEN)


def connect(how: str, where: str, **options: str) -> Callable[[Account], str]:
    return lambda account: account.connect(how, where, **options)


def lease(**metadata: str) -> Callable[[Account], str]:
    return lambda account: account.create_lease(MODEL, metadata)


def change(subresource: str, kind: str, value: object) -> Callable[[Account], str]:
    path = f"{PODS.format(CHOSEN)}/meshed{subresource}"
    return lambda account: account.patch(path, {kind: value})


ALLOWED: dict[str, Callable[[Account], str]] = {
    **{" ".join(each): execute("meshed", *each) for each in manifests.QUIT_COMMANDS},
    "a port is forwarded": connect("portforward", f"{CHOSEN}/meshed", ports="15020"),
    "a pod whose proxy has terminated is deleted": delete(f"{CHOSEN}/lost"),
    # Where an application is injected, though the namespace is not selected.
    "injected: exec": lambda account: account.execute(f"{INJECTED}/web"),
    "injected: forward": connect("portforward", f"{INJECTED}/web", ports="15020"),
    "injected: delete": delete(f"{INJECTED}/web"),
    "its own Lease": lease(name=MODEL),
}
COMMANDS = "executes the commands that make a proxy exit only"
CONTAINERS = "executes in the container istio-proxy only"
WITHOUT_INPUT = "executes without input and terminal only"
TERMINATED = "deletes pods whose container istio-proxy has terminated only"
SELECTED = "only in namespaces that the option namespace-selectors matches"
NEVER = "never attaches, proxies or changes a pod"
INTRUDER = {"ephemeralContainers": [{"name": "intruder", "image": "none"}]}
REFUSED: dict[str, tuple[Callable[[Account], str], str]] = {
    "a shell": (execute("meshed", "sh", "-c", " ".join(QUIT)), COMMANDS),
    "one word more": (
        execute("meshed", "pilot-agent", "request", "POST", "quitquitquit", "--debug-port=22"),
        COMMANDS),
    "another port": (
        execute("meshed", "pilot-agent", "request", "--debug-port=22", "POST", "quitquitquit"),
        COMMANDS),
    "the payload's container": (execute("meshed", *QUIT, container="main"), CONTAINERS),
    "a sidecar that is told by a POST": (
        execute("meshed", "/bin/kill", "1", container="helper"), CONTAINERS),
    # It would be the first container, or the one that an annotation says.
    "no container": (execute("meshed", *QUIT, container=""), CONTAINERS),
    "an input": (execute("meshed", *QUIT, stdin="true"), WITHOUT_INPUT),
    "a terminal": (execute("meshed", *QUIT, tty="true"), WITHOUT_INPUT),
    "attach": (connect("attach", f"{CHOSEN}/meshed", container="istio-proxy"), NEVER),
    # It would reach any port of any pod by any HTTP request.
    "the API server's proxy": (connect("proxy", f"{CHOSEN}/meshed"), NEVER),
    "the API server's proxy, elsewhere": (connect("proxy", f"{OTHER}/meshed"), "denied request"),
    "a pod without a proxy is deleted": (delete(f"{CHOSEN}/plain"), TERMINATED),
    "a pod whose proxy runs is deleted": (delete(f"{CHOSEN}/meshed"), TERMINATED),
    "not selected: exec": (lambda account: account.execute(f"{OTHER}/lost"), SELECTED),
    "not selected: forward": (connect("portforward", f"{OTHER}/lost"), SELECTED),
    "not selected: delete": (delete(f"{OTHER}/lost"), SELECTED),
    "injected: a pod of another application is deleted": (
        delete(f"{INJECTED}/lost"), "deletes pods of injected applications only"),
    # Requests to execute show no labels: of those the workload alone judges.
    "a pod that the pod selector does not match is deleted": (
        delete(f"{CHOSEN}/hands-off"), "only where namespace or pod is not selected"),
    "a label": (change("", "metadata", {"labels": {"a": "b"}}), NEVER),
    # It runs any image beside the payload.
    "an ephemeral container": (change("/ephemeralcontainers", "spec", INTRUDER), NEVER),
    # Who creates another controller's Lease first keeps that controller from leading.
    "another Lease": (lease(name="another-controller"), f"writes Lease {MODEL} only"),
    "a generated Lease": (lease(generateName=MODEL), f"writes Lease {MODEL} only"),
}  # fmt: skip


@pytest.mark.parametrize("what", ALLOWED)
def test_what_the_workload_does_is_allowed(account: Account, what: str):
    assert ALLOWED[what](account) == ""


@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_refused(account: Account, what: str):
    attempt, message = REFUSED[what]

    refusal = attempt(account)

    assert refusal.startswith("403: ")
    assert message in refusal


def test_a_status_that_a_kubelet_writes_is_no_work_for_a_policy(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet, account: Account
):
    before, pod = passed(cluster), client.create(meshed.pod(CHOSEN, "finishing"))
    kubelet.run(pod)
    kubelet.finish(pod, "main")

    assert passed(cluster) == before
    client.patch(Pod, "finishing", {"metadata": {"labels": {"a": "b"}}}, namespace=CHOSEN)
    assert passed(cluster) == before + 1


def passed(cluster: lab.Cluster) -> int:
    """Of how many changes of pods the policy has found out that they are another client's."""
    labels = f'kind="policy",name="istio-aux-{MODEL}.{MODEL}",operation="UPDATE"'
    counted = "apiserver_admission_match_condition_evaluation_seconds_count"
    _, text = creation.send(cluster, "GET", "/metrics")
    return int(
        (re.findall(rf"^{counted}{{{labels}.* (\d+)$", text.decode(), re.MULTILINE) or [0])[0]
    )


def test_nothing_is_done_in_kube_system_even_if_it_is_labelled(
    account: Account, client: lightkube.Client
):
    client.patch(Namespace, "kube-system", {"metadata": {"labels": {"narrowed": "chosen"}}})
    # The label has come to the policy when the same label has opened another namespace.
    client.create(
        Namespace(metadata=ObjectMeta(name="narrowed-later", labels={"narrowed": "chosen"}))
    )
    lab.until(
        lambda: account.execute("narrowed-later/none").startswith("404: "),
        what="the policy to know a namespace",
    )

    refusal = account.execute("kube-system/none")

    assert refusal.startswith("403: ")
    assert SELECTED in refusal


@pytest.fixture(scope="module")
def pod(client: lightkube.Client, account: Account) -> Pod:
    return client.create(meshed.pod(MODEL, "unmeshed", sidecar=None))


def nobody(namespace: str) -> Pod:
    """A pod that its namespace may refuse for other reasons, but not as forbidden."""
    return meshed.nameless(namespace, sidecar=None)


def test_a_pod_is_created_as_a_dry_run_only(account: Account, client: lightkube.Client, pod: Pod):
    refusal = account.create(meshed.pod(MODEL, "real", sidecar=None))

    assert refusal.startswith("403: ")
    assert "creates pods as a dry run only" in refusal
    assert account.create(meshed.pod(MODEL, "rehearsed", sidecar=None), dryRun="All") == ""
    assert [p.metadata.name for p in client.list(Pod, namespace=MODEL) if p.metadata] == [
        "unmeshed"
    ]


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease"])
def test_nothing_is_created_or_evicted_where_istio_injects_nothing(
    account: Account, namespace: str
):
    pod = meshed.pod(namespace, "none")
    meshed.meta(pod).uid, meshed.meta(pod).resourceVersion = "1", "1"

    for refusal in (
        account.create(nobody(namespace), dryRun="All"),
        account.evict(pod, "uid", "resourceVersion"),
    ):
        assert refusal.startswith("403: ")
        assert "creates and evicts nothing in namespaces that Istio ignores" in refusal


def test_a_pod_is_evicted_as_it_was_seen_only(account: Account, pod: Pod):
    assert account.evict(pod, "uid", "resourceVersion") == ""
    for preconditions in ((), ("uid",), ("resourceVersion",)):
        refusal = account.evict(pod, *preconditions)
        assert refusal.startswith("403: ")
        assert "evicts with the preconditions uid and resourceVersion only" in refusal


@pytest.mark.parametrize("policy", [MODEL, f"{MODEL}.records"])
def test_the_api_server_has_no_doubts_about_the_expressions(
    client: lightkube.Client, account: Account, policy: str
):
    """They are checked against the kinds that there are, beside being compiled."""
    status = lab.until(
        lambda: client.get(ValidatingAdmissionPolicy, f"istio-aux-{MODEL}.{policy}").status,
        what="the check of the policy",
    )

    assert status.typeChecking
    assert status.typeChecking.expressionWarnings is None


def test_no_other_account_is_affected(
    cluster: lab.Cluster, client: lightkube.Client, account: Account, pod: Pod
):
    """Another one of the same namespace with the same rights."""
    client.create(ServiceAccount(metadata=ObjectMeta(name="somebody", namespace=MODEL)))
    somebody = administrator(cluster, MODEL, "somebody")

    assert somebody.execute(f"{OTHER}/meshed", ("sh",), container="main", stdin="true") == ""
    assert somebody.connect("attach", f"{OTHER}/meshed", container="main") == ""
    assert somebody.connect("portforward", f"{OTHER}/meshed") == ""
    assert somebody.delete(f"{OTHER}/plain") == ""
    assert somebody.create(meshed.pod(MODEL, "somebodys", sidecar=None)) == ""
    assert somebody.evict(pod) == ""

    somebody.close()
