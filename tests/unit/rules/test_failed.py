"""Pods that failed because of their mesh, and Jobs that make no pods."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from istio_aux.cli import report
from istio_aux.model.ending import failure
from istio_aux.model.owners import KINDS, Job, JobCounts, JobSpec, podless
from istio_aux.model.pod import Pod
from istio_aux.quit.rules import Action, Ignore, Report
from unit.rules.pods import (
    ENDED,
    JOB,
    RUNNING,
    State,
    decide,
    decided,
    exited,
    job,
    judged,
    moment,
    statuses,
)

DONE: dict[str, State] = {"main": exited(0), "istio-proxy": exited(1, "Error")}
HELD = {"istio-aux.io/started-with": "hold", "istio-aux.io/not-native": "its grace period is short"}
NATIVE = "`istio-aux.io/start: native`"


def failed(containers: dict[str, State] | None = None, **fields: Any) -> Pod:
    """A pod of a Job, which has failed."""
    return job(DONE if containers is None else containers, phase="Failed", owner=JOB, **fields)


def init(code: int, name: str = "fetch", kind: dict[str, str] | None = None, **fields: Any) -> Pod:
    """A pod with a classic sidecar whose init container ended."""
    inits = [{"name": "istio-validation"}, {"name": name, **(kind or {})}]
    states = {"istio-validation": exited(0), "fetch": exited(0), name: exited(code, "Error")}
    status = {"initContainerStatuses": statuses(states)}
    return failed({"main": None, "istio-proxy": None}, status=status,
                  spec={"initContainers": inits}, **fields)  # fmt: skip


def again(
    code: int = 0, *, at: str = "2026-11-21T08:20:00Z", main: State = RUNNING, **fields: Any
) -> Pod:
    """A pod whose native proxy ended at a time, and runs again."""
    proxy = {"name": "istio-proxy", "restartCount": 1, "lastState": exited(code, at=at)}
    status = {"initContainerStatuses": [{**proxy, "state": RUNNING}]}
    sidecars: dict[str, State] = {"istio-proxy": RUNNING}
    return job({"main": main}, sidecars=sidecars, status=status, owner=JOB, **fields)


def policy_of(pod: Pod) -> str:
    """The failure policy of its Job that would leave such a pod out."""
    found = failure(pod)
    assert found
    return found.policy


@pytest.mark.parametrize(
    ("pod", "code", "says"),
    [
        # kruise#1303, linkerd2#8033: the work is done again.
        (failed(), "IA0121", "every other container exited with 0, but istio-proxy exited 1 ("),
        (failed(), "IA0121", "the pod has failed, and Job/ counts a failure"),
        (failed(), "IA0121", f"{NATIVE}: the exit code of a native proxy does not fail a pod"),
        (failed(annotations=HELD), "IA0121", "istio-aux holds it, not native: its grace"),
        (failed({**DONE, "istio-proxy": exited(137)}), "IA0121", "istio-proxy exited 137"),
        # istio#49210: a node that has just joined.
        (init(126, "istio-validation"), "IA0120", "istio-validation exited 126: Istio's CNI"),
        # dagster#32428, actions-runner-controller#4452.
        (init(1), "IA0122", "init container fetch exited 1 (Error); fetch runs before istio-proxy"),
        (init(1), "IA0122", f"{NATIVE} has the proxy start first"),
        (init(1, annotations=HELD), "IA0122", "istio-aux holds it, not native: its grace"),
        # superset#41396: the script is in a Secret.
        (again(), "IA0123", "istio-proxy exited 0 and was started again (1 time), while main ran"),
        (again(), "IA0123", "the payload ends the proxy itself; take out"),
        (again(restart="OnFailure"), "IA0123", "itself, which Job/ counts as a failure each time"),
    ],
)  # fmt: skip
def test_explain_says_how_its_mesh_failed_a_pod(pod: Pod, code: str, says: str) -> None:
    shown = report.explain(pod, judged(pod))
    assert (shown.state, shown.code, shown.codes, shown.action) == (
        "failed",
        code,
        (code,),
        "ignore",
    )
    assert says in shown.reason


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(failed({**DONE, "main": exited(1)}), id="the payload failed"),
        pytest.param(failed({**DONE, "istio-proxy": exited(0)}), id="nothing failed"),
        pytest.param(failed({**DONE, "istio-proxy": RUNNING}), id="the proxy runs"),
        pytest.param(failed({"istio-proxy": exited(1)}), id="a gateway"),
        pytest.param(failed({**DONE, "main": None}), id="it is not known"),
        pytest.param(failed(status={"reason": "Evicted"}), id="evicted"),
        pytest.param(failed(deleting=True), id="deleted"),
        pytest.param(failed(restart="Always"), id="not meant to end"),
        pytest.param(job(DONE), id="it runs"),
        pytest.param(init(1, "istio-validation"), id="another exit of istio-validation"),
        pytest.param(init(0), id="init containers succeeded"),
        pytest.param(init(1, kind={"restartPolicy": "Always"}), id="a native sidecar was killed"),
        pytest.param(again(137), id="the native proxy was killed"),
        pytest.param(again(at="2026-11-21T08:00:00Z"), id="it ended before the payload began"),
        pytest.param(again(main=exited(0)), id="the payload is finished"),
        pytest.param(again(phase="Succeeded"), id="the pod is over"),
    ],
)
def test_its_mesh_did_not_fail_the_pod(pod: Pod) -> None:
    """A proxy that never gets ready is killed by its startup probe, and exits with 0."""
    assert failure(pod) is None


def test_a_pod_is_recent_for_an_hour_and_one_that_runs_for_as_long_as_it_does() -> None:
    for pod, seconds, recent in (
        (failed(), 3599, True), (failed(), 3600, False), (again(), 86400, True),
        (failed({**DONE, "istio-proxy": exited(1, at="2026-11-21T09:16:29")}), 7100, True),
    ):  # fmt: skip
        assert bool(failure(pod, moment(ENDED, seconds))) is recent
    timeless = {n: {"terminated": {"exitCode": c}} for n, c in (("main", 0), ("istio-proxy", 1))}
    unknown = failed(status={"containerStatuses": statuses(timeless)})
    assert failure(unknown)
    assert failure(unknown, moment(ENDED)) is None


def test_a_job_may_leave_pods_out_that_were_not_set_up_and_counts_all_others() -> None:
    """A rule can name no container that is injected, as the API server knows the template alone."""
    pod = init(126, "istio-validation")
    on = {"operator": "In", "values": [126]}
    policy = yaml.safe_load(report.explain(pod, judged(pod)).policy)
    assert policy == {"podFailurePolicy": {"rules": [
        {"action": "Count", "onExitCodes": {"containerName": "main", **on}},
        {"action": "Ignore", "onExitCodes": on},
    ]}}  # fmt: skip


@pytest.mark.parametrize(("own", "rules"), [(1, 2), (19, 20), (20, 0)])
def test_such_a_policy_leaves_out_what_other_webhooks_add_and_is_not_too_long(
    own: int, rules: int
) -> None:
    """The API server refuses names that the template lacks, and more than 20 rules."""
    names = dict.fromkeys((*(f"c{number}" for number in range(own)), "istio-proxy", "vault-agent"))
    status = {"initContainerStatuses": statuses({"istio-validation": exited(126)})}
    image = {"vault-agent": {"image": "hashicorp/vault:1"}}
    policy = policy_of(failed(names, status=status, details=image))
    assert policy.count("action:") == rules
    assert "vault-agent" not in policy


def test_such_a_policy_does_not_count_what_native_sidecars_exit_with() -> None:
    """What heals one finding causes no other, IA0118."""
    policy = yaml.safe_load(policy_of(init(126, "istio-validation")))["podFailurePolicy"]
    assert not JobCounts.of(msgspec.convert({"podFailurePolicy": policy}, JobSpec)).exits
    policy["rules"][1]["onExitCodes"]["values"].append(137)
    assert JobCounts.of(msgspec.convert({"podFailurePolicy": policy}, JobSpec)).exits


@pytest.mark.parametrize(
    "fields", [{"restart": "OnFailure"}, {"owner": ("kubeflow.org/v1", "TFJob")}, {"owner": None}]
)
def test_only_a_job_that_replaces_failed_pods_has_such_a_policy(fields: dict[str, Any]) -> None:
    status = {"initContainerStatuses": statuses({"istio-validation": exited(126)})}
    pod = job({"main": None}, phase="Failed", status=status, **{"owner": JOB, **fields})
    assert policy_of(pod) == ""


ITSELF = {"main": {"args": ["work; curl -X POST localhost:15020/quitquitquit; tidy"]}}
EARLY = {"running": {"startedAt": "2026-11-21T08:00:00Z"}}
LATE = {"running": {"startedAt": "2026-11-21T08:17:00Z"}}


@pytest.mark.parametrize(
    ("main", "code", "details", "action"),
    [
        pytest.param(EARLY, 0, ITSELF, Ignore, id="its script ends the proxy"),
        pytest.param(EARLY, 0, {}, Report, id="it is not known who did"),
        pytest.param(EARLY, 137, ITSELF, Report, id="the proxy was killed"),
        pytest.param(LATE, 0, ITSELF, Report, id="the proxy gave up before the payload began"),
        pytest.param({"running": {}}, 0, ITSELF, Report, id="unknown"),
        pytest.param(EARLY, 0, {"main": {"args": ["quitquitquit" * 20_000]}}, Report,
                     id="it says too much"),
    ],
)  # fmt: skip
def test_a_payload_that_ends_its_classic_proxy_itself_has_lost_none(
    main: State, code: int, details: dict[str, Any], action: type[Action]
) -> None:
    """istio#45627 is the other kind: no network from the start."""
    decision = decided(action, job({"main": main, "istio-proxy": exited(code)}, details=details))
    said = 'the payload ends the proxy itself: quitquitquit in container "main"; not finished: main'
    assert (said in decision.reason, decision.code == "IA0103") == (
        (True, False) if action is Ignore else (False, True)
    )


