"""What Istio's CNI agent does about the pods of an ambient mesh on its node, as far as it is known.

The agent captures a pod, hands it to ztunnel, and then annotates it. It tries again for as long as
it runs (istio cni/pkg/nodeagent/informers.go setupHandlers). So what counts about a pod is whether
the agent of its node is ready, and which pods its settings select.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import filterfalse
from textwrap import indent

import msgspec

from istio_aux.model import documents, kept
from istio_aux.model.annotations import DATAPLANE
from istio_aux.model.pod import Key, Pod, Struct
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.selectors import LONGEST_NAME, LabelSelector, Selector, convert, parse

AGENTS = {"istio-cni": "k8s-app=istio-cni-node", "ztunnel": "app=ztunnel"}
"""Label selectors for the pods of these DaemonSets (istio manifests/charts/istio-cni and ztunnel,
templates/daemonset.yaml)."""

CONFIG_MAP = "istio-cni-config"
"""The agent's settings, in its namespace (istio-cni templates/configmap-cni.yaml)."""

_CNI = parse(AGENTS["istio-cni"])


class Agent(Struct, frozen=True):
    """A pod of one of these DaemonSets."""

    key: Key
    node: str
    ready_since: float | None  # In seconds since 1970; None: it is not ready.

    @classmethod
    def of(cls, pod: Pod) -> Agent:
        """Read a pod."""
        since = next(
            (
                each.last_transition_time.timestamp() if each.last_transition_time else 0.0
                for each in pod.status.conditions or ()
                if each.type == "Ready" and each.status == "True"
            ),
            None,
        )
        return cls(
            key=pod.metadata.key,
            node=(pod.spec.node_name or "")[:LONGEST_NAME],
            ready_since=since if pod.metadata.deletion_timestamp is None else None,
        )


def is_agent(pod: Pod) -> bool:
    """Whether the pod has the label of Istio's CNI agent; a tenant may write it, too."""
    return _CNI.matches(pod.labels)


def not_ready(agents: Mapping[str, Iterable[Agent]], node: str) -> list[str]:
    """Name the DaemonSets without a ready pod on a node; ``agents`` has all pods of each."""
    return [
        name
        for name, pods in agents.items()
        if not any(pod.ready_since is not None and pod.node == node for pod in pods)
    ]


class Enablement(Struct, frozen=True):
    """One of the agent's ``enablementSelectors``; an empty selector matches everything."""

    pod_selector: LabelSelector = LabelSelector()
    namespace_selector: LabelSelector = LabelSelector()


class CniConfig(Struct, frozen=True):
    """The agent's settings that decide which pods are captured; `read_config` reads them."""

    enabled: bool = True  # Whether it captures pods at all.
    # Whether it writes the rules of all annotated pods again when it starts.
    renews: bool = False
    excluded: tuple[str, ...] = ()  # Namespaces.
    # Selectors of pods, and of their namespaces.
    selectors: tuple[tuple[Selector, Selector], ...] = ()

    def ignores(self, injection: InjectionRequest) -> str:
        """Why the agent does not capture a pod with these labels; empty if it does.

        See istio cni/pkg/util/enablement_selector.go Matches.
        """
        labels = injection.namespace_labels or {}
        chosen = any(p.matches(injection.labels) and n.matches(labels) for p, n in self.selectors)
        checks = (
            (not self.enabled, "AMBIENT_ENABLED is false"),
            (injection.namespace in self.excluded, f"EXCLUDE_NAMESPACES has {injection.namespace}"),
            (not chosen, "AMBIENT_ENABLEMENT_SELECTOR does not match the pod"),
        )
        return next((why for bad, why in checks if bad), "")


# istio-cni values.yaml ambient.enablementSelectors.
_USUAL = f"""
- podSelector: {{matchLabels: {{{DATAPLANE}: ambient}}}}
- podSelector: {{matchExpressions: [{{key: {DATAPLANE}, operator: NotIn, values: [none]}}]}}
  namespaceSelector: {{matchLabels: {{{DATAPLANE}: ambient}}}}
"""


