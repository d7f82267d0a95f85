"""Pods whose proxy must not be native, most as seen on a cluster: they would fail or run on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from istio_aux.model.annotations import (
    NATIVE_SIDECAR,
    NOT_NATIVE,
    PROXY_CONFIG,
    START,
    STARTED_WITH,
    STATUS_PORT,
    TEMPLATES,
)
from istio_aux.model.policy import Capability, StartMode, StartPolicy
from istio_aux.start import not_native, review
from istio_aux.start.plan import effective_start
from istio_aux.start.review import Outcome
from unit.rules.pods import RUNNING, job
from unit.rules.starting import HOLD, annotations_of, patched, planned

NATIVE = StartPolicy(capability=Capability.NATIVE)
HOWS = [NATIVE, StartPolicy(), StartPolicy(mode=StartMode.NATIVE), StartPolicy(mode=StartMode.HOLD)]
POST = "work; wget -q --post-data= -O- http://localhost:15020/quitquitquit; sleep 5"
SMALL, LARGE = "100Mi", "2Gi"


def pod(
    *containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """A pod of a Job that is to be created."""
    named = [{"name": "main", **each} for each in containers or ({},)]
    more = {"restartPolicy": "OnFailure", "containers": named, **spec}
    metadata = {"generateName": "a-", "annotations": annotations or {}}
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


ENDS, RAISES = "the payload ends the proxy itself: ", "a native sidecar would raise what the pod"
ALWAYS = {"restartPolicy": "Always"}
UNSUITED = {
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
    "who knows": (says("x" * not_native.LONGEST), "too much to judge: its"),
    "limits of an init container": (needing(needs(LARGE)), f"{RAISES} needs: limits.memory"),
    "CPUs": (needing(needs("1", name="cpu")), f"{RAISES} needs: limits.cpu"),
    "beside a native sidecar": (
        needing(needs(SMALL, **ALWAYS), needs("201Mi"), main=needs(SMALL)), RAISES
    ),
    "with resources of the pod": (
        needing(needs(LARGE, "requests"), resources={"requests": {"memory": LARGE}}), RAISES
    ),
    "unreadable": (needing(needs("many")), f"{RAISES} needs: not known"),
    "too many": (needing(*[needs("1")] * not_native.MOST), "too much to judge: it has"),
    "templates": (
        pod(annotations={TEMPLATES: "sidecar,custom"}), "templates that were not tried: annotation"
    ),
    "so many templates": (pod(annotations={TEMPLATES: "x," * 5000}), "templates"),
    "short grace": (
        pod(terminationGracePeriodSeconds=4), "its grace period is short: terminationGracePeriod"
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", HOWS, ids=lambda how: f"{how.mode} {how.capability}")
@pytest.mark.parametrize(("found", "why"), UNSUITED.values(), ids=UNSUITED)
def test_such_a_pod_is_held_and_its_proxy_is_classic_also_where_istio_makes_native_ones(
    found: dict[str, Any], why: str, how: StartPolicy
) -> None:
    """eventing#6804, website#57244, cloud-sql-proxy#1803. The start mode does not matter."""
    plan, made = planned(found, how), annotations_of(patched(found, how))

    ours = {PROXY_CONFIG: HOLD, STARTED_WITH: "hold", NATIVE_SIDECAR: "false"}
    assert {key: made[key] for key in ours} == ours
    assert made[NOT_NATIVE].startswith(why)
    assert why in plan.reason
    assert planned(patched(found, how), how).ops == (), "a second review changes nothing"


SUITED = {
    "nothing": pod(),
    "another sidecar's flag": pod({"args": ["--quitquitquit", "--port=5432"]}),
    "a signal that reaches nobody": says("pkill", "-f", "pilot-agent"),
    # A kubelet runs it when the pod is deleted, and starts no sidecar again then.
    "a hook at its end": pod({"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", POST]}}}}),
    "no less than its init container": needing(needs(SMALL)),
    "in sum": pod(needs(SMALL), needs(SMALL), initContainers=[needs("200Mi")]),
    "a device": needing(needs("1", name="nvidia.com/gpu"), main={}),
    "a native sidecar": needing(needs(LARGE, **ALWAYS)),
    "the usual template": pod(annotations={TEMPLATES: " sidecar"}),
    "enough grace": pod(terminationGracePeriodSeconds=5),
}


