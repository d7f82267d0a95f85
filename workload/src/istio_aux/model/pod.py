"""The Pod as it comes over the wire, reduced to the fields that istio-aux reads.

A field that is not read is not declared: msgspec skips it without building an object. The API
server sends ``null`` for empty lists (a BOOKMARK has ``"containers": null``), so every list and map
is optional on the wire. The accessors of `Pod` hide that.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from istio_aux.model.names import TIMEOUT_FLAG, WAIT
from istio_aux.model.text import one_line

# Name of the sidecar's container (istio injection-template.yaml); nothing else identifies it.
PROXY = "istio-proxy"
# Istio's other containers: the first redirects traffic, the second waits for istio-cni to do so.
ISTIOS_INIT = ("istio-init", "istio-validation")
NOT_SET_UP = 126  # Exit code of istio-validation (istio pkg/constants ValidationErrorCode).

_TIMEOUT = re.compile(TIMEOUT_FLAG + "([0-9]{1,5})")
_LONGEST = 256  # Longer texts are not shared: a label's value has 63 characters, its name 317.
_same = lru_cache(maxsize=4096)(str)


def shared(text: str) -> str:
    """Intern a text: thousands of objects with an equal one share it.

    Tenants write these texts, so the cache is bounded, which `sys.intern` is not (cpython#113993).
    """
    return _same(text) if len(text) <= _LONGEST else text


class Key(NamedTuple):
    """The identity of an object: names are used again, a uid never is."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


_key = lru_cache(maxsize=16)(Key)  # Lets the watch and the stores of an object share one key.


class Struct(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False
):
    """Base of all wire structs: immutable, lowerCamelCase on the wire, unknown fields skipped.

    They hold no reference cycles, so the garbage collector need not visit them.
    """


class Present(Struct, frozen=True):
    """A field of which only the presence is checked, whatever its value."""


S = TypeVar("S", bound=Struct | bytes)
_interned = OrderedDict[tuple[type, bytes], Struct | bytes]()


def interned(value: S) -> S:
    """Intern a value; it must hold no `msgspec.Raw` but `NO_TEXT`.

    Tenants write these values: the cache has 512, of at most 2 KiB.
    """
    text = value if isinstance(value, bytes) else msgspec.json.encode(value)
    key = type(value), text
    if len(text) > 2048:
        return value
    found = _interned.setdefault(key, value)
    _interned.move_to_end(key)
    if len(_interned) > 512:
        _interned.popitem(last=False)
    return cast("S", found)


# Characters of the longest UID of a controller (the API server's have 36), and of the longest UID,
# apiVersion, kind and name together (a name has 253 at most).
LONGEST_UID = 64
LONGEST_OWNER = 400


class OwnerReference(Struct, frozen=True):
    """An owner of an object; at most one of them is its ``controller``."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class Metadata(Struct, frozen=True):
    """``metadata``; ``name`` of a new pod is empty when ``generateName`` is used."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None  # The end of the grace period.
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None

    @property
    def key(self) -> Key:
        """The identity of the object."""
        return _key(shared(self.namespace), self.name, self.uid)

    @property
    def version(self) -> int:
        """``resourceVersion`` as a number (KEP-5504); what is no number counts as the newest."""
        text = self.resource_version
        number = len(text) < 20 and text.isascii() and text.isdigit()
        return int(text) if number else sys.maxsize

    @property
    def controller(self) -> OwnerReference | None:
        """The one owner that controls the object (metav1.GetControllerOf), or None.

        The API server does not check the reference: one with an impossible name counts as none.
        """
        owners = [owner for owner in self.owner_references or () if owner.controller]
        if len(owners) != 1 or len(owners[0].uid) > LONGEST_UID:
            return None
        said = f"{owners[0].api_version}{owners[0].kind}{owners[0].name}{owners[0].uid}"
        return owners[0] if said.isascii() and len(said) <= LONGEST_OWNER else None


NO_TEXT = msgspec.Raw()  # Any other `msgspec.Raw` keeps the whole text that it was decoded from.
NO_METADATA = Metadata()  # Marks a document without ``metadata``; compare with ``is``.


class Resource(Struct, frozen=True):
    """An object of the API: what all of them have."""

    metadata: Metadata = NO_METADATA


class ExitCodes(Struct, frozen=True):
    """``exitCodes`` of a restart rule: operator ``In`` or ``NotIn``."""

    operator: str = ""
    values: tuple[int, ...] | None = None


class RestartRule(Struct, frozen=True):
    """One of ``restartPolicyRules`` (KEP-5307): action ``Restart`` or ``RestartAllContainers``."""

    action: str = ""
    exit_codes: ExitCodes | None = None


class EnvVar(Struct, frozen=True):
    """A literal environment variable; one with ``valueFrom`` has an empty value here."""

    name: str = ""
    value: str | None = None


class ExecAction(Struct, frozen=True):
    """``exec`` of a hook."""

    command: tuple[str, ...] | None = None


class LifecycleHandler(Struct, frozen=True):
    """A hook of a container: a command, or something else that is not read."""

    executes: ExecAction | None = msgspec.field(default=None, name="exec")


class Lifecycle(Struct, frozen=True):
    """``lifecycle`` of a container."""

    post_start: LifecycleHandler | None = None
    pre_stop: Present | None = None
    stop_signal: str | None = None


class ContainerPort(Struct, frozen=True):
    """A port that a container declares; an absent ``protocol`` means TCP."""

    container_port: int = 0
    protocol: str | None = None


class Container(Struct, frozen=True):
    """A container of the spec, regular or init; `resources` reads its ``resources``."""

    name: str = ""
    image: str = ""
    restart_policy: str | None = None
    restart_policy_rules: tuple[RestartRule, ...] | None = None
    lifecycle: Lifecycle | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[Present, ...] | None = None
    ports: tuple[ContainerPort, ...] | None = None
    resize_policy: tuple[Present, ...] | None = None
    resources: msgspec.Raw = NO_TEXT

    @property
    def tag(self) -> str:
        """The tag of its image; empty if that has none, as one with a digest may."""
        return self.image.partition("@")[0].rpartition("/")[2].partition(":")[2]

    @property
    def holds(self) -> int | None:
        """Seconds for which its postStart hook holds other containers; None: it holds none."""
        hook = self.lifecycle and self.lifecycle.post_start
        match hook and hook.executes and hook.executes.command:
            case command if command == WAIT:
                return 60
            case (*command, flag) if (*command,) == WAIT and (found := _TIMEOUT.fullmatch(flag)):
                return int(found[1])
            case _:
                return None


class PodSpec(Struct, frozen=True):
    """``spec``; an absent ``restartPolicy`` means ``Always``, as the API server defaults it."""

    restart_policy: str | None = None
    host_network: bool | None = None
    share_process_namespace: bool | None = None
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    node_name: str | None = None
    resources: msgspec.Raw = NO_TEXT
    overhead: msgspec.Raw = NO_TEXT


class Waiting(Struct, frozen=True):
    """State of a container that is not created yet, or is waiting for its next start."""

    reason: str = ""


class Running(Struct, frozen=True):
    """State of a container that runs."""

    started_at: datetime | None = None


class Terminated(Struct, frozen=True):
    """State of a container that exited; it may be started again."""

    exit_code: int
    reason: str = ""
    finished_at: datetime | None = None


class ContainerState(Struct, frozen=True):
    """Exactly one is set; none set means waiting (core/v1 ContainerState)."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True):
    """What the kubelet last reported about one container."""

    name: str = ""
    state: ContainerState | None = None
    last_state: ContainerState | None = None  # How it ended before its last restart.
    started: bool | None = None  # Whether its startup probe has succeeded; null: no.
    restart_count: int = 0


class Condition(Struct, frozen=True):
    """A pod condition; ``status`` is ``True``, ``False`` or ``Unknown``."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class PodStatus(Struct, frozen=True):
    """``status``; container statuses come in any order, and any of them may be missing."""

    phase: str | None = None
    reason: str = ""  # Why the pod was ended by force, such as ``Evicted``.
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    start_time: datetime | None = None  # When the kubelet first saw the pod.
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(Resource, frozen=True, dict=True, gc=True):
    """A pod; `decode` and `convert` make one. Only admission sees pods without a uid."""

    api_version: str = ""
    kind: str = ""
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """``namespace/name`` for people; a generated name that is not made yet ends in ``*``."""
        meta = self.metadata
        name = meta.name or (f"{meta.generate_name}*" if meta.generate_name else "(unnamed)")
        return f"{meta.namespace}/{name}" if meta.namespace else name

    @property
    def of_batch_job(self) -> bool:
        """Whether a Job of Kubernetes' own (batch/v1) controls the pod."""
        owner = self.metadata.controller
        return owner is not None and (owner.api_version, owner.kind) == ("batch/v1", "Job")

    def has_condition(self, name: str) -> bool:
        """Whether a condition of the pod is true."""
        return any(
            each.type == name and each.status == "True" for each in self.status.conditions or ()
        )

    @property
    def proxy_config(self) -> str:
        """The ProxyConfig that the injector leaves in a variable of Istio's proxy, or empty."""
        written = (
            each.value
            for proxy in self.containers
            if proxy.name == PROXY
            for each in proxy.env or ()
            if each.name == "PROXY_CONFIG"
        )
        return next(filter(None, written), "")

    @property
    def labels(self) -> Mapping[str, str]:
        """``metadata.labels``, empty when absent or null."""
        return self.metadata.labels or {}

    @property
    def restart_policy(self) -> str:
        """``spec.restartPolicy`` with the API server's default."""
        return self.spec.restart_policy or "Always"

    @property
    def containers(self) -> tuple[Container, ...]:
        """The regular containers of the spec; the sidecar may be any of them."""
        return self.spec.containers or ()

    @property
    def init_containers(self) -> tuple[Container, ...]:
        """The init containers of the spec, native sidecars included."""
        return self.spec.init_containers or ()

    @property
    def regular_init_containers(self) -> tuple[Container, ...]:
        """The init containers that end; a classic proxy starts after them."""
        return tuple(c for c in self.init_containers if c.restart_policy != "Always")

    @property
    def native_sidecars(self) -> tuple[Container, ...]:
        """Init containers that the kubelet keeps running beside the payload (KEP-753)."""
        return tuple(c for c in self.init_containers if c.restart_policy == "Always")

    @property
    def has_proxy(self) -> bool:
        """Whether Istio's proxy is a classic sidecar: a regular container beside the payload."""
        return any(container.name == PROXY for container in self.containers)

    @property
    def has_native_proxy(self) -> bool:
        """Whether Istio's proxy is a native sidecar."""
        return any(container.name == PROXY for container in self.native_sidecars)

    @property
    def has_sidecar(self) -> bool:
        """Whether the pod has Istio's proxy beside a payload; gateways and ztunnel have none."""
        return self.has_native_proxy or (self.has_proxy and len(self.containers) > 1)

    @property
    def names_proxy(self) -> bool:
        """Whether any container, regular or init, has the name of Istio's proxy."""
        return any(c.name == PROXY for c in (*self.containers, *self.init_containers))

    @property
    def unschedulable(self) -> str:
        """Why the scheduler has found no node, such as ``Unschedulable: 0/3 nodes …``, or empty."""
        said = (
            ": ".join(filter(None, (each.reason, each.message)))
            for each in self.status.conditions or ()
            if (each.type, each.status) == ("PodScheduled", "False")
        )
        return one_line(next(said, ""), longest=300)  # The message may count every node.

    def statuses(self) -> Iterator[ContainerStatus]:
        """Statuses of all containers, regular and init; names are unique within a pod."""
        yield from self.status.container_statuses or ()
        yield from self.status.init_container_statuses or ()

    def restarts(self, name: str) -> int:
        """How often the kubelet has started a container again."""
        return max((each.restart_count for each in self.statuses() if each.name == name), default=0)

    @cached_property
    def states(self) -> Mapping[str, ContainerState]:
        """The state of each container by its name, regular and init, if the kubelet reports one.

        A container whose statuses contradict each other is left out.
        """
        states: dict[str, ContainerState | None] = {}
        for status in self.statuses():
            same = states.setdefault(status.name, status.state) == status.state
            states[status.name] = status.state if same else None
        return {name: state for name, state in states.items() if state is not None}

    @cached_property
    def exits(self) -> Mapping[str, Terminated]:
        """How each terminated container exited, by its name."""
        return {name: at.terminated for name, at in self.states.items() if at.terminated}


# Decodes one pod from JSON; `msgspec.DecodeError` names the path of what is wrong.
decode = msgspec.json.Decoder(Pod).decode


def convert(document: object) -> Pod:
    """Make a pod of a parsed document that a person may have written: ``null`` counts as absent.

    ValueError: a field has the wrong type; the message names its path, or the key of a label or an
    annotation: YAML reads `off` as a boolean.
    """
    try:
        return decode(msgspec.json.encode(_without_nulls(document)))
    except msgspec.ValidationError as error:
        if unquoted := next(_unquoted(_map(document).get("metadata")), None):
            raise ValueError(unquoted) from error
        if _NO_TEXT.search(str(error)[:500]):  # The message may quote the document.
            raise ValueError(f"{error}: put it in quotes") from error
        raise


_NO_TEXT = re.compile(r"Expected `str.*got `(bool|int|float)`")


def _unquoted(metadata: object) -> Iterator[str]:
    """Name the labels and annotations that should be in quotes: msgspec names no key of a map."""
    for what in ("label", "annotation"):
        for key, value in _map(_map(metadata).get(f"{what}s")).items():
            if isinstance(value, bool | int | float):
                yield (
                    f"{what} {key}: {msgspec.json.encode(value).decode()} is no text:"
                    " put it in quotes"
                )


def _map(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _without_nulls(value: object, levels: int = 64) -> object:
    """Drop nulls, and all below ``levels``: it is not read, and Python cannot recurse so deep."""
    if not levels:
        return None
    if isinstance(value, dict):
        return {
            key: _without_nulls(item, levels - 1)
            for key, item in cast("dict[Any, object]", value).items()
            if item is not None
        }
    if isinstance(value, list):
        return [_without_nulls(item, levels - 1) for item in cast("list[object]", value)]
    return value
