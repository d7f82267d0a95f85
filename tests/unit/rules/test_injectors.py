"""Whether an injector is live, which ones are probed, and what several control planes come to.

Then which pod an injector is asked about, what its answers show, and what of native sidecars.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from istio_aux.injector.injection import InjectionPolicy, hooks_of
from istio_aux.injector.probe_rules import (
    Question,
    created,
    kubelets_assured,
    of_kubelets,
    questions,
)
from istio_aux.injector.rules import (
    ControlPlanes,
    Facts,
    Injector,
    NativeCheck,
    Probe,
    evaluate,
)
from istio_aux.model import pod as pods
from istio_aux.model.answers import Liveness
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.selectors import parse_namespaces
from istio_aux.model.webhooks import ClientConfig, Configuration, EndpointSlice, Service
from unit.rules.pods import (
    DEFAULT,
    ENABLED,
    GONE,
    ORIGINAL,
    READY,
    REVISED,
    REVISION,
    each_webhook,
    edited,
    expected,
    recorded,
    row,
    target,
)

INJECTS = Probe(
    injected=True, native=NativeCheck(Capability.NATIVE, "sidecars are native on request")
)


def endpoints(service: str = "istiod", *found: dict[str, Any], **fields: Any) -> EndpointSlice:
    """A slice as it comes over the wire."""
    body = {
        "metadata": {
            "name": f"{service}-x7k2p",
            "namespace": "istio-system",
            "labels": {"kubernetes.io/service-name": service},
        },
        "endpoints": list(found),
        "ports": [{"name": "https-webhook", "port": 15017, "protocol": "TCP"}],
        **fields,
    }
    return msgspec.json.decode(json.dumps(body), type=EndpointSlice)


ACTIVE = recorded(DEFAULT)
OTHER = recorded(REVISED)
BUNDLE = target(ACTIVE).ca_bundle or ""
LIVE = Facts(
    slices=(endpoints("istiod", READY), endpoints("istiod-1-30-3", READY)),
    probes={target(ACTIVE): INJECTS, target(OTHER): INJECTS},
)


UNSEEN = frozenset({Service("istio-system", "istiod")})


def but(**facts: Any) -> Facts:
    """What makes an injector live, with something else."""
    return msgspec.structs.replace(LIVE, **facts)


def one(configuration: Configuration, facts: Facts = LIVE) -> Injector:
    [found] = evaluate(hooks_of([configuration]), facts)
    return found


def test_a_configuration_without_webhooks_is_no_injector() -> None:
    """An admin may apply one; `webhooks` is optional in the API."""
    empty = edited(DEFAULT, lambda body: body.update(webhooks=None))
    assert hooks_of([empty, ACTIVE]) == hooks_of([ACTIVE])


def with_bundle(value: str | None) -> Configuration:
    service = {"namespace": "istio-system", "name": "istiod", "path": "/inject", "port": 443}
    return each_webhook(DEFAULT, clientConfig={"service": service, "caBundle": value})


FOREIGN = base64.b64encode(base64.b64decode(BUNDLE) + b"\n").decode()


@pytest.mark.parametrize(
    ("state", "configuration", "facts", "why"),
    [
        (Liveness.LIVE, ACTIVE, LIVE, "it injects"),
        (Liveness.DEACTIVATED, recorded(ORIGINAL), LIVE, "none of its webhooks is called for new"),
        (Liveness.NO_CA_BUNDLE, with_bundle(None), LIVE, "no caBundle: its istiod has never"),
        (Liveness.UNREADABLE, with_bundle("Z2FyYmFnZQ=="), LIVE, "no certificate that can be"),
        (Liveness.NO_SERVICE, ACTIVE, but(slices=()), "Service istio-system/istiod has no End"),
        (Liveness.NO_SERVICE, ACTIVE, but(slices=LIVE.slices[1:]), "istiod has no"),
        (Liveness.NO_ENDPOINT, ACTIVE, but(slices=[endpoints("istiod", GONE)]), "no ready"),
        (Liveness.NOT_PROBED, ACTIVE, but(probes={}), "it has not been probed yet"),
        (Liveness.NOT_PROBED, with_bundle(FOREIGN), LIVE, "it has not been probed yet"),
        (Liveness.REFUSED, ACTIVE,
         but(probes={target(ACTIVE): Probe(injected=False, why="connection refused")}),
         "connection refused"),
        (Liveness.NOT_PROBED, ACTIVE,
         but(probes={target(ACTIVE): Probe(injected=False, why="no connection", reached=False)}),
         "no connection"),
        (Liveness.NO_SERVICE, each_webhook(DEFAULT, clientConfig={"caBundle": BUNDLE}), LIVE,
         "it names neither Service nor URL"),
        (Liveness.LIVE, ACTIVE, but(slices=[endpoints("istiod", GONE), *LIVE.slices]), "injects"),
        (Liveness.LIVE, ACTIVE, but(slices=(), unseen=UNSEEN), "it injects"),
        (Liveness.NOT_PROBED, ACTIVE, but(slices=(), unseen=UNSEEN, probes={}), "not been probed"),
    ],
)  # fmt: skip
def test_the_first_check_that_fails_is_the_state(
    state: Liveness, configuration: Configuration, facts: Facts, why: str
) -> None:
    """A ready istiod is not yet live. A probe that reached no injector shows nothing.

    istio#3716.
    """
    found = one(configuration, facts)

    assert (found.state, found.live) == (state, state is Liveness.LIVE)
    assert why in found.why
    assert found.native is (Capability.NATIVE if found.live else Capability.UNKNOWN)
    assert found.configuration == configuration.metadata.name
    assert found.revision == "default"


@pytest.mark.parametrize(
    "found", [[], [each_webhook(DEFAULT, name="webhook.cert-manager.io")]], ids=["none", "others"]
)
def test_without_any_configuration_the_injector_is_absent(found: list[Configuration]) -> None:
    """istio#3716: also where there are configurations of others, and none that is Istio's."""
    [injector] = evaluate(hooks_of(found), LIVE)
    assert (injector.state, injector.live) == (Liveness.ABSENT, False)
    assert injector.why == "no webhook configuration of Istio's injector"
    assert (injector.configuration, injector.revision) == ("", "")


