"""When a proxy is told to exit or waits: the decision (see tests/oracle), its states, and hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import pytest
from istio_aux.model.annotations import QUIT, QUIT_AFTER, SIDECARS
from istio_aux.model.kubelet import (
    OBEYS,
    Kubelet,
    depends_on_kubelet,
    finished,
    obeys,
    should_restart,
)
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Key, Pod, convert
from istio_aux.model.policy import DeadProxy, QuitMode, QuitPolicy
from istio_aux.model.sidecars import AttemptResult, parse
from istio_aux.quit.attempt import (
    Action,
    End,
    Look,
    PodState,
    QuitLimits,
    QuitOutcome,
    QuitScope,
    Retry,
    Send,
    Sleep,
    Task,
)
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import (
    LEFT_ALONE,
    NEVER_MET,
    NOT_BEGUN,
    Ignore,
    Quit,
    Report,
    Wait,
    Way,
    decide_once,
)
from unit.rules.pods import (
    DATA,
    EMPTY,
    ENDED,
    INIT,
    JOB,
    LATE,
    MISSING,
    NATIVE,
    NEW,
    RUNNING,
    SET_UP,
    Row,
    State,
    blockers,
    decide,
    decided,
    document,
    done,
    exited,
    hook,
    job,
    met,
    moment,
    pair,
    row,
    ruled,
    statuses,
    table,
    waiting,
    while_held,
)

# When a proxy is told to exit or waits, and whether a container is finished; see tests/oracle.

BOTH: dict[str, State] = {"main": exited(0), "istio-proxy": RUNNING}
RESTARTING = [{"type": "AllContainersRestarting", "status": "True"}]
DIND: dict[str, State] = {"main": exited(0), "dind": RUNNING}
FAILED: dict[str, State] = {"main": exited(1), "dind": RUNNING}
IGNORING: dict[str, Any] = {"annotations": {SIDECARS: "dind=ignore"}}
VAULT: dict[str, State] = {"main": exited(0), "vault-agent": RUNNING}
RULES = QuitPolicy(sidecars=parse("vault-agent=quit,my-proxy=9000/stop"))


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
             {**BOTH, **VAULT, "my-proxy": RUNNING}),
    ruled_by("the next sidecar", "; my-proxy goes before istio-proxy",
             {**BOTH, "vault-agent": exited(143), "my-proxy": RUNNING}),
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
        convert({**document(BOTH), "status": None}),
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
             {**BOTH, **VAULT}, annotations={QUIT_AFTER: "vault-agent"}),
    ruled_by("a payload beside sidecars with rules", "not finished: main (running)",
             {**BOTH, **VAULT, "main": RUNNING}),
    Row("a sidecar without a rule", job({**BOTH, **VAULT}),
        "not finished: vault-agent (running)", ("vault-agent",)),
    Row("a sidecar that crashes again and again",
        job({**BOTH, "vault-agent": waiting("CrashLoopBackOff")}, restart="OnFailure"),
        "vault-agent does not run", ("vault-agent",), RULES),
    Row("a sidecar that the kubelet starts again after each exit",
        job({**BOTH, **VAULT}, details={"vault-agent": {"restartPolicy": "Always"}}),
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
    decisions = [type(decide(convert(json.loads(event)["object"]))) for event in events]
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


OVER, RUNS = ({"name": "main", "state": state} for state in (exited(0), RUNNING))


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ([OVER, RUNS], "no status yet"),
        ([RUNS, OVER], "no status yet"),
        ([OVER, RUNS, OVER], "no status yet"),
        # A status that is there twice contradicts nothing.
        ([OVER, OVER], "exited 0, not restarted (restartPolicy Never)"),
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


# The states of a pod's quit: what is next after each observation, without an event loop.

NOW = moment(datetime(2026, 11, 21, 8, 16, 40, tzinfo=UTC))
DONE, STOPPED = exited(0), exited(0, at="2026-11-21T08:16:30Z")
JUST_DONE = exited(0, at="2026-11-21T08:16:40Z")
WELL, DOUBTFUL = (
    AttemptResult(True, True, "exit code 0"),
    AttemptResult(False, True, "no exit code"),
)
FINISHED = "every payload container is finished"
EXITED = End(QuitOutcome.EXITED, "istio-proxy exited with 0", 1.0)
GONE = End(QuitOutcome.GONE, "the pod is gone")


def after(seconds: float) -> Moment:
    return Moment(NOW.monotonic + seconds, NOW.wall + seconds)


def superseded(reason: str) -> End:
    return End(QuitOutcome.SUPERSEDED, reason)


def pod(
    main: State = DONE, proxy: State = RUNNING, version: int = 0, created: str = "", **more: Any
) -> Pod:
    body = document({"istio-proxy": proxy, "main": main}, **more)
    about = {"resourceVersion": str(version or ""), "creationTimestamp": created or None}
    body["metadata"] |= about | {"labels": {}}
    return convert(body)


class Story:
    """One pod and its task, from the moment it is due."""

    def __init__(self, first: Pod | None = None, *, due: bool = True, **scope: Any) -> None:
        self.scope = QuitScope(namespaces={"training"}, **scope)
        self.kubelet: Kubelet | None = None
        self.state = PodState(Key("training", "job", "u-1"))
        self.watched(first or pod())
        found = self.state.due(self.scope)
        assert bool(found) is due
        if found:
            self.task = self.state.task = Task(self.state, found)

    def becomes(self, **scope: Any) -> None:
        """What this process may do, and to which pods, changes."""
        for name, value in scope.items():
            setattr(self.scope, name, value)

    def awake(self, seconds: float = 0) -> Action:
        return self.task.awake(self.scope, after(seconds))

    def watched(self, seen: Pod, now: Moment = NOW) -> None:
        self.state.decide_on(self.facts(seen), self.scope, now)

    def looked(self, seen: Pod | None = None, seconds: float = 0, *, gone: bool = False) -> Action:
        facts = None if gone else self.facts(seen or pod())
        return self.task.looked(facts, self.scope, after(seconds))

    def facts(self, seen: Pod) -> PodFacts:
        return PodFacts(seen, self.scope.policy, self.kubelet)

    def answered(self, answer: AttemptResult = WELL, way: Way = Way.EXEC) -> Action:
        return self.task.answered(way, answer, self.scope)

    def failed(self, **how: Any) -> Action:
        return self.task.failed("503: busy", self.scope, **how)

    def told(self, answer: AttemptResult = WELL) -> Story:
        """The same pod once its proxy was told to exit."""
        assert self.awake() == Look()
        send = self.looked()
        assert isinstance(send, Send)
        self.answered(answer, send.way)
        return self


@pytest.mark.parametrize(
    ("seconds", "waited"), [(0.3, 0.3), (1.7, 1.7), (9.0, 2.0)], ids=["fast", "slow", "frozen"]
)
def test_the_wait_of_a_payload_whose_end_was_seen_has_fractions(
    seconds: float, waited: float
) -> None:
    """The kubelet's times are whole seconds: those of these exits are one second apart."""
    story = Story(pod(main=RUNNING), due=False)
    story.watched(pod())
    found = story.state.due(story.scope)
    assert found
    story.task = story.state.task = Task(story.state, found)
    story.told().watched(pod(proxy=STOPPED), after(seconds))
    end = story.awake(seconds)
    assert isinstance(end, End)
    assert end.after_payload == pytest.approx(waited)
    assert end.reason == EXITED.reason


