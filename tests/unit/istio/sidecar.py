"""The stand-in's injected pods: what an Istio makes of its template `sidecar`.

Istio 1.28.10 as recorded. The other versions by their source, where Jobs see a difference.
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
VALIDATION = "istio-validation"
NATIVE_ANNOTATION = "sidecar.istio.io/nativeSidecar"
STATUS_PORT_ANNOTATION = "status.sidecar.istio.io/port"
TEMPLATES, CUSTOM = "inject.istio.io/templates", "custom"
STATUS_ANNOTATION = "sidecar.istio.io/status"
_RECORDING = json.loads((DATA / "inject-classic.json").read_text())
_ADDED = {operation["path"]: operation["value"] for operation in _RECORDING["patchDecoded"]}
[_INIT] = _ADDED["/spec/initContainers"]
_PROXY, _VOLUMES = _ADDED["/spec/containers/1"], _ADDED["/spec/volumes"]

World = Literal["default", "on request", "never"]
"""When sidecars are native: by default, as with Istio 1.27 or later where every kubelet is 1.33 or
later; only for pods that ask for it, as with Istio 1.24 or later elsewhere (or with
ENABLE_NATIVE_SIDECARS=false); or never, as with Istio 1.23, which does not know the annotation."""

Version = Literal["1.24.6", "1.28.10", "1.30.3"]
"""The Istio of Charmed Kubeflow 1.10, that of 1.11, and a newer one."""


@dataclass(frozen=True)
class Template:
    """What an installation decides for all of its sidecars."""

    namespace: str  # Where istiod is.
    image: str  # The proxy's.
    native: World = "on request"  # Which Istio it is in that respect.
    revision: str = "default"  # Which Istio it is.
    # The Helm value `global.proxy.lifecycle`; what the template would put there is left out then,
    # also what hold is made of.
    lifecycle: Mapping[str, Any] | None = None
    # The Helm value `pilot.cni.enabled`: the redirect is there before any container.
    cni: bool = False
    version: Version = "1.28.10"  # Of Istio.
    # `meshConfig.defaultConfig`, which a pod's annotation refines.
    mesh: Mapping[str, Any] | None = None
    # The Helm value `global.proxy.holdApplicationUntilProxyStarts`; no pod can refuse it.
    hold: bool = False

    @property
    def minor(self) -> int:
        """The minor version of Istio."""
        return int(self.version.split(".")[1])


def is_native(annotations: Mapping[str, str], default: bool, minor: int = 28) -> bool:
    """Whether the sidecar becomes a restartable init container, by Istio's minor version."""
    wish = annotations.get(NATIVE_ANNOTATION)
    if wish is None:
        return default
    return wish != "false" if minor >= 27 else wish == "true"


def inject(
    pod: dict[str, Any], namespace: str, template: Template, *, native: bool
) -> dict[str, Any]:
    """The pod with its sidecar; the one that is given stays as it is. Raises InvalidConfigError."""
    pod = copy.deepcopy(pod)
    metadata, spec = pod["metadata"], pod["spec"]
    annotations = metadata["annotations"] = metadata.get("annotations") or {}
    config = proxyconfig.effective(
        _discovery(template) | dict(template.mesh or {}),
        proxyconfig.parse(annotations.get(proxyconfig.ANNOTATION, "")),
    )
    status_port = annotations.get(STATUS_PORT_ANNOTATION) or str(config.get("statusPort", 15020))
    payload = [container["name"] for container in spec["containers"]]
    proxy = _proxy(template, config, _owner(pod, namespace), _ports(spec), ",".join(payload))
    init = spec["initContainers"] = spec.get("initContainers") or []
    hold = (bool(config.get(proxyconfig.HOLD)) or template.hold) and not native
    # The configuration alone takes no probe away (istio injection-template.yaml).
    if annotations.get(STATUS_PORT_ANNOTATION) == "0":
        del proxy["startupProbe"], proxy["readinessProbe"]
    if lifecycle := _lifecycle(template, status_port, hold=hold, native=native):
        proxy["lifecycle"] = lifecycle
    # istio inject.go reorderPod. Before the redirect of a classic sidecar, the user's init
    # containers still have their network; a CNI plugin does not leave it to them.
    init.insert(0 if native or template.cni else len(init), _init(template, status_port))
    if native:
        init.insert(1, proxy | {"restartPolicy": "Always"})
    else:
        spec["containers"].insert(0 if hold else len(payload), proxy)
    if CUSTOM in annotations.get(TEMPLATES, ""):
        _customise(spec["containers"])
    spec["volumes"] = [*(spec.get("volumes") or []), *_VOLUMES]
    _describe(metadata, payload[0], _owner(pod, namespace)[1], template, native=native)
    return pod


