"""An istiod: how it injects, as Istio 1.28.10 as recorded, and an API server that calls it."""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import jsonpatch
import yaml
from aiohttp import web
from istio_aux.injector.probe import Rhythm
from istio_aux.injector.watcher import Namespaces, Watcher
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import Backoff
from istio_aux.kube.watch import Watch
from istio_aux.model.webhooks import Configuration, Namespace
from istio_aux.telemetry import Telemetry
from unit.apiserver import ApiServer, DryRun, fails, refusal
from unit.process import background
from unit.rules.pods import DATA, ENABLED, INJECT

# A proxy's settings: the annotation `proxy.istio.io/config`. Pure.

ANNOTATION = "proxy.istio.io/config"
HOLD = "holdApplicationUntilProxyStarts"
# The fields whose type the stand-in checks; Istio checks all of ProxyConfig.
TYPES: Mapping[str, type] = {HOLD: bool, "statusPort": int, "proxyAdminPort": int}
NAMES = {bool: "bool", int: "int32", str: "string", list: "array", dict: "object"}


class InvalidConfigError(ValueError):
    """Istio refuses the pod; the message is the one of the admission response."""


class _Loader(yaml.CSafeLoader):
    """YAML 1.1 without timestamps: go-yaml leaves a date a string where a string is wanted."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def parse(text: str) -> dict[str, Any]:
    """The settings in lowerCamelCase, which wins (jsonpb 1.5.4). Raises InvalidConfigError."""
    try:
        root = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = max(error.problem_mark.line if error.problem_mark else 0, 1)
        raise _invalid(text, f"yaml: line {line}: {error.problem}") from error
    if root is None:
        return {}
    if not isinstance(root, dict):
        raise _invalid(text, f"json: cannot unmarshal {_kind(root)} into Go value of ProxyConfig")
    snake = {_camel(str(key)): value for key, value in root.items() if "_" in str(key)}
    config = {**snake, **{str(key): value for key, value in root.items() if "_" not in str(key)}}
    for field, wanted in TYPES.items():
        value = config.get(field)
        # bool is a kind of int for Python, not for Istio.
        if value is not None and type(value) is not wanted:
            found = f"cannot unmarshal {_kind(value)} into Go value of type {NAMES[wanted]}"
            raise _invalid(text, f"json: {found}")
    return config


def proxy_settings(config: Mapping[str, Any]) -> str:
    """What the variable PROXY_CONFIG of the proxy says: the settings as JSON and a line end."""
    return json.dumps(config, separators=(",", ":"), default=str) + "\n"


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


def _kind(value: Any) -> str:
    return NAMES.get(type(value), "number")


def _invalid(text: str, problem: str) -> InvalidConfigError:
    return InvalidConfigError(
        "failed to run injection template: 1 error occurred:\n"
        f"\t* invalid value '{text}' for annotation '{ANNOTATION}': "
        f"failed to convert to apply proxy config: {problem}\n\n"
    )


# The stand-in's injected pods: what an Istio makes of its template `sidecar`.
#
# Istio 1.28.10 as recorded.

PROXY = "istio-proxy"
INIT = "istio-init"
NATIVE_ANNOTATION = "sidecar.istio.io/nativeSidecar"
STATUS_ANNOTATION = "sidecar.istio.io/status"
# The hooks of the proxy (istio injection-template.yaml).
WAIT = {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}
_DRAIN = ["pilot-agent", "request", "--debug-port=15020", "POST", "drain"]
DRAIN = {"preStop": {"exec": {"command": _DRAIN}}}
_RECORDING = json.loads((DATA / "istio/inject-classic.json").read_text())
_ADDED = {operation["path"]: operation["value"] for operation in _RECORDING["patchDecoded"]}
[_INIT] = _ADDED["/spec/initContainers"]
_PROXY, _VOLUMES = _ADDED["/spec/containers/1"], _ADDED["/spec/volumes"]

Natively = Literal["default", "on request", "never"]
"""When sidecars are native: by default, as with Istio 1.27 or later where every kubelet is 1.33 or
later; only for pods that ask for it, as with Istio 1.24 or later elsewhere (or with
ENABLE_NATIVE_SIDECARS=false); or never, as with Istio 1.23, which does not know the annotation."""


@dataclass(frozen=True)
class Template:
    """What an installation decides for all of its sidecars."""

    namespace: str  # Where istiod is.
    image: str  # The proxy's.
    native: Natively = "on request"  # Which Istio it is in that respect.


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
    config = parse(annotations.get(ANNOTATION, ""))
    name = metadata.get("name") or metadata.get("generateName", "").rstrip("-")
    payload = [container["name"] for container in spec["containers"]]
    proxy = _proxy(template, config, (namespace, name), _ports(spec), ",".join(payload))
    init = spec["initContainers"] = spec.get("initContainers") or []
    hold = bool(config.get(HOLD)) and not native
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
        "PROXY_CONFIG": proxy_settings(config),
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


# The stand-in's answers to an AdmissionReview, as istiod's: inject, leave alone, refuse. Pure.

# istio initializer.go IgnoredNamespaces
IGNORED = frozenset({"kube-system", "kube-public", "kube-node-lease", "local-path-storage"})


def admit(
    review: Mapping[str, Any], template: Template, *, native: bool
) -> tuple[dict[str, Any], str]:
    """The response to an AdmissionReview, and why; `native` is for pods that do not say."""
    request = review["request"]
    pod, namespace = request["object"], request.get("namespace", "")
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    reason = why_not(pod, namespace)
    if reason is None:
        if template.native != "never":
            native = is_native(pod["metadata"].get("annotations") or {}, native)
        try:
            injected = inject(pod, namespace, template, native=native)
        except InvalidConfigError as error:
            reason = f"refused: {error}"
            response |= {"allowed": False, "status": {"metadata": {}, "message": str(error)}}
        else:
            reason = "injected natively" if native else "injected"
            patch = json.dumps(list(diff(pod, injected))).encode()
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "response": response,
    }, reason


def why_not(pod: Mapping[str, Any], namespace: str) -> str | None:
    """Why the pod gets no sidecar; None when it gets one (istio inject.go injectRequired).

    The never- and alwaysInjectSelector of the installation are not emulated.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if spec.get("hostNetwork"):
        return "left alone: hostNetwork"
    if namespace in IGNORED:
        return f"left alone: namespace {namespace} is ignored"
    # The label beats the annotation; a value that is neither "true" nor "false" means the default.
    if labels.get(INJECT, annotations.get(INJECT)) == "false":
        return f"left alone: {INJECT} is false"
    if STATUS_ANNOTATION in annotations:
        return "left alone: already has a sidecar"
    return None