def test_only_while_the_payload_runs_that_is_said_of_it() -> None:
    """Not when all containers start again, or the payload is finished."""
    gone: dict[str, State] = {"main": EARLY, "istio-proxy": exited(0)}
    restarting = [{"type": "AllContainersRestarting", "status": "True"}]
    again = decide(job(gone, details=ITSELF, conditions=restarting))
    assert "all containers are being restarted" in again.reason
    ignored = {"istio-aux.io/sidecars": "dind=ignore"}
    over = job({**gone, "main": exited(0), "dind": EARLY}, details=ITSELF, annotations=ignored)
    assert decide(over).reason.startswith(
        "every payload container is finished, and istio-proxy too"
    )


def condition(name: str, status: str = "True") -> dict[str, str]:
    return {
        "type": name, "status": status, "reason": "BackoffLimitExceeded",
        "message": "it has reached\nthe limit", "lastTransitionTime": "2026-11-28T05:55:00Z",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "spec", "conditions", "says"),
    [
        ("Job", {}, [condition("FailureTarget"), condition("Failed")],
         "it is Failed since 2026-11-28 05:55Z: BackoffLimitExceeded: it has reached the limit"),
        ("Job", {}, [condition("Failed", "False")], ""),
        ("Job", {"suspend": True}, [condition("Failed")], "it is Failed since 2026"),
        ("Job", {"suspend": True}, [condition("Suspended")], "it is Suspended since 2026"),
        ("Job", {"suspend": True}, [], "it is suspended"),
        ("TFJob", {"runPolicy": {"suspend": True}}, [], "it is suspended"),
        ("Job", {"managedBy": "kueue.x-k8s.io/multikueue"}, [],
         "kueue.x-k8s.io/multikueue manages it (managedBy), perhaps in another cluster"),
        ("Job", {"managedBy": "kubernetes.io/job-controller"}, [], ""),
        ("JobSet", {}, [condition("Completed")], "it is Completed since 2026"),
    ],
)  # fmt: skip
def test_a_job_says_why_it_makes_no_pods(
    kind: str, spec: dict[str, Any], conditions: list[dict[str, str]], says: str
) -> None:
    body = {"spec": spec, "status": {"conditions": conditions}}
    said = podless(msgspec.convert(body, Job), KINDS[kind])
    assert said.startswith(says)
    assert (bool(said), "suspended" in said) == (bool(says), "suspended" in says)
