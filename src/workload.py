"""The workload as Pebble sees it: which files it reads and which layer runs it.

`files` and `layer` are pure; the rest is the only code that touches the container. Nothing here
knows Juju's model or Kubernetes objects.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import ops
import yaml

import applications
import namespaces
from applications import Applications
from certificates import Leaf
from config import Config

CONTAINER: Final = "istio-aux"
SERVICE: Final = "istio-aux"
READY: Final = "ready"

_ETC: Final = "/etc/istio-aux"
CONFIG: Final = f"{_ETC}/config.yaml"
KUBECONFIG: Final = f"{_ETC}/kubeconfig"
TOKEN: Final = f"{_ETC}/token"
APPLICATIONS: Final = f"{_ETC}/applications"
TLS_CERTIFICATE: Final = f"{_ETC}/tls/tls.crt"
TLS_KEY: Final = f"{_ETC}/tls/tls.key"

# Where Juju mounts Pebble's socket in the workload's container, and PEBBLE_SOCKET points to.
_PEBBLE_SOCKET: Final = "/charm/container/pebble.socket"
STATUS_PORT: Final = 8080
STATUS_URL: Final = f"http://localhost:{STATUS_PORT}"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Access:
    """How the workload reaches the API server.

    Attributes:
        server: URL of the API server.
        ca: PEM certificates that may have signed what it serves.
        token: bearer token of the workload's own ServiceAccount.
    """

    server: str
    ca: str
    token: str = field(repr=False)


@dataclass(frozen=True)
class Names:
    """What the workload finds in the cluster by name.

    Attributes:
        lease: the Lease (namespace/name) by which one unit is chosen to quit proxies.
        webhook_configuration: the MutatingWebhookConfiguration by which the workload is called.
        application: the application itself (namespace/name), whose pods are never restarted.
        root_namespace: of Istio's control plane, None where no relation tells it.
    """

    lease: str
    webhook_configuration: str
    application: str
    root_namespace: str | None = None


def settings(config: Config, names: Names) -> dict[str, Any]:
    """Return the settings file of `istio-aux serve`, as a mapping."""
    root = {"root-namespace": names.root_namespace} if names.root_namespace else {}
    return {
        "namespace-selector": namespaces.but_never_selected(config.namespace_selector),
        # `on` and `off` are booleans in YAML, so the dumper puts these strings in quotes.
        "quit": config.quit,
        "quit-grace": config.quit_grace,
        "ignore-containers": list(config.ignore_containers),
        "dead-proxy": config.dead_proxy,
        "start-mode": config.start_mode,
        "race-policy": config.race_policy,
        "restart-jobs": config.restart_jobs,
        **root,
        "applications": APPLICATIONS,
        "application": names.application,
        "webhook-configuration": names.webhook_configuration,
        "lease": names.lease,
        "log-level": config.log_level,
        "tls-certificate": TLS_CERTIFICATE,
        "tls-key": TLS_KEY,
        "kubeconfig": KUBECONFIG,
        "pebble-socket": _PEBBLE_SOCKET,
    }


def files(
    config: Config | None,
    names: Names,
    access: Access,
    leaf: Leaf,
    injected: Iterable[Applications] = (),
) -> dict[str, str]:
    """Return path and content of every file the workload reads.

    Without a valid configuration those that come of the last valid one are left as they are.
    """
    kubeconfig: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {
                    "server": access.server,
                    "certificate-authority-data": base64.b64encode(access.ca.encode()).decode(),
                },
            }
        ],
        # The token is a file of its own, which the workload reads again when it changes.
        "users": [{"name": "workload", "user": {"tokenFile": TOKEN}}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": "workload"}}],
        "current-context": "default",
    }
    contents = {
        # The key comes before its certificate, so that a reader who is woken by the certificate
        # finds the key that belongs to it.
        TLS_KEY: leaf.private_key,
        TLS_CERTIFICATE: leaf.chain,
        TOKEN: access.token,
        KUBECONFIG: _yaml(kubeconfig),
    }
    if config is None:
        return contents
    # The settings name the file, which has to be there before them.
    contents[APPLICATIONS] = applications.as_file(injected, config.inject_namespaces)
    return {**contents, CONFIG: _yaml(settings(config, names))}


def layer(config: Config, names: Names) -> ops.pebble.LayerDict:
    """Return the Pebble layer that runs the workload with the settings of `config` and `names`."""
    digest = hashlib.sha256(_yaml(settings(config, names)).encode()).hexdigest()
    return {
        "summary": "istio-aux",
        "services": {
            SERVICE: {
                "override": "replace",
                "summary": "admission webhook and quit controller",
                "command": f"istio-aux serve --config {CONFIG}",
                "startup": "enabled",
                # Certificates, the token and the applications are read again when they change;
                # settings are read once, so that a change of them has to be one of the service.
                "environment": {"ISTIO_AUX_SETTINGS": digest[:16]},
                "on-check-failure": {"live": "restart"},
                "on-failure": "restart",
                "on-success": "restart",
                "backoff-delay": "200ms",
                "backoff-limit": "10s",
                # Finishing what is in flight takes the length of one quit attempt at most.
                "kill-delay": "10s",
            }
        },
        "checks": {
            "live": {
                "override": "replace",
                "startup": "enabled",
                "period": "10s",
                "timeout": "3s",
                "threshold": 3,
                "http": {"url": f"{STATUS_URL}/livez"},
            },
            # Drives the pod's readiness, and so whether the Service sends reviews to this unit.
            READY: {
                "override": "replace",
                "startup": "enabled",
                "level": "ready",
                "period": "3s",
                "timeout": "2s",
                "threshold": 2,
                "http": {"url": f"{STATUS_URL}/readyz"},
            },
        },
    }


def read(container: ops.Container) -> dict[str, str]:
    """Return path and content of the workload's files, empty where there is no such file."""
    return {
        path: _read(container, path)
        for path in (TLS_KEY, TLS_CERTIFICATE, TOKEN, KUBECONFIG, APPLICATIONS, CONFIG)
    }


