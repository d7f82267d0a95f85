"""Why a pod that ends must be held: beside a native sidecar it may fail, hang, or be refused."""

from __future__ import annotations

from collections.abc import Iterator

from istio_aux.model import ending, resources
from istio_aux.model.annotations import templates
from istio_aux.model.pod import PROXY, Container, Pod
from istio_aux.model.sidecars import SHIPPED
from istio_aux.model.text import UNDECODABLE, listed, quoted

LONGEST = 128 << 10  # Characters of the commands and variables of a pod; a search takes 1 ms.
MOST = 200  # Containers that are looked at.

ENDS = "the payload ends the proxy itself"
RAISES = "a native sidecar would raise what the pod needs"
UNTRIED = "templates that were not tried"
HURRIED = "its grace period is short"
"""What reasons begin with; the rest says where."""

ENDINGS = (
    # The path of pilot-agent (status/server.go), and of the admin port of Envoy.
    "quitquitquit",
    # redboxllc/scuttle and its ancestor monzo/envoy-preflight (main.go kill).
    "scuttle", "envoy-preflight", "ENVOY_ADMIN_API", "ISTIO_QUIT_API",
    # maksim-paskal/envoy-sidecar-helper (pkg/api/api.go); karlkfi/kubexit (README, Config).
    "envoy-sidecar-helper", "-envoy.endpoint", "-envoy.port", "-envoy.ready", "kubexit", "KUBEXIT_",
)  # fmt: skip
"""What a payload says that ends its proxy itself."""

# About another sidecar: the flag of cloud-sql-proxy, and ports.
_OTHERS = ("--quitquitquit", *(f":{rule.port}/quitquitquit" for rule in SHIPPED.values()))


def reasons(pod: Pod) -> Iterator[str]:
    """Yield each reason as ``what: where``."""
    if len(pod.containers) + len(pod.init_containers) > MOST:
        yield f"too much to judge: it has over {MOST} containers"
        return
    yield from _ends_its_proxy(pod)
    if raised := _raised(pod):
        yield f"{RAISES}: {raised}"
    if templates.on(pod.metadata) and templates.get(pod.metadata) != frozenset({"sidecar"}):
        yield f"{UNTRIED}: {templates.shown(pod.metadata)}"
    if ending.is_short(pod):
        given = f"terminationGracePeriodSeconds {pod.spec.termination_grace_period_seconds}"
        yield f"{HURRIED}: {given}, not {ending.SHORT}"


def _ends_its_proxy(pod: Pod) -> Iterator[str]:
    """A native proxy is started again, which a Job counts (k8s job pastBackoffLimitOnFailure)."""
    length = 0
    for container in (*pod.init_containers, *pod.containers):
        text = said(container)
        length += len(text)
        if length > LONGEST:
            yield f"too much to judge: its commands and variables have over {LONGEST >> 10} KiB"
            return
        text = without_others(text)
        kills = pod.spec.share_process_namespace and "kill" in text
        words = (*ENDINGS, "pilot-agent", "envoy") if kills else ENDINGS
        word = next((each for each in words if each in text), "")
        if word and container.name != PROXY:
            yield f"{ENDS}: {word} in container {quoted(container.name)}"
            return


def without_others(text: str) -> str:
    """A text without what is about another sidecar than the proxy."""
    for other in _OTHERS:
        text = text.replace(other, " ")
    return text


def said(container: Container) -> str:
    """The name, command and variables of a container."""
    words = (container.name, *(container.command or ()), *(container.args or ()))
    variables = (f"{variable.name}={variable.value}" for variable in container.env or ())
    return "\n".join((*words, *variables))


def _raised(pod: Pod) -> str:
    """What a native sidecar raises, so that a quota, a LimitRange or every node may refuse it."""
    if all(each.restart_policy == "Always" for each in pod.init_containers):
        return ""  # Nothing ends before the containers start.
    try:
        return listed(resources.raised_by_native_proxy(pod))
    except UNDECODABLE:
        return "not known, its resources cannot be read"
