"""The stand-in for istiod, compared with recordings of Istio 1.28.10 and 1.30.3."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from lab.istio import decision, proxyconfig, sidecar, webhooks

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


def part(ours: Any, recorded: Any) -> Any:
    """What the recording says about everything that we say; it has the API server's defaults."""
    if isinstance(ours, dict) and isinstance(recorded, dict):
        return {key: part(ours[key], recorded.get(key)) for key in ours}
    if isinstance(ours, list) and isinstance(recorded, list):
        return [part(*pair) for pair in itertools.zip_longest(ours, recorded)]
    return recorded


def test_makes_the_pod_that_a_revision_of_istio_1_30_makes() -> None:
    recorded = json.loads((DATA / "pod-hold-1.30.3.json").read_text())
    spec = recorded["spec"]
    for container in [*spec["containers"], *spec["initContainers"]]:
        container["volumeMounts"] = [
            mount for mount in container["volumeMounts"] if "kube-api" not in mount["name"]
        ]
    name = "docker.io/istio/proxyv2:1.30.3"
    template = sidecar.Template("istio-system", name, revision="1-30-3", version="1.30.3")
    owners = recorded["metadata"]["ownerReferences"]
    labels = {"app": "h130"}
    request = review(a_pod(annotations=HOLD, labels=labels, ownerReferences=owners), "mesh130")

    answer, _ = decision.answer(request, template, native=False)

    ours = patched(request["request"]["object"], answer)
    assert ours["metadata"]["annotations"] == recorded["metadata"]["annotations"]
    assert ours["metadata"]["labels"].items() <= recorded["metadata"]["labels"].items()
    for kind in ("initContainers", "containers"):
        assert names(ours["spec"][kind]) == names(spec[kind])
    for container in (ours["spec"]["initContainers"][0], proxy_of(ours)):
        [its] = [
            found
            for found in [*spec["containers"], *spec["initContainers"]]
            if found["name"] == container["name"]
        ]
        assert container == part(container, its)


@pytest.mark.parametrize("case", ["annoff", "kube-system", "badcfg"])
def test_leaves_alone_or_refuses_in_the_same_words_as_istiod(case: str) -> None:
    record = recording(case)

    answer, _ = decision.answer(record["request"], TEMPLATE, native=False)

    assert answer == record["response"]


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


NONE = ["main", "istio-proxy"]
FIRST = ["istio-proxy", "main"]
FETCH = {"initContainers": [{"name": "fetch"}]}
SNAKE = "hold_application_until_proxy_starts"


def config(text: str) -> dict[str, str]:
    return {proxyconfig.ANNOTATION: text}


@pytest.mark.parametrize(
    ("annotations", "template", "init", "containers"),
    [
        ({}, {}, ["fetch", "istio-init"], NONE),
        (HOLD, {}, ["fetch", "istio-init"], FIRST),
        (NATIVE, {}, ["istio-init", "istio-proxy", "fetch"], ["main"]),
        ({**HOLD, **NATIVE}, {}, ["istio-init", "istio-proxy", "fetch"], ["main"]),
        (NATIVE, {"native": "never"}, ["fetch", "istio-init"], NONE),
        (HOLD, {"cni": True}, ["istio-validation", "fetch"], FIRST),
        (NATIVE, {"cni": True}, ["istio-validation", "istio-proxy", "fetch"], ["main"]),
        # In every spelling that Istio knows.
        (config(f"{proxyconfig.HOLD}: yes"), {}, None, FIRST),
        (config(f"{SNAKE}: true"), {}, None, FIRST),
        (config(f"{{{proxyconfig.HOLD}: true}}"), {}, None, FIRST),
        (config(f"{SNAKE}: false\n{proxyconfig.HOLD}: true"), {}, None, FIRST),
        (config(f"{proxyconfig.HOLD}: true\n{SNAKE}: false"), {}, None, FIRST),
        # Where the annotation does not say so.
        (config(""), {}, None, NONE),
        (config("null"), {}, None, NONE),
        (config("concurrency: 2"), {}, None, NONE),
        (config(f"{proxyconfig.HOLD}: false"), {}, None, NONE),
        # The annotation refines what the mesh says, and not what the Helm value does.
        ({}, {"mesh": {proxyconfig.HOLD: True}}, None, FIRST),
        (config(f"{proxyconfig.HOLD}: false"), {"mesh": {proxyconfig.HOLD: True}}, None, NONE),
        (HOLD, {"mesh": {proxyconfig.HOLD: False}}, None, FIRST),
        (config(f"{proxyconfig.HOLD}: false"), {"hold": True}, None, FIRST),
    ],
)
def test_containers_stand_where_istio_puts_them(
    annotations: dict[str, str], template: dict[str, Any], init: list[str] | None,
    containers: list[str],
) -> None:  # fmt: skip
    made = dataclasses.replace(TEMPLATE, **template)

    after = injected(a_pod(spec=FETCH, annotations=annotations), made)

    assert names(after["spec"]["containers"]) == containers
    if init:
        assert names(after["spec"]["initContainers"]) == init


