"""What the workload's account may do, by the real authorizer and API server.

Where RBAC would let it do anything, the charm's ValidatingAdmissionPolicies refuse the rest: the
account of a workload that does not run is made an administrator, by mistake as it were. Requests to
pods are real up to the upgrade to a stream, which they do not ask for. All others are dry runs.

A selector means in CEL what it means to the workload: a policy warns about pods that a selector
does not match, with any labels, or none.

By the charm's own role, the workload uses every right that it is granted, by the API server's audit
log. What it uses without a right, it is refused: then it does not do what the other tests of this
tier wait for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import lab.istio
import lightkube
import pytest
from istio_aux.model import selectors
from lab import creation, meshed, scene
from lab.creation import PODS, QUIT, Account, administrator
from lab.fixtures import await_account, make_namespace
from lab.kubelet import ScriptedKubelet
from lab.scene import Kind
from lab.workload import Programs, Workload, stage
from lightkube import KubeConfig, codecs
from lightkube.core.client import LabelValue
from lightkube.models.authorization_v1 import (
    ResourceAttributes,
    SelfSubjectAccessReviewSpec,
    SelfSubjectRulesReviewSpec,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import (
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
)
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview, SelfSubjectRulesReview
from lightkube.resources.core_v1 import Namespace, Pod, ServiceAccount

import config
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
        make_namespace(client, name, labels)
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


TOLD = "told-of-selectors"

SELECTORS = [
    "",
    "a",
    "!a",
    "a=x",
    "a!=x",
    "a=",
    "a!=",
    "a in (x,y)",
    "a notin (x,y)",
    "a in (x),b notin (y)",
    "a=x,a!=x",
    "!a,b",
    "io.example/a=x",
]
# Stands for what no pod matches.
NO_POD = "never"
LABELS: list[dict[str, str]] = [
    {},
    {"a": ""},
    {"a": "x"},
    {"a": "y"},
    {"a": "z", "b": "x"},
    {"b": "y"},
    {"a": "x", "b": "y"},
    {"io.example/a": "x"},
]


@pytest.fixture(scope="module")
def told(client: lightkube.Client) -> Iterator[str]:
    """The namespace about whose pods the policy warns."""
    make_namespace(client, TOLD)
    validations = [
        {
            "expression": manifests.selector_expression(
                config.parse_selector(text), "variables.labels"
            ),
            "message": f"<{text}>",
        }
        for text in SELECTORS
    ]
    labels = "has(object.metadata.labels) ? object.metadata.labels : {}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    policy = {
        "kind": "ValidatingAdmissionPolicy",
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": TOLD}},
                "resourceRules": [{**rule, "operations": ["CREATE"]}],
            },
            "variables": [{"name": "labels", "expression": labels}],
            "validations": [*validations, {"expression": "false", "message": f"<{NO_POD}>"}],
        },
    }
    binding = {
        "kind": "ValidatingAdmissionPolicyBinding",
        "spec": {"policyName": TOLD, "validationActions": ["Warn"]},
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": TOLD}}
    for document in (policy, binding):
        client.create(codecs.from_dict({**head, **document}))
    yield TOLD
    client.delete(ValidatingAdmissionPolicyBinding, TOLD)
    client.delete(ValidatingAdmissionPolicy, TOLD)
    client.delete(Namespace, TOLD)


def test_the_policy_and_the_workload_select_the_same(cluster: lab.Cluster, told: str) -> None:
    pods = [meshed.nameless(told, sidecar=None, labels=labels) for labels in LABELS]

    def warned() -> list[set[str]]:
        """The selectors of which each pod's author is warned, and NO_POD once it is in force."""
        made = creation.create(cluster, *pods, dry_run=True)
        every = [*SELECTORS, NO_POD]
        return [{t for t in every if any(f"<{t}>" in w for w in each.warnings)} for each in made]

    lab.until(lambda: all(warned()), what="the policy to be in force")

    assert warned() == [
        {NO_POD, *(text for text in SELECTORS if not selectors.parse(text).matches(labels))}
        for labels in LABELS
    ]