@pytest.mark.parametrize("more", [{"caBundle": BUNDLE}, {}], ids=["its own", "the system's"])
def test_an_injector_behind_a_url_is_live_by_its_probe_alone(more: dict[str, str]) -> None:
    """There is no Service. A vendor that runs istiod for its users needs no caBundle."""
    url = "https://istiod.example.com:15017/inject"
    configuration = each_webhook(DEFAULT, clientConfig={"url": url, **more})
    probed = {target(configuration): INJECTS}

    assert one(configuration, but(slices=())).state is Liveness.NOT_PROBED
    assert one(configuration, but(slices=(), probes=probed)).live


def test_control_planes_are_judged_one_by_one() -> None:
    slices = [endpoints("istiod", READY), endpoints("istiod-1-30-3", GONE)]

    found = evaluate(hooks_of([OTHER, recorded(ORIGINAL), ACTIVE]), but(slices=slices))

    assert [(each.configuration, each.revision, each.state) for each in found] == [
        (DEFAULT, "default", Liveness.LIVE),
        (REVISED, REVISION, Liveness.NO_ENDPOINT),
    ]


def test_only_the_control_plane_in_the_root_namespace_counts_where_one_is_given() -> None:
    [elsewhere] = evaluate(hooks_of([ACTIVE, OTHER]), LIVE, root="kubeflow")

    by_url = each_webhook(REVISED, clientConfig={"url": "https://istiod", "caBundle": BUNDLE})

    assert len(evaluate(hooks_of([ACTIVE, OTHER]), LIVE, root="istio-system")) == 2
    assert len(evaluate(hooks_of([ACTIVE, by_url]), LIVE, root="istio-system")) == 1
    assert elsewhere.state is Liveness.ABSENT
    assert elsewhere.why.endswith("injector for a control plane in namespace kubeflow")


@pytest.mark.parametrize("reverse", [False, True])
def test_of_the_webhooks_of_one_configuration_the_worst_counts(reverse: bool) -> None:
    """A vendor's may lead to different Services, one of which is not there."""

    def edit(body: dict[str, Any]) -> None:
        body["webhooks"][1]["clientConfig"]["service"]["name"] = "gone"
        if reverse:
            body["webhooks"].reverse()

    found = one(edited(DEFAULT, edit))

    assert (found.state, found.native) == (Liveness.NO_SERVICE, Capability.UNKNOWN)
    assert "istio-system/gone" in found.why


N, C, U = Capability.NATIVE, Capability.CLASSIC, Capability.UNKNOWN
PENDING = (U, "")
"""It has not been found out yet, which is why there is no reason."""


@pytest.mark.parametrize(
    ("natives", "live", "answer"),
    [
        row("nobody injects", (), (), PENDING),
        row("one that does", ((N, "so"),), (True,), (N, "0: so")),
        row("one of them does not", ((N, "so"), (C, "no")), (True, True), (C, "1: no")),
        row("one of them cannot say", ((N, "so"), (U, "403")), (True, True), (U, "1: 403")),
        row("one of them does not say yet", ((N, "so"), PENDING), (True, True), PENDING),
        row("who may say yet is waited for", ((U, "403"), PENDING), (True, True), PENDING),
        row("a no is surer than silence", (PENDING, (C, "no")), (True, True), (C, "1: no")),
        row("what is not live makes none", ((N, "so"), (C, "no")), (True, False), (N, "0: so")),
    ],
)
def test_a_new_pods_sidecar_is_native_when_every_live_injector_makes_native_ones(
    natives: tuple[tuple[Capability, str], ...],
    live: tuple[bool, ...],
    answer: tuple[Capability, str],
) -> None:
    found = tuple(
        Injector(
            state=Liveness.LIVE if up else Liveness.REFUSED,
            why="",
            configuration=str(number),
            native=native,
            native_why=why,
        )
        for number, ((native, why), up) in enumerate(zip(natives, live, strict=True))
    )

    check = ControlPlanes(injectors=found).native
    assert (check.capability, check.why) == answer
    assert ControlPlanes(injectors=found[::-1]).native.capability is answer[0]


