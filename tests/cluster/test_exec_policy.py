"""What the workload's account may do to pods when RBAC would let it do anything.

The account of a workload that does not run is made an administrator, by mistake as it were, so that
what is refused is refused by the charm's ValidatingAdmissionPolicy. Requests are real up to the
upgrade to a stream, which they do not ask for, and deletions are dry runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import lab
import lightkube
import pytest
from lab import meshed
from lab.accounts import PODS, QUIT, Account, administrator
from lab.kubelet import ScriptedKubelet
from lab.served import Programs
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod, ServiceAccount

import manifests
from config import Applications

MODEL = "narrowed"
CHOSEN, OTHER, INJECTED = "narrowed-chosen", "narrowed-other", "narrowed-injected"
# No shell reads a word of a command, and JSON is how the policy has it.
SIDECARS = {
    "helper": ("/bin/kill", "-TERM", "1"),
    "odd": ("K", "--f=x;y|z", "$(1)", "'q'", '"q"', "\\", "{}", "[?x]"),
}
SEEN = ("uid", "resourceVersion")
# Measured on 2 busy cores: a policy is in force 0.4 s after it was made.
IN_FORCE = 30.0


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
        pod = meshed.pod(namespace, name)
        assert pod.metadata
        pod.metadata.labels = {key: name}
        lose(kubelet, client.create(pod))


def lose(kubelet: ScriptedKubelet, pod: Pod) -> None:
    """Run the pod, whose proxy terminates."""
    kubelet.run(pod)
    kubelet.finish(pod, meshed.PROXY, 137)


@pytest.fixture(scope="module")
def account(cluster: lab.Cluster, programs: Programs, pods: None) -> Iterator[Account]:
    """The workload's own, once its policy is in force."""
    deployed = programs(
        MODEL,
        {
            "pod-selector": "!hands-off",
            "quit-sidecars": [f"{name}={' '.join(command)}" for name, command in SIDECARS.items()],
        },
        start=False,
        selector="narrowed=chosen",
        inject=(Applications(INJECTED, ("web",)),),
    )
    account = administrator(cluster, MODEL, manifests.service_account(deployed.name))
    lab.until(
        lambda: (
            "never attaches" in account.connect("attach", f"{CHOSEN}/meshed")
            and "denied request" in account.create_lease(MODEL, {"name": "another-controller"})
        ),
        timeout=IN_FORCE,
        what="the policy to be in force",
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
COMMANDS = "executes the commands that make a container exit only"
CONTAINERS = "executes in the containers that it makes exit only"
WITHOUT_INPUT = "executes without input and terminal only"
TERMINATED = "deletes pods whose container istio-proxy has terminated only"
SELECTED = "only in namespaces that the option namespace-selector matches"
NEVER = "never attaches, proxies or changes a pod"
INTRUDER = {"ephemeralContainers": [{"name": "intruder", "image": "none"}]}
REFUSED: dict[str, tuple[Callable[[Account], str], str]] = {
    "no command": (execute("meshed"), COMMANDS),
    "a shell": (execute("meshed", "sh", "-c", " ".join(QUIT)), COMMANDS),
    "the agent alone": (execute("meshed", "pilot-agent"), COMMANDS),
    "the agent's configuration": (
        execute("meshed", "pilot-agent", "request", "GET", "config_dump"), COMMANDS),
    "one word more": (
        execute("meshed", "pilot-agent", "request", "POST", "quitquitquit", "--debug-port=22"),
        COMMANDS),
    "another port": (
        execute("meshed", "pilot-agent", "request", "--debug-port=22", "POST", "quitquitquit"),
        COMMANDS),
    "a command in one word": (execute("meshed", " ".join(QUIT)), COMMANDS),
    "the payload's container": (execute("meshed", *QUIT, container="main"), CONTAINERS),
    "an init container": (execute("meshed", *QUIT, container="istio-init"), CONTAINERS),
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
    "a status": (change("/status", "metadata", {"labels": {"a": "b"}}), NEVER),
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


@pytest.mark.parametrize("name", SIDECARS)
def test_the_command_of_another_sidecar_is_allowed_in_its_container_alone(
    account: Account, name: str
):
    command = SIDECARS[name]

    # The pod has no such container, which the API server finds after admission.
    assert "403" not in account.execute(f"{CHOSEN}/meshed", command, container=name)
    for container, other in (("istio-proxy", command), (name, manifests.QUIT_COMMANDS[0])):
        assert COMMANDS in account.execute(f"{CHOSEN}/meshed", other, container=container)


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
        timeout=IN_FORCE,
        what="the policy to know a namespace",
    )

    refusal = account.execute("kube-system/none")

    assert refusal.startswith("403: ")
    assert SELECTED in refusal


def test_no_other_account_is_affected(
    cluster: lab.Cluster, client: lightkube.Client, account: Account
):
    """Another one of the same namespace with the same rights."""
    client.create(ServiceAccount(metadata=ObjectMeta(name="somebody", namespace=MODEL)))
    somebody = administrator(cluster, MODEL, "somebody")

    assert somebody.execute(f"{OTHER}/meshed", ("sh",), container="main", stdin="true") == ""
    assert somebody.connect("attach", f"{OTHER}/meshed", container="main") == ""
    assert somebody.connect("portforward", f"{OTHER}/meshed") == ""
    assert somebody.delete(f"{OTHER}/plain") == ""

    somebody.close()