@pytest.mark.parametrize(
    ("payload", "proxy", "seconds"),
    [
        ("2026-11-21T08:16:29Z", "2026-11-21T08:16:33Z", 4.0),
        ("2026-11-21T08:16:33Z", "2026-11-21T08:16:29Z", 0.0),
        ("0001-01-01T00:00:00Z", "2026-11-21T08:16:33Z", 20.0),
        ("2026-11-21T08:16:29Z", "9999-12-31T23:59:59Z", 20.0),
    ],
    ids=["believed", "backwards", "before the pod was created", "in the future"],
)
def test_a_pod_was_not_kept_for_longer_than_it_has_existed(
    payload: str, proxy: str, seconds: float
) -> None:
    """Whatever the kubelet, or somebody in its place, writes. The pod is 20 s old."""
    ended = exited(0, at=payload), exited(0, at=proxy)
    story = Story().told()
    story.watched(pod(*ended, created="2026-11-21T08:16:20Z"))
    assert story.awake() == End(QuitOutcome.EXITED, EXITED.reason, seconds)


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [(WELL, 8.0), (DOUBTFUL, 2.0), (AttemptResult(False, False, "403"), 0.0)],
    ids=["well", "doubtful", "refused"],
)
def test_how_long_the_exit_is_waited_for(answer: AttemptResult, seconds: float) -> None:
    """The status decides, not the answer. Istio up to 1.25 drains for 5 s.

    python#2156, uds-core#972.
    """
    story = Story()
    assert story.awake() == Look()
    story.looked()
    assert story.answered(answer) == Sleep(seconds)
    assert story.awake() == Look()
    assert story.looked(pod(proxy=exited(137))) == End(
        QuitOutcome.EXITED_NONZERO, "istio-proxy exited with 137", 0.0
    )