HOOKS = {"preStop": {"exec": {"command": ["sleep", "5"]}}}


@pytest.mark.parametrize("annotations", [{}, HOLD, NATIVE])
def test_the_lifecycle_of_the_installation_takes_the_place_of_all_hooks(
    annotations: dict[str, str],
) -> None:
    template = dataclasses.replace(TEMPLATE, lifecycle=HOOKS)

    after = injected(a_pod(annotations=annotations), template)

    assert proxy_of(after)["lifecycle"] == HOOKS


@pytest.mark.parametrize(
    "text", ["just words", "- a", f'{proxyconfig.HOLD}: "true"', "statusPort: true", "a: {"]
)
def test_refuses_a_config_that_istio_cannot_read(text: str) -> None:
    pod = a_pod(annotations={proxyconfig.ANNOTATION: text})

    answer, _ = decision.answer(review(pod), TEMPLATE, native=False)

    assert answer["response"]["allowed"] is False
    assert f"invalid value '{text}'" in answer["response"]["status"]["message"]


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


def test_before_istio_1_27_only_true_asks_for_a_native_sidecar_and_the_admin_knows_the_kubelets():
    assert sidecar.is_native({sidecar.NATIVE_ANNOTATION: "1"}, default=True, minor=28)
    assert not sidecar.is_native({sidecar.NATIVE_ANNOTATION: "1"}, default=True, minor=24)
    assert decision.native_by_default("default", ["v1.31.0"], minor=24)


@pytest.mark.parametrize("revision", ["default", "1-30-3"])
def test_another_tag_has_the_two_webhooks_of_a_revision_and_leads_to_its_istiod(
    revision: str,
) -> None:
    *_, tag = webhooks.configurations("istio-system", revision, tags=["prod"])
    recorded = yaml.safe_load((DATA / "mwc-revision-1-30-3.yaml").read_text())

    def asked(configuration: dict[str, Any]) -> str:
        return json.dumps([
            (w["name"], w["namespaceSelector"], w["objectSelector"])
            for w in configuration["webhooks"]
        ])  # fmt: skip

    assert tag["metadata"]["name"] == "istio-revision-tag-prod"
    assert tag["metadata"]["labels"].items() >= {
        "istio.io/tag": "prod", "istio.io/rev": revision,
    }.items()  # fmt: skip
    assert asked(tag) == asked(recorded).replace("1-30-3", "prod")
    services = {w["clientConfig"]["service"]["name"] for w in tag["webhooks"]}
    assert services == {webhooks.service(revision)}


@pytest.mark.parametrize("name", ["istio-revision-tag-default", "istio-sidecar-injector"])
def test_installs_the_configurations_that_istioctl_leaves(name: str) -> None:
    recorded = yaml.safe_load((DATA / f"mwc-istioctl-install-{name}.yaml").read_text())
    for key in ("creationTimestamp", "generation", "resourceVersion", "uid"):
        del recorded["metadata"][key]
    for webhook in recorded["webhooks"]:
        del webhook["clientConfig"]["caBundle"]

    [ours] = [c for c in webhooks.configurations("istio-system") if c["metadata"]["name"] == name]

    assert ours == recorded


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
