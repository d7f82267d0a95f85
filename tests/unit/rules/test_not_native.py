"""Pods that a native proxy would fail, pods that failed because of their mesh, and podless Jobs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml
from istio_aux.cli import report
from istio_aux.model import ending, sidecars
from istio_aux.model.annotations import (
    NATIVE_SIDECAR,
    NOT_NATIVE,
    PROXY_CONFIG,
    START,
    STARTED_WITH,
    STATUS_PORT,
    TEMPLATES,
)
from istio_aux.model.ending import failure
from istio_aux.model.limits import Limit
from istio_aux.model.owners import (
    KINDS,
    Job,
    JobCounts,
    JobSpec,
    podless,
)
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Capability, Peers, StartMode, StartPolicy
from istio_aux.model.resources import quantity
from istio_aux.quit.rules import Action, Ignore, Report
from istio_aux.start import native_sidecars, review
from istio_aux.start.review import Outcome
from lab import sidecar_cases
from lab.sidecar_cases import CASES, OPTION, RULED, Case, container, outcome
from msgspec.structs import replace
from unit.rules.pods import (
    ENDED,
    JOB,
    RUNNING,
    TO_HOLD,
    State,
    annotations_of,
    decide,
    decided,
    exited,
    job,
    judged,
    moment,
    patched,
    planned,
    reviewed,
    statuses,
)

# Pods whose proxy must not be native, most as seen on a cluster: they would fail or run on.
#
# Then other sidecars than Istio's, which become native at admission (`native_sidecars.convert`).

ON_REQUEST = StartPolicy(capability=Capability.NATIVE)
UNASKED = StartPolicy(capability=Capability.UNASKED)
POST = "work; wget -q --post-data= -O- http://localhost:15020/quitquitquit; sleep 5"
SMALL, LARGE = "100Mi", "2Gi"


def pod(
    *containers: dict[str, Any],
    annotations: dict[str, str] | None = None,
    owner: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod that is to be created."""
    named = [{"name": "main", **each} for each in containers or ({},)]
    more = {"restartPolicy": "OnFailure", "containers": named, **spec}
    metadata = {"generateName": "a-", "annotations": annotations or {}}
    metadata |= {"ownerReferences": [owner]} if owner else {}
    return {"kind": "Pod", "metadata": metadata, "spec": more}


def says(*command: str, **more: Any) -> dict[str, Any]:
    return pod({"command": [*command]}, **more)


def variable(name: str, value: str = "http://127.0.0.1:15020") -> dict[str, Any]:
    return pod({"env": [{"name": name, "value": value}]})


def needs(memory: str, kind: str = "limits", name: str = "memory", **more: Any) -> dict[str, Any]:
    """A container that needs so much."""
    return {"name": "some", "resources": {kind: {name: memory}}, **more}


def needing(*init: dict[str, Any], main: Any = None, **spec: Any) -> dict[str, Any]:
    return pod(main or needs(SMALL), initContainers=[*init], **spec)


def limit(amount: str, name: str = "limits.memory") -> tuple[Limit, ...]:
    """A quota that leaves so much."""
    return (Limit(name="ResourceQuota small", most={name: quantity(amount)}),)


