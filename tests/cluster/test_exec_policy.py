"""What the workload's account may do to pods when RBAC would let it do anything.

The account of a workload that does not run is made an administrator, by mistake as it were, so that
what is refused is refused by the charm's ValidatingAdmissionPolicy. Requests are real up to the
upgrade to a stream, which they do not ask for, and deletions are dry runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import lab
import lightkube
import pytest
from lab import meshed
from lab.accounts import PODS, QUIT, Account, administrator
from lab.kubelet import ScriptedKubelet
from lab.workload import Workload
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod, ServiceAccount

import manifests
from config import Applications

MODEL = "narrowed"
CHOSEN, OTHER, INJECTED = "narrowed-chosen", "narrowed-other", "narrowed-injected"
SELECTOR = "narrowed=chosen"
# No shell reads a word of a command, and JSON is how the policy has it.
SIDECARS = {
    "helper": ("/bin/kill", "-TERM", "1"),
    "odd": ("K", "--f=x;y|z", "$(1)", "'q'", '"q"', "\\", "{}", "[?x]"),
}
SEEN = ("uid", "resourceVersion")
# Measured on 2 busy cores: a policy is in force 0.4 s after it was made.
IN_FORCE = 30.0


@pytest.fixture(scope="module")
def pods(cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet) -> None:
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
def account(
    cluster: lab.Cluster,
    client: lightkube.Client,
    tmp_path_factory: pytest.TempPathFactory,
    pods: None,
) -> Iterator[Account]:
    """The workload's own, once its policy is in force."""
    deployed = Workload(
        cluster,
        tmp_path_factory.mktemp("narrowed"),
        model=MODEL,
        selector=SELECTOR,
        inject=(Applications(INJECTED, ("web",)),),
        more={
            "pod-selector": "!hands-off",
            "quit-sidecars": [f"{name}={' '.join(command)}" for name, command in SIDECARS.items()],
        },
    )
    deployed.deploy()
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


@pytest.fixture(scope="module")
def somebody(cluster: lab.Cluster, client: lightkube.Client, account: Account) -> Iterator[Account]:
    """Another account of the same namespace with the same rights."""
    client.create(ServiceAccount(metadata=ObjectMeta(name="somebody", namespace=MODEL)))
    somebody = administrator(cluster, MODEL, "somebody")
    yield somebody
    somebody.close()


@pytest.mark.parametrize("command", manifests.QUIT_COMMANDS, ids=" ".join)
def test_the_commands_that_quit_a_proxy_are_allowed(account: Account, command: tuple[str, ...]):
    assert account.execute(f"{CHOSEN}/meshed", command) == ""


@pytest.mark.parametrize("name", SIDECARS)
def test_the_command_of_another_sidecar_is_allowed_in_its_container_alone(
    account: Account, name: str
):
    command = SIDECARS[name]

    # The pod has no such container, which the API server finds after admission.
    assert "403" not in account.execute(f"{CHOSEN}/meshed", command, container=name)
    for container, asked in (("istio-proxy", command), (name, manifests.QUIT_COMMANDS[0])):
        refusal = account.execute(f"{CHOSEN}/meshed", asked, container=container)
        assert "executes the commands that make a container exit only" in refusal


def test_a_port_of_a_pod_in_a_selected_namespace_may_be_forwarded(account: Account):
    assert account.connect("portforward", f"{CHOSEN}/meshed", ports="15020") == ""


def test_a_pod_whose_proxy_has_terminated_may_be_deleted_in_a_selected_namespace(account: Account):
    assert account.delete(f"{CHOSEN}/lost", *SEEN) == ""


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("sh", "-c", "pilot-agent request POST quitquitquit"),
        ("pilot-agent",),
        ("pilot-agent", "request", "GET", "config_dump"),
        ("pilot-agent", "request", "POST", "quitquitquit", "--kubeconfig=/tmp/own"),
        ("pilot-agent", "request", "--debug-port=22", "POST", "quitquitquit"),
        ("pilot-agent request POST quitquitquit",),
    ],
    ids=" ".join,
)
def test_no_other_command_is_executed(account: Account, command: tuple[str, ...]):
    refusal = account.execute(f"{CHOSEN}/meshed", command)

    assert refusal.startswith("403: ")
    assert "executes the commands that make a container exit only" in refusal


@pytest.mark.parametrize("container", ["main", "istio-init", ""])
def test_nothing_is_executed_in_another_container(account: Account, container: str):
    """An empty name would be the first container, or the one that an annotation says."""
    refusal = account.execute(f"{CHOSEN}/meshed", container=container)

    assert refusal.startswith("403: ")
    assert "executes in the containers that it makes exit only" in refusal