def _customise(containers: list[dict[str, Any]]) -> None:
    """What the template `custom` adds to the proxy, which it looks for among the containers.

    Beside a native one it makes another container of that name, which the API server refuses.
    """
    proxy = next((each for each in containers if each["name"] == PROXY), None)
    if proxy is None:
        containers.append(proxy := {"name": PROXY, "image": "custom"})
    proxy.setdefault("env", []).append(_value("CUSTOM", "true"))


def _describe(
    metadata: dict[str, Any], main: str, workload: str, template: Template, *, native: bool
) -> None:
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
        "initContainers": [_redirecting(template), *([PROXY] if native else [])],
        "containers": None if native else [PROXY],
        "volumes": [volume["name"] for volume in _VOLUMES],
        "imagePullSecrets": None,
        "revision": template.revision,
    }
    for key, value in {
        "istio.io/rev": template.revision,
        "kubectl.kubernetes.io/default-container": main,
        "kubectl.kubernetes.io/default-logs-container": main,
        STATUS_ANNOTATION: json.dumps(status, separators=(",", ":")),
    }.items():
        metadata["annotations"].setdefault(key, value)


def _proxy(
    template: Template,
    config: Mapping[str, Any],
    owner: tuple[str, str],
    ports: str,
    containers: str,
) -> dict[str, Any]:
    """The recorded proxy, with the variables of this installation and this pod."""
    own = {
        "CA_ADDR": f"{_service(template.revision)}.{template.namespace}.svc:15012",
        "PROXY_CONFIG": proxyconfig.environment(config),
        "ISTIO_META_POD_PORTS": ports,
        "ISTIO_META_APP_CONTAINERS": containers,
        "ISTIO_META_WORKLOAD_NAME": owner[1],
        "ISTIO_META_OWNER": owner[0],
    }
    environment = [
        _value(each["name"], own[each["name"]]) if each["name"] in own else each
        for each in _PROXY["env"]
    ]
    metadata = config.get("proxyMetadata") or {}
    environment += [_value(name, str(value)) for name, value in sorted(metadata.items())]
    return {**_PROXY, "image": template.image, "env": environment}


def _lifecycle(
    template: Template, status_port: str, *, hold: bool, native: bool
) -> Mapping[str, Any] | None:
    """The hooks of the proxy (istio injection-template.yaml)."""
    if template.lifecycle:
        return template.lifecycle
    if hold:
        return {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}
    if native:
        drain = ["pilot-agent", "request", f"--debug-port={status_port}", "POST", "drain"]
        return {"preStop": {"exec": {"command": drain}}}
    return None


def _discovery(template: Template) -> dict[str, Any]:
    """Where the agent finds istiod, if that is not Istio's own default."""
    host = f"{_service(template.revision)}.{template.namespace}.svc"
    return {} if host == "istiod.istio-system.svc" else {"discoveryAddress": f"{host}:15012"}


def _service(revision: str) -> str:
    """The name of the Service of a revision's istiod."""
    return "istiod" if revision == "default" else f"istiod-{revision}"


def _redirecting(template: Template) -> str:
    return VALIDATION if template.cni else INIT


def _init(template: Template, status_port: str) -> dict[str, Any]:
    """What redirects the pod's traffic.

    Istio's `istio-validation` only looks whether the CNI plugin has done it. The lab has no such
    plugin: here it is the first container's doing.
    """
    excluded = f"15090,15021,{status_port}"
    arguments = [excluded if each == "15090,15021,15020" else each for each in _INIT["args"]]
    return {**_INIT, "name": _redirecting(template), "image": template.image, "args": arguments}


def _owner(pod: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """The controller of the pod, or the pod itself: its address and its name."""
    metadata = pod["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            kind, version, name = f"{owner['kind'].lower()}s", owner["apiVersion"], owner["name"]
            return f"kubernetes://apis/{version}/namespaces/{namespace}/{kind}/{name}", name
    name = metadata.get("name") or metadata.get("generateName", "").rstrip("-")
    return f"kubernetes://apis/v1/namespaces/{namespace}/pods/{name}", name


def _ports(spec: Mapping[str, Any]) -> str:
    """The payload's ports as Istio's template prints them: JSON, a line each."""
    ports = [port for container in spec["containers"] for port in container.get("ports") or ()]
    lines = ",\n".join(json.dumps(port, separators=(",", ":")) for port in ports)
    return f"[\n{lines}\n]" if lines else "[\n]"


def _value(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}
