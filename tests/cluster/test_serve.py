"""`istio-aux serve` as a process: how it starts, what it says of itself, how it ends.

The leader is killed with -9: another process takes over, and nothing is lost. A lease runs out 15 s
after its holder's death. In the end it says what there is to say of Istio's injector.
"""

from __future__ import annotations

import base64
import http.client
import json
import resource
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lab.istio
import lightkube
import pytest
import yaml
from lab.control_plane import Authority
from lab.fixtures import await_account, make_namespace
from lab.scene import Scene
from lab.workload import Programs, Stages, Workload, ask, declared, end_at_once, metric
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace, Pod, ResourceQuota
from lightkube.resources.discovery_v1 import EndpointSlice
from lightkube.resources.rbac_authorization_v1 import ClusterRole


@pytest.fixture
def mortal(cluster: lab.Cluster, tmp_path: Path) -> Iterator[Workload]:
    """A workload of the test's own, not started yet."""
    workload = declared(cluster, tmp_path, "mortal")
    workload.deploy()
    yield workload
    end_at_once(workload)


@pytest.fixture
def stage(alone: Scene, mortal: Workload) -> Scene:
    mortal.start()
    mortal.await_ready()
    mortal.select(alone.namespace)
    return alone


def ended(mortal: Workload, **settings: str) -> subprocess.CompletedProcess[str]:
    good = yaml.safe_load(mortal.config.read_text())
    changed = {name.replace("_", "-"): value for name, value in settings.items()}
    mortal.config.write_text(yaml.safe_dump({**good, **changed}))
    return subprocess.run(mortal.argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"namespace_selectors": "a in b"}, 'config.yaml: namespace-selectors: "a in b": expected'),
        ({"tls_key": "/nowhere/tls.key"}, "/nowhere/tls.key"),
    ],
)
def test_a_setting_that_cannot_be_used_ends_it_with_2_and_one_line(
    mortal: Workload, settings: dict[str, str], complaint: str
):
    done = ended(mortal, **settings)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert complaint in done.stderr


def test_a_key_that_another_version_wrote_is_left_out_and_reported(mortal: Workload):
    good = yaml.safe_load(mortal.config.read_text())
    mortal.config.write_text(yaml.safe_dump({**good, "unknown-keys": "skip", "speed": 3}))

    mortal.start()
    mortal.await_ready()

    assert mortal.status()["unknown-keys"] == ["speed"]
    assert "unknown keys, left out: speed" in log(mortal)


def test_a_port_that_is_taken_ends_it_with_1_and_one_line(cluster: lab.Cluster, mortal: Workload):
    done = ended(mortal, status_address=cluster.server.removeprefix("https://"))

    assert done.returncode == 1
    assert "address already in use" in json.loads(done.stdout.splitlines()[-1])["message"]


def test_it_uses_all_the_descriptors_that_it_may_have(workload: Workload):
    """Idle clients must not use up the few of the soft limit, which is often 1,024."""
    soft, hard = resource.prlimit(workload.process.pid, resource.RLIMIT_NOFILE)

    assert soft == hard


def test_a_missing_right_is_named_and_keeps_it_from_nothing_else(
    cluster: lab.Cluster, client: lightkube.Client, tmp_path: Path
):
    """An update that brings the right must not wait for a pod that is unready without it.

    With quit and repair off it needs no pods, so nothing is missing without the right to see them.

    istio#43074.
    """
    workload = declared(cluster, tmp_path, "deprived", {"quit": "disabled", "race-policy": "none"})
    workload.deploy()
    role = client.get(ClusterRole, "deprived.deprived-workload")
    hidden = {"mutatingwebhookconfigurations", "pods"}
    role.rules = [rule for rule in role.rules or [] if not hidden & {*(rule.resources or ())}]
    client.replace(role)

    workload.start()

    workload.await_ready()
    try:
        # It is ready before it has listed what it only judges by, such as quotas.
        status = lab.until(
            lambda: found if len((found := workload.status())["missing"]) == 1 else None,
            what="all but one collection to be listed",
        )
        (missing,) = status["missing"]
        assert (status["quit"], status["race"], status["watched-pods"]) == ("disabled", "none", 0)
        assert missing == (
            "order: no complete list yet: this account may not list mutatingwebhookconfigurations"
        )
        assert workload.get("/readyz") == (200, f"ok\n{missing}\n")
        assert status["called-before-us"] is None
        assert (status["injector-live"], status["injectors"]) == (None, [])
    finally:
        end_at_once(workload)


