"""A unit's workload: its files, its credentials and the Pebble layer that runs it.

`settings`, `files` and `layer` are pure.
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
from lightkube import Client

import certificates
import cluster
import config as options
import manifests
import wake
from certificates import TLS_CERTIFICATE, TLS_KEY, Leaf
from cluster import ReconcileError
from config import Applications, Config
from inputs import CONTAINER, Inputs
from probe import STATUS_URL
from relations import istio

SERVICE: Final = "istio-aux"
READY: Final = "ready"

_ETC: Final = "/etc/istio-aux"
CONFIG: Final = f"{_ETC}/config.yaml"
KUBECONFIG: Final = f"{_ETC}/kubeconfig"
TOKEN: Final = f"{_ETC}/token"
APPLICATIONS: Final = f"{_ETC}/applications"

# The pod's readiness: whether the Service sends reviews to this unit. Pebble counts a check that is
# new or has changed as up until it fails. So the rock has the same check, and it is strict: a unit
# without a workload is in no Service from its first second on.
UNTIL_READY: Final[ops.pebble.CheckDict] = {
    "override": "replace",
    "startup": "enabled",
    "level": "ready",
    "period": "1s",
    "timeout": "900ms",  # A stall of half a second is no failure.
    "threshold": 1,
    "http": {"url": f"{STATUS_URL}/readyz"},
}
# Once the workload has been ready: it stays in the Service while it is busy, or restarts.
SINCE_READY: Final[ops.pebble.CheckDict] = {
    **UNTIL_READY,
    "period": "3s",
    "timeout": "2s",
    "threshold": 2,
}

# Fields of `Config` that are no settings of the workload under the same name; all others are.
_FOR_THE_CHARM: Final = frozenset(
    {"admission", "inject-applications", "inject-namespaces", "seconds"}
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Access:
    """How the workload reaches the API server."""

    server: str
    ca: str  # PEM
    token: str = field(repr=False)


@dataclass(frozen=True)
class Names:
    """The objects that the workload finds by name; lease and application as namespace/name."""

    lease: str
    webhook_configuration: str
    application: str
    root_namespace: str | None = None


def names(inputs: Inputs) -> Names:
    """Return the names that the workload gets."""
    return Names(
        lease=f"{inputs.model}/{manifests.lease(inputs.app)}",
        webhook_configuration=manifests.webhook_configuration(inputs.app, inputs.model),
        application=f"{inputs.model}/{inputs.app}",
        root_namespace=istio.root_namespace(inputs.control_planes),
    )


def settings(config: Config, names: Names) -> dict[str, Any]:
    """Return the settings file of `istio-aux serve`, as a mapping."""
    options_of_both: dict[str, Any] = {
        name: value
        for field, value in vars(config).items()
        if (name := field.replace("_", "-")) not in _FOR_THE_CHARM
    }
    root = {"root-namespace": names.root_namespace} if names.root_namespace else {}
    return {
        **options_of_both,
        **config.seconds,
        **root,
        "applications": APPLICATIONS,
        "application": names.application,
        "webhook-configuration": names.webhook_configuration,
        "lease": names.lease,
        "tls-certificate": TLS_CERTIFICATE,
        "tls-key": TLS_KEY,
        "kubeconfig": KUBECONFIG,
        "pebble-socket": wake.SOCKET,
    }


def files(
    config: Config | None,
    names: Names,
    access: Access,
    leaf: Leaf,
    injected: Iterable[Applications] = (),
) -> dict[str, str]:
    """Return path and content of the workload's files.

    Without a valid `config`, the files that depend on it are left out and stay as they are.
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
        # The workload reads the token's file for each request.
        "users": [{"name": "workload", "user": {"tokenFile": TOKEN}}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": "workload"}}],
        "current-context": "default",
    }
    contents = {
        # The key comes first: the workload loads both when the certificate changes.
        TLS_KEY: leaf.private_key,
        TLS_CERTIFICATE: leaf.chain,
        TOKEN: access.token,
        KUBECONFIG: _yaml(kubeconfig),
    }
    if config is None:
        return contents
    # The settings name this file, so it comes first.
    contents[APPLICATIONS] = options.as_file(injected, config.inject_namespaces)
    return {**contents, CONFIG: _yaml(settings(config, names))}