@pytest.mark.parametrize("found", SUITED.values(), ids=SUITED)
def test_any_other_pod_becomes_native(found: dict[str, Any]) -> None:
    assert planned(found, NATIVE).started_with == "native"
    assert planned(found, NATIVE).writes == {NATIVE_SIDECAR: "true", STARTED_WITH: "native"}


@pytest.mark.parametrize("asked", [{START: "native"}, {NATIVE_SIDECAR: "true"}], ids=str)
def test_its_author_may_insist_and_is_warned(asked: dict[str, str]) -> None:
    found = says(POST, annotations=asked)

    [warning] = planned(found, NATIVE).warnings

    assert annotations_of(patched(found, NATIVE))[NATIVE_SIDECAR] == "true"
    assert warning.startswith(f"native as its author asks, although {ENDS}")


def test_a_pod_that_never_ends_or_refuses_native_itself_is_held_as_ever() -> None:
    for found in (says(POST, restartPolicy="Always"), says(POST, annotations={START: "hold"})):
        assert planned(found, NATIVE).started_with == "hold"
    refusing = says(POST, annotations={NATIVE_SIDECAR: "false"})
    assert planned(refusing, NATIVE).writes == {PROXY_CONFIG: HOLD, STARTED_WITH: "hold"}


@pytest.mark.parametrize(
    ("grace", "main", "init", "started"),
    [
        (31, {}, {}, "native"),
        (30, {}, {}, "hold"),
        (31, {"command": ["sh", "-c", POST]}, {}, "hold"),
        (31, {}, needs(LARGE), "hold"),
    ],
)
def test_a_long_grace_period_is_a_reason_for_native_where_none_is_against_it(
    grace: int, main: dict[str, Any], init: dict[str, Any], started: str
) -> None:
    """istio#7136: also of a pod that never ends. What Istio does unasked stays as it is."""
    found = needing(init, main=main, restartPolicy="Always", terminationGracePeriodSeconds=grace)

    made = planned(found, NATIVE)

    assert made.started_with == started
    assert made.writes.get(NATIVE_SIDECAR) == ("true" if started == "native" else None)
    assert planned(patched(found, NATIVE), NATIVE).ops == ()
    for how in (StartPolicy(capability=Capability.CLASSIC), StartPolicy(mode=StartMode.NATIVE)):
        assert planned(found, how).started_with == "hold", "it is not known that the cluster can"


def test_hold_that_its_author_declines_is_not_added() -> None:
    no = "holdApplicationUntilProxyStarts: false"
    found = says(POST, annotations={PROXY_CONFIG: no})

    made = annotations_of(patched(found, NATIVE))

    assert (made[PROXY_CONFIG], made[NATIVE_SIDECAR]) == (no, "false")
    assert STARTED_WITH not in made


@pytest.mark.parametrize("more", [{}, {PROXY_CONFIG: "statusPort: 15020"}], ids=str)
@pytest.mark.parametrize("how", HOWS, ids=lambda how: f"{how.mode} {how.capability}")
def test_hold_is_neither_added_nor_claimed_without_a_status_port(
    more: dict[str, str], how: StartPolicy
) -> None:
    """`pilot-agent wait` is never answered: beside Istio 1.31 the payload has no network then."""
    found = pod(annotations={STATUS_PORT: "0", **more})

    plan = planned(found, how)

    assert "no hold: its agent has no status port" in plan.reason
    assert annotations_of(patched(found, how)) == {STATUS_PORT: "0", **more}
    assert plan.started_with is None


def test_what_is_written_is_counted_and_explained() -> None:
    """`explain` of the pod says what admission has said."""
    declined = says(POST, annotations={PROXY_CONFIG: "holdApplicationUntilProxyStarts: false"})
    request = {"uid": "u", "object": declined}
    kind = {"apiVersion": review.API_VERSION, "kind": review.KIND}
    asked = json.dumps({**kind, "request": request}).encode()
    assert review.answer(asked, NATIVE).outcome is Outcome.CLASSIC

    held = {STARTED_WITH: "hold", NOT_NATIVE: f"{ENDS}scuttle"}
    wait = {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}
    found = job(
        {"istio-proxy": RUNNING, "main": RUNNING}, annotations=held,
        details={"istio-proxy": {"lifecycle": wait}},
    )  # fmt: skip
    assert effective_start(found) == f"hold, not native: {ENDS}scuttle"
