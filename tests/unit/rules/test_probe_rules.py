"""Which pod an injector is asked about, what its answers show, and what of native sidecars."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from istio_aux.injector.injection import InjectionPolicy, hooks_of
from istio_aux.injector.probe_rules import (
    Question,
    created,
    kubelets_assured,
    of_kubelets,
    questions,
)
from istio_aux.model import pod as pods
from istio_aux.model.policy import Capability
from istio_aux.model.selectors import parse_namespaces
from istio_aux.model.webhooks import ClientConfig, Configuration
from unit.rules.mesh import (
    DEFAULT,
    ENABLED,
    ORIGINAL,
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
ALL_KINDS = {"meshed": ENABLED, "plain": PLAIN, "revised": {"istio.io/rev": REVISION}}
ISTIOD = target(recorded(DEFAULT))


def may_ask(
    whom: ClientConfig, namespaces: Namespaces, configurations: list[Configuration] = ALL
) -> list[Question]:
    return [*questions(whom, hooks_of(configurations), namespaces)]


def asked(
    whom: ClientConfig, namespaces: Namespaces, configurations: list[Configuration] = ALL
) -> Question:
    return may_ask(whom, namespaces, configurations)[0]


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
    pod = pods.convert(json.loads(found.body(native=True)))
    verdict = expected(pod, namespaces[found.namespace], hooks, policies)
    assert (verdict.expected, verdict.configuration) == (True, whom)


def test_a_pod_that_asks_for_a_sidecar_by_label_is_made_where_the_selector_wants_it() -> None:
    """The label decides in namespaces that say nothing; everywhere else the annotation does."""

    def only_by_object(body: dict[str, Any]) -> None:
        body["webhooks"] = [w for w in body["webhooks"] if w["name"].startswith("object.")]

    found = asked(ISTIOD, {"plain": PLAIN}, [edited(DEFAULT, only_by_object)])

    assert found.labels == TRUE


@pytest.mark.parametrize(
    "namespaces", [{}, {"kube-system": ENABLED}, {"off": {"istio-injection": "disabled"}}]
)
def test_where_no_pod_would_be_it_is_not_asked(namespaces: Namespaces) -> None:
    assert not may_ask(ISTIOD, namespaces)
    assert not may_ask(target(recorded(REVISED)), {"meshed": ENABLED})


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

    assert not may_ask(ISTIOD, rivals, [both, rival])
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
    assert not [*gone]


PROXY = {"name": "istio-proxy"}
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
        ({"containers": [{"name": "main"}, PROXY]}, C, "no native sidecars, not even on request"),
        ({"containers": [{"name": "main"}]}, None, "no sidecar to a pod that asks for one"),
    ],
)
def test_a_dry_run_shows_what_a_pod_gets(
    spec: dict[str, Any], capability: Capability | None, why: str
) -> None:
    found = created(json.dumps({"spec": spec}).encode())

    assert found.injected is (capability is not None)
    assert capability is None or found.native.capability is capability
    assert why in found.why + found.native.why


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b'{"spec": 3}', b"\xff"])
def test_an_answer_that_is_no_pod_shows_no_sidecar(body: bytes) -> None:
    assert "a dry run is not a pod" in created(body).why
