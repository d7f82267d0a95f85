"""What is kept of each kind of object that is watched: a number, a few names, or `MOST` bytes.

Tenants write any number of objects, of up to 1.5 MiB. The memory of each object is bounded, so
stores take only what these functions return. An object that has more is too much to judge, and
nothing is guessed about it:

    kind                    kept                                 too much
    a pod, by quit          the last decision (`brief`)          texts are shortened
    a pod, by repair        a `Candidate`                        ignored, never restarted
    a namespace             `labels`                             not selected; what Istio does there
                                                                 is unknown
    an EndpointSlice        `endpoints`: whether one is ready    nothing
    a webhook configuration `configuration`: Istio's webhooks    what Istio does is unknown
    an injection policy     all of it                            unknown
    a quota, a LimitRange   a `limits.Limit`                     what is allowed is unknown

Only admins write configurations and policies: bundles of certificates may be longer than `MOST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from istio_aux.model.names import START_WEBHOOK
from istio_aux.model.pod import Metadata, Present, Struct
from istio_aux.model.selectors import TOO_MANY
from istio_aux.model.webhooks import (
    REVISION,
    SERVICE,
    ClientConfig,
    Configuration,
    Endpoint,
    EndpointSlice,
    Namespace,
    Rule,
    Webhook,
)

MOST = 3 << 10  # Bytes as JSON: thirty labels as long as those of Kubeflow Pipelines.
MOST_OF_ISTIO = 6 << 10  # Bytes of Istio's webhooks, whose four have 2.3 KiB, or of its policy.
MOST_OF_CA = 32 << 10  # Bytes of base64: twenty certificates.

_REASON = 800  # ASCII characters of a reason.

_CREATES = (
    Rule(operations=("CREATE",), api_groups=("",), api_versions=("v1",), resources=("pods",)),
)
# Stands for all webhooks of a configuration that is too large.
UNCLEAR = Webhook(
    name="too-large.sidecar-injector.istio.io",
    client_config=ClientConfig(ca_bundle="?"),
    rules=_CREATES,
)


class Reasoned(Struct, frozen=True):
    """A decision with its reason, for people."""

    reason: str


D = TypeVar("D", bound=Reasoned)


def size(value: object) -> int:
    """Return how many bytes a value has as JSON."""
    return len(msgspec.json.encode(value))


def packed(value: object) -> bytes:
    """Encode a value as JSON, and copy it: msgspec allocates half a kilobyte or more too much."""
    return bytes(memoryview(msgspec.json.encode(value)))


def brief(decision: D) -> D:
    """Return the decision with a reason of less than a kilobyte, whatever its characters."""
    reason = decision.reason
    longest = _REASON if reason.isascii() else _REASON // 4
    if len(reason) > longest:  # The mark of `shortened` would make each character take two bytes.
        reason = f"{reason[:longest]}..."
    return msgspec.structs.replace(decision, reason=reason)


def labels(namespace: Namespace) -> Mapping[str, str]:
    """The labels of a namespace, or `TOO_MANY` instead."""
    found = namespace.metadata.labels or {}
    return found if size(found) <= MOST else TOO_MANY


def configuration(found: Configuration) -> Configuration:
    """The webhooks that are Istio's or ours, or `UNCLEAR`; equal caBundles are kept once."""
    ours = [it for it in found.webhooks or () if it.is_istios or it.name == START_WEBHOOK]
    bundles = [it.client_config.ca_bundle for it in ours]
    same = {bundle: bundle for bundle in bundles}
    webhooks = tuple(
        msgspec.structs.replace(
            it,
            client_config=msgspec.structs.replace(it.client_config, ca_bundle=same[bundle]),
            rules=_CREATES if it.creates_pods else None,
            match_conditions=({},) if it.match_conditions else None,
        )
        for it, bundle in zip(ours, bundles, strict=True)
    )
    if size(webhooks) - size(bundles) > MOST_OF_ISTIO or size([*same]) > MOST_OF_CA:
        webhooks = (UNCLEAR,)
    return Configuration(
        metadata=Metadata(
            name=found.metadata.name, uid=found.metadata.uid, labels={REVISION: found.revision}
        ),
        webhooks=webhooks,
    )


def endpoints(found: EndpointSlice) -> EndpointSlice:
    """Keep only the Service of the endpoints, and whether one is ready."""
    meta = found.metadata
    return EndpointSlice(
        metadata=Metadata(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            labels={SERVICE: found.service.name} if found.service else None,
        ),
        endpoints=(Endpoint(addresses=("",)),) if found.ready else (),
        ports=(Present(),),
    )
