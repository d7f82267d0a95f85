"""Every annotation and label that decides something, and the one way from its text to a decision.

Tenants who may create pods write these texts. One text may have 256 KiB, or 2 MB before the API
server validates it. So each key is declared once, with its type, its longest text and, if it is a
list, its most entries. A longer text is a bad value like any other.

`pod_settings` reads what the author of a pod asks of istio-aux, and finds what is misspelt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from istio_aux.model.pod import Metadata
from istio_aux.model.text import quoted

T = TypeVar("T")
Source = Metadata | Mapping[str, str]

NAME = 63  # Characters of the longest value of a label, and name of a container.
MOST_NAMES = 100  # Names in a list of containers.
NAMES = MOST_NAMES * (NAME + 2)  # Characters of such a list.


class BadValueError(ValueError):
    """A value that cannot be used: its key, the value, and what is allowed, in one line."""


class _Key(Generic[T]):
    """A label or annotation key; `_where` says which of both, as messages have it."""

    _where = ""

    def __init__(
        self,
        name: str,
        read: Callable[[str], T],
        expected: str,
        *,
        longest: int,
        meaning: str = "",
        overrides: str = "",
    ) -> None:
        """Declare the key ``name``.

        ``read`` makes a value of at most ``longest`` characters, or raises ValueError or
        LookupError; ``expected`` says what is allowed. A key for authors of pods has a ``meaning``,
        to which the documents are held, and may name the option that it ``overrides``.
        """
        self.name = name
        self.longest = longest
        self.expected = expected
        self.meaning = meaning
        self.overrides = overrides
        self._read = read

    def on(self, source: Source) -> bool:
        """Whether the key is there, with any value."""
        return self.name in self._texts(source)

    def of(self, source: Source) -> T | None:
        """Read the value; None if it is absent. `BadValueError`: it cannot be used."""
        text = self._texts(source).get(self.name)
        if text is None:
            return None
        bad = f"{self.shown(source)}: expected {self.expected}"
        if len(text) > self.longest:
            raise BadValueError(f"{bad}; it has {len(text)} characters, not at most {self.longest}")
        try:
            return self._read(text)
        except (ValueError, LookupError) as error:
            raise BadValueError(bad) from error

    def get(self, source: Source) -> T | None:
        """Read the value; None if it is absent or cannot be used."""
        try:
            return self.of(source)
        except BadValueError:
            return None

    def shown(self, source: Source) -> str:
        """``annotation KEY: "value"``, shortened, for people."""
        return f"{self._where} {self.name}: {quoted(self._texts(source).get(self.name, ''))}"

    def _texts(self, source: Source) -> Mapping[str, str]:
        if isinstance(source, Metadata):
            return getattr(source, f"{self._where}s") or {}
        return source


class Annotation(_Key[T]):
    """An annotation that decides something."""

    _where = "annotation"


class Label(_Key[T]):
    """A label whose value decides something."""

    _where = "label"


def mark(name: str) -> Annotation[str]:
    """Declare an annotation whose presence decides; its value is never read."""
    return Annotation(name, str, "anything", longest=0)


def text_label(name: str) -> Label[str]:
    """Declare a label that is compared as a whole."""
    return Label(name, str, f"at most {NAME} characters", longest=NAME)


def names(text: str) -> frozenset[str]:
    """Read names separated by commas; `ValueError` if they are more than `MOST_NAMES`."""
    parts = text.split(",", MOST_NAMES)
    if len(parts) > MOST_NAMES:
        raise ValueError
    return frozenset(filter(None, map(str.strip, parts)))


def matching_prefixes(source: Metadata, beginnings: Iterable[str]) -> list[str]:
    """Return those ``beginnings`` with which at least one annotation key begins."""
    keys = source.annotations or {}
    return [each for each in beginnings if any(key.startswith(each) for key in keys)]


# Keys of annotations, unless the comment says otherwise.
START = "istio-aux.io/start"
STARTED_WITH = "istio-aux.io/started-with"  # We set it on each pod we change: `native` or `hold`.
INJECT = "sidecar.istio.io/inject"  # A label, too; with "false" Istio injects no sidecar.
NATIVE_SIDECAR = "sidecar.istio.io/nativeSidecar"  # With "true" Istio >=1.24 makes it native.
INJECTED = "sidecar.istio.io/status"  # The injector sets it (inject.go SidecarInjectionStatus).
NOT_NATIVE = "istio-aux.io/not-native"  # We set it: why a pod that we hold must not be native.
TEMPLATES = "inject.istio.io/templates"  # Names of Istio's templates, with commas between.
INJECTION = "istio-injection"  # The label of a namespace that the default revision selects.
DATAPLANE = "istio.io/dataplane-mode"  # A label; `ambient` counts where Istio does not inject.
REDIRECTION = "ambient.istio.io/redirection"  # Istio's CNI sets it: `enabled` once captured.
MIRROR = "kubernetes.io/config.mirror"  # The kubelet sets it on a static pod's mirror pod.
# Annotation of each pod of Argo Workflows (3.6 workflow/controller/workflowpod.go).
WORKFLOW_NODE = "workflows.argoproj.io/node-name"
# Argo runs this command in the proxy when the main container ends. Without it, Argo runs
# ``kill -TERM 1``, though its `wait` may still upload (3.6 signal.go). Our command does nothing.
SIGNALLED_WITH = "workflows.argoproj.io/kill-cmd-istio-proxy"
NO_SIGNAL = '["pilot-agent","version"]'
PROXY_CONFIG = "proxy.istio.io/config"  # YAML that overrides the mesh's ProxyConfig.
HOLD = "holdApplicationUntilProxyStarts"  # Field of `PROXY_CONFIG`.
PEERS = "istio-aux.io/peers"
INCLUDED = "traffic.sidecar.istio.io/includeInboundPorts"  # Istio reads it; without it every port.
EXCLUDED = "traffic.sidecar.istio.io/excludeInboundPorts"  # Istio ignores it beside a list.
# Labels of pods whose controller makes a headless Service without ports. The ports that such pods
# declare are in no Service, either, and unreachable: Kubeflow's TrainJobs declare 29500 (jobset
# jobset_controller.go createHeadlessSvcIfNecessary, mpi-operator mpi_job_controller.go newService).
JOBSET = "jobset.sigs.k8s.io/jobset-name"
OPERATOR = "training.kubeflow.org/operator-name"
MPI_OPERATOR = "mpi-operator"

QUIT = "istio-aux.io/quit"
SIDECARS = "istio-aux.io/sidecars"
QUIT_AFTER = "istio-aux.io/quit-after"
QUIT_GRACE = "istio-aux.io/quit-grace"
STATUS_PORT = "status.sidecar.istio.io/port"


def _read_port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 65536):
        raise ValueError
    return int(text)


agent_port = Annotation(STATUS_PORT, _read_port, "a TCP port", longest=5)


# How values of flags are read. Istio ignores any other value of `INJECT`.
_flag = {"true": True, "false": False}.__getitem__
start_order = Annotation(
    STARTED_WITH,
    {"native": "native", "hold": "hold"}.__getitem__,
    "native or hold",
    longest=16,
)
inject_label = Label(INJECT, _flag, "true or false", longest=5)
inject_annotation = Annotation(INJECT, _flag, "true or false", longest=5)
dataplane = Label(DATAPLANE, str, "ambient or none", longest=16)
redirection = Annotation(REDIRECTION, str, "enabled or pending", longest=16)
native_asked = Annotation(NATIVE_SIDECAR, _flag, "true or false", longest=5)
not_native_because = Annotation(NOT_NATIVE, str, "a reason", longest=256)
templates = Annotation(TEMPLATES, names, f"at most {MOST_NAMES} names", longest=NAMES)

injected = mark(INJECTED)
mirrors = mark(MIRROR)
workflow_node = mark(WORKFLOW_NODE)