ENDS, RAISES = "the payload ends the proxy itself: ", f"{native_sidecars.RAISES}: "
ALWAYS = {"restartPolicy": "Always"}
BY_A_JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "1", "controller": True}
UNSUITED: dict[str, tuple[dict[str, Any], str]] = {
    "it posts": (says("sh", "-c", POST), f'{ENDS}quitquitquit in container "main"'),
    "in its arguments": (pod({"args": [f"x; {POST}"]}), ENDS),
    "by Envoy's port": (says("curl", "-XPOST", "localhost:15000/quitquitquit"), ENDS),
    "as the agent's client": (says("pilot-agent", "request", "POST", "quitquitquit"), ENDS),
    "beside another sidecar's": (says("curl localhost:9091/quitquitquit;", POST), ENDS),
    "in a variable": (variable("SCRIPT", POST), ENDS),
    "in an init container": (pod(initContainers=[{"command": [POST]}]), ENDS),
    "scuttle": (says("/bin/scuttle", "python", "-m", "app"), f"{ENDS}scuttle"),
    "scuttle of the image": (variable("ENVOY_ADMIN_API"), f"{ENDS}ENVOY_ADMIN_API"),
    "kubexit": (variable("KUBEXIT_NAME", "main"), ENDS),
    "envoy-sidecar-helper": (pod({}, {"name": "envoy-sidecar-helper"}), ENDS),
    "by its flags": (pod({"args": ["-envoy.ready.check=true"]}), ENDS),
    "by a signal": (says("pkill", "-f", "pilot-agent", shareProcessNamespace=True), ENDS),
    "who knows": (says("x" * ending.MOST_TEXT), "too much to judge: its"),
    "with resources of the pod": (
        needing(needs(LARGE, "requests"), resources={"requests": {"memory": LARGE}}),
        f"{RAISES}requests.memory, by the pod's own resources",
    ),
    "unreadable": (needing(needs("many")), f"{RAISES}not known"),
    "too many": (needing(*[needs("1")] * native_sidecars.MOST_JUDGED), "too much to judge: it has"),
    "templates": (
        pod(annotations={TEMPLATES: "sidecar,custom"}), "templates that were not tried: annotation"
    ),
    "so many templates": (pod(annotations={TEMPLATES: "x," * 5000}), "templates"),
    "a Job that may count exit codes": (
        pod(owner=BY_A_JOB, terminationGracePeriodSeconds=4),
        "its grace period is short: terminationGracePeriod",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", [ON_REQUEST, StartPolicy(mode=StartMode.NATIVE)], ids=str)
@pytest.mark.parametrize(("found", "why"), UNSUITED.values(), ids=UNSUITED)
def test_such_a_pod_is_held_where_it_would_have_to_ask_for_a_native_proxy(
    found: dict[str, Any], why: str, how: StartPolicy
) -> None:
    """eventing#6804, website#57244, cloud-sql-proxy#1803."""
    plan, made = planned(found, how), annotations_of(patched(found, how))

    assert (made[PROXY_CONFIG], made[STARTED_WITH]) == (TO_HOLD, "hold")
    assert NATIVE_SIDECAR not in made
    assert made[NOT_NATIVE].startswith(why)
    assert why in plan.reason
    assert planned(patched(found, how), how).ops == (), "a second review changes nothing"


@pytest.mark.parametrize(
    "how", [UNASKED, StartPolicy(capability=Capability.CLASSIC), StartPolicy()], ids=str
)
@pytest.mark.parametrize("found", [found for found, _ in UNSUITED.values()], ids=UNSUITED)
def test_what_may_harm_it_is_no_reason_for_a_classic_proxy_where_it_need_not_ask(
    found: dict[str, Any], how: StartPolicy
) -> None:
    """Where Istio makes it native unasked nothing changes; elsewhere it is classic anyway."""
    made = annotations_of(patched(found, how))

    assert made.keys().isdisjoint({NATIVE_SIDECAR, NOT_NATIVE})
    assert (STARTED_WITH in made) is (how is not UNASKED)


FETCH = {"initContainers": [{"name": "fetch"}]}
STRICT = JobCounts(restarts=True)


@pytest.mark.parametrize(
    ("found", "change", "classic"),
    [
        (says(POST), {}, True),
        (says(POST, restartPolicy="Never"), {}, False),
        (says(POST), {"job": JobCounts()}, False),
        (says(POST), {"job": None}, False),
        (says(POST), {"quits": False}, False),
        (says(POST, annotations={"istio-aux.io/quit": "false"}), {}, False),
        (says(POST, annotations={"istio-aux.io/quit-after": "main"}), {}, False),
        (says(POST, annotations={"istio-aux.io/quit-grace": "soon"}), {}, False),
        (says(POST, annotations={START: "native"}), {}, False),
        (says(POST, annotations={START: "none"}), {}, False),
        (says(POST, **FETCH), {}, False),
        (says(POST, initContainers=[{"name": "own", **ALWAYS}]), {}, True),
        (pod(), {}, False),
    ],
)
def test_a_proxy_that_istio_makes_native_is_made_classic_only_if_it_fails_its_job_for_certain(
    found: dict[str, Any], change: dict[str, Any], classic: bool
) -> None:
    """And if istio-aux ends it then, and no init container loses the mesh by that."""
    how = replace(UNASKED, **{"job": STRICT, **change})

    made = annotations_of(patched(found, how))

    assert (made.get(NATIVE_SIDECAR) == "false") is classic
    assert (NOT_NATIVE in made) is classic
    assert (made.get(PROXY_CONFIG) == TO_HOLD) is classic
    assert planned(patched(found, how), how).ops == ()


@pytest.mark.parametrize(
    ("parallelism", "completions", "limit"),
    [(None, None, 6), (1, None, 1), (3, 3, 3), (3, 1, 1)],
)
def test_whether_a_job_allows_the_restart_of_a_proxy_is_known_by_its_limit(
    parallelism: int | None, completions: int | None, limit: int
) -> None:
    """k8s job_controller.go pastBackoffLimitOnFailure: restarts of all pods are added up."""
    spec = JobSpec(parallelism=parallelism, completions=completions, backoff_limit=limit)
    assert JobCounts.of(spec).restarts is (limit < 6)
    assert JobCounts.of(replace(spec, backoff_limit=limit + 1)).restarts is False


SHORT = pod(owner=BY_A_JOB, terminationGracePeriodSeconds=0)


@pytest.mark.parametrize(
    ("found", "how", "read"),
    [
        (says(POST, owner=BY_A_JOB), UNASKED, True),
        (says(POST, owner=BY_A_JOB), replace(UNASKED, job=JobCounts()), False),
        (says(POST, owner=BY_A_JOB), StartPolicy(), False),
        (says(POST, owner=BY_A_JOB, restartPolicy="Never"), UNASKED, False),
        (says(POST, owner=BY_A_JOB, **FETCH), UNASKED, False),
        (says(POST), UNASKED, False),
        (pod(owner=BY_A_JOB), UNASKED, False),
        (SHORT, ON_REQUEST, True),
        (SHORT, replace(ON_REQUEST, job=JobCounts()), False),
        (SHORT, StartPolicy(), False),
        (SHORT, UNASKED, False),
        (SHORT, replace(ON_REQUEST, mode=StartMode.NONE), False),
        (pod(owner=BY_A_JOB, terminationGracePeriodSeconds=0, hostNetwork=True), ON_REQUEST, False),
    ],
)
def test_the_job_is_read_only_where_something_depends_on_it(
    found: dict[str, Any], how: StartPolicy, read: bool
) -> None:
    assert bool(planned(found, how).job) is read


def test_its_author_is_warned_where_istio_makes_it_native_unasked() -> None:
    assert planned(SHORT, UNASKED).warnings == (), "it is not known that its Job counts"
    [warning] = planned(says(POST), UNASKED).warnings
    assert warning.startswith(f"IA0504: native, as Istio makes it unasked, although {ENDS}")


MORE = needs(LARGE)
LIMITED: dict[str, tuple[dict[str, Any], tuple[Limit, ...] | None, str]] = {
    "a quota": (needing(MORE), limit("2Gi"), "limits.memory, by ResourceQuota small"),
    "a quota with room": (needing(MORE), limit("3Gi"), ""),
    "a quota that leaves too little for a classic one": (needing(MORE), limit("1Gi"), ""),
    "another amount": (needing(MORE), limit("1", "limits.cpu"), ""),
    "what is not counted": (needing(needs("1", name="nvidia.com/gpu"), main={}), limit("1"), ""),
    "CPUs": (needing(needs("1", name="cpu")), limit("2", "limits.cpu"), "limits.cpu, by"),
    "no init container": (pod(MORE), limit("2Gi"), ""),
    "one that needs less": (needing(needs("1Mi"), main=MORE), limit("3Gi"), ""),
    "beside a native sidecar": (
        needing(needs(SMALL, **ALWAYS), needs("201Mi"), main=needs(SMALL)), limit("1225Mi"),
        "limits.memory, by",
    ),
    "a proxy that needs less": (
        needing(MORE, annotations={"sidecar.istio.io/proxyMemoryLimit": "64Mi"}), limit("2200Mi"),
        "",
    ),
    "a ratio": (
        needing({"name": "some", "resources": {"limits": {"cpu": "9"}, "requests": {"cpu": "9"}}}),
        (Limit(name="LimitRange even", ratio={"cpu": quantity("1")}),),
        "the ratio of limits.cpu, by LimitRange even",
    ),
    "pods with a deadline": (
        needing(MORE), (Limit(name="x", most={"limits.memory": 0}, deadline=True),), ""
    ),
    "nobody knows": (needing(MORE), None, "perhaps"),
    "nobody knows, and nothing is raised": (pod(), None, ""),
}  # fmt: skip


@pytest.mark.parametrize(("found", "limits", "why"), LIMITED.values(), ids=LIMITED)
def test_what_a_native_proxy_raises_counts_where_the_namespace_does_not_allow_it(
    found: dict[str, Any], limits: tuple[Limit, ...] | None, why: str
) -> None:
    """website#57244: a quota that merely exists keeps no step of a pipeline from going native."""
    made = annotations_of(patched(found, replace(ON_REQUEST, limits=limits)))

    assert made.get(STARTED_WITH) == ("hold" if why else "native")
    assert made.get(NOT_NATIVE, "").startswith(f"{RAISES}{why}" if why else "")
    lost = "; before the proxy, outside the mesh: some"
    assert (lost in made.get(NOT_NATIVE, "")) is bool(why)


SUITED = {
    "nothing": pod(),
    "another sidecar's flag": pod({"args": ["--quitquitquit", "--port=5432"]}),
    "a signal that reaches nobody": says("pkill", "-f", "pilot-agent"),
    # A kubelet runs it when the pod is deleted, and starts no sidecar again then.
    "a hook at its end": pod({"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", POST]}}}}),
    "what is started again harms nothing": says(POST, restartPolicy="Never"),
    "more of an init container": needing(needs(LARGE)),
    "the usual template": pod(annotations={TEMPLATES: " sidecar"}),
    "a short grace period that nobody counts": pod(terminationGracePeriodSeconds=0),
}


