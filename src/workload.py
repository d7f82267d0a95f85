"""A unit's workload: its files, its credentials and the Pebble layer that runs it.

Pebble also wakes the charm while that waits for something that brings no event (`wake`).
"""

from __future__ import annotations

import base64
import copy
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any, Final

import ops
import yaml
from istio_aux.model.moment import token_life
from lightkube import Client

import cluster
import manifests
from certificates import TLS_CERTIFICATE, TLS_KEY, Leaf
from cluster import ReconcileError
from container import PEBBLE_FAILS, read
from inputs import Inputs
from probe import STATUS_URL

SERVICE: Final = "istio-aux"
READY: Final = "ready"
WAKE: Final = "wake"
WAKE_KEY: Final = "istio-aux.io/wake"

# Where Juju mounts Pebble and its socket in a workload's container.
PEBBLE: Final = "/charm/bin/pebble"
SOCKET: Final = "/charm/container/pebble.socket"

_ETC: Final = "/etc/istio-aux"
CONFIG: Final = f"{_ETC}/config.yaml"
KUBECONFIG: Final = f"{_ETC}/kubeconfig"
TOKEN: Final = f"{_ETC}/token"
APPLICATIONS: Final = f"{_ETC}/applications"

_LAYERS: Final[Any] = yaml.load(
    Template((Path(__file__).parent / "templates/pebble.yaml").read_text()).substitute(
        config=CONFIG, pebble=PEBBLE, socket=SOCKET, status=STATUS_URL, wake_key=WAKE_KEY
    ),
    Loader=manifests.LOADER,  # noqa: S506  which is a safe one
)
SINCE_READY: Final[ops.pebble.CheckDict] = _LAYERS["since-ready"]
WAKE_LAYER: Final[ops.pebble.LayerDict] = _LAYERS["wake"]
# Events of Juju's and Pebble's timers and checks, which keep the grown pause between wake-ups. All
# others reset it: config-changed of `juju trust` may come before the rights.
_BY_THEMSELVES: Final = (ops.UpdateStatusEvent, ops.PebbleNoticeEvent, ops.PebbleCheckEvent)

logger = logging.getLogger(__name__)


def settings(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings file of `istio-aux serve`: what is `known`, and where its files are."""
    return {
        **known,
        "applications": APPLICATIONS,
        "tls-certificate": TLS_CERTIFICATE,
        "tls-key": TLS_KEY,
        "kubeconfig": KUBECONFIG,
        "pebble-socket": SOCKET,
        "unknown-keys": "skip",  # The image may be older than this charm.
    }


def kubeconfig(server: str, authority: str) -> dict[str, Any]:
    """Return how the workload reaches the API server, as a mapping."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": base64.b64encode(authority.encode()).decode(),
                },
            }
        ],
        # The workload reads the token's file for each request.
        "users": [{"name": "workload", "user": {"tokenFile": TOKEN}}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": "workload"}}],
        "current-context": "default",
    }


def layer(known: Mapping[str, Any]) -> ops.pebble.LayerDict:
    """Return the Pebble layer that runs the workload with these settings."""
    digest = hashlib.sha256(_yaml(settings(known)).encode()).hexdigest()
    wanted = copy.deepcopy(_LAYERS["workload"])
    # The workload reads its settings once, so a change has to restart the service.
    wanted["services"][SERVICE]["environment"] = {"ISTIO_AUX_SETTINGS": digest[:16]}
    return wanted


def ensure(
    client: Client,
    container: ops.Container,
    inputs: Inputs,
    leaf: Leaf,
    *,
    granted: bool,
) -> None:
    """Write the workload's files, with the certificate `leaf`, and run it.

    Until the rights and policies that new settings need are `granted`, the workload keeps its
    present settings. If it has none, it gets them anyway: otherwise every Job would hang.

    Raises:
        ReconcileError: there is no certificate to serve, or the API server gives no token.
        PEBBLE_FAILS: Pebble refuses, fails or hangs.
    """
    if not inputs.answer:
        return
    if not leaf:
        waits = "waiting for a certificate that the API server trusts"
        raise ReconcileError(inputs.issuers.missing or waits)
    known = inputs.settings() if granted or not read(container, CONFIG) else {}
    wanted = {
        KUBECONFIG: _yaml(kubeconfig(*cluster.endpoint(client))),
        # The key comes first: the workload loads both when the certificate changes.
        TLS_KEY: leaf.private_key,
        TLS_CERTIFICATE: leaf.chain,
        TOKEN: _token(client, read(container, TOKEN), inputs),
    }
    if known:
        # The settings name the applications file, so they are written last.
        wanted |= {APPLICATIONS: known["applications"], CONFIG: _yaml(settings(known))}
    for path, content in wanted.items():
        if read(container, path) != content:
            container.push(path, content, make_dirs=True, permissions=0o600)
            logger.info("wrote %s", path)
    if known:
        container.add_layer(SERVICE, layer(known), combine=True)
        container.replan()


def wake(container: ops.Container, event: ops.EventBase, *, wanted: bool) -> None:
    """Have Pebble wake the charm while that is `wanted`; this `event` may reset the pauses."""
    try:
        service = container.get_services(WAKE).get(WAKE)
        stopped = service is None or service.current is ops.pebble.ServiceStatus.INACTIVE
        if wanted and (stopped or not isinstance(event, _BY_THEMSELVES)):
            container.add_layer(WAKE, WAKE_LAYER, combine=True)
            # The hook does not wait for the change, whose result is a notice.
            container.pebble.restart_services([WAKE], timeout=0)
        elif not wanted and not stopped:
            container.pebble.stop_services([WAKE], timeout=0)
    except PEBBLE_FAILS as error:
        # The next event tries again, update-status at the latest.
        logger.warning("service %s: %s", WAKE, error)


def check(container: ops.Container, *, ready: bool) -> tuple[bool, bool]:
    """Tell whether Pebble runs the service now, and whether its check is up, as a new one is.

    The check of a workload that is `ready` is relaxed: a slow answer does not make it unready.
    """
    service = container.get_services(SERVICE).get(SERVICE)
    checks = container.get_checks(READY)
    if ready:
        container.add_layer(READY, {"checks": {READY: SINCE_READY}}, combine=True)
    runs = service is not None and service.current is ops.pebble.ServiceStatus.ACTIVE
    return runs, READY in checks and checks[READY].status is ops.pebble.CheckStatus.UP


def _token(client: Client, present: str, inputs: Inputs) -> str:
    account = manifests.service_account(inputs.app)
    life = token_life(present)
    # A third of the life that the API server granted has to be left.
    good = life and life.exp - inputs.now.timestamp() >= (life.exp - life.iat) / 3
    if good and cluster.accepts(client, present, account, inputs.model):
        return present
    return cluster.request_token(client, account, inputs.model)


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False)
