"""The rights that `serve` needs, and those that an install needs, as `check` asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from istio_aux.model.policy import DeadProxy, QuitMode, RacePolicy, Right
from istio_aux.settings import Settings

LEASES = "coordination.k8s.io"
ADMISSION = "admissionregistration.k8s.io"
EVICT = Right("create", "", "pods/eviction", "to restart pods")


def needed(settings: Settings) -> Iterator[Right]:
    """The rights that `serve` needs with these settings."""
    for each in (
        ("get list watch", "", "pods", "to see which pods are finished"),
        ("list watch", "", "namespaces", "to know which are selected"),
        ("list watch", ADMISSION, "mutatingwebhookconfigurations", "to find Istio"),
        ("list watch", "discovery.k8s.io", "endpointslices", "to see whether istiod is there"),
        ("list", "", "nodes", "to know whether sidecars can be native"),
        ("get", "", "nodes", "to know which restart policies a kubelet obeys"),
        ("create", "", "pods", "to try injection by dry runs"),
        ("create", "events.k8s.io", "events", "to report on pods"),
        ("get", "batch", "jobs", "to know what they count as a failure"),
        ("list watch", "", "limitranges resourcequotas", "to know what pods may request"),
    ):
        yield from _all(*each)
    if settings.quit is QuitMode.ENABLED:
        yield from QUIT_RIGHTS
        if settings.quit_policy.dead_proxy is DeadProxy.DELETE:
            yield Right("delete", "", "pods", "dead-proxy: delete")
    if settings.repair_policy.race is RacePolicy.RESTART:
        yield EVICT._replace(purpose="race-policy: restart")
    if settings.lease:
        yield from _all(
            "create get update",
            LEASES,
            "leases",
            "to elect",
            *settings.lease,
        )


def installing() -> Iterator[Right]:
    """The rights to make what the chart makes, beside those that it gives to the workload."""
    for group, resources in (
        ("", "configmaps secrets serviceaccounts services"),
        (ADMISSION, "mutatingwebhookconfigurations validatingadmissionpolicies"),
        (ADMISSION, "validatingadmissionpolicybindings"),
        ("apps", "deployments"),
        (LEASES, "leases"),
        ("policy", "poddisruptionbudgets"),
        ("rbac.authorization.k8s.io", "clusterrolebindings clusterroles rolebindings roles"),
    ):
        yield from _all("create", group, resources, "to install")


def _all(verbs: str, group: str, resources: str, purpose: str, *where: str) -> Iterator[Right]:
    for verb, resource in product(verbs.split(), resources.split()):
        yield Right(verb, group, resource, purpose, *where)


# A WebSocket upgrade is a GET: it needs `get` up to Kubernetes 1.34, and `create` since 1.35.
QUIT_RIGHTS = [*_all("get create", "", "pods/exec pods/portforward", "to quit proxies")]