@pytest.mark.parametrize("found", SUITED.values(), ids=SUITED)
def test_any_other_pod_becomes_native(found: dict[str, Any]) -> None:
    assert planned(found, ON_REQUEST).writes == {NATIVE_SIDECAR: "true", STARTED_WITH: "native"}


def asks(name: str, memory: str | None = None, cpu: str | None = None) -> dict[str, Any]:
    """A container by its name, which requests so much."""
    requests = {"memory": memory, "cpu": cpu}
    return {"name": name, "resources": {"requests": {k: v for k, v in requests.items() if v}}}


# As their controllers write them: most of the work, and of the requests, is in init containers.
BUILD = pod(
    {"name": "completion"},
    initContainers=[asks("prepare", "1Gi"), asks("analyze"), asks("build", "1Gi"), asks("export")],
    restartPolicy="Never",
)
STEP = pod(
    asks("wait", "32Mi", "10m"),
    {"name": "main"},
    initContainers=[asks("init", "32Mi", "10m"), asks("kfp-launcher", cpu="100m")],
    restartPolicy="Never",
)
ROOM = Limit(
    name="ResourceQuota kf-resource-quota",
    most={"requests.cpu": quantity("4"), "requests.memory": quantity("8Gi")},
)


@pytest.mark.parametrize("limits", [(), (ROOM,)], ids=["no quota", "a quota"])
@pytest.mark.parametrize("found", [BUILD, STEP], ids=["kpack", "Kubeflow Pipelines"])
def test_builds_and_steps_of_pipelines_are_native_in_both_worlds(
    found: dict[str, Any], limits: tuple[Limit, ...]
) -> None:
    """kpack#986, kubeflow/pipelines#12015: init containers that need the mesh are the rule."""
    on_request, unasked = (
        planned(found, replace(how, limits=limits)) for how in (ON_REQUEST, UNASKED)
    )
    assert (on_request.started_with, on_request.native) == ("native", True)
    assert (unasked.ops, unasked.native) == ((), True)


