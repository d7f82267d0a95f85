"""Peer traffic: which ports of a new pod Istio's proxy receives. Peers reach the others directly.

Workers of a distributed Job listen on ports that no Service declares. A client's proxy knows only
the ports of Services, so it sends plaintext to these, which STRICT mTLS resets (istio
PassthroughCluster). Istio's annotation `includeInboundPorts` leaves them out of the mesh: the node
redirects the listed ports to the proxy and no others (istio tools/istio-iptables/pkg/capture/run.go
handleInboundPortsInclude). What the pod sends is not changed.

Nothing here changes the label `security.istio.io/tlsMode`: one endpoint without it turns the
clients of a whole headless Service to plaintext.
"""

from __future__ import annotations

from istio_aux.model.annotations import (
    EXCLUDED,
    INCLUDED,
    JOBSET,
    MPI_OPERATOR,
    OPERATOR,
    PEERS,
    mark,
    text_label,
)
from istio_aux.model.pod import PROXY, Pod
from istio_aux.model.pod_settings import PodSettings
from istio_aux.model.policy import Peers

_authors = (mark(INCLUDED), mark(EXCLUDED))
_of_jobset, _operator = text_label(JOBSET), text_label(OPERATOR)


def inbound_ports(pod: Pod, option: Peers, settings: PodSettings) -> str | None:
    """Decide about a pod that is about to be created, and that Istio has not injected yet.

    Returns the new value of `includeInboundPorts`, None if it does not change: a bad value of the
    pod's own annotation opens no port. The option is for pods that end; the annotation counts
    whether the pod ends or not.
    """
    own = settings.peers
    if (own or option) is Peers.MESH or (own is None and pod.restart_policy == "Always"):
        return None
    # A list would also undo what the author excludes: istio-iptables excludes ports only from `*`.
    if settings.problem(PEERS) or any(author.on(pod.metadata) for author in _authors):
        return None
    in_no_service = _of_jobset.on(pod.metadata) or _operator.get(pod.metadata) == MPI_OPERATOR
    return ",".join(map(str, () if in_no_service else _declared_ports(pod)))


def _declared_ports(pod: Pod) -> list[int]:
    """Return the TCP ports that a pod declares, without those of Istio's proxy, sorted.

    Istio redirects no other protocol. Native sidecars count, other init containers do not: they
    have ended when a Service leads to the pod (kubernetes endpointslice FindPort has this rule).
    """
    return sorted(
        {
            port.container_port
            for container in (*pod.containers, *pod.native_sidecars)
            for port in container.ports or ()
            if container.name != PROXY and port.protocol in {None, "TCP"}
        }
    )