def test_the_api_server_takes_as_many_and_as_long_selectors_as_are_allowed(
    client: lightkube.Client,
) -> None:
    values = ",".join(f"{number:0>63}" for number in range(31))
    texts = [f"k{number:02} in ({values})" for number in range(selectors.MOST_SELECTORS)]
    assert selectors.LONGEST_SELECTOR - 64 < len(texts[0]) <= selectors.LONGEST_SELECTOR
    wanted = manifests.Values(
        "longest",
        "longest",
        namespace_selectors=config.parse_namespaces_selected(";".join(texts)),
    )

    admission = [each for each in manifests.render(wanted) if "Admission" in type(each).__name__]
    for resource in [*admission, *manifests.render_webhook(wanted)]:
        assert client.create(resource, dry_run=True)
    assert len(admission) == 4


OPTIONS = {"dead-proxy": "delete", "race-policy": "restart"}
# All that it is for, with these options. A line more here is a decision, not a repair. What each
# option grants is in `tests/unit/charm/test_manifests.py`.
GRANTED = {
    ("", "pods", "get list watch"),
    # Dry runs: see the policies above.
    ("", "pods", "create"),
    ("", "pods", "delete"),
    ("", "pods/eviction", "create"),
    ("", "pods/exec", "create get"),
    ("", "pods/portforward", "create get"),
    ("", "namespaces", "list watch"),
    ("", "limitranges", "list watch"),
    ("", "resourcequotas", "list watch"),
    # Versions of kubelets, which below 1.32 are not known otherwise: `injector/probe.py`. And of a
    # single one, where a container has a restart policy of its own: `quit/controller.py`.
    ("", "nodes", "get list"),
    # By name: see below.
    ("", "configmaps", "get"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "list watch"),
    ("discovery.k8s.io", "endpointslices", "list watch"),
    ("events.k8s.io", "events", "create"),
    ("batch", "jobs", "get"),
}
# What it may do in its own namespace only.
OWN = {
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "get update"),
}
# What every account may do: ask who it is and what it may (system:basic-user), and since Kubernetes
# 1.37 read the cluster's public authorities (system:cluster-trust-bundle-discovery).
ANYBODY = ("authentication.k8s.io", "authorization.k8s.io")
AUTHORITIES = ("certificates.k8s.io", "clustertrustbundles")


LEASES, CONFIGMAPS = ("leases", "coordination.k8s.io"), ("configmaps", "")


@pytest.fixture(scope="module")
def named(programs: Programs) -> Workload:
    """A workload that is deployed with every option, and knows of two revisions of Istio."""
    return programs("named", OPTIONS, start=False, revisions=("default", "canary"))


def own_client(workload: Workload) -> lightkube.Client:
    return lightkube.Client(KubeConfig.from_file(workload.kubeconfig), trust_env=False)


@pytest.mark.parametrize(
    ("verb", "what", "where", "may"),
    [
        ("create", LEASES, "named/", True),
        ("get", LEASES, "named/named", True),
        ("update", LEASES, "named/named", True),
        ("delete", LEASES, "named/named", False),
        ("get", LEASES, "named/another", False),
        ("update", LEASES, "named/another", False),
        ("update", LEASES, "kube-system/named", False),
        ("create", LEASES, "kube-system/", False),
        # The injection policies of Istio's revisions.
        ("get", CONFIGMAPS, "istio-system/istio-sidecar-injector", True),
        ("get", CONFIGMAPS, "istio-system/istio-sidecar-injector-canary", True),
        ("get", CONFIGMAPS, "istio-system/istio-sidecar-injector-other", False),
        ("get", CONFIGMAPS, "istio-system/istio", False),
    ],
)
def test_of_leases_and_configmaps_the_workload_may_use_its_own_only(
    named: Workload, *, verb: str, what: tuple[str, str], where: str, may: bool
):
    resource, group = what
    namespace, _, name = where.partition("/")
    spec = SelfSubjectAccessReviewSpec(
        resourceAttributes=ResourceAttributes(
            verb=verb, group=group, resource=resource, namespace=namespace, name=name
        )
    )
    with own_client(named) as client:
        status = client.create(SelfSubjectAccessReview(spec=spec)).status

    assert status
    assert status.allowed is may


def test_the_workload_may_do_what_it_is_for_and_nothing_else(named: Workload) -> None:
    """Exec over WebSocket wants `get` up to Kubernetes 1.34 and `create` since 1.35."""
    assert granted(named, named.model) == GRANTED | OWN
    assert granted(named, "default") == GRANTED