UP = Injector(state=Liveness.LIVE, why="it injects", configuration="new", native=Capability.NATIVE)
FAR = Injector(state=Liveness.NOT_PROBED, why="no connection", configuration="far")
DOWN = Injector(state=Liveness.REFUSED, why="it is no istiod", configuration="old")


@pytest.mark.parametrize(
    ("known", "live"), [(True, [True, False, None, False]), (False, [True, None, None, None])]
)
def test_an_injector_is_live_not_live_or_not_known(known: bool, live: list[bool | None]) -> None:
    planes = ControlPlanes(injectors=(UP, DOWN, FAR), known=known)
    assert [planes.live(name) for name in ("new", "old", "far", "gone")] == live


@pytest.mark.parametrize(
    ("planes", "live"),
    [
        row("one of several", ControlPlanes(injectors=(DOWN, FAR, UP)), True),
        row("one may be", ControlPlanes(injectors=(DOWN, FAR), known=True), None),
        row("none", ControlPlanes(injectors=(DOWN,), known=True), False),
        row("none that is known yet", ControlPlanes(injectors=(DOWN,)), None),
        row("nothing is known at first", ControlPlanes(), None),
    ],
)
def test_one_live_injector_is_enough_for_a_mesh(planes: ControlPlanes, live: bool | None) -> None:
    assert planes.any_live is live


@pytest.mark.parametrize(
    ("labels", "capability", "proxy"),
    [
        (ENABLED, Capability.UNASKED, {"limits.cpu": 1}),
        ({"istio.io/rev": REVISION}, Capability.NATIVE, {"limits.cpu": 2}),
        # Its label is still to be added: so what both can do counts.
        ({}, Capability.NATIVE, None),
    ],
)
def test_a_new_pod_starts_by_what_its_own_injector_makes(
    labels: dict[str, str], capability: Capability, proxy: dict[str, int] | None
) -> None:
    """A revision beside another one is the usual way of an upgrade."""
    hooks = hooks_of([ACTIVE, OTHER])
    unasked = Probe(injected=True, native=NativeCheck(Capability.UNASKED, "unasked"))
    probes = {target(ACTIVE): unasked, target(OTHER): INJECTS}
    planes = ControlPlanes(
        injectors=evaluate(hooks, but(probes=probes)),
        hooks=hooks,
        proxies={ACTIVE.metadata.name: {"limits.cpu": 1}, OTHER.metadata.name: {"limits.cpu": 2}},
        known=True,
    )

    how = planes.start(StartPolicy(), InjectionRequest(namespace="team", namespace_labels=labels))

    assert (how.capability, how.proxy) == (capability, proxy)


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


@pytest.mark.parametrize(
    ("whom", "namespaces"),
    [
        (DEFAULT, {}),
        (DEFAULT, {"kube-system": ENABLED}),
        (DEFAULT, {"off": {"istio-injection": "disabled"}}),
        (REVISED, {"meshed": ENABLED}),
    ],
)
def test_where_no_pod_would_be_it_is_not_asked(whom: str, namespaces: Namespaces) -> None:
    assert not may_ask(target(recorded(whom)), namespaces)


def test_a_namespace_that_another_injector_is_called_for_as_well_shows_nothing() -> None:
    """Were that one dead, its error would be taken for this one's."""
    both = each_webhook(
        DEFAULT, namespaceSelector={}, objectSelector={}, name="x.sidecar-injector.istio.io"
    )
    rival = each_webhook(
        REVISED,
        clientConfig={"service": {"namespace": "kubeflow", "name": "istiod"}},
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
    first, *others = [question.namespace for question in found]

    assert (first, {*others}) == ("b", {"a", "c"})
    assert asked(ISTIOD, namespaces).namespace != "b"


def test_namespaces_that_go_take_no_pods_and_may_be_gone_in_the_middle() -> None:
    namespaces = {"a": ENABLED, "b": ENABLED, "c": ENABLED, "d": ENABLED, "e": ENABLED | {"x": ""}}
    found = questions(ISTIOD, hooks_of(ALL), namespaces, parse_namespaces("!x"), terminating={"a"})

    assert next(found).namespace == "b"
    del namespaces["c"], namespaces["e"]
    assert [each.namespace for each in found] == ["d"]
    assert not [*questions(ISTIOD, hooks_of(ALL), {"a": ENABLED}, terminating={"a"})]


PROXY = {"name": "istio-proxy"}


@pytest.mark.parametrize(
    ("versions", "assured"),
    [
        (("v1.32.0", "v1.33.1+k3s1", "v1.36.0-alpha.1", "v2.0.0"), True),
        (("v1.31.9", "1.30.1", "", "v1.99999999999999999999"), False),
    ],
)
def test_only_a_new_api_server_has_no_old_kubelets(
    versions: tuple[str, ...], assured: bool
) -> None:
    assert {*map(kubelets_assured, versions)} == {assured}


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
        (
            {"initContainers": [{"name": "istio-init"}, PROXY | {"restartPolicy": "Always"}]},
            N,
            "native on request",
        ),
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
