"""Payloads that end their proxy themselves, as their commands and variables show."""

from __future__ import annotations

from collections.abc import Iterator

from istio_aux.model.findings import Code, Remark
from istio_aux.model.pod import PROXY, Container, Pod
from istio_aux.model.sidecars import SHIPPED
from istio_aux.model.text import quoted

LONGEST = 128 << 10  # Characters of the commands and variables of a pod; a search takes 1 ms.

ENDS = "the payload ends the proxy itself"  # The reason begins so; the rest says where.

# Texts in the container of a payload that ends its proxy itself.
ENDINGS = (
    # The path of pilot-agent (status/server.go), and of the admin port of Envoy.
    "quitquitquit",
    # redboxllc/scuttle and its ancestor monzo/envoy-preflight (main.go kill).
    "scuttle",
    "envoy-preflight",
    "ENVOY_ADMIN_API",
    "ISTIO_QUIT_API",
    # maksim-paskal/envoy-sidecar-helper (pkg/api/api.go); karlkfi/kubexit (README, Config).
    "envoy-sidecar-helper",
    "-envoy.endpoint",
    "-envoy.port",
    "-envoy.ready",
    "kubexit",
    "KUBEXIT_",
)

# Texts about another sidecar: the flag of cloud-sql-proxy, and ports.
_OTHERS = ("--quitquitquit", *(f":{rule.port}/quitquitquit" for rule in SHIPPED.values()))


def ends_its_proxy(pod: Pod) -> Iterator[Remark]:
    """Yield the container whose text ends the proxy, or that the text is too long to judge."""
    length = 0
    for container in (*pod.init_containers, *pod.containers):
        text = said(container)
        length += len(text)
        if length > LONGEST:
            yield Remark(
                Code.TOO_MUCH,
                f"too much to judge: its commands and variables have over {LONGEST >> 10} KiB",
            )
            return
        text = _without_others(text)
        kills = pod.spec.share_process_namespace and "kill" in text
        words = (*ENDINGS, "pilot-agent", "envoy") if kills else ENDINGS
        word = next((each for each in words if each in text), "")
        if word and container.name != PROXY:
            yield Remark(Code.END_PROXY, f"{ENDS}: {word} in container {quoted(container.name)}")
            return


def _without_others(text: str) -> str:
    """A text without what is about another sidecar than the proxy."""
    for other in _OTHERS:
        text = text.replace(other, " ")
    return text


def said(container: Container) -> str:
    """The name, command and variables of a container."""
    return "\n".join(
        (
            container.name,
            *(container.command or ()),
            *(container.args or ()),
            *(f"{variable.name}={variable.value}" for variable in container.env or ()),
        )
    )
