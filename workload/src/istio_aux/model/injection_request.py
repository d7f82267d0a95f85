"""Whether a pod, or its namespace, asks for a sidecar or refuses it, or can have none.

Istio's rules are those of istio pkg/kube/inject/inject.go injectRequired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import structs

from istio_aux.model.annotations import (
    INJECT,
    Annotation,
    Label,
    Source,
    dataplane,
    inject_annotation,
    inject_label,
    injected,
    mirrors,
)
from istio_aux.model.applications import Applications, application_of
from istio_aux.model.names import IGNORED
from istio_aux.model.pod import NO_METADATA, Pod, Struct
from istio_aux.model.selectors import Selector


class InjectionRequest(Struct, frozen=True):
    """What decides whether a pod gets a sidecar when it is created; `of` reads it."""

    namespace: str = ""
    labels: Mapping[str, str] = {}
    annotation: str | None = None  # The text of `INJECT`.
    namespace_labels: Mapping[str, str] | None = (
        None  # The labels of its namespace; None: not known.
    )
    host_network: bool = False
    injected: bool = False  # Whether Istio has injected the pod.
    mirrors: bool = False  # Whether it is the mirror pod of a static pod.
    bare: bool = False  # Whether the pod has no metadata.

    @classmethod
    def of(cls, pod: Pod, namespace_labels: Mapping[str, str] | None = None) -> InjectionRequest:
        """Read a pod; without ``namespace_labels`` those are not known."""
        return cls(
            namespace=pod.metadata.namespace,
            labels=pod.labels,
            annotation=(pod.metadata.annotations or {}).get(INJECT),
            namespace_labels=namespace_labels,
            host_network=bool(pod.spec.host_network),
            injected=injected.on(pod.metadata),
            mirrors=mirrors.on(pod.metadata),
            bare=pod.metadata is NO_METADATA,
        )

    @property
    def asks(self) -> bool | None:
        """Whether the pod asks for a sidecar; False: it refuses one; None: neither."""
        key, texts = self._said()
        return key.get(texts)

    @property
    def said(self) -> str:
        """The label or annotation that decides `asks`, for people."""
        key, texts = self._said()
        return key.shown(texts)

    @property
    def application(self) -> str:
        """The application of the pod; empty if it names none."""
        return application_of(self.labels)

    @property
    def ambient(self) -> str:
        """Why the pod is in an ambient mesh, if it is; see `ambient_by`."""
        return ambient_by(self.labels, self.namespace_labels or {})

    def refusals(self) -> Iterator[str]:
        """Yield why the pod gets no sidecar, whichever webhook is called."""
        yield from self.exclusions()
        if self.asks is False:
            yield self.said

    def label_obstacles(self, *, despite_annotation: bool = False) -> Iterator[str]:
        """Yield why our admission does not add the label that asks for a sidecar.

        A pod that has the label or the annotation keeps it, whatever the value. The label overrides
        the annotation, so it is added beside one only ``despite_annotation``: an admin wants that.
        """
        for key, texts in ((inject_label, self.labels), (inject_annotation, self._annotations())):
            if key.on(texts) and not (despite_annotation and key is inject_annotation):
                yield key.shown(texts)
        if self.injected:
            yield "the sidecar is already injected"
        if ambient := self.ambient:
            yield ambient
        yield from self.exclusions()

    def labelled(self) -> InjectionRequest:
        """The request with the label that asks for a sidecar."""
        return structs.replace(self, labels={**self.labels, INJECT: "true"})

    def admitted(
        self, applications: Applications, inject: Selector | None = None
    ) -> InjectionRequest:
        """Return the request as our admission makes it: with the label if the application asks.

        The pod gets the label, too, if the option ``inject-selector`` matches it. Returns the same
        object if admission would not change it.
        """
        chosen = inject is not None and inject.matches(self.labels)
        asks = chosen or applications.asks(self.namespace, self.application)
        kept = not asks or next(self.label_obstacles(despite_annotation=chosen), None)
        return self if kept else self.labelled()

    def exclusions(self) -> Iterator[str]:
        """Yield why the pod can have no sidecar, whatever it asks for."""
        if self.host_network:
            yield "hostNetwork: Istio gives it no sidecar"
        if self.namespace in IGNORED:
            yield f"namespace {self.namespace}: Istio gives its pods no sidecar"
        if self.mirrors:
            yield "the pod mirrors a static pod"
        if self.bare:
            yield "the object has no metadata"

    def _said(self) -> tuple[Label[bool] | Annotation[bool], Mapping[str, str]]:
        """Return the label if the pod has it, else the annotation, with the texts it is in."""
        if inject_label.on(self.labels):
            return inject_label, self.labels
        return inject_annotation, self._annotations()

    def _annotations(self) -> Mapping[str, str]:
        return {} if self.annotation is None else {INJECT: self.annotation}


def ambient_by(pod: Source, namespace: Mapping[str, str] = {}) -> str:
    """The label, on a pod or its namespace, that puts the pod into an ambient mesh; or empty.

    The label of the pod decides before that of its namespace. Injection wins: Istio's injector does
    not look at that label (istio inject.go injectRequired), and its CNI leaves a pod with a sidecar
    alone (istio cni/pkg/util/enablement_selector.go Matches, istio-cni values.yaml
    enablementSelectors).
    """
    if dataplane.get(namespace) == "ambient" and dataplane.get(pod) != "none":
        return f"namespace {dataplane.shown(namespace)}"
    return dataplane.shown(pod) if dataplane.get(pod) == "ambient" else ""
