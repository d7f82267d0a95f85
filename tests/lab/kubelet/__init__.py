"""A kubelet that plays a script: a stand-in for the api level of the lab, not a kubelet.

It emulates, through the real API server and as ``system:node:<name>``: the Node with its lease, pod
status in the kubelet's order, exec and port-forward over WebSocket with
pilot-agent's answers in ``istio-proxy``, native sidecars that end after the payload, and the last
step of a deletion.

It does not: run anything, pull or probe, restart a container unasked, know restart policies of
single containers, evict, honour resources, volumes, hooks or a ProxyConfig, speak SPDY (before 1.36
a front does, `spdy/main.go`), or authorise its callers, who need a certificate of the cluster's
authority. Pods are bound to it by an administrator or by their own `nodeName`: there is no
scheduler.
"""

from lab.kubelet.kubelet import Exec, ScriptedKubelet
from lab.kubelet.pods import Misbehaviour, Via

__all__ = ["Exec", "Misbehaviour", "ScriptedKubelet", "Via"]
