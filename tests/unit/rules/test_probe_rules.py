"""Which pod an injector is asked about, what its answers show, and what of native sidecars."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from istio_aux.injector.injection import InjectionPolicy, hooks_of
from istio_aux.injector.probe_rules import (
    NOT_CHECKED,
    NativeCheck,
    Probe,
    Question,
    answered,
    classic,
    created,
    kubelets_assured,
    of_dry_run,
    of_kubelets,
    questions,
)
from istio_aux.injector.rules import targets
from istio_aux.model import pod as pods
from istio_aux.model.policy import Capability, Start
from istio_aux.model.selectors import parse_namespaces
from istio_aux.model.webhooks import ClientConfig, Configuration
from istio_aux.start.plan import plan
from unit.rules.mesh import (
    DEFAULT,
    ENABLED,
    ORIGINAL,
    RECORDS,
    REVISED,
    REVISION,
    TRUE,
    each_webhook,
    edited,
    expected,
    recorded,
    target,
)

ALL = [recorded(DEFAULT), recorded(ORIGINAL), recorded(REVISED)]
Namespaces = Mapping[str, Mapping[str, str]]
PLAIN = {"kubernetes.io/metadata.name": "plain"}
NEVER = "Istio makes no native sidecars, not even on request"
CLASSIC = Probe(injected=True, native=NativeCheck(Capability.CLASSIC, NEVER))
ALL_KINDS = {"meshed": ENABLED, "plain": PLAIN, "revised": {"istio.io/rev": REVISION}}
ISTIOD = target(recorded(DEFAULT))
NO_SIDECAR = Probe(injected=False, why="it gives no sidecar to a pod that asks for one")


def asked(
    whom: ClientConfig, namespaces: Namespaces, configurations: list[Configuration] = ALL
) -> Question:
    return next(questions(whom, hooks_of(configurations), namespaces))


@pytest.mark.parametrize(
    ("whom", "namespaces"),
    [
        (DEFAULT, {"meshed": ENABLED}),
        (DEFAULT, {"plain": PLAIN}),
        (DEFAULT, ALL_KINDS),
        (REVISED, {"plain": PLAIN}),
        (REVISED, ALL_KINDS),
    ],
)
def test_the_pod_is_one_that_the_api_server_would_ask_the_injector_about(
    whom: str, namespaces: Namespaces
) -> None:
    found, hooks = asked(target(recorded(whom)), namespaces), hooks_of(ALL)

    policies = {hook.control_plane: InjectionPolicy(policy="disabled") for hook in hooks}
    pod = pods.convert(json.loads(found.body()))
    verdict = expected(pod, namespaces[found.namespace], hooks, policies)
    assert found.selected
    assert (verdict.expected, verdict.configuration) == (True, whom)


def test_a_pod_that_asks_for_a_sidecar_by_label_is_made_where_the_selector_wants_it() -> None:
    """The label decides in namespaces that say nothing; everywhere else the annotation does."""

    def only_by_object(body: dict[str, Any]) -> None:
        body["webhooks"] = [w for w in body["webhooks"] if w["name"].startswith("object.")]

    found = asked(ISTIOD, {"plain": PLAIN}, [edited(DEFAULT, only_by_object)])

    assert (found.labels, found.selected) == (TRUE, True)


@pytest.mark.parametrize(
    "namespaces", [{}, {"kube-system": ENABLED}, {"off": {"istio-injection": "disabled"}}]
)
def test_where_no_pod_would_be_it_is_asked_all_the_same_but_not_by_a_dry_run(
    namespaces: Namespaces,
) -> None:
    found = asked(ISTIOD, namespaces)

    assert (found.namespace, found.selected) == ("istio-system", False)
    assert not asked(target(recorded(REVISED)), {"meshed": ENABLED}).selected


def test_a_namespace_that_another_injector_is_called_for_as_well_shows_nothing() -> None:
    """Were that one dead, its error would be taken for this one's."""
    both = each_webhook(
        DEFAULT, namespaceSelector={}, objectSelector={}, name="x.sidecar-injector.istio.io"
    )
    other = {"service": {"namespace": "kubeflow", "name": "istiod"}, "caBundle": "b3RoZXI="}
    rival = each_webhook(
        REVISED,
        clientConfig=other,
        namespaceSelector={"matchLabels": {"rival": "yes"}},
        objectSelector={},
    )
    rivals = {"a": {"rival": "yes"}}

    assert not asked(ISTIOD, rivals, [both, rival]).selected
    assert asked(ISTIOD, {**rivals, "b": {}}, [both, rival]).namespace == "b"


