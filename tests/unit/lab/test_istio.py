"""The stand-in for istiod, compared with recordings of Istio 1.28.10."""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.core.injection import InjectionPolicy, read_policy
from istio_aux.core.webhooks import ControlPlane
from lab.istio import decision, jsondiff, proxyconfig, sidecar, webhooks

DATA = Path(__file__).parents[2] / "data" / "istio"
TEMPLATE = sidecar.Template("istio-system", "docker.io/istio/proxyv2:1.28.10")
INJECT = "sidecar.istio.io/inject"
HOLD = {proxyconfig.ANNOTATION: f"{proxyconfig.HOLD}: true"}
NATIVE = {sidecar.NATIVE_ANNOTATION: "true"}


def recording(case: str) -> Any:
    return json.loads((DATA / f"inject-{case}.json").read_text())


def review(pod: dict[str, Any], namespace: str = "mesh") -> dict[str, Any]:
    return {"request": {"uid": "1", "namespace": namespace, "object": pod}}


def a_pod(*, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    containers = {"containers": [{"name": "main", "image": "x"}]}
    return {"metadata": {"name": "probe", **metadata}, "spec": {**containers, **(spec or {})}}


def patched(pod: dict[str, Any], response: dict[str, Any]) -> Any:
    return jsonpatch.apply_patch(pod, json.loads(base64.b64decode(response["response"]["patch"])))


def injected(pod: dict[str, Any], template: sidecar.Template = TEMPLATE) -> Any:
    response, _ = decision.answer(review(pod), template, native=False)
    return patched(pod, response)


def names(containers: Iterable[dict[str, Any]]) -> list[str]:
    return [container["name"] for container in containers]


def proxy_of(pod: dict[str, Any]) -> dict[str, Any]:
    spec = pod["spec"]
    everything = [*spec["containers"], *spec.get("initContainers", [])]
    [found] = [container for container in everything if container["name"] == sidecar.PROXY]
    return found


@pytest.mark.parametrize("case", ["classic", "hold", "native"])
def test_makes_the_same_pod_as_istiod(case: str) -> None:
    record = recording(case)
    # istiod compares with the pod as Go writes it, which is how the API server sends it.
    pod = record["request"]["request"]["object"]
    pod["spec"]["containers"][0]["resources"] = {}

    answer, _ = decision.answer(record["request"], TEMPLATE, native=False)

    assert patched(pod, answer) == patched(pod, record["response"])
    assert answer["response"].keys() == record["response"]["response"].keys()


@pytest.mark.parametrize("case", ["annoff", "kube-system", "badcfg"])
def test_leaves_alone_or_refuses_in_the_same_words_as_istiod(case: str) -> None:
    record = recording(case)

    answer, _ = decision.answer(record["request"], TEMPLATE, native=False)

    assert answer == record["response"]


def test_leaves_a_pod_on_the_host_network_alone() -> None:
    assert decision.why_not(a_pod(spec={"hostNetwork": True}), "mesh")


@pytest.mark.parametrize(
    ("label", "annotation", "expected"),
    [
        ("true", "false", True),
        ("false", "true", False),
        ("yes", "false", True),
        (None, "false", False),
        (None, "no", True),
        (None, None, True),
    ],
)
def test_the_label_beats_the_annotation(
    label: str | None, annotation: str | None, expected: bool
) -> None:
    pod = a_pod(
        labels={INJECT: label} if label else {},
        annotations={INJECT: annotation} if annotation else {},
    )

    assert (decision.why_not(pod, "mesh") is None) is expected


def test_a_native_proxy_goes_before_the_users_init_containers_and_after_the_redirect() -> None:
    pod = a_pod(
        spec={"initContainers": [{"name": "fetch"}]},
        annotations=NATIVE,
    )

    after = injected(pod)

    assert names(after["spec"]["initContainers"]) == ["istio-init", "istio-proxy", "fetch"]
    assert names(after["spec"]["containers"]) == ["main"]


def test_the_users_init_containers_go_before_the_redirect_of_a_classic_sidecar() -> None:
    after = injected(a_pod(spec={"initContainers": [{"name": "fetch"}]}))

    assert names(after["spec"]["initContainers"]) == ["fetch", "istio-init"]


def test_native_wins_over_hold() -> None:
    after = injected(a_pod(annotations={**HOLD, **NATIVE}))

    assert names(after["spec"]["containers"]) == ["main"]
    assert "postStart" not in after["spec"]["initContainers"][1]["lifecycle"]


@pytest.mark.parametrize(
    ("annotations", "config"),
    [
        ({sidecar.STATUS_PORT_ANNOTATION: "15520"}, "{}\n"),
        ({proxyconfig.ANNOTATION: "statusPort: 15520"}, '{"statusPort":15520}\n'),
    ],
)
def test_a_moved_status_port_is_left_out_of_the_redirect(
    annotations: dict[str, str], config: str
) -> None:
    after = injected(a_pod(annotations=annotations))

    assert "15090,15021,15520" in after["spec"]["initContainers"][0]["args"]
    assert {"name": "PROXY_CONFIG", "value": config} in proxy_of(after)["env"]
    assert proxy_of(after)["startupProbe"]["httpGet"]["port"] == 15021


HOOKS = {"preStop": {"exec": {"command": ["sleep", "5"]}}}


@pytest.mark.parametrize("annotations", [{}, HOLD, NATIVE])
def test_the_lifecycle_of_the_installation_takes_the_place_of_all_hooks(
    annotations: dict[str, str],
) -> None:
    template = dataclasses.replace(TEMPLATE, lifecycle=HOOKS)

    after = injected(a_pod(annotations=annotations), template)

    assert proxy_of(after)["lifecycle"] == HOOKS


def test_hold_puts_the_proxy_first_even_where_its_hook_is_replaced() -> None:
    template = dataclasses.replace(TEMPLATE, lifecycle=HOOKS)

    after = injected(a_pod(annotations=HOLD), template)

    assert names(after["spec"]["containers"]) == ["istio-proxy", "main"]


@pytest.mark.parametrize(
    ("annotations", "init"),
    [
        (HOLD, ["istio-validation", "fetch"]),
        (NATIVE, ["istio-validation", "istio-proxy", "fetch"]),
    ],
)
def test_with_a_cni_plugin_the_redirect_is_there_before_the_users_init_containers(
    annotations: dict[str, str], init: list[str]
) -> None:
    template = dataclasses.replace(TEMPLATE, cni=True)
    pod = a_pod(spec={"initContainers": [{"name": "fetch"}]}, annotations=annotations)

    after = injected(pod, template)

    assert names(after["spec"]["initContainers"]) == init
    status = json.loads(after["metadata"]["annotations"][sidecar.STATUS_ANNOTATION])
    assert status["initContainers"] == init[:-1]


def test_the_owner_is_the_controller_of_the_pod() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}

    env = proxy_of(injected(a_pod(ownerReferences=[job])))["env"]

    owner = "kubernetes://apis/batch/v1/namespaces/mesh/jobs/train"
    assert {"name": "ISTIO_META_OWNER", "value": owner} in env
    assert {"name": "ISTIO_META_WORKLOAD_NAME", "value": "train"} in env