def test_a_proxy_that_runs_on_is_asked_by_one_rung_after_the_other() -> None:
    """It is stuck after three failures, and every way says why."""
    story, trouble = Story(), None
    for count, way in enumerate((Way.EXEC, Way.PORT_FORWARD, Way.ENVOY, Way.EXEC), 1):
        assert story.awake() == Look()
        assert story.looked() == Send(way, 15020)
        story.answered(WELL if way is Way.EXEC else DOUBTFUL, way)
        assert story.awake() == Look()
        assert story.looked() == Retry()
        trouble = story.state.trouble(story.scope, NOW)
        assert (trouble is not None) is (count >= 3)
    assert trouble
    assert (trouble.state, trouble.attempts) == ("stuck", 4)
    assert trouble.reason == (
        "exec: exit code 0, but istio-proxy still runs; exec-envoy: no exit code; "
        "port-forward: no exit code"
    )


@pytest.mark.parametrize(
    ("change", "seen", "outcome"),
    [
        ({"namespaces": set()}, pod(), superseded("namespace training is not selected")),
        ({"leading": False}, pod(), superseded("another process leads")),
        ({"stopping": True}, pod(), superseded("this process is stopping")),
        ({}, None, GONE),
        ({}, pod(main=RUNNING), superseded("not finished: main (running)")),
        ({}, pod(proxy=STOPPED), superseded(f"{FINISHED}, and istio-proxy too")),
        ({}, pod(deleting=True), superseded(
            "the pod is being deleted since 2026-11-21 08:16Z; as the kubelet last said, not ended:"
            " istio-proxy (running); istio-proxy is left alone, as its payload may still need it"
        )),
    ],
    ids=["deselected", "deposed", "stopping", "gone", "restarted", "exited before", "deleted"],
)  # fmt: skip
def test_the_state_read_right_before_an_attempt_decides(
    change: dict[str, Any], seen: Pod | None, outcome: Any
) -> None:
    """kuma#13617: and an exit that nobody asked for is none of ours."""
    story = Story()
    assert story.awake() == Look()
    story.becomes(**change)
    assert story.looked(seen, gone=seen is None) == outcome
    assert story.task.attempts == 0