def granted(workload: Workload, namespace: str) -> set[tuple[str, str, str]]:
    """All that its account may do in a namespace, by group, resource and verbs."""
    spec = SelfSubjectRulesReviewSpec(namespace=namespace)
    with own_client(workload) as client:
        review = client.create(SelfSubjectRulesReview(spec=spec))
    assert review.status is not None
    return {
        (group, resource, " ".join(sorted(rule.verbs)))
        for rule in review.status.resourceRules
        for group in rule.apiGroups or []
        for resource in rule.resources or []
        if group not in ANYBODY and (group, resource) != AUTHORITIES
    }


USING = "using"

TRAINEE: dict[str, LabelValue] = {"batch.kubernetes.io/job-name": "train"}

Right = tuple[str, str]
"""Resource and verb, as in a Role."""

_FIRST_LIST = "comes with the watch where the API server streams lists: test_watch.py"
_UPGRADE = "needed beside `get` since Kubernetes 1.35; the log shows the verb of the request"
# What is granted and need not be used here, with the reason.
UNUSED: dict[Right, str] = {
    ("namespaces", "list"): _FIRST_LIST,
    ("mutatingwebhookconfigurations", "list"): _FIRST_LIST,
    ("endpointslices", "list"): _FIRST_LIST,
    ("limitranges", "list"): _FIRST_LIST,
    ("resourcequotas", "list"): _FIRST_LIST,
    ("pods/exec", "create"): _UPGRADE,
    ("pods/portforward", "create"): _UPGRADE,
    ("jobs", "get"): "only for a review that rests on what a Job counts: test_webhooks.py",
    ("nodes", "get"): "only for a container's own restart policy: unit/test_quit_kubelets.py",
    ("nodes", "list"): "only below Kubernetes 1.32: tests/unit/test_injector_watcher.py",
}


def in_roles(workload: Workload) -> set[Right]:
    return {
        (resource, verb)
        for role in (each.to_dict() for each in manifests.render_access(workload.values()))
        if role["kind"] in {"Role", "ClusterRole"}
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(cluster: lab.Cluster) -> set[Right]:
    """What its account has done so far."""
    user = f"system:serviceaccount:{USING}:{USING}-workload"
    found: set[Right] = set()
    for event in creation.audited(cluster, about=user):
        what: dict[str, Any] = event.get("objectRef", {})
        if event["user"]["username"] != user or not what:
            continue
        if event["responseStatus"]["code"] not in {401, 403}:
            parts = (what["resource"], what.get("subresource", ""))
            found.add(("/".join(filter(None, parts)), event["verb"]))
    return found


@pytest.fixture(scope="module")
def unmeshed(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet
) -> Iterator[None]:
    """A pod of a ReplicaSet that is there before Istio."""
    name = "before-istio"
    make_namespace(client, name, {"istio-injection": "enabled"})
    scene.gather(client, name, {"replicaset": Kind("ReplicaSet", 1)})
    istio = lab.istio.install(cluster, native="on request")
    yield
    istio.remove()
    client.delete(Namespace, name)


@pytest.fixture(scope="module")
def using(programs: Programs, unmeshed: None) -> Workload:
    return programs(USING, {"lease": f"{USING}/{USING}", **OPTIONS})


def test_every_right_is_used(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet, using: Workload
) -> None:
    with stage(client, kubelet, using) as scene:
        by_exec = scene.start("by-exec")
        by_port = scene.start("by-port", annotations={"status.sidecar.istio.io/port": "18020"})
        for pod in (by_exec, by_port):
            kubelet.finish(pod, "main")
        client.create(meshed.job(meshed.pod(scene.namespace, "train")))
        (lost,) = lab.until(
            lambda: [*client.list(Pod, namespace=scene.namespace, labels=TRAINEE)],
            what="the Job's pod",
        )
        kubelet.run(lost)
        kubelet.finish(lost, meshed.PROXY, 137, reason="OOMKilled")

        def missing() -> set[Right]:
            return in_roles(using) - used(cluster) - UNUSED.keys()

        with contextlib.suppress(TimeoutError):  # It is asserted below.
            lab.until(lambda: not missing(), what="every right", every=0.5)
    assert not missing()
    assert used(cluster) <= in_roles(using)
    assert UNUSED.keys() <= in_roles(using)