def layer(config: Config, names: Names) -> ops.pebble.LayerDict:
    """Return the Pebble layer that runs the workload with these settings."""
    digest = hashlib.sha256(_yaml(settings(config, names)).encode()).hexdigest()
    return {
        "summary": "istio-aux",
        "services": {
            SERVICE: {
                "override": "replace",
                "summary": "admission webhook and quit controller",
                "command": f"istio-aux serve --config {CONFIG}",
                "startup": "enabled",
                # The workload reads its settings once, so a change has to restart the service. It
                # reads certificates, the token and the applications again when they change.
                "environment": {"ISTIO_AUX_SETTINGS": digest[:16]},
                "on-check-failure": {"live": "restart"},
                "on-failure": "restart",
                "on-success": "restart",
                "backoff-delay": "200ms",
                "backoff-limit": "10s",
                # The workload finishes the quit attempts that have begun.
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
            READY: UNTIL_READY,
        },
    }


def ensure(
    client: Client, container: ops.Container, inputs: Inputs, leaf: Leaf | None, *, granted: bool
) -> None:
    """Bring the workload to what `inputs` say, with the certificate that it serves.

    Unless the cluster has `granted` the rights and policies that the settings need, a workload
    keeps its present settings. One without settings, as after a restart of its container, gets them
    nevertheless: without a workload every Job would hang.

    Raises:
        ReconcileError: the API server gives no token, or there is no certificate yet.
        ops.pebble.Error: Pebble fails.
    """
    if not inputs.container_ready:
        return
    if leaf is None:
        if inputs.authority or inputs.issuers.wants:
            raise ReconcileError("waiting for a certificate that the API server trusts")
        return
    present = read(container)
    access = _access(client, present[TOKEN], inputs)
    has_settings = bool(present[CONFIG]) and is_planned(container)
    config = inputs.config if granted or not has_settings else None
    known = names(inputs)
    write(container, present, files(config, known, access, leaf, inputs.applications()))
    if config:
        run(container, layer(config, known))


def read(container: ops.Container) -> dict[str, str]:
    """Return path and content of the workload's files; a missing file is empty."""
    return {
        path: _read(container, path)
        for path in (TLS_KEY, TLS_CERTIFICATE, TOKEN, KUBECONFIG, APPLICATIONS, CONFIG)
    }


def write(container: ops.Container, present: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Write the files of `wanted` that differ from `present`."""
    changed = [path for path, content in wanted.items() if present.get(path) != content]
    for path in changed:
        container.push(path, wanted[path], make_dirs=True, permissions=0o600)
    if changed:
        logger.info("wrote %s", ", ".join(changed))


def run(container: ops.Container, wanted: ops.pebble.LayerDict) -> None:
    """Bring the service and its checks to `wanted`."""
    plan, layer = container.get_plan(), ops.pebble.Layer(wanted)
    in_place = all(plan.services.get(k) == v for k, v in layer.services.items()) and all(
        # Another layer may have relaxed readiness.
        plan.checks.get(k) == v or (k == READY and k in plan.checks)
        for k, v in layer.checks.items()
    )
    if in_place and all(s.is_running() for s in container.get_services(SERVICE).values()):
        return
    container.add_layer(SERVICE, layer, combine=True)
    container.replan()
    logger.info("service %s: replanned", SERVICE)


def stop(container: ops.Container) -> None:
    """Stop the service if Pebble answers, so that it begins nothing more."""
    try:
        if container.can_connect() and is_planned(container):
            container.stop(SERVICE)
    except ops.pebble.Error as error:
        logger.warning("service %s: not stopped: %s", SERVICE, error)


def relax(container: ops.Container) -> None:
    """Relax the check of a workload that is ready now: a slow answer does not make it unready.

    Pebble counts the changed check as up, as it should here. After a restart of Pebble, the check
    is strict again.
    """
    wanted = ops.pebble.Layer({"checks": {READY: SINCE_READY}})
    if container.get_plan().checks.get(READY) != wanted.checks[READY]:
        container.add_layer(READY, wanted, combine=True)


def trouble(error: ops.pebble.Error) -> ReconcileError:
    """Return what Pebble did not do, in one line: the container restarts, its disk is full."""
    lines = str(error).splitlines()
    # The first line of a change that failed only says that it did.
    why = next((line for line in lines if line.startswith("- ")), lines[0] if lines else "")
    return ReconcileError(
        f"container {CONTAINER}: {why.removeprefix('- ') or type(error).__name__}"
    )


def is_planned(container: ops.Container) -> bool:
    """Tell whether Pebble knows the service."""
    return SERVICE in container.get_services()


def check_is_up(container: ops.Container) -> bool:
    """Tell whether Pebble's check `ready` is up, as a new one is until it fails."""
    checks = container.get_checks(READY)
    return READY in checks and checks[READY].status is ops.pebble.CheckStatus.UP


def _access(client: Client, token: str, inputs: Inputs) -> Access:
    """Return how the workload reaches the API server, with `token` while that is good."""
    account = manifests.service_account(inputs.app)
    good = cluster.accepts(client, token, account, inputs.model)
    if not good or certificates.token_is_late(token, inputs.now):
        token = cluster.request_token(client, account, inputs.model)
    server, ca = cluster.endpoint(client)
    return Access(server, ca, token)


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