def diff(old: Any, new: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """A JSON Patch from `old` to `new`, by index like Istio's: what is put in front changes all."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - new.keys():
            yield {"op": "remove", "path": _join(path, key)}
        for key, value in new.items():
            if key in old:
                yield from diff(old[key], value, _join(path, key))
            else:
                yield {"op": "add", "path": _join(path, key), "value": value}
    elif isinstance(old, list) and isinstance(new, list) and len(new) >= len(old):
        for index, value in enumerate(new[len(old) :], len(old)):
            yield {"op": "add", "path": _join(path, index), "value": value}
        for index, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from diff(before, after, _join(path, index))
    elif old != new:
        yield {"op": "replace", "path": path, "value": new}


def _join(path: str, key: str | int) -> str:
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


# An API server that calls an istiod for dry runs, which answers as above, or worse.

TEMPLATE = Template("istio-system", "docker.io/istio/proxyv2:1.28.10")
QUICK = Rhythm(live=30.0, other=0.05)
ISTIOS = "namespace.sidecar-injector.istio.io"
BUNDLE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----").decode()


def chain(
    native: Natively, *later: Callable[[dict[str, Any]], web.Response | None]
) -> Callable[[dict[str, Any]], web.Response]:
    """What a dry run answers: istiod, and webhooks after it that change the pod or refuse it."""

    def create(pod: dict[str, Any]) -> web.Response:
        request = {"uid": "1", "namespace": pod["metadata"]["namespace"], "object": pod}
        template = replace(TEMPLATE, native=native)
        answer, _ = admit({"request": request}, template, native=native == "default")
        patch = base64.b64decode(answer["response"]["patch"])
        made = jsonpatch.apply_patch(pod, json.loads(patch))
        refusals = (refused for webhook in later if (refused := webhook(made)))
        return next(refusals, None) or web.json_response(made, status=201)

    return create


def dead(_pod: dict[str, Any]) -> web.Response:
    """What a dry run answers while nothing listens at istiod's endpoint."""
    why = f'failed calling webhook "{ISTIOS}": failed to call webhook: connection refused'
    return refusal(500, "InternalError", f"Internal error occurred: {why}")


class Cluster(ApiServer):
    """An API server with versions of its own and of its kubelets, and with what istiod writes."""

    def __init__(self) -> None:
        super().__init__()
        self.kubernetes = "v1.36.3"
        self.dry_run: DryRun = chain("never")
        self.kubelets: list[str] = []

    async def _route(self, request: web.Request) -> web.StreamResponse:
        match request.path.strip("/").split("/"):
            case ["version"]:
                return web.json_response({"gitVersion": self.kubernetes})
            case ["api", "v1", "nodes"]:
                return web.json_response({"metadata": {}, "items": self._nodes()})
        return await super()._route(request)

    def _nodes(self) -> list[dict[str, Any]]:
        return [
            {"metadata": {"name": f"node-{n}"}, "status": {"nodeInfo": {"kubeletVersion": version}}}
            for n, version in enumerate(self.kubelets)
        ]

    def configure(
        self,
        name: str = "istio-sidecar-injector",
        *,
        bundle: str | None = BUNDLE,
        revision: str = "default",
        service: str = "istiod",
        **webhook: Any,
    ) -> None:
        """Create or replace one of Istio's configurations, for namespaces that are enabled."""
        where = {"namespace": "istio-system", "name": service, "path": "/inject", "port": 443}
        rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"]}
        hook = {
            "name": ISTIOS,
            "clientConfig": {"service": where, "caBundle": bundle},
            "namespaceSelector": {"matchLabels": ENABLED},
            "rules": [{**rule, "resources": ["pods"]}],
            **webhook,
        }
        metadata = {"name": name, "labels": {"istio.io/rev": revision}}
        self.put("mutatingwebhookconfigurations", {"metadata": metadata, "webhooks": [hook]})

    def put_policy(self, text: str | None) -> None:
        """Write istiod's ConfigMap."""
        metadata = {"name": "istio-sidecar-injector", "namespace": "istio-system"}
        self.put("configmaps", {"metadata": metadata, "data": text and {"config": text}})

    def publish(self, *, ready: bool = True, service: str = "istiod") -> None:
        """Give a Service the endpoint of istiod."""
        labels = {"kubernetes.io/service-name": service}
        where = {"name": "istiod-0", "namespace": "istio-system", "labels": labels}
        endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}
        ports = [{"name": "https-webhook", "port": 15017}]
        self.put("endpointslices", {"metadata": where, "endpoints": [endpoint], "ports": ports})

    def lead(self, *, ready: bool = True, **webhook: Any) -> None:
        """Make an istiod the one that is called for pods of a namespace."""
        self.put("namespaces", {"metadata": {"name": "meshed", "labels": ENABLED}})
        self.publish(ready=ready)
        self.configure(**webhook)


@asynccontextmanager
async def watching(
    api: Cluster,
    telemetry: Telemetry | None = None,
    **options: Any,
) -> AsyncGenerator[Watcher]:
    """A watcher of this cluster, quick to ask again."""
    async with Client(api.access()) as client:
        namespaces = Namespaces(lambda _name: None)
        options = {"rhythm": QUICK, "changed": lambda _mesh: None, **options}
        watcher = Watcher(client, namespaces, telemetry or Telemetry(), **options)
        quick = Backoff(0.02, 0.1)
        configurations = Watch(
            client,
            actions.CONFIGURATIONS,
            Configuration,
            watcher.configurations,
            backoff=quick,
            failed=fails,
        )
        others = Watch(
            client, actions.NAMESPACES, Namespace, namespaces, backoff=quick, failed=fails
        )
        async with (
            background(others.run()),
            background(configurations.run()),
            background(watcher.run(configurations.synced, others.synced)),
        ):
            yield watcher