def test_it_is_alive_but_not_ready_until_the_api_server_answers(
    cluster: lab.Cluster, mortal: Workload
):
    """It says what is missing, and needs no restart once that is there."""
    server = cluster.process("kube-apiserver")
    server.kill()
    server.wait(30)

    mortal.start()

    try:
        lab.until(lambda: mortal.get("/livez")[0] == 200, what="it to be alive")
        code, missing = mortal.get("/readyz")
    finally:
        server.start()
    assert code == 503
    assert [line.split(":")[0] for line in missing.splitlines()] == [
        "namespaces", "order", "pods", "limitranges", "resourcequotas",
    ]  # fmt: skip
    cluster.await_api()
    mortal.await_ready()


def hang(stage: Scene) -> None:
    """Return when a quit has begun that does not end."""
    pod = stage.start("worker")
    stage.kubelet.misbehave(pod, "hang")
    stage.kubelet.finish(pod, "main")
    lab.until(lambda: stage.kubelet.execs_of(pod), what="the quit to hang")


def test_a_quit_that_hangs_does_not_delay_its_end(stage: Scene, mortal: Workload):
    """It is dropped 2 s after the signal: had it reached its own deadline, a line would say so."""
    hang(stage)

    assert mortal.stop() == 0

    times = {line["event"]: datetime.fromisoformat(line["time"]) for line in mortal.lines()}
    if (late := times["stop"] - times["decision"]) > timedelta(seconds=5):
        pytest.skip(f"the signal came {late} after the quit had begun, whose deadline is 10 s")
    assert [line["event"] for line in mortal.lines()][-2:] == ["stop", "stopped"]


def test_a_review_after_sigterm_is_the_last_of_its_connection(mortal: Workload):
    """API servers learn only later that the endpoint ends, and keep connections for minutes."""
    mortal.start()
    mortal.await_ready()
    context = ssl.create_default_context(cadata=mortal.authority.certificate)
    context.check_hostname = False
    address = (mortal.cluster.host, mortal.webhook_port)
    with closing(http.client.HTTPSConnection(*address, timeout=30, context=context)) as server:
        assert not is_the_last(server)

        terminate(mortal)

        assert is_the_last(server)


def is_the_last(server: http.client.HTTPSConnection) -> bool:
    """Whether a connection ends with the answer to a review, or before it."""
    request = {"uid": "1", "operation": "CREATE", "object": {"metadata": {}, "spec": {}}}
    review = json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    )
    try:
        server.request("POST", "/mutate", review, {"Content-Type": "application/json"})
        answer = server.getresponse()
    except ConnectionError:
        return True
    assert answer.status == 200
    answer.read()
    return answer.will_close


def test_it_ends_at_once_on_a_second_signal(stage: Scene, mortal: Workload):
    """A second signal means: do not wait for a quit that hangs."""
    hang(stage)

    # Stopped, it gets both at one time, however slow the machine is.
    for each in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        mortal.process.kill(each)

    assert mortal.process.wait(30) == 1


def terminate(workload: Workload) -> None:
    """Send SIGTERM, and return when the program has noticed."""
    before = len(log(workload))  # Of all the program's lives.
    workload.process.kill(signal.SIGTERM)
    lab.until(lambda: '"stop"' in log(workload)[before:], what="the signal to be noticed")


def log(workload: Workload) -> str:
    return workload.process.log.read_text()


@pytest.fixture
def leader(programs: Programs) -> Workload:
    leader = programs("rivals", {"lease": "rivals/rivals"})
    lab.until(lambda: leader.status().get("leader"), what="it to lead")
    return leader