@pytest.mark.parametrize("restart", ["Never", "OnFailure", "Always"])
@pytest.mark.parametrize("annotations", [{}, {START: "auto"}, {START: "native"}], ids=str)
def test_where_istio_makes_sidecars_native_unasked_the_start_of_a_pod_is_left_alone(
    annotations: dict[str, str], restart: str
) -> None:
    plan = planned(pod(annotations=annotations, restartPolicy=restart), UNASKED)

    assert (plan.ops, plan.native) == ((), True)
    assert plan.reason == "Istio makes its sidecar native unasked"


@pytest.mark.parametrize("asked", [{START: "native"}, {NATIVE_SIDECAR: "true"}], ids=str)
def test_its_author_may_insist_and_is_warned(asked: dict[str, str]) -> None:
    found = says(POST, annotations=asked)

    [warning] = planned(found, ON_REQUEST).warnings

    assert annotations_of(patched(found, ON_REQUEST))[NATIVE_SIDECAR] == "true"
    assert warning.startswith(f"IA0504: native, as its author asks, although {ENDS}")


@pytest.mark.parametrize(
    "more",
    [
        {"restartPolicy": "Always"},
        {"annotations": {START: "hold"}},
        {"annotations": {NATIVE_SIDECAR: "false"}},
    ],
    ids=str,
)
def test_a_pod_that_never_ends_or_refuses_native_itself_is_held_as_ever(
    more: dict[str, Any],
) -> None:
    held = {PROXY_CONFIG: TO_HOLD, STARTED_WITH: "hold"}
    assert planned(says(POST, **more), ON_REQUEST).writes == held