def test_the_proxy_is_configured_with_the_time_until_it_is_ready() -> None:
    slow = sidecar.Template("istio-system", "proxy", ready_delay=1.5)

    assert {"name": "LAB_READY_DELAY", "value": "1.5"} in proxy_of(injected(a_pod(), slow))["env"]


@pytest.mark.parametrize("text", ["", "null", "concurrency: 2", f"{proxyconfig.HOLD}: false"])
def test_does_not_hold_where_the_annotation_does_not_say_so(text: str) -> None:
    after = injected(a_pod(annotations={proxyconfig.ANNOTATION: text}))

    assert names(after["spec"]["containers"]) == ["main", "istio-proxy"]


@pytest.mark.parametrize(
    "text",
    [
        f"{proxyconfig.HOLD}: yes",
        "hold_application_until_proxy_starts: true",
        f"{{{proxyconfig.HOLD}: true}}",
        f"hold_application_until_proxy_starts: false\n{proxyconfig.HOLD}: true",
        f"{proxyconfig.HOLD}: true\nhold_application_until_proxy_starts: false",
    ],
)
def test_holds_in_every_spelling_that_istio_knows(text: str) -> None:
    after = injected(a_pod(annotations={proxyconfig.ANNOTATION: text}))

    assert names(after["spec"]["containers"]) == ["istio-proxy", "main"]


@pytest.mark.parametrize(
    "text", ["just words", "- a", f'{proxyconfig.HOLD}: "true"', "statusPort: true", "a: {"]
)
def test_refuses_a_config_that_istio_cannot_read(text: str) -> None:
    pod = a_pod(annotations={proxyconfig.ANNOTATION: text})

    answer, _ = decision.answer(review(pod), TEMPLATE, native=False)

    assert answer["response"]["allowed"] is False
    assert f"invalid value '{text}'" in answer["response"]["status"]["message"]