@pytest.fixture
def shared(leader: Workload, stages: Stages) -> Scene:
    """A namespace that both serve."""
    return stages(leader)


@pytest.fixture
def heir(leader: Workload, shared: Scene) -> Iterator[Workload]:
    """Another process with the same lease."""
    heir = leader.replica("rivals-1")
    heir.start()
    heir.await_ready()
    lab.until(
        lambda: shared.namespace in heir.status().get("selected-namespaces", []),
        what="the second to notice the namespace",
    )
    yield heir
    end_at_once(heir)


def test_the_other_takes_over_within_20_s_and_nothing_is_lost_or_done_twice(
    leader: Workload, heir: Workload, shared: Scene
):
    """The lease of one who was killed runs out. Until then the holder alone acts.

    uds-core#972, kuma#10085, kubexit#8.
    """
    before, around, after = (
        [shared.start(f"{when}-{n}") for n in range(4)] for when in ("before", "around", "after")
    )
    finish(shared, before)
    await_freed_once(shared, before)
    lab.until(
        # Pods of other tests are watched, too: only those of selected namespaces are counted here.
        lambda: heir.status().get("sidecars", {}).get("pods") == len(around + after),
        what="the heir to follow the pods that run",
    )
    assert (leader.status()["leader"], heir.status()["leader"]) == (True, False)
    assert leader.status()["lease-holder"] == heir.status()["lease-holder"] != ""

    finish(shared, around)
    killed = datetime.now(UTC)
    leader.process.end()
    finish(shared, after)

    lab.until(lambda: heir.status().get("leader"), what="the heir to take over")
    lease = shared.client.get(Lease, "rivals", namespace="rivals").spec
    assert lease
    assert lease.acquireTime
    assert killed < lease.acquireTime < killed + timedelta(seconds=20)
    assert lease.holderIdentity == heir.status()["lease-holder"]
    await_freed_once(shared, before + around + after)
    assert metric(heir, "istio_aux_leader") == 1


def finish(scene: Scene, pods: list[Pod]) -> None:
    for pod in pods:
        scene.kubelet.finish(pod, "main")


def await_freed_once(scene: Scene, pods: list[Pod]) -> None:
    """Return when each proxy has ended; it was told to once."""
    for pod in pods:
        scene.await_phase(pod, "Succeeded")
    assert [len(scene.kubelet.execs_of(pod)) for pod in pods] == [1] * len(pods)


ACTIVE = lab.istio.TAG
PROMPT = 20.0  # Seconds. An injector that is live is asked every 5 s.
SETTINGS = {"quit": "disabled", "lease": "watching/watching"}


def await_state(
    workload: Workload, state: str, why: str = "", configuration: str = ACTIVE
) -> dict[str, Any]:
    """The status as soon as an injector is in that state, with `why` in its reason."""

    def told() -> dict[str, Any]:
        status = workload.status()
        wanted = {"configuration": configuration, "state": state}
        found = (e for e in status.get("injectors", ()) if wanted.items() <= e.items())
        return status if any(why in each["why"] for each in found) else {}

    return lab.until(
        told, timeout=PROMPT, what=f"{configuration or 'no injector'} to be {state} ({why})"
    )


@pytest.fixture(scope="module")
def watching(programs: Programs) -> Workload:
    """The program under its own ServiceAccount, with nothing but a watch on Istio to do."""
    return programs("watching", SETTINGS, revisions=("canary",))


@pytest.fixture(scope="module")
def injected(client: lightkube.Client) -> Iterator[str]:
    """A namespace whose pods Istio's webhook is called for: a dry run needs one."""
    name = "watched"
    make_namespace(client, name, {"istio-injection": "enabled"})
    yield name
    client.delete(Namespace, name)


@pytest.fixture(scope="module")
def istiod(cluster: lab.Cluster, watching: Workload, injected: str) -> Iterator[lab.istio.Istio]:
    """An Istio that leaves the caBundle to the tests."""
    istio = lab.istio.install(cluster, writes_ca=False)
    yield istio
    istio.trust(istio.bundle)
    istio.remove()


