"""The settings of ``serve``: one YAML file, parsed strictly, once, into a frozen struct.

Only the file and its keys may live here; `values` says what a value may be. A value that cannot be
used gives one line that names the file, the key, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from istio_aux import values
from istio_aux.core import selectors
from istio_aux.core.policy import Application, DeadProxy, QuitMode, RacePolicy, StartMode
from istio_aux.values import Address


class SettingsError(ValueError):
    """The file cannot be used; ``str()`` is one line."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``serve`` needs to know. Field names are the file's keys with ``_`` for ``-``.

    Attributes:
        start_mode: how Job-like pods are started.
        webhook_configuration: name of the MutatingWebhookConfiguration that has us called; None:
            whether Istio's are called before it is not checked.
        quit_mode: whether proxies are told to quit; the file's key is ``quit``.
        quit_grace: seconds between the end of the last payload container and the quit.
        ignore_containers: names of containers that never keep a pod's proxy alive.
        dead_proxy: what becomes of a pod whose proxy ended before its payload.
        lease: namespace and name of the Lease by which one of several processes is chosen to act;
            None: this process is the only one and always acts.
        race_policy: what becomes of pods that should have had a sidecar and have none.
        restart_jobs: whether those of Jobs may be restarted as well.
        root_namespace: of the only control plane of Istio that matters; None: each that is found.
        applications: the file with the applications whose pods are to get a sidecar; None: none.
        application: the one that this process is part of; its pods are left alone.
        pebble_socket: where Pebble listens, to wake the charm; None: nobody is woken.
    """

    tls_certificate: Path
    tls_key: Path
    namespace_selector: selectors.Selector = selectors.parse("io.datastrophic/istio-aux=enabled")
    start_mode: StartMode = StartMode.AUTO
    webhook_configuration: str | None = None
    quit_mode: QuitMode = QuitMode.ON
    quit_grace: float = 0.0
    ignore_containers: frozenset[str] = frozenset()
    dead_proxy: DeadProxy = DeadProxy.REPORT
    lease: tuple[str, str] | None = None
    race_policy: RacePolicy = RacePolicy.REPORT
    restart_jobs: bool = False
    root_namespace: str | None = None
    applications: Path | None = None
    application: Application | None = None
    pebble_socket: Path | None = None
    log_level: str = "info"
    webhook_address: Address = Address("0.0.0.0", 8443)  # noqa: S104  (a webhook serves the cluster)
    status_address: Address = Address("0.0.0.0", 8080)  # noqa: S104  (probes come from the node)
    kubeconfig: Path | None = None


def load(path: Path) -> Settings:
    """Read and check the file at ``path``.

    Raises:
        SettingsError: the file cannot be read or used, in one line.
    """
    name = path.name
    try:
        document = yaml.load(path.read_bytes(), Loader=_StrictLoader)  # noqa: S506  (a SafeLoader)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise SettingsError(f"{name}: {values.shown(document)}: expected a mapping of settings")
    given: dict[str, Any] = {}
    for key, value in cast("dict[object, object]", document).items():
        parse = _PARSERS.get(key) if isinstance(key, str) else None
        if parse is None:
            raise SettingsError(
                f"{name}: {key}: unknown key: expected one of: {', '.join(_PARSERS)}"
            )
        try:
            given[_FIELDS.get(str(key), str(key).replace("-", "_"))] = parse(value)
        except ValueError as error:
            raise SettingsError(f"{name}: {key}: {error}") from error
    for key in ("tls-certificate", "tls-key"):
        if key.replace("-", "_") not in given:
            raise SettingsError(f"{name}: {key}: missing: expected the path of a PEM file")
    return Settings(**given)


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is given twice: which of the two was meant, nobody can say."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [str(key.value) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} is given twice")
        return super().construct_mapping(node, deep)


# Where a field is not called as its key is.
_FIELDS = {"quit": "quit_mode"}

_PARSERS: dict[str, Callable[[object], object]] = {
    "namespace-selector": values.selector,
    "start-mode": values.start_mode,
    "webhook-configuration": values.configuration,
    "quit": values.quit_mode,
    "quit-grace": values.seconds,
    "ignore-containers": values.containers,
    "dead-proxy": values.dead_proxy,
    "lease": values.lease,
    "race-policy": values.race_policy,
    "restart-jobs": values.flag,
    "root-namespace": values.namespace,
    "applications": values.path,
    "application": values.application,
    "pebble-socket": values.path,
    "log-level": values.level,
    "webhook-address": values.address,
    "status-address": values.address,
    "tls-certificate": values.path,
    "tls-key": values.path,
    "kubeconfig": values.path,
}