@pytest.mark.parametrize(
    ("change", "following"),
    [
        ({}, Look()),
        ({"namespaces": set()}, superseded("namespace training is not selected")),
        ({"leading": False}, superseded("another process leads")),
        ({"stopping": True}, End()),
    ],
    ids=["due", "deselected", "deposed", "stopping"],
)
def test_a_task_ends_between_attempts_once_nothing_is_due(
    change: dict[str, Any], following: Action
) -> None:
    story = Story().told()
    assert story.awake() == Look()
    assert story.looked() == Retry()
    story.becomes(**change)
    assert story.awake() == following


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda story: story.looked(pod(proxy=STOPPED, phase="Succeeded")), EXITED),
        (lambda story: story.looked(gone=True), GONE),
        (lambda story: story.looked(pod()), superseded(FINISHED)),
        (lambda story: story.failed(), superseded("not known: 503: busy")),
    ],
    ids=["exited", "gone", "an older state", "it cannot be read"],
)
def test_the_outcome_for_a_pod_that_left_the_watch(
    end: Callable[[Story], Action], outcome: Any
) -> None:
    story = Story().told()
    story.state.unwatched = True
    assert story.awake() == Look(), "the watch did not show the exit"
    assert end(story) == outcome


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_wall_clock_that_steps_changes_no_duration(step: int) -> None:
    """Grace periods, the second look at a dead proxy, the Event of a blocked pod, a watch's lag."""
    graced = Story(pod(main=JUST_DONE), policy=QuitPolicy(grace=30))
    lost, blocked, late = Story(TORN), Story(BLOCKED), Story(pod(version=20))
    stepped = Moment(NOW.monotonic + 1, NOW.wall + 1 + step)
    graced.watched(pod(main=JUST_DONE), stepped)
    assert graced.task.awake(graced.scope, stepped) == Sleep(29.0)
    assert graced.state.decision.reason == f"{FINISHED}; the grace period ends at 08:17:10"
    assert lost.task.awake(lost.scope, stepped) == Sleep(QuitLimits().lost_after - 1)
    assert blocked.task.awake(blocked.scope, stepped) == Sleep(QuitLimits().blocked_after - 1)
    late.watched(pod(main=RUNNING, version=19), stepped)
    assert late.state.decision.action == "quit"


@pytest.mark.parametrize(
    ("at", "created", "until"),
    [
        ("2026-11-21T08:16:30Z", "2026-11-21T08:00:00Z", after(20)),
        ("2026-11-21T08:16:10Z", "2026-11-21T08:00:00Z", None),
        ("2026-11-21T07:16:40Z", "2026-11-21T08:16:35Z", after(25)),
        ("2026-11-21T09:16:40Z", "2026-11-21T08:16:35Z", after(30)),
        (None, "2026-11-21T08:16:35Z", after(30)),
    ],
    ids=["10 s ago", "over", "before the pod was created", "in the future", "no time"],
)
def test_a_process_that_starts_later_believes_a_node_within_bounds(
    at: str | None, created: str, until: Moment | None
) -> None:
    """A grace period of 30 s goes on where it was, and does not begin again."""
    end = exited(0, at=at) if at else {"terminated": {"exitCode": 0}}
    story = Story(pod(end, created=created), policy=QuitPolicy(grace=30))
    assert story.state.until == until
    assert story.state.asks_for == "quit"


def test_a_grace_period_begins_once_the_kubelet_is_known_to_obey() -> None:
    details = {"main": {"restartPolicy": "Never"}}
    seen = pod(exited(1), restart="OnFailure", details=details, spec={"nodeName": "node-1"})
    story = Story(seen, policy=QuitPolicy(grace=30))
    assert story.awake() == Look(), "and the node is asked"
    story.kubelet = OBEYS
    for seconds in (20, 40):
        story.watched(seen, after(seconds))
        assert story.state.until == after(50)


def test_an_older_state_does_not_count_for_a_while() -> None:
    story = Story(pod(version=20))
    story.watched(pod(main=RUNNING, version=19))
    assert story.state.decision.action == "quit"
    assert story.awake() == Look()
    assert story.looked(pod(main=RUNNING, version=19)) == Retry()
    story.watched(pod(main=RUNNING, version=1), after(31))
    assert story.state.decision.action == "wait", "a restored etcd"


@pytest.mark.parametrize(
    ("mode", "older"),
    [(QuitMode.ENABLED, pod(main=RUNNING, version=7)), (QuitMode.DRY_RUN, pod(version=7))],
    ids=["before the payload ended", "in a dry run"],
)
def test_an_older_state_after_a_grace_period_is_not_read_again_without_a_pause(
    mode: QuitMode, older: Pod
) -> None:
    """A restored etcd has it for longer than a request takes."""
    story = Story(pod(main=JUST_DONE, version=8), policy=QuitPolicy(grace=10.0), mode=mode)
    assert story.awake() == Sleep(10.0)
    assert story.awake(10) == Look()
    assert isinstance(story.looked(older, 10), Retry)


