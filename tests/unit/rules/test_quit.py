"""When a proxy is told to exit or waits, and whether a container is finished; see tests/oracle."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import pytest
from istio_aux.model import pod as pods
from istio_aux.model import sidecars
from istio_aux.model.annotations import QUIT, QUIT_AFTER, SIDECARS
from istio_aux.model.kubelet import depends_on_kubelet, finished, obeys, should_restart
from istio_aux.model.policy import QuitPolicy
from istio_aux.quit.rules import Ignore, Quit, Wait
from unit.rules.pods import (
    DATA,
    EMPTY,
    MISSING,
    RUNNING,
    Row,
    State,
    decide,
    decided,
    document,
    done,
    exited,
    job,
    met,
    pair,
    row,
    ruled,
    table,
    waiting,
)

DONE: dict[str, State] = {"main": exited(0), "istio-proxy": RUNNING}
RESTARTING = [{"type": "AllContainersRestarting", "status": "True"}]
DIND: dict[str, State] = {"main": exited(0), "dind": RUNNING}
FAILED: dict[str, State] = {"main": exited(1), "dind": RUNNING}
IGNORING: dict[str, Any] = {"annotations": {SIDECARS: "dind=ignore"}}
NATIVE: dict[str, Any] = {"sidecars": {"istio-proxy": RUNNING}}
VAULT: dict[str, State] = {"main": exited(0), "vault-agent": RUNNING}
RULES = QuitPolicy(sidecars=sidecars.parse("vault-agent=quit,my-proxy=9000/stop"))


def case(sentence: str, containers: dict[str, State], *by: str, **fields: Any) -> Row:
    """A pod of these containers, and who blocks it."""
    return Row(sentence, job(containers, **fields), by=by)


def classic(sentence: str, containers: dict[str, State], *by: str, **fields: Any) -> Row:
    """The same with a classic proxy."""
    return case(sentence, {"istio-proxy": RUNNING, **containers}, *by, **fields)


def native(sentence: str, containers: dict[str, State], *by: str, **fields: Any) -> Row:
    """The same with a native proxy."""
    return case(sentence, containers, *by, **NATIVE, **fields)


def ruled_by(sentence: str, because: str, containers: dict[str, State], **fields: Any) -> Row:
    """A pod where sidecars have rules."""
    return Row(sentence, job(containers, **fields), because, policy=RULES)


@table(
    Row("a payload that succeeded frees its proxy", done()),
    Row("the proxy may be the first container", job({"istio-proxy": RUNNING, "main": exited(0)})),
    Row("another native sidecar that still runs", done(sidecars={"vault-agent": RUNNING})),
    Row(
        "an init container whose status nobody reports any more",
        done(spec={"initContainers": [{"name": "istio-init"}]}),
    ),
    Row(
        "a restart of all containers that is over, and another condition",
        done(
            conditions=[
                {"type": "AllContainersRestarting", "status": "False"},
                {"type": "Ready", "status": "True"},
            ]
        ),
    ),
    ruled_by("sidecars go one after another", "; vault-agent goes before istio-proxy",
             {**DONE, **VAULT, "my-proxy": RUNNING}),
    ruled_by("the next sidecar", "; my-proxy goes before istio-proxy",
             {**DONE, "vault-agent": exited(143), "my-proxy": RUNNING}),
    ruled_by("a sidecar whose native proxy ends by itself", "vault-agent goes", VAULT, **NATIVE),
    ruled_by("a sidecar whose proxy is gone", "vault-agent goes before",
             {**VAULT, "istio-proxy": exited(0)}),
)  # fmt: skip
def test_quit(row: Row) -> None:
    """When nothing of the payload will run again, the proxy is told to exit.

    uds-core#687, airflow#67934, KEP-5307.
    """
    met(row, Quit)


@table(
    Row("a payload that runs", pair(RUNNING), "main (running)"),
    Row(
        "no status of the pod whatever",
        pods.convert({**document(DONE), "status": None}),
        "main (no status yet)",
    ),
    Row(
        "the moment between a failure and the next start",
        pair(exited(1), restart="OnFailure"),
        "main (exited 1, will be restarted (restartPolicy OnFailure))",
    ),
    Row(
        "a rule restarts the payload after this exit code",
        pair(exited(42), details={"main": ruled("Restart", "In", 41, 42)}),
        "will be restarted (restartPolicyRules: Restart)",
    ),
    Row(
        "a proxy that was killed and will be started again",
        pair(exited(0), exited(137), restart="OnFailure"),
        "istio-proxy does not run: exited 137, will be restarted",
    ),
    Row(
        "a proxy that the kubelet starts again after each exit",
        done(details={"istio-proxy": {"restartPolicy": "Always"}}),
        "istio-proxy is started again after it exits with 0 (container restartPolicy Always)",
        ("istio-proxy",),
    ),
    Row(
        "a proxy that seems lost, on a node that does not report",
        pair(RUNNING, exited(0), phase="Unknown"),
        "phase Unknown: the node does not report",
    ),
    Row(
        "a rule of the payload restarts all containers",
        pair(exited(9), details={"main": ruled("RestartAllContainers", "NotIn", 0)}),
        "all containers will be restarted: main exited 9",
    ),
    Row(
        "a rule of an ignored container restarts all containers",
        done(
            others={"dind": exited(9)},
            annotations={SIDECARS: "dind=ignore"},
            details={"dind": ruled("RestartAllContainers", "In", 9)},
        ),
        "all containers will be restarted: dind exited 9",
    ),
    Row(
        "all containers are being restarted, and are still reported as they were",
        pair(exited(0), exited(0), conditions=RESTARTING),
        "all containers are being restarted",
    ),
    Row(
        "the proxy vanished while all were restarted, and the payload runs on",
        pair(RUNNING, exited(137, "RestartingAllContainers")),
        "all containers are being restarted",
    ),
    ruled_by("a sidecar with a rule that is the payload, its author says", "vault-agent (running)",
             {**DONE, **VAULT}, annotations={QUIT_AFTER: "vault-agent"}),
    ruled_by("a payload beside sidecars with rules", "not finished: main (running)",
             {**DONE, **VAULT, "main": RUNNING}),
    Row("a sidecar without a rule", job({**DONE, **VAULT}),
        "not finished: vault-agent (running)", ("vault-agent",)),
    Row("a sidecar that crashes again and again",
        job({**DONE, "vault-agent": waiting("CrashLoopBackOff")}, restart="OnFailure"),
        "vault-agent does not run", ("vault-agent",), RULES),
    Row("a sidecar that the kubelet starts again after each exit",
        job({**DONE, **VAULT}, details={"vault-agent": {"restartPolicy": "Always"}}),
        "vault-agent is started again after it exits with 0", ("vault-agent",), RULES),
    classic("a sidecar that runs on", DIND, "dind"),
    classic(
            "every container that is not finished",
            {"main": exited(0), "a": RUNNING, "b": waiting("ImagePullBackOff"), "c": exited(1)},
            *("a", "b", "c"),
            restart="OnFailure",
            phase="Pending",
        ),
    classic("a proxy that crashes again and again",
             {"main": exited(0), "istio-proxy": waiting("CrashLoopBackOff")}, "istio-proxy",
             restart="OnFailure"),
    classic("a proxy whose image cannot be pulled",
             {"main": exited(0), "istio-proxy": waiting("ImagePullBackOff")}, "istio-proxy",
             phase="Pending"),
    classic("nobody: the payload runs", {"main": RUNNING, "dind": RUNNING}),
    classic("nobody: the payload will be restarted", FAILED, restart="OnFailure"),
    classic("an end that nobody waits for counts for nothing",
             {"main": RUNNING, "dind": exited(0)}, **IGNORING),
    classic("nobody knows: the node does not report", DIND, phase="Unknown"),
    classic("nobody: the kubelet restarts all containers", DIND, conditions=RESTARTING),
)  # fmt: skip
def test_wait(row: Row) -> None:
    """Unknown is never finished, nor is a container that will restart.

    uds-core#913, argo-workflows#1282, KEP-5307.
    """
    met(row, Wait)


@table(
    Row("a pod that is meant to run forever", done(restart="Always"), "restartPolicy Always"),
    Row("a pod without a restartPolicy", done(restart=None), "restartPolicy Always"),
    Row(
        "a native sidecar, with one payload container",
        job({"main": exited(0)}, sidecars={"istio-proxy": RUNNING}),
        "native sidecar",
    ),
    Row("a pod without a proxy", job({"main": exited(0)}), "no container istio-proxy"),
    Row(
        "a container that is called like the proxy but only sets things up",
        job({"main": exited(0)}, spec={"initContainers": [{"name": "istio-proxy"}]}),
        "no container istio-proxy",
    ),
    Row(
        "a pod with a gateway's proxy and a native sidecar",
        job({"istio-proxy": RUNNING}, sidecars={"vault-agent": RUNNING}),
        "no payload container",
    ),
    Row(
        "a pod whose every payload container is to be ignored",
        done(annotations={SIDECARS: "main=ignore"}),
        "no payload container",
    ),
    Row(
        "a pod that is being deleted although its payload still runs",
        pair(RUNNING, exited(0), deleting=True),
        "being deleted",
    ),
    Row(
        "a pod that ran into its deadline, with a proxy not yet reported as gone",
        pair(exited(137), phase="Failed"),
        "phase Failed",
    ),
    Row("a pod whose author opted out", done(annotations={QUIT: "false"}), f'{QUIT}: "false"'),
    Row(
        "a pod whose proxy just quit, before the phase follows",
        pair(exited(3), exited(0)),
        "and istio-proxy too",
    ),
    ruled_by("every sidecar has ended", "istio-proxy is a native sidecar",
             {**VAULT, "vault-agent": exited(0)}, **NATIVE),
    ruled_by("a sidecar of a pod that is not of the mesh", "no container istio-proxy", VAULT),
        case("an ignored container, once the proxy is gone: only the proxy ignores it",
             {**DIND, "istio-proxy": exited(0)}, "dind", **IGNORING),
        case("nobody: the ignored container has ended as well",
             {"main": exited(0), "istio-proxy": exited(0), "dind": exited(0)}, **IGNORING),
        native("a container that nobody ends", DIND, "dind"),
        native("an ignored container", DIND, "dind", **IGNORING),
        native("the proxy itself, in its grace period", {"main": exited(0)}, "istio-proxy"),
        case("of native sidecars the last one, for which the kubelet waits before it ends others",
             {"main": exited(0)}, "shipper",
             sidecars={"istio-proxy": RUNNING, "shipper": RUNNING, "gone": exited(0)}),
        case("a native sidecar that outlives a classic proxy",
             {"main": exited(0), "istio-proxy": exited(0)}, "shipper",
             sidecars={"shipper": RUNNING}),
        native("nobody: the payload runs", {"main": RUNNING, "dind": RUNNING}),
        native("nobody: the payload will be restarted", FAILED, restart="OnFailure"),
        native("nobody: the payload runs, and an ignored container has ended",
               {"main": RUNNING, "dind": exited(0)}, **IGNORING),
        native("nobody: the pod is not meant to end", DIND, restart="Always"),
        native("nobody: the pod failed", DIND, phase="Failed"),
        native("nobody knows: the node does not report", DIND, phase="Unknown"),
        case("a pod without a proxy is none of our business", DIND),
        case("an author who wants the proxy to stay is no holder",
             {**DIND, "istio-proxy": RUNNING}, annotations={QUIT: "false"}),
)  # fmt: skip
def test_ignore(row: Row) -> None:
    """Some pods are none of our business, and stay so.

    community-distribution#3057, uds-core#972.
    """
    met(row, Ignore)
    assert all(f"{name} (" in decide(row.pod).reason for name in row.by or ())


@pytest.mark.parametrize(
    "owner", [("kubeflow.org/v1", "TFJob"), ("a/v1", "Unheard"), None], ids=str
)
def test_a_pod_is_judged_by_itself_not_by_its_source(owner: tuple[str, str] | None) -> None:
    """No owner matters, nor what a template leaves behind; containers do.

    kuma#2848, pipeline#4731.
    """
    left = {"sidecar.istio.io/inject": "false", "sidecar.istio.io/status": '{"containers":[]}'}
    marked = decided(Quit, done(labels=left, annotations=left, owner=owner))
    assert marked == decide(done(owner=("batch/v1", "Job")))


def test_a_recorded_job_gets_exactly_one_stretch_of_quit() -> None:
    """Replayed event by event: wait, quit, and never again once the proxy has ended.

    uds-core#972, pipeline#4731.
    """
    events = (DATA / "demo/watch-classic-job.jsonstream").read_text().splitlines()
    decisions = [type(decide(pods.convert(json.loads(event)["object"]))) for event in events]
    assert [action for action, _ in groupby(decisions)] == [
        Wait,
        Quit,
        Ignore,
    ]
    assert decisions.count(Quit) == 1


def both(*rules: dict[str, Any]) -> dict[str, Any]:
    """Details of a container with two restart rules."""
    return rules[0] | {"restartPolicyRules": [each["restartPolicyRules"][0] for each in rules]}


RULED = ruled("Restart", "In", 42)


@pytest.mark.parametrize(
    ("details", "policy", "code", "again"),
    [
        row("Never: success is the end", {}, "Never", 0, False),
        row("OnFailure: failure is not", {}, "OnFailure", 1, True),
        row("Always: success is not the end", {}, "Always", 0, True),
        row("its Never beats the pod's OnFailure", {"restartPolicy": "Never"},
            "OnFailure", 1, False),
        row("its OnFailure beats the pod's Never", {"restartPolicy": "OnFailure"},
            "Never", 1, True),
        row("an unknown policy leaves it to the pod", {"restartPolicy": "Sometimes"},
            "Never", 1, False),
        row("a rule with In matches", RULED, "Never", 42, True),
        row("a rule restarts even a success", ruled("Restart", "In", 0), "OnFailure", 0, True),
        row("an unknown action is left to the policies", ruled("Pray", "In", 42),
            "Never", 42, False),
        row("an unknown operator matches nothing", ruled("Restart", "Near", 42),
            "Never", 42, False),
        row("without a policy of its own a container has no rules",
            RULED | {"restartPolicy": None}, "Never", 42, False),
        row("rules that do not match leave it to the container's policy",
            RULED | {"restartPolicy": "OnFailure"}, "Never", 1, True),
        row("a rule without values and NotIn matches everything",
            ruled("Restart", "NotIn"), "Never", 0, True),
        row("a second rule counts when the first does not match",
            both(ruled("Restart", "In", 1), RULED), "Never", 42, True),
        row("only the first rule that matches counts",
            both(ruled("Pray", "In", 42), RULED), "Never", 42, False),
    ],
)  # fmt: skip
def test_restart_rules(details: dict[str, Any], policy: str | None, code: int, again: bool) -> None:
    """Rules, then the container's policy, then the pod's, as the kubelet asks them (KEP-5307)."""
    pod = job({"main": exited(code)}, restart=policy, details={"main": details})
    assert should_restart(pod.containers[0], pod.spec, code)[0] is again


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (MISSING, "no status yet"),
        (EMPTY, "waiting"),
        (RUNNING, "running"),
        (waiting("CrashLoopBackOff"), "waiting: CrashLoopBackOff"),
        ({"running": {}, "terminated": {"exitCode": 0}}, "running"),
    ],
)
def test_a_container_that_has_not_ended_is_not_finished(state: State, why: str) -> None:
    pod = job({"main": state})
    result = finished(pod.containers[0], pod)
    assert (result.finished, result.why) == (False, why)


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("RestartingAllContainers", "will be restarted with all others"),
        ("ContainerStatusUnknown", "will be restarted (its state is unknown)"),
    ],
)
@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_the_kubelets_own_marks_mean_another_start(policy: str, reason: str, why: str) -> None:
    """It reports the container as terminated, and starts it again (KEP-5307, kubernetes#22607)."""
    pod = job({"main": exited(137, reason)}, restart=policy)
    result = finished(pod.containers[0], pod)
    assert (result.finished, result.why) == (False, f"exited 137 ({reason}), {why}")


ENDED, RUNS = ({"name": "main", "state": state} for state in (exited(0), RUNNING))


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ([ENDED, RUNS], "no status yet"),
        ([RUNS, ENDED], "no status yet"),
        ([ENDED, RUNS, ENDED], "no status yet"),
        # A status that is there twice contradicts nothing.
        ([ENDED, ENDED], "exited 0, not restarted (restartPolicy Never)"),
    ],
)
def test_statuses_that_contradict_each_other_say_nothing(
    listed: list[dict[str, Any]], why: str
) -> None:
    """Whichever comes first."""
    pod = job({"main": MISSING}, status={"containerStatuses": listed})
    assert finished(pod.containers[0], pod) == (RUNS not in listed, why)