@pytest.mark.parametrize(
    ("grace", "main", "init", "started"),
    [
        (31, {}, {}, "native"),
        (30, {}, {}, "hold"),
        (31, {"command": ["sh", "-c", POST]}, {}, "hold"),
        (31, {}, needs("many"), "hold"),
    ],
)
def test_a_long_grace_period_is_a_reason_for_native_where_none_is_against_it(
    grace: int, main: dict[str, Any], init: dict[str, Any], started: str
) -> None:
    """istio#7136: also of a pod that never ends. What Istio does unasked stays as it is."""
    found = needing(init, main=main, restartPolicy="Always", terminationGracePeriodSeconds=grace)

    made = planned(found, ON_REQUEST)

    assert made.started_with == started
    assert made.writes.get(NATIVE_SIDECAR) == ("true" if started == "native" else None)
    assert planned(patched(found, ON_REQUEST), ON_REQUEST).ops == ()
    for how in (StartPolicy(capability=Capability.CLASSIC), StartPolicy(mode=StartMode.NATIVE)):
        assert planned(found, how).started_with == "hold", "it is not known that the cluster can"


def test_hold_that_its_author_declines_is_not_added() -> None:
    no = "holdApplicationUntilProxyStarts: false"
    found = says(POST, annotations={PROXY_CONFIG: no})

    assert planned(found, ON_REQUEST).ops == ()
    how = replace(UNASKED, job=STRICT)
    answer = review.answer(json.dumps(reviewed(object=found)).encode(), lambda _: how)
    assert answer.outcome is Outcome.CLASSIC
    made = annotations_of(patched(found, how))
    assert (made[PROXY_CONFIG], made[NATIVE_SIDECAR]) == (no, "false")
    assert STARTED_WITH not in made


