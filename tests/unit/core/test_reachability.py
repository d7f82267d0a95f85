"""Which declared ports of a pod its peers may not reach: `reachability.refusals`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from istio_aux.core import pod as pods
from istio_aux.core.peers import EXCLUDED, INCLUDED, JOBSET, PEERS
from istio_aux.core.pod import Pod
from istio_aux.core.reachability import (
    AuthorizationPolicy,
    PeerAuthentication,
    PeerFacts,
    PodService,
    concerns,
    refusals,
)

ROOT = "istio-system"
LABELS = {"app": "train"}
PORT = 29500
UNLISTED = f"port {PORT} is in no Service: plaintext, "


def worker(
    port: int | None = PORT,
    *,
    labels: dict[str, str] = LABELS,
    annotations: dict[str, str] | None = None,
    restart: str = "Never",
    proxy: bool = True,
) -> Pod:
    main: dict[str, Any] = {"name": "main"}
    if port:
        main["ports"] = [{"name": "rendezvous", "containerPort": port, "protocol": "TCP"}]
    sidecar = {"name": "istio-proxy", "ports": [{"containerPort": 15090}]}
    return pods.convert(
        {
            "metadata": {
                "name": "worker-0", "namespace": "team", "labels": labels,
                "annotations": annotations or {},
            },
            "spec": {
                "restartPolicy": restart, "containers": [main, *([sidecar] if proxy else [])]
            },
        }
    )  # fmt: skip


def service(*ports: dict[str, Any], selector: dict[str, str] | None = LABELS) -> PodService:
    document = {"metadata": {"name": "train"}, "spec": {"selector": selector, "ports": [*ports]}}
    return msgspec.convert(document, PodService)


def authentication(
    mode: str | None,
    namespace: str = "team",
    name: str = "default",
    *,
    selector: dict[str, str] | None = None,
    ports: dict[str, Any] | None = None,
    day: int = 1,
) -> PeerAuthentication:
    spec: dict[str, Any] = {"portLevelMtls": ports}
    if mode:
        spec["mtls"] = {"mode": mode}
    if selector:
        spec["selector"] = {"matchLabels": selector}
    metadata = {
        "name": name, "namespace": namespace, "creationTimestamp": f"2026-01-{day:02}T00:00:00Z"
    }  # fmt: skip
    return msgspec.convert({"metadata": metadata, "spec": spec}, PeerAuthentication)


def authorization(namespace: str = "team", **spec: Any) -> AuthorizationPolicy:
    metadata = {"name": "ns-owner-access", "namespace": namespace}
    return msgspec.convert({"metadata": metadata, "spec": spec}, AuthorizationPolicy)


STRICT_MESH = authentication("STRICT", ROOT)


def found(
    *policies: PeerAuthentication,
    services: tuple[PodService, ...] | str = (),
    authorizations: tuple[AuthorizationPolicy, ...] | str = (),
    root: str | None = ROOT,
) -> PeerFacts:
    return PeerFacts(
        services=services, authentications=policies, authorizations=authorizations, root=root
    )


@pytest.mark.parametrize(
    ("ports", "refused"),
    [
        ((), True),
        (({"port": PORT},), False),
        (({"port": 80, "targetPort": PORT},), False),
        (({"port": 80, "targetPort": "rendezvous"},), False),
        (({"port": 80, "targetPort": "web"},), True),
        (({"port": PORT, "targetPort": 80},), True),
        (({"port": PORT, "protocol": "UDP"},), True),
    ],
    ids=["headless without ports", "port", "number", "name", "another name", "another", "UDP"],
)
def test_a_declared_port_that_no_service_has_is_reset_under_strict(
    ports: tuple[dict[str, Any], ...], refused: bool
) -> None:
    told = refusals(worker(), found(STRICT_MESH, services=(service(*ports),)))

    assert told == ((f"{UNLISTED}reset under STRICT (istio-system/default)",) if refused else ())


@pytest.mark.parametrize("selector", [None, {}, {"app": "other"}])
def test_a_service_of_other_pods_does_not_count(selector: dict[str, str] | None) -> None:
    others = service({"port": PORT}, selector=selector)

    assert refusals(worker(), found(STRICT_MESH, services=(others,)))


@pytest.mark.parametrize(
    ("policies", "source"),
    [
        ([], None),
        ([STRICT_MESH], "istio-system/default"),
        ([STRICT_MESH, authentication("PERMISSIVE")], None),
        ([STRICT_MESH, authentication("UNSET")], "istio-system/default"),
        ([STRICT_MESH, authentication(None)], "istio-system/default"),
        ([authentication("STRICT"), authentication("PERMISSIVE", ROOT)], "team/default"),
        ([authentication("STRICT", "other")], None),
        ([authentication("PERMISSIVE", day=2), authentication("STRICT", name="old")], "team/old"),
        (
            [authentication("PERMISSIVE"), authentication("STRICT", name="pod", selector=LABELS)],
            "team/pod",
        ),
        ([authentication("STRICT", selector={"app": "other"})], None),
        ([authentication("STRICT", ROOT, selector=LABELS)], None),
        (
            [
                STRICT_MESH,
                authentication(None, selector=LABELS, ports={str(PORT): {"mode": "DISABLE"}}),
            ],
            None,
        ),
        (
            [authentication("PERMISSIVE", selector=LABELS, ports={str(PORT): {"mode": "STRICT"}})],
            "team/default",
        ),
        (
            [STRICT_MESH, authentication(None, selector=LABELS, ports={"80": {"mode": "DISABLE"}})],
            "istio-system/default",
        ),
        ([authentication(None, ports={str(PORT): {"mode": "STRICT"}})], None),
    ],
    ids=[
        "none", "mesh", "namespace over mesh", "unset inherits", "absent inherits",
        "namespace, mesh permissive", "another namespace", "the oldest", "pod over namespace",
        "another pod", "a selector in the root namespace selects nothing", "a port of its own",
        "a strict port of its own", "another port", "ports without a selector",
    ],
)  # fmt: skip
def test_the_mode_is_that_of_pod_namespace_or_mesh(
    policies: list[PeerAuthentication], source: str | None
) -> None:
    """Istio policy_applier.go ComposePeerAuthentication."""
    expected = (f"{UNLISTED}reset under STRICT ({source})",) if source else ()

    assert refusals(worker(), found(*policies)) == expected


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (authorization(), "team/ns-owner-access"),
        (authorization(ROOT), "istio-system/ns-owner-access"),
        (authorization(selector={"matchLabels": LABELS}, action="ALLOW"), "team/ns-owner-access"),
        (authorization(action="DENY"), None),
        (authorization(selector={"matchLabels": {"app": "other"}}), None),
        (authorization(targetRefs=[{"kind": "Gateway", "name": "g"}]), None),
        (authorization("other"), None),
    ],
)
def test_an_authorization_policy_may_refuse_plaintext_where_mtls_is_permissive(
    policy: AuthorizationPolicy, named: str | None
) -> None:
    told = refusals(worker(), found(authorizations=(policy,)))

    because = f"which has no identity: AuthorizationPolicy {named} may refuse it"
    assert told == ((f"{UNLISTED}{because}",) if named else ())


def test_a_port_past_the_proxy_is_reached() -> None:
    """That is what `peers: direct` is for."""
    for author in ({INCLUDED: ""}, {INCLUDED: "80"}, {EXCLUDED: f"80, {PORT}"}):
        assert refusals(worker(annotations=author), found(STRICT_MESH)) == ()
    assert refusals(worker(annotations={INCLUDED: f"80,{PORT}"}), found(STRICT_MESH))


def test_a_port_of_a_service_that_is_past_the_proxy_gets_mtls() -> None:
    pod = worker(annotations={INCLUDED: ""})

    (told,) = refusals(pod, found(services=(service({"port": PORT}),)))

    assert told.startswith(f"port {PORT} of Service train is not in {INCLUDED}")


@pytest.mark.parametrize("label", [JOBSET, "training.kubeflow.org/job-name"])
def test_undeclared_ports_of_a_training_job_are_foretold(label: str) -> None:
    pod = worker(None, labels={label: "train"})

    (told,) = refusals(pod, found(STRICT_MESH))

    assert told == (
        "ports that no Service has, as of gloo and NCCL: plaintext, reset under STRICT"
        " (istio-system/default)"
    )
    assert refusals(worker(None), found(STRICT_MESH)) == ()


def test_what_cannot_be_read_is_said_and_not_guessed() -> None:
    forbidden = "cannot read peerauthentications: forbidden"
    unread = PeerFacts(services=(), authentications=forbidden, root=ROOT)
    assert refusals(worker(), unread) == (f"{UNLISTED}reset if mTLS is STRICT: {forbidden}",)

    forbidden = "cannot read services: forbidden"
    assert refusals(worker(), found(STRICT_MESH, services=forbidden)) == (forbidden,)

    missing = "cannot read authorizationpolicies: not served"
    assert refusals(worker(), found(authorizations=missing)) == (
        f"{UNLISTED}which an AuthorizationPolicy may refuse: {missing}",
    )

    rootless = "reset if mTLS is STRICT: Istio's root namespace is not known"
    assert refusals(worker(), found(root=None)) == (f"{UNLISTED}{rootless}",)


@pytest.mark.parametrize(
    ("pod", "asked"),
    [
        (worker(), True),
        (worker(None), False),
        (worker(None, labels={JOBSET: "train"}), True),
        (worker(proxy=False), False),
        (worker(restart="Always"), False),
        (worker(restart="Always", annotations={PEERS: "direct"}), True),
    ],
)
def test_nothing_is_read_for_a_pod_of_which_nothing_can_be_said(pod: Pod, asked: bool) -> None:
    assert concerns(pod) is asked