def test_namespaces_that_may_refuse_the_sidecar_itself_come_last() -> None:
    restricted = {**ENABLED, "pod-security.kubernetes.io/enforce": "restricted"}

    assert asked(ISTIOD, {"a": restricted, "b": ENABLED}).namespace == "b"
    assert asked(ISTIOD, {"a": restricted}).namespace == "a"


def test_native_sidecars_are_tried_first_where_they_will_be_asked_for() -> None:
    """A webhook after Istio's may be called in some namespaces only."""
    namespaces = {"a": ENABLED, "b": {**ENABLED, "team": "x"}, "c": {}}
    found = questions(ISTIOD, hooks_of(ALL), namespaces, parse_namespaces("team=x"))
    order = [question.namespace for question in found]

    assert order[0] == "b"
    assert set(order) == {"a", "b", "c"}
    assert asked(ISTIOD, namespaces).namespace != "b"


def test_namespaces_that_go_take_no_pods_and_may_be_gone_in_the_middle() -> None:
    namespaces = {"a": ENABLED, "b": ENABLED, "c": ENABLED, "d": ENABLED, "e": ENABLED | {"x": ""}}
    known = namespaces.copy()
    found = questions(ISTIOD, hooks_of(ALL), known, parse_namespaces("!x"), going={"a"})

    assert next(found).namespace == "b"
    del known["c"], known["e"]
    assert [each.namespace for each in found] == ["d"]
    gone = questions(ISTIOD, hooks_of(ALL), {"a": ENABLED}, going={"a"})
    assert not next(gone).selected


@pytest.mark.parametrize("name", ["kube-system", ""])
def test_an_istiod_in_a_namespace_that_it_ignores_is_asked_about_another(name: str) -> None:
    service = {"namespace": name, "name": "istiod"} if name else None
    where = {"service": service, "url": None if name else "https://istiod", "caBundle": "eA=="}
    configuration = each_webhook(DEFAULT, clientConfig=where)
    [whom] = targets([configuration])

    assert asked(whom, {}, [configuration]).namespace == "default"


def test_our_own_admission_leaves_the_pod_alone() -> None:
    """Else a dry run would show what we asked for, not what the injector does by itself."""
    pod = pods.convert(json.loads(Question("plain", {}).body()))

    assert plan(pod, Start(capability=Capability.NATIVE)).ops == ()
    assert pod.spec.restart_policy == "Never"
    assert pod.metadata.name == ""


def answer_of_istiod(case: str) -> Probe:
    """What a recorded answer of a real istiod shows."""
    recording = json.loads((RECORDS / f"inject-{case}.json").read_text())
    uid = recording["request"]["request"]["uid"]
    return answered(json.dumps(recording["response"]).encode(), uid)


def test_the_answers_of_a_real_istiod_are_understood() -> None:
    assert [answer_of_istiod(case) for case in ("classic", "hold")] == [CLASSIC, CLASSIC]
    assert answer_of_istiod("native") == Probe(injected=True)
    assert [answer_of_istiod(case) for case in ("annoff", "kube-system")] == [NO_SIDECAR] * 2


def test_a_refusal_of_a_real_istiod_is_reported_in_one_line() -> None:
    probe = answer_of_istiod("badcfg")

    assert (probe.injected, probe.reached) == (False, True)
    assert probe.why.startswith("it refuses a pod: failed to run injection template: 1 error")
    assert "\n" not in probe.why


@pytest.mark.parametrize(("native", "asked"), [(None, None), (True, "true"), (False, "false")])
def test_a_dry_run_asks_for_a_native_sidecar_only_where_that_is_the_question(
    native: bool | None, asked: str | None
) -> None:
    pod = json.loads(Question("plain", {}).body(native=native))

    assert pod["metadata"]["annotations"].get("sidecar.istio.io/nativeSidecar") == asked


def response(**fields: Any) -> bytes:
    return json.dumps({"response": {"uid": "7", "allowed": True, **fields}}).encode()