@pytest.mark.parametrize("options", [{"stdin": "true"}, {"tty": "true"}], ids=str)
def test_nothing_is_executed_with_an_input_or_a_terminal(account: Account, options: dict[str, str]):
    refusal = account.execute(f"{CHOSEN}/meshed", QUIT, **options)

    assert refusal.startswith("403: ")
    assert "executes without input and terminal only" in refusal


def test_nothing_is_attached_to(account: Account):
    refusal = account.connect("attach", f"{CHOSEN}/meshed", container="istio-proxy")

    assert refusal.startswith("403: ")
    assert "never attaches" in refusal


@pytest.mark.parametrize("pod", ["plain", "meshed"])
def test_a_pod_without_a_proxy_that_has_terminated_is_not_deleted(account: Account, pod: str):
    refusal = account.delete(f"{CHOSEN}/{pod}", *SEEN)

    assert refusal.startswith("403: ")
    assert "deletes pods whose container istio-proxy has terminated only" in refusal


@pytest.mark.parametrize("act", ["execute", "forward", "delete"])
def test_nothing_is_done_in_a_namespace_that_is_not_selected(account: Account, act: str):
    where = f"{OTHER}/lost"
    refusal = {
        "execute": lambda: account.execute(where),
        "forward": lambda: account.connect("portforward", where),
        "delete": lambda: account.delete(where, *SEEN),
    }[act]()

    assert refusal.startswith("403: ")
    assert "only in namespaces that the option namespace-selector matches" in refusal


def test_where_an_application_is_injected_proxies_are_quit_though_it_is_not_selected(
    account: Account,
):
    assert account.execute(f"{INJECTED}/web") == ""
    assert account.connect("portforward", f"{INJECTED}/web", ports="15020") == ""
    assert account.delete(f"{INJECTED}/web", *SEEN) == ""


def test_where_an_application_is_injected_no_pod_of_another_is_deleted(account: Account):
    refusal = account.delete(f"{INJECTED}/lost", *SEEN)

    assert refusal.startswith("403: ")
    assert "deletes pods of injected applications only" in refusal


def test_a_pod_that_the_pod_selector_does_not_match_is_not_deleted(account: Account):
    """Requests to execute show no labels: of those the workload alone judges."""
    refusal = account.delete(f"{CHOSEN}/hands-off", *SEEN)

    assert refusal.startswith("403: ")
    assert "only where namespace or pod is not selected" in refusal


@pytest.mark.parametrize("where", [CHOSEN, OTHER])
def test_no_pod_is_reached_through_the_proxy_of_the_api_server(account: Account, where: str):
    """It would reach any port of any pod by any HTTP request."""
    refusal = account.connect("proxy", f"{where}/meshed")

    assert refusal.startswith("403: ")
    assert "denied request" in refusal


@pytest.mark.parametrize("subresource", ["", "/ephemeralcontainers", "/status"])
def test_no_pod_is_changed(account: Account, subresource: str):
    """An ephemeral container runs any image beside the payload."""
    change = {"metadata": {"labels": {"a": "b"}}}
    if subresource == "/ephemeralcontainers":
        change = {"spec": {"ephemeralContainers": [{"name": "intruder", "image": "none"}]}}

    refusal = account.patch(f"{PODS.format(CHOSEN)}/meshed{subresource}", change)

    assert refusal.startswith("403: ")
    assert "never attaches, proxies or changes a pod" in refusal


@pytest.mark.parametrize(
    ("metadata", "may"),
    [
        ({"name": "istio-aux"}, True),
        ({"name": "another-controller"}, False),
        ({"generateName": "istio-aux"}, False),
    ],
    ids=["its own", "another", "a generated one"],
)
def test_of_all_leases_the_account_creates_its_own_only(
    account: Account, metadata: dict[str, str], may: bool
):
    """A client that creates another controller's Lease first keeps that controller from leading."""
    refusal = account.create_lease(MODEL, metadata)

    assert refusal == "" if may else "writes Lease istio-aux only" in refusal


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
    assert "only in namespaces that the option namespace-selector matches" in refusal


def test_no_other_account_is_affected(somebody: Account):
    assert somebody.execute(f"{OTHER}/meshed", ("sh",), container="main", stdin="true") == ""
    assert somebody.connect("attach", f"{OTHER}/meshed", container="main") == ""
    assert somebody.connect("portforward", f"{OTHER}/meshed") == ""
    assert somebody.delete(f"{OTHER}/plain") == ""