def write(container: ops.Container, present: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Write the files of `wanted` that are not so in `present`; tell whether there was one."""
    changed = [path for path, content in wanted.items() if present.get(path) != content]
    for path in changed:
        container.push(path, wanted[path], make_dirs=True, permissions=0o600)
    if changed:
        logger.info("wrote %s", ", ".join(changed))
    return bool(changed)


def run(container: ops.Container, wanted: ops.pebble.LayerDict) -> bool:
    """Bring the service and its checks to what `wanted` says; tell whether anything changed."""
    plan, layer = container.get_plan(), ops.pebble.Layer(wanted)
    in_place = all(plan.services.get(k) == v for k, v in layer.services.items()) and all(
        plan.checks.get(k) == v for k, v in layer.checks.items()
    )
    if in_place and all(s.is_running() for s in container.get_services(SERVICE).values()):
        return False
    container.add_layer(SERVICE, layer, combine=True)
    try:
        container.replan()
    except ops.pebble.ChangeError as error:
        # Pebble keeps restarting it; the probe says what the unit is waiting for.
        logger.warning("service %s: did not start: %s", SERVICE, error.err)
    else:
        logger.info("service %s: planned again", SERVICE)
    return True


def stop(container: ops.Container) -> None:
    """Stop the service if it can be reached: it begins nothing more."""
    try:
        if container.can_connect() and is_planned(container):
            container.stop(SERVICE)
    except (ops.pebble.ConnectionError, ops.pebble.ChangeError) as error:
        logger.warning("service %s: not stopped: %s", SERVICE, error)


def is_planned(container: ops.Container) -> bool:
    """Tell whether Pebble knows the service."""
    return SERVICE in container.get_services()


def check_is_up(container: ops.Container) -> bool:
    """Tell whether Pebble's check `ready` has not failed; it is up until it fails at first."""
    checks = container.get_checks(READY)
    return READY in checks and checks[READY].status is ops.pebble.CheckStatus.UP


def _read(container: ops.Container, path: str) -> str:
    try:
        with container.pull(path) as file:
            return file.read()
    except ops.pebble.PathError as error:
        if error.kind == "not-found":
            return ""
        raise


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False)
