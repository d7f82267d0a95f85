"""The stand-in's injected pods: what an Istio makes of its template `sidecar`.

Istio 1.28.10 as recorded.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unit.istio import proxyconfig

DATA = Path(__file__).parents[2] / "data/istio"
"""Recordings of a real Istio."""
PROXY = "istio-proxy"
INIT = "istio-init"
NATIVE_ANNOTATION = "sidecar.istio.io/nativeSidecar"
STATUS_ANNOTATION = "sidecar.istio.io/status"
# The hooks of the proxy (istio injection-template.yaml).
WAIT = {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}
_DRAIN = ["pilot-agent", "request", "--debug-port=15020", "POST", "drain"]
DRAIN = {"preStop": {"exec": {"command": _DRAIN}}}
_RECORDING = json.loads((DATA / "inject-classic.json").read_text())
_ADDED = {operation["path"]: operation["value"] for operation in _RECORDING["patchDecoded"]}
[_INIT] = _ADDED["/spec/initContainers"]
_PROXY, _VOLUMES = _ADDED["/spec/containers/1"], _ADDED["/spec/volumes"]

World = Literal["default", "on request", "never"]
"""When sidecars are native: by default, as with Istio 1.27 or later where every kubelet is 1.33 or
later; only for pods that ask for it, as with Istio 1.24 or later elsewhere (or with
ENABLE_NATIVE_SIDECARS=false); or never, as with Istio 1.23, which does not know the annotation."""


@dataclass(frozen=True)
class Template:
    """What an installation decides for all of its sidecars."""

    namespace: str  # Where istiod is.
    image: str  # The proxy's.
    native: World = "on request"  # Which Istio it is in that respect.


def is_native(annotations: Mapping[str, str], default: bool) -> bool:
    """Whether the sidecar becomes a restartable init container."""
    injection = annotations.get(NATIVE_ANNOTATION)
    return default if injection is None else injection != "false"


def inject(
    pod: dict[str, Any], namespace: str, template: Template, *, native: bool
) -> dict[str, Any]:
    """The pod with its sidecar; the one that is given stays as it is. Raises InvalidConfigError."""
    pod = copy.deepcopy(pod)
    metadata, spec = pod["metadata"], pod["spec"]
    annotations = metadata["annotations"] = metadata.get("annotations") or {}
    config = proxyconfig.parse(annotations.get(proxyconfig.ANNOTATION, ""))
    name = metadata.get("name") or metadata.get("generateName", "").rstrip("-")
    payload = [container["name"] for container in spec["containers"]]
    proxy = _proxy(template, config, (namespace, name), _ports(spec), ",".join(payload))
    init = spec["initContainers"] = spec.get("initContainers") or []
    hold = bool(config.get(proxyconfig.HOLD)) and not native
    if hold or native:
        proxy["lifecycle"] = WAIT if hold else DRAIN
    # istio inject.go reorderPod. Before the redirect of a classic sidecar, the user's init
    # containers still have their network.
    init.insert(0 if native else len(init), {**_INIT, "image": template.image})
    if native:
        init.insert(1, proxy | {"restartPolicy": "Always"})
    else:
        spec["containers"].insert(0 if hold else len(payload), proxy)
    spec["volumes"] = [*(spec.get("volumes") or []), *_VOLUMES]
    _describe(metadata, payload[0], name, native=native)
    return pod


def _describe(metadata: dict[str, Any], main: str, workload: str, *, native: bool) -> None:
    labels = metadata["labels"] = metadata.get("labels") or {}
    service = labels.get("app.kubernetes.io/name") or labels.get("app") or workload
    version = labels.get("app.kubernetes.io/version") or labels.get("version") or "latest"
    for key, value in {
        "security.istio.io/tlsMode": "istio",
        "service.istio.io/canonical-name": service,
        "service.istio.io/canonical-revision": version,
    }.items():
        labels.setdefault(key, value)
    status = {
        "initContainers": [INIT, *([PROXY] if native else [])],
        "containers": None if native else [PROXY],
        "volumes": [volume["name"] for volume in _VOLUMES],
        "imagePullSecrets": None,
        "revision": "default",
    }
    for key, value in {
        "istio.io/rev": "default",
        "kubectl.kubernetes.io/default-container": main,
        "kubectl.kubernetes.io/default-logs-container": main,
        STATUS_ANNOTATION: json.dumps(status, separators=(",", ":")),
    }.items():
        metadata["annotations"].setdefault(key, value)


def _proxy(
    template: Template,
    config: Mapping[str, Any],
    key: tuple[str, str],
    ports: str,
    containers: str,
) -> dict[str, Any]:
    """The recorded proxy, with the variables of this installation and this pod."""
    own = {
        "CA_ADDR": f"istiod.{template.namespace}.svc:15012",
        "PROXY_CONFIG": proxyconfig.environment(config),
        "ISTIO_META_POD_PORTS": ports,
        "ISTIO_META_APP_CONTAINERS": containers,
        "ISTIO_META_WORKLOAD_NAME": key[1],
        "ISTIO_META_OWNER": "kubernetes://apis/v1/namespaces/{}/pods/{}".format(*key),
    }
    environment = [
        _value(each["name"], own[each["name"]]) if each["name"] in own else each
        for each in _PROXY["env"]
    ]
    metadata = config.get("proxyMetadata") or {}
    environment += [_value(name, str(value)) for name, value in sorted(metadata.items())]
    return {**_PROXY, "image": template.image, "env": environment}


def _ports(spec: Mapping[str, Any]) -> str:
    """The payload's ports as Istio's template prints them: JSON, a line each."""
    ports = [port for container in spec["containers"] for port in container.get("ports") or ()]
    lines = ",\n".join(json.dumps(port, separators=(",", ":")) for port in ports)
    return f"[\n{lines}\n]" if lines else "[\n]"


def _value(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}