TORN = pod(main=RUNNING, proxy=STOPPED, owner=("batch/v1", "Job"), version=5)


@pytest.mark.parametrize(
    "seen",
    [pod(main=STOPPED, proxy=STOPPED, version=6), None],
    ids=["finished too", "gone"],
)
def test_a_pod_that_ends_with_its_proxy_is_not_reported(seen: Pod | None) -> None:
    story = Story(TORN)
    assert story.awake(2) == Look()
    assert story.looked(seen, gone=seen is None) == End()


BLOCKED = convert(document({"istio-proxy": RUNNING, "main": DONE, "side": RUNNING}))


def test_a_blocked_pod_gets_one_event_after_a_while() -> None:
    story = Story(BLOCKED)
    story.watched(BLOCKED, after(45))
    assert story.awake(45) == Sleep(15.0), "from when it was first seen"
    lasting = [story.state.trouble(story.scope, after(seconds)) for seconds in (45, 60)]
    assert [pod.lasting for pod in filter(None, lasting)] == [False, True]
    assert story.awake(60) == End(QuitOutcome.BLOCKED, "not finished: side (running)")
    assert story.state.due(story.scope) is None


# A payload that is held by the hook of its proxy: how long, what is told, and what ends it.
#
# The statuses are those of Istio 1.31 on a kubelet 1.36.3 while the hook waits.


def held(main: State = NEW, proxy: State = NEW, **fields: Any) -> Pod:
    """A pod whose hook waits."""
    return job({"istio-proxy": proxy, "main": main}, **while_held(**fields))


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        (["pilot-agent", "wait"], 60),
        (["pilot-agent", "wait", "--timeoutSeconds=300"], 300),
        (["pilot-agent", "wait", "--timeoutSeconds=300", "--periodMillis=9"], None),
        (["pilot-agent", "wait", "--url=http://localhost:15020/healthz/ready"], None),
        (["pilot-agent", "wait", "--timeoutSeconds=1234567"], None),
        (["pilot-agent wait"], None),
        ([], None),
    ],
)
def test_how_long_a_hook_waits_is_known_of_those_that_istio_and_we_write(
    command: list[str], seconds: int | None
) -> None:
    [proxy] = job({"istio-proxy": None}, details={"istio-proxy": hook(*command)}).containers
    assert proxy.holds == seconds


def test_a_payload_that_is_held_says_since_when_and_until_when_at_most() -> None:
    decision = decided(Wait, held())
    assert (blockers(decision), decision.stage, decision.code) == (
        ("istio-proxy",),
        "held",
        "IA0119",
    )
    assert decision.reason == (
        "the payload waits for istio-proxy since 08:16:29Z, until 08:21:29Z at most"
    )


@pytest.mark.parametrize(("seconds", "by"), [(None, ()), (59, ()), (60, ("istio-proxy",))])
def test_a_payload_that_is_held_for_a_moment_is_no_finding(
    seconds: float | None, by: tuple[str, ...]
) -> None:
    """Nor to who does not ask its proxy: its status does not show whether an image is pulled."""
    for asks in (True, False):
        now = None if seconds is None else moment(ENDED, seconds)
        decision = decide_once(PodFacts(held(), QuitPolicy()), now, asks=asks)
        expected = by if asks else ()
        assert (blockers(decision), bool(decision.code)) == (expected, bool(expected))