def test_a_date_in_the_config_stays_what_the_user_wrote() -> None:
    config = proxyconfig.parse("proxyMetadata: {SINCE: 2026-01-02}")

    assert config == {"proxyMetadata": {"SINCE": "2026-01-02"}}


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c/d", "e~f"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(old=DOCUMENTS, new=DOCUMENTS)
def test_the_difference_turns_one_document_into_the_other(old: Any, new: Any) -> None:
    before = copy.deepcopy(old)

    assert jsonpatch.apply_patch(old, list(jsondiff.diff(old, new))) == new
    assert old == before


@pytest.mark.parametrize(
    ("world", "kubelets", "expected"),
    [
        ("never", ["v1.36.3"], False),
        ("on request", ["v1.36.3"], False),
        ("default", [], True),
        ("default", ["v1.33.0", "v1.36.3"], True),
        ("default", ["v1.32.9", "v1.36.3"], False),
        ("default", ["v0.0.0-master"], False),
    ],
)
def test_sidecars_are_native_by_default_once_every_kubelet_is_new_enough(
    world: sidecar.World, kubelets: list[str], expected: bool
) -> None:
    assert decision.native_by_default(world, kubelets) is expected


@pytest.mark.parametrize(
    ("world", "unasked", "asked"),
    [("default", True, True), ("on request", False, True), ("never", False, False)],
)
def test_each_world_makes_native_sidecars_unasked_or_on_request_or_never(
    world: sidecar.World, unasked: bool, asked: bool
) -> None:
    template = dataclasses.replace(TEMPLATE, native=world)
    native = decision.native_by_default(world, ["v1.36.3"])

    for pod, expected in ((a_pod(), unasked), (a_pod(annotations=NATIVE), asked)):
        answer, _ = decision.answer(review(pod), template, native=native)
        after = patched(pod, answer)
        found = sidecar.PROXY in names(after["spec"].get("initContainers", []))
        assert found is expected


@pytest.mark.parametrize(
    ("wish", "default", "expected"),
    [(None, True, True), (None, False, False), ("false", True, False), ("1", False, True)],
)
def test_the_annotation_decides_over_the_installation(
    wish: str | None, default: bool, expected: bool
) -> None:
    annotations = {sidecar.NATIVE_ANNOTATION: wish} if wish else {}

    assert sidecar.is_native(annotations, default) is expected


@pytest.mark.parametrize("name", ["istio-revision-tag-default", "istio-sidecar-injector"])
def test_installs_the_configurations_that_istioctl_leaves(name: str) -> None:
    recorded = yaml.safe_load((DATA / f"mwc-istioctl-install-{name}.yaml").read_text())
    for key in ("creationTimestamp", "generation", "resourceVersion", "uid"):
        del recorded["metadata"][key]
    for webhook in recorded["webhooks"]:
        del webhook["clientConfig"]["caBundle"]

    [ours] = [c for c in webhooks.configurations("istio-system") if c["metadata"]["name"] == name]

    assert ours == recorded


def test_another_namespace_becomes_part_of_the_names() -> None:
    found = webhooks.configurations("kubeflow")

    assert [configuration["metadata"]["name"] for configuration in found] == [
        "istio-revision-tag-default-kubeflow",
        "istio-sidecar-injector-kubeflow",
    ]


@pytest.mark.parametrize("name", [None, "asm-sidecar-injector"])
def test_another_revision_has_the_webhooks_of_a_recorded_one_under_any_name(
    name: str | None,
) -> None:
    recorded = yaml.safe_load((DATA / "mwc-revision-1-30-3.yaml").read_text())
    for webhook in recorded["webhooks"]:
        del webhook["clientConfig"]["caBundle"]

    [ours] = webhooks.configurations("istio-system", "1-30-3", name)

    assert ours["webhooks"] == recorded["webhooks"]
    assert ours["metadata"]["name"] == (name or recorded["metadata"]["name"])
    assert ours["metadata"]["labels"]["istio.io/rev"] == "1-30-3"


@pytest.mark.parametrize(
    ("revision", "name"),
    [("default", "istio-sidecar-injector"), ("canary", "istio-sidecar-injector-canary")],
)
def test_its_injection_policy_can_be_read_where_istiod_has_it(revision: str, name: str) -> None:
    found = webhooks.config_map("istio-system", revision)

    assert found["metadata"]["name"] == name == ControlPlane("", revision).config_map
    assert read_policy(found["data"]["config"]) == InjectionPolicy(policy="enabled")