def read_config(data: Mapping[str, str]) -> CniConfig:
    """Read the ConfigMap of the agent; what an older Istio does not write has its default.

    ValueError: it is too much, or cannot be read.
    """
    name = "AMBIENT_ENABLEMENT_SELECTOR"
    text = f"selectors:\n{indent(data.get(name) or _USUAL, ' ')}"
    read = msgspec.json.decode(
        documents.first(text, name), type=dict[str, tuple[Enablement, ...] | None]
    )
    found = read.get("selectors") or ()
    names = data.get("EXCLUDE_NAMESPACES", "").split(",")
    if kept.size((found, names)) > kept.MOST_OF_ISTIO:
        raise ValueError("too much to judge")
    return CniConfig(
        enabled=data.get("AMBIENT_ENABLED", "true") == "true",
        renews=data.get("AMBIENT_RECONCILE_POD_RULES_ON_STARTUP") == "true",
        excluded=tuple(filter(None, map(str.strip, names))),
        selectors=tuple(
            (convert(each.pod_selector), convert(each.namespace_selector)) for each in found
        ),
    )


class NodeAgent(Struct, frozen=True):
    """What is known of the agent on the node of a pod."""

    ready_since: float | None = None  # In seconds since 1970; None: no agent there is ready.
    config: CniConfig | None = None  # None: not known.
    lacks: str = "istio-cni is not known"  # Why no agent is ready, or its settings are not known.
    place: str = ""  # The ConfigMap of its settings.

    def ignores(self, injection: InjectionRequest) -> str:
        """Why the agent will not capture the pod, if that is known; else empty."""
        why = self.config.ignores(injection) if self.config else ""
        return f"{why} in ConfigMap {self.place}" if why else ""

    def renewed(self, network: float) -> bool:
        """Whether it is known that an annotation holds that may be older than the pod's network.

        ``network``: when that was made, in seconds since 1970. Either the agent was ready then, so
        that its plugin captured the pod, or it writes the rules again when it starts.
        """
        made = self.ready_since is not None and self.ready_since <= network
        return made or (self.config is not None and self.config.renews)


class NodeAgents:
    """Istio's CNI agents by node, and their settings by namespace.

    A tenant may give a pod the agent's label. Where a node has agents of two namespaces, it is not
    known which one is Istio's, and nothing rests on them.
    """

    def __init__(
        self, tenants: Callable[[str], bool] = lambda _namespace: False, *, unread: str = ""
    ) -> None:
        """Start without agents; those in the namespaces of ``tenants`` do not count.

        ``unread``: why the agents cannot be listed.
        """
        self._tenants = tenants
        self._unread = unread
        self.agents: dict[Key, Agent] = {}
        # By namespace; a text says why the settings cannot be read.
        self.configs: dict[str, CniConfig | str] = {}

    @property
    def namespaces(self) -> set[str]:
        """The namespaces of the agents."""
        return {*filterfalse(self._tenants, {key.namespace for key in self.agents})}

    def on(self, node: str) -> NodeAgent:
        """What is known of the agent on a node."""
        agents = [
            agent
            for agent in self.agents.values()
            if agent.node == node and not self._tenants(agent.key.namespace)
        ]
        here = {agent.key.namespace for agent in agents}
        if len(here) != 1:
            none = self._unread or f"there is no istio-cni on node {node}"
            several = f"pods in {len(here)} namespaces have the label of istio-cni on node {node}"
            return NodeAgent(lacks=several if here else none)
        (namespace,) = here
        place = f"{namespace}/{CONFIG_MAP}"
        config = self.configs.get(namespace, "not read yet")
        since = min((it.ready_since for it in agents if it.ready_since is not None), default=None)
        unknown = "" if isinstance(config, CniConfig) else f"ConfigMap {place}: {config}"
        return NodeAgent(
            ready_since=since,
            config=config if isinstance(config, CniConfig) else None,
            lacks=unknown if since is not None else f"istio-cni is not ready on node {node}",
            place=place,
        )