@pytest.fixture
def live(istiod: lab.istio.Istio, watching: Workload) -> lab.istio.Istio:
    """The same with all that it needs, and told to be live."""
    istiod.configure()
    istiod.come_back()
    istiod.trust(istiod.bundle)
    await_state(watching, "live")
    return istiod


def bundle(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def foreign(folder: Path) -> str:
    return bundle(Authority(folder).pair.certificate)


def deactivate(istio: lab.istio.Istio) -> None:
    """Make no webhook select anything, as istioctl does."""
    nothing = LabelSelector(matchLabels=lab.istio.DEACTIVATED["matchLabels"])
    with istio.cluster.client() as client:
        found = client.get(MutatingWebhookConfiguration, ACTIVE)
        for webhook in found.webhooks or ():
            webhook.namespaceSelector = webhook.objectSelector = nothing
        client.replace(found)


def unlist(istio: lab.istio.Istio) -> None:
    with istio.cluster.client() as client:
        client.delete(EndpointSlice, istio.service, namespace=istio.namespace)


def test_without_istio_it_is_absent(watching: Workload) -> None:
    status = await_state(watching, "absent", "no webhook configuration of Istio's injector", "")

    assert status["injector-live"] is False


CHANGES: dict[str, tuple[Callable[[lab.istio.Istio, Path], None], str, str]] = {
    "no bundle": (lambda istio, _: istio.trust(None), "no-ca-bundle", "has never been up"),
    "foreign": (lambda istio, tmp: istio.trust(foreign(tmp)), "refused", "unknown authority"),
    "not ready": (lambda istio, _: istio.serve(ready=False), "no-endpoint", "no ready endpoint"),
    "no slice": (lambda istio, _: unlist(istio), "no-service", "has no EndpointSlice"),
    # Its endpoint goes on being called ready.
    "killed": (lambda istio, _: istio.process.end(), "refused", "failed calling webhook"),
    "deactivated": (lambda istio, _: deactivate(istio), "deactivated", "none of its webhooks"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_it_says_what_is_wrong_with_an_injector_and_when_that_is_over(
    what: str, live: lab.istio.Istio, watching: Workload, tmp_path: Path
) -> None:
    """istio#3716: `live` brings it back before the next test."""
    change, state, why = CHANGES[what]

    change(live, tmp_path)

    status = await_state(watching, state, why)

    assert (status["injector-live"], status["capability"]) == (False, "unknown")


@pytest.fixture(params=["going", "full"])
def refusing(
    request: pytest.FixtureRequest, client: lightkube.Client, watching: Workload
) -> Iterator[str]:
    """The only namespace that is selected; it is injected, too, and takes no pods any more."""
    name = f"a-{request.param}"
    labels = {"istio-injection": "enabled", "io.datastrophic/istio-aux": "enabled"}
    held = ["lab.test/held"] if request.param == "going" else None
    client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels, finalizers=held)))
    await_account(client, name)
    watching.select(name)
    if held:
        client.delete(Namespace, name)
    else:
        spec = ResourceQuotaSpec(hard={"pods": "0"})
        client.create(ResourceQuota(metadata=ObjectMeta(name="none"), spec=spec), namespace=name)
    yield name
    if held:
        client.patch(Namespace, name, {"metadata": {"finalizers": None}})
    else:
        client.delete(Namespace, name)


def test_a_namespace_that_takes_no_pods_hides_no_injector_from_serve_or_check(
    refusing: str, live: lab.istio.Istio, watching: Workload, cluster: lab.Cluster
):
    """A dry run asks in namespaces that are selected first."""
    live.serve(ready=False)
    await_state(watching, "no-endpoint")
    live.serve()

    await_state(watching, "live")

    done = ask(cluster.kubeconfig, "check", "-o", "json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["result"] for each in found if each["check"] == "injector"] == ["ok"], found