def patch(operations: object) -> bytes:
    return response(patch=base64.b64encode(json.dumps(operations).encode()).decode())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "its answer is not an AdmissionReview: Input data was truncated"),
        (b'{"response": 3}', "its answer is not an AdmissionReview"),
        (b"[" * 100_000, "its answer is not an AdmissionReview"),
        (response(uid="8"), "its answer has another uid"),
        (response(allowed=False), "it refuses a pod: no message"),
        (response(patch="no base64"), "its answer is not an AdmissionReview"),
        (response(patch="e30="), "its patch is not a JSON Patch"),
        (response(patch=base64.b64encode(b'[{"op":').decode()), "its patch is not a JSON Patch"),
        (
            response(patch=base64.b64encode(b"[" * 100_000).decode()),
            "its patch is not a JSON Patch",
        ),
        (response(), "no sidecar"),
        (patch([{"op": "remove", "path": "/spec/containers/0"}]), "no sidecar"),
        (patch([{"op": "add", "path": "/a" * 100_000, "value": 1}]), "no sidecar"),
        (patch([{"op": "add", "path": "/spec/containers", "value": "istio-proxy"}]), "no sidecar"),
        (patch([{"op": "add", "path": "/spec/containers/-", "value": {"name": "x"}}]), "no side"),
        (patch([{"op": "add", "path": "/metadata/name", "value": "istio-proxy"}]), "no sidecar"),
    ],
)
def test_what_is_no_sidecar_is_not_taken_for_one(body: bytes, why: str) -> None:
    probe = answered(body, "7")

    assert (probe.injected, probe.reached) == (False, True)
    assert why in probe.why
    assert len(probe.why) <= 400


PROXY = {"name": "istio-proxy"}


@pytest.mark.parametrize(
    "operation",
    [
        {"path": "/spec/initContainers/0", "value": PROXY},
        {"path": "/spec/initContainers/-", "value": PROXY},
        {"path": "/spec/initContainers", "value": [{"name": "istio-init"}, PROXY]},
        {"path": "/spec/initContainers/0/name", "value": "istio-proxy", "op": "replace"},
        {"path": "/spec", "value": {"initContainers": [PROXY]}, "op": "replace"},
        {"path": "", "value": {"spec": {"initContainers": [PROXY]}}, "op": "replace"},
    ],
)
def test_a_sidecar_is_found_however_the_patch_puts_it_there(operation: dict[str, Any]) -> None:
    found = answered(patch([{"op": "add", **operation}]), "7")

    assert (found.injected, found.native) == (True, NOT_CHECKED)


def test_a_dry_run_that_answers_no_pod_or_none_with_a_sidecar_shows_none() -> None:
    assert "a dry run is not a pod" in created(b"{").why
    assert "no sidecar" in created(b'{"spec": {"containers": [{"name": "main"}]}}').why


N, C, U = Capability.NATIVE, Capability.CLASSIC, Capability.UNKNOWN
ALWAYS = {**PROXY, "restartPolicy": "Always"}


NEW = ("v1.32.0", "v1.33.1+k3s1", "v1.36.0-alpha.1", "v2.0.0")
OTHERS = ("v1.31.9", "1.30.1", "", "v1.99999999999999999999")


def test_only_a_new_api_server_has_no_old_kubelets() -> None:
    assert [{*map(kubelets_assured, versions)} for versions in (NEW, OTHERS)] == [{True}, {False}]


@pytest.mark.parametrize(
    ("kubelets", "ruled_out", "why"),
    [
        ({"a": "v1.29.0", "b": "v1.31.2-eks-1"}, None, ""),
        ({"a": "v1.31.0", "b": "v1.28.9"}, C, 'node b: kubelet "v1.28.9" runs no native sidecars'),
        ({"a": "v1.19.10-vk-azure"}, C, "node a: "),
        ({"a": ""}, C, 'node a: kubelet "" runs no'),
        ({}, U, "there is no node"),
    ],
)
def test_every_kubelet_has_to_run_native_sidecars(
    kubelets: Mapping[str, str], ruled_out: Capability | None, why: str
) -> None:
    found = of_kubelets(kubelets)

    assert (found.capability if found else None) is ruled_out
    assert found is None or why in found.why


@pytest.mark.parametrize(
    ("spec", "capability", "why"),
    [
        ({"initContainers": [{"name": "istio-init"}, ALWAYS]}, N, "native on request"),
        ({"initContainers": [PROXY]}, C, "removes restartPolicy"),
        ({"initContainers": [{**PROXY, "restartPolicy": "Never"}]}, C, "removes restartPolicy"),
        ({"containers": [{"name": "main"}, PROXY]}, C, "no native sidecars, not even on request"),
        ({"containers": [{"name": "main"}]}, U, "a dry run shows no sidecar"),
    ],
)
def test_a_dry_run_shows_what_a_pod_gets(
    spec: dict[str, Any], capability: Capability, why: str
) -> None:
    found = of_dry_run(json.dumps({"spec": spec}).encode())

    assert found.capability is capability
    assert why in found.why


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b'{"spec": 3}', b"\xff"])
def test_an_answer_that_is_no_pod_shows_nothing(body: bytes) -> None:
    assert of_dry_run(body).capability is U


def test_a_reason_is_one_line_of_bounded_length() -> None:
    found = classic("a\nb " + "x" * 10_000)

    assert found.why.startswith("a b x")
    assert len(found.why) <= 400 + len("…")