@pytest.mark.parametrize(
    "pod",
    [
        row("the hook waits", held(deleting=True)),
        row("the kubelet reports the proxy", held(proxy=RUNNING, deleting=True)),
        row("Istio's own hook waits", held(details={"istio-proxy": hook("pilot-agent", "wait")},
                                           deleting=True)),
        row("a native sidecar has started before", held(
            deleting=True, init={**SET_UP, "vault": RUNNING},
            spec={"initContainers": [*INIT["initContainers"],
                                     {"name": "vault", "restartPolicy": "Always"}]},
            status={"initContainerStatuses": [*statuses(SET_UP), {
                "name": "vault", "started": True, "state": RUNNING}]})),
    ],
)  # fmt: skip
def test_the_proxy_of_a_deleted_pod_whose_payload_never_started_is_told_to_exit(pod: Pod) -> None:
    """kubernetes#116032: nothing else ends such a pod before its hook."""
    decision = decided(Quit, pod)
    assert (decision.target, decision.port, decision.code) == (
        "istio-proxy",
        15020,
        "IA0119",
    )
    assert decision.ways[0] is Way.EXEC
    assert NOT_BEGUN in decision.reason


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        row("the payload runs", held(RUNNING, RUNNING, phase="Running", deleting=True), LEFT_ALONE),
        row("the payload is reported as running", held(RUNNING, deleting=True), LEFT_ALONE),
        row("the payload has ended", held(exited(0), deleting=True), LEFT_ALONE),
        row("the payload has run before", held(
            status={"initContainerStatuses": statuses(SET_UP), "containerStatuses": [
                {"name": "istio-proxy", "state": NEW},
                {"name": "main", "state": NEW, "restartCount": 1}]}, deleting=True), LEFT_ALONE),
        row("nothing is known of the payload", held(MISSING, deleting=True), LEFT_ALONE),
        row("the payload has no state", held(EMPTY, deleting=True), LEFT_ALONE),
        row("no image: no hook", held(waiting("ImagePullBackOff"), deleting=True), LEFT_ALONE),
        row("the proxy has ended", held(proxy=exited(0), deleting=True), NOT_BEGUN),
        row("an init container runs", held(init={"istio-init": RUNNING}, deleting=True), NOT_BEGUN),
        row("nothing is known of an init container", held(init={}, deleting=True), NOT_BEGUN),
        row("another hook", held(details={"istio-proxy": hook("sleep", "9")}, deleting=True),
            NOT_BEGUN),
        row("no hook", held(details={}, deleting=True), NOT_BEGUN),
        row("a payload starts before the proxy", job(
            {"main": NEW, "istio-proxy": NEW}, **while_held(deleting=True)), NOT_BEGUN),
        row("its author has the proxy stay", held(annotations={QUIT: "false"}, deleting=True),
            NOT_BEGUN),
        row("an annotation is invalid", held(annotations={QUIT_AFTER: "?"}, deleting=True),
            NOT_BEGUN),
        row("a Deployment's", held(restart="Always", deleting=True), NOT_BEGUN),
    ],
)  # fmt: skip
def test_the_proxy_of_any_other_deleted_pod_is_left_alone(pod: Pod, reason: str) -> None:
    """The reason does not say that a payload needs the proxy which has never started."""
    assert reason in decided(Ignore, pod).reason


@pytest.mark.parametrize(
    ("main", "restarts", "says"),
    [
        row("after the proxy had ended", LATE, 0, True),
        row("in the same second", {"running": {"startedAt": "2026-11-21T08:16:29Z"}}, 0, True),
        row("before that", RUNNING, 0, False),
        row("and it had run before", LATE, 1, False),
        row("but when is not known", {"running": {}}, 0, False),
    ],
)
@pytest.mark.parametrize("policy", DeadProxy)
def test_a_payload_that_was_started_after_its_proxy_had_ended_never_had_a_network(
    policy: DeadProxy, main: State, restarts: int, says: bool
) -> None:
    """istio#45627: the hold gave up."""
    body = document({"istio-proxy": exited(0), "main": main}, owner=JOB, restart="OnFailure")
    body["status"]["containerStatuses"][1]["restartCount"] = restarts

    decision = decided(Report, convert(body), QuitPolicy(dead_proxy=policy))
    assert (NEVER_MET in decision.reason) is says
    assert decision.delete is (policy is DeadProxy.DELETE)
