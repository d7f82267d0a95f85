"""The sidecars that need no option: how each is recognized, and how it ends. Data only.

A container is recognized only if both its name and its image match, so that a payload is never
taken for a sidecar. `sidecars.known` finds the row. The option `sidecars` and the pod's annotation
override the row of a name.

Proxies of other meshes are not made native: their own injectors decide that (linkerd2 PR 15267,
kuma PR 16502). No log shipper is ignored: without Istio's proxy it would lose what it has not sent.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Known(NamedTuple):
    """A program; docs/reference/sidecars.md is made of these rows."""

    names: str  # Names of its container, with spaces between; the first one names the row.
    images: str  # How the repository of its image ends: whole parts of its path.
    source: str
    native: bool = True  # Whether it starts without the payload and ends at SIGTERM.
    port: int = 0  # A POST to localhost makes it exit with 0, if its ``switch`` is on.
    path: str = ""
    switch: str = ""
    # Patterns of containers whose ``switch`` is off, and on: see `sidecars.is_off`.
    off: re.Pattern[str] | None = None
    on: re.Pattern[str] | None = None
    ends_last: bool = False  # It ends after every other container, the proxy included.
    is_script: bool = False  # Its injector starts it by a shell.
    note: str = ""


_QUIT = "/quitquitquit"
_FLAG = "its flag --quitquitquit"
# The patterns take linear time, and `sidecars.is_off` bounds the text that they read.
# Matches only Google's image: others may have their own entrypoint. The switch is off unless a
# flag, a variable or a file turns it on (cmd/root.go loadConfig). $(NAME) may be any flag.
_GOOGLES = r"(?m)\A\S*/{0}-connectors/{1}(?::[^\s/]*)?\n(?:(?:\S*/)?{1})?$"
_GOOGLES_ON = re.compile(r"(?im)quitquitquit(?!=(?:0|f|false)$)|config[-_]file|^[^=\n]*\$\(")
_143 = "143 at SIGTERM without --exit-zero-on-sigterm"
_GRACE = "flushes for `grace`, 5 s"

KNOWN = (
    Known(
        "cloud-sql-proxy cloudsql-proxy cloud-sql-auth-proxy",
        "cloud-sql-proxy",
        "GoogleCloudPlatform/cloud-sql-proxy README (Localhost Admin Server), issue 1803",
        port=9091,
        path=_QUIT,
        switch=_FLAG,
        off=re.compile(_GOOGLES.format("cloud-sql", "cloud-sql-proxy")),
        on=_GOOGLES_ON,
        note=f"v2; {_143}",
    ),
    Known(
        "alloydb-auth-proxy",
        "alloydb-auth-proxy",
        "GoogleCloudPlatform/alloydb-auth-proxy PR 255 (quitquitquit), PR 684, issue 727",
        port=9091,
        path=_QUIT,
        switch=_FLAG,
        off=re.compile(_GOOGLES.format("alloydb", "alloydb-auth-proxy")),
        on=_GOOGLES_ON,
        note=_143,
    ),
    Known(
        "vault-agent",
        "vault vault-enterprise openbao",
        "hashicorp/vault PR 14223 (quit); hashicorp/vault-k8s issue 620 and PR 659 (native)",
        port=8200,
        path="/agent/v1/quit",
        switch="annotation vault.hashicorp.com/agent-enable-quit",
        # The only argument that vault-k8s writes with VAULT_CONFIG (container_sidecar.go).
        off=re.compile(
            r"(?m)^echo \$\{VAULT_CONFIG\?\} \| base64 -d > (\S+) && vault agent -config=\1$"
        ),
        on=re.compile(r"(?m)enable_quit|^VAULT_CONFIG=(?!\{)"),
        is_script=True,
    ),
    Known(
        "oauth2-proxy",
        "oauth2-proxy",
        "oauth2-proxy/oauth2-proxy pkg/http/server.go",
        note="answers 502 until the payload listens",
    ),
    Known(
        "fluent-bit fluentbit",
        "fluent-bit",
        "docs.fluentbit.io administration/configuring-fluent-bit (grace)",
        note=_GRACE,
    ),
    Known(
        "fluentd",
        "fluentd fluentd-kubernetes-daemonset",
        "docs.fluentd.org/deployment/signals",
        note="flushes its memory once",
    ),
    Known(
        "filebeat",
        "filebeat filebeat-oss",
        "elastic.co/guide/en/beats/filebeat configuration-general-options (shutdown_timeout)",
        note="does not wait for its output without `shutdown_timeout`",
    ),
    Known(
        "datadog-agent datadog-agent-injected",
        "datadog/agent datadoghq/agent registry.datadoghq.com/agent",
        "DataDog/datadog-agent pkg/clusteragent/admission/mutate/agent_sidecar",
    ),
    Known(
        "otel-collector otc-container",
        "opentelemetry-collector opentelemetry-collector-contrib opentelemetry-collector-k8s"
        " aws-otel-collector",
        "open-telemetry/opentelemetry-operator pkg/sidecar, PR 4247 (native)",
    ),
    Known(
        "jaeger-agent",
        "jaeger-agent jaeger-agent-rhel7 jaeger-agent-rhel8",
        "jaegertracing/jaeger-operator pkg/inject/sidecar.go; Red Hat, Manually injecting sidecars",
    ),
    Known(
        "linkerd-proxy",
        "linkerd/proxy buoyantio/proxy",
        "linkerd/linkerd2-proxy app/admin: it takes the request from localhost only",
        native=False,
        port=4191,
        path="/shutdown",
        switch="Linkerd's proxy.enableShutdownEndpoint",
        off=re.compile("(?m)^LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED=false$"),
        note="native by Linkerd from 2.20 on",
    ),
    Known(
        "consul-dataplane",
        "consul-dataplane consul-dataplane-fips",
        "hashicorp/consul-dataplane PR 100 (-graceful-port); hashicorp/consul-k8s PR 2233",
        native=False,
        port=20300,
        path="/graceful_shutdown",
        switch="Consul's connectInject.sidecarProxy.lifecycle.defaultEnabled",
    ),
    Known(
        "daprd",
        "daprd",
        "dapr/dapr pkg/api/http; issue 9422 (native)",
        port=3500,
        path="/v1.0/shutdown",
        note="refuses the POST if it has an API token",
    ),
    Known(
        # Native works only with NATIVE_SIDECAR in its environment (pkg/webhook/sidecar_spec.go).
        "gke-gcsfuse-sidecar",
        "gcs-fuse-csi-driver-sidecar-mounter",
        "GoogleCloudPlatform/gcs-fuse-csi-driver pkg/csi_driver/utils.go putExitFile",
        native=False,
        ends_last=True,
        note="ignored: it ends after all others",
    ),
    Known(
        "aws-for-fluent-bit fluent-bit",
        "aws-for-fluent-bit",
        "aws/aws-for-fluent-bit README, issue 123",
        note=_GRACE,
    ),
    Known(
        "xray-daemon", "aws-xray-daemon", "docs.aws.amazon.com/xray/latest/devguide/xray-daemon-ecs"
    ),
    Known(
        "newrelic-infrastructure-sidecar",
        "newrelic/infrastructure newrelic/infrastructure-k8s",
        "newrelic/newrelic-infra-operator internal/agent (agentSidecarName)",
    ),
    Known(
        "splunk-otel-collector otel-collector",
        "splunk-otel-collector",
        "signalfx/splunk-otel-collector: a distribution of the OpenTelemetry Collector",
    ),
    Known("telegraf", "telegraf", "influxdata/telegraf-operator README: the name it injects"),
    Known(
        "promtail alloy",
        "grafana/promtail grafana/alloy",
        "grafana/loki clients/pkg/promtail; grafana/alloy docs (run)",
    ),
    Known(
        # The port is its Envoy's admin: kuma-dp exits with Envoy. Newer ones may have a socket.
        "kuma-sidecar",
        "kuma-dp",
        "kumahq/kuma app/kuma-dp",
        native=False,
        port=9901,
        path=_QUIT,
        switch="Kuma's experimental.envoyAdminUnixSocket off",
    ),
)