@pytest.mark.parametrize(
    ("versions", "obey"),
    [
        (("v1.33.13", "v1.9.1"), False),
        (("v1.35.0", "v1.36.3+k3s1", "1.36"), True),
        (("v1.34.4", "v1.350000", "v2.0.0", "", "v1." + "3" * 1_000_000), None),
    ],
    ids=["old", "new", "unclear"],
)
def test_which_kubelets_obey_the_restart_policy_of_a_single_container(
    versions: tuple[str, ...], obey: bool | None
) -> None:
    """From 1.35 on; 1.34 has a gate for it that nobody can ask for."""
    assert {*map(obeys, versions)} == {obey}


@pytest.mark.parametrize(
    ("own", "restart", "code", "obeyed", "why"),
    [
        ("Never", "OnFailure", 1, False,
         ("exited 1, will be restarted (restartPolicy OnFailure; "
         "the kubelet ignores container restartPolicy Never)")),
        ("Never", "OnFailure", 1, None,
         ("exited 1, may be restarted (container restartPolicy Never, "
         "which kubelets up to 1.34 ignore)")),
        ("Never", "OnFailure", 1, True, ""),
        ("OnFailure", "Never", 1, False, ""),
        ("OnFailure", "Never", 0, None, ""),
    ],
)  # fmt: skip
def test_a_container_is_finished_if_its_kubelet_says_so(
    own: str, restart: str, code: int, obeyed: bool | None, why: str
) -> None:
    """Its own policy counts only for a kubelet that obeys it; unknown is not finished."""
    pod = job({"main": exited(code)}, restart=restart, details={"main": {"restartPolicy": own}})
    (main,) = pod.containers
    found = finished(main, pod, obeyed=obeyed)
    assert found.finished is not bool(why)
    assert why in {"", found.why}
    assert depends_on_kubelet(pod) is (code != 0)