@pytest.mark.parametrize("more", [{}, {PROXY_CONFIG: "statusPort: 15020"}], ids=str)
@pytest.mark.parametrize(
    "how", [ON_REQUEST, StartPolicy(), StartPolicy(mode=StartMode.NATIVE)], ids=str
)
def test_hold_is_neither_added_nor_claimed_without_a_status_port(
    more: dict[str, str], how: StartPolicy
) -> None:
    """`pilot-agent wait` is never answered: beside Istio 1.31 the payload has no network then."""
    found = pod(annotations={STATUS_PORT: "0", **more})

    plan = planned(found, how)

    assert "no hold: its agent has no status port" in plan.reason
    assert annotations_of(patched(found, how)) == {STATUS_PORT: "0", **more}
    assert plan.started_with is None


def test_a_hold_that_nothing_will_end_is_warned_of_and_is_no_reason_against_native() -> None:
    """Istio adds its hook by the author's text, but to no native sidecar."""
    found = pod(
        annotations={STATUS_PORT: "0", PROXY_CONFIG: "{holdApplicationUntilProxyStarts: true}"}
    )

    held = planned(found, StartPolicy())
    assert (held.ops, held.started_with, len(held.warnings)) == ((), None, 1)
    assert "the hold that it asks for fails" in held.warnings[0]
    assert planned(found, ON_REQUEST).started_with == "native"


HOW = StartPolicy(capability=Capability.NATIVE, sidecars=sidecars.parse(OPTION))


@pytest.mark.parametrize(
    "case", [*CASES, *sidecar_cases.NOT_NATIVE, *RULED], ids=lambda case: case.name
)
def test_containers_become_what_the_table_says(case: Case) -> None:
    plan, once = planned(case.pod, case.setting), patched(case.pod, case.setting)

    assert outcome(once["spec"]) == case.expected
    assert case.warns in " ".join(plan.warnings)
    assert bool(plan.warnings) is bool(case.warns)
    assert planned(once, case.setting).ops == (), "a second review changes nothing"


def test_a_container_keeps_its_fields() -> None:
    """Also where init containers are null, as Go clients send it."""
    both = [container("main"), container("vault-agent", unknown=[1])]
    found = Case(name="", containers=both, spec={"initContainers": None})

    (sidecar,) = patched(found.pod, HOW)["spec"]["initContainers"]

    assert sidecar == container("vault-agent", unknown=[1], restartPolicy="Always")


def test_its_ports_count_as_before() -> None:
    sidecar = container("vault-agent", ports=[{"containerPort": 8200}])
    found = Case(name="", containers=[sidecar_cases.JOB[0], sidecar])

    made = annotations_of(patched(found.pod, replace(HOW, peers=Peers.DIRECT)))

    assert made["traffic.sidecar.istio.io/includeInboundPorts"] == "8200"


# Pods that failed because of their mesh, and Jobs that make no pods.

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


@pytest.mark.parametrize(
    ("main", "code", "details", "action"),
    [
        pytest.param(EARLY, 0, ITSELF, Ignore, id="its script ends the proxy"),
        pytest.param(EARLY, 0, {}, Report, id="it is not known who did"),
        pytest.param(EARLY, 137, ITSELF, Report, id="the proxy was killed"),
        pytest.param({"running": {"startedAt": "2026-11-21T08:17:00Z"}}, 0, ITSELF, Report,
                     id="the proxy gave up before the payload began"),
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
