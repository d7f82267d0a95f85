"""Names and numbers that the workload, the charm, the chart and their tests share.

The API server enforces many of them: the charm renders roles, policies and webhooks from them. Keys
of annotations and labels of pods are in `annotations`, kinds of Jobs in `owners`, options of an
admin in `policy`.
"""

from __future__ import annotations

from typing import Literal

# Where the project is published, with its releases, and the registry of its images and charts.
# Neither is there yet: `.example` has no hosts (RFC 6761). `python -m tools.address` writes others.
REPOSITORY = "https://github.example/istio-aux/istio-aux"
REGISTRY = "ghcr.example/istio-aux"

STATUS_PORT = 8080  # Plain HTTP: probes, metrics, /status and /pods.
WEBHOOK_PORT = 8443
START_WEBHOOK = "start.istio-aux.io"  # The first webhook; other names begin with a number.

# Annotation of our MutatingWebhookConfiguration with the settings in force, as a JSON object, for
# everyone who may read it. ``applications`` is the content of the file.
SETTINGS = "istio-aux.io/settings"
# Settings that concern only one process, so the annotation lacks them.
LOCAL_SETTINGS = frozenset(
    {
        "kubeconfig",
        "log-level",
        "pebble-socket",
        "status-address",
        "tls-certificate",
        "tls-key",
        "unknown-keys",
        "webhook-address",
    }
)
# Characters of the annotation, which is empty if it would be longer: an object may have 256 KiB of
# annotations (apimachinery TotalAnnotationSizeLimitB).
LONGEST_SETTINGS = 100_000

# Seconds of life that the charm asks for when it makes a token. The API server may grant less. When
# the charm is away, the workload works on for as long.
TOKEN_LIFE = 7 * 24 * 60 * 60

# Label that the API server gives every namespace and lets no client change.
NAMESPACE_NAME = "kubernetes.io/metadata.name"
# Namespaces that no selector matches: a cluster must be able to start without istio-aux.
NEVER_SELECTED = ("kube-system",)
# Namespaces that Istio ignores whatever their labels are (istio inject.go IgnoredNamespaces).
IGNORED = ("kube-node-lease", "kube-public", "kube-system", "local-path-storage")
# Labels, with their value where that matters, of the pods that Juju needs to repair a model: its
# operator and the controller (juju internal/provider/kubernetes modeloperator.go, bootstrap.go).
JUJU_PODS = (
    ("model.juju.is/disable-webhook", None),
    ("operator.juju.is/name", "modeloperator"),
    ("juju-modeloperator", None),
)

# What ``pilot-agent request --debug-port`` takes (istio pilot/pkg/request/command.go).
REQUEST_PORTS = (15000, 15004, 15020, 15021)


def quit_command(port: int | None) -> tuple[str, ...]:
    """Return the command that makes a proxy exit (istio pilot-agent app/request.go).

    It asks the agent at ``port``, or Envoy's admin port if that is None (istio#11659).
    """
    server = () if port is None else (f"--debug-port={port}",)
    return ("pilot-agent", "request", *server, "POST", "quitquitquit")


# The command of the hook with which Istio holds a payload, and its flag for the timeout, which is
# 60 s by default (istio pilot-agent app/wait.go).
WAIT = ("pilot-agent", "wait")
TIMEOUT_FLAG = "--timeoutSeconds="

EVENT_CONTROLLER = "istio-aux.io/istio-aux"  # ``reportingController``: a qualified name.
EventAction = Literal["Evict", "Quit", "Report"]
EventReason = Literal[
    "DeadProxyPodDeleted",
    "HeldNotNative",
    "NetworkLost",
    "NoSidecar",
    "OutsideMesh",
    "PodHeld",
    "PodNotStarted",
    "ProxyKilled",
    "ProxyLost",
    "ProxyQuit",
    "ProxyQuitBlocked",
    "ProxyQuitDryRun",
    "ProxyQuitFailed",
    "RestartStopped",
    "RestartedForSidecar",
]
