"""Istiod's injection policy: which pods get a sidecar when they do not say so themselves.

Only the policy and its reading may live here; `injection` applies it. It stands in a ConfigMap of
istiod's (`ControlPlane.config_map`) under the key ``config``, beside the templates of the sidecar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from istio_aux.core import documents
from istio_aux.core.pod import Struct
from istio_aux.core.selectors import LabelSelector, Selector, convert
from istio_aux.core.webhooks import ControlPlane

KEY = "config"
"""Under which the ConfigMap has the text."""


class InjectionPolicy(msgspec.Struct, frozen=True):
    """What `read` finds.

    Attributes:
        policy: ``enabled`` or ``disabled``: what happens to a pod that nothing else decides about;
            with any other value istiod injects nothing at all.
        never: selectors of pods that get no sidecar unless they ask for one.
        always: selectors of pods that get one unless they, or ``never``, say otherwise.
    """

    policy: str = "enabled"
    never: tuple[Selector, ...] = ()
    always: tuple[Selector, ...] = ()


Policies = Mapping[ControlPlane, InjectionPolicy]
"""What is known of each istiod's policy; a missing one is unknown, not ``enabled``."""


def read(text: str) -> InjectionPolicy:
    """Read the policy as istiod does (istio inject.go UnmarshalConfig and injectRequired).

    Raises:
        ValueError: one line; istiod cannot read the text either, and goes on with what it had.
    """
    document = next(documents.read(text.encode()), None)
    if isinstance(document, documents.BadDocument):
        raise ValueError(f"not YAML: {document.why}")  # noqa: TRY004  (of the text, not of a type)
    config = msgspec.json.decode(document.body if document else b"{}", type=_Config)
    return InjectionPolicy(
        policy=config.policy or "",
        never=tuple(_readable(config.never_inject_selector or ())),
        always=tuple(_readable(config.always_inject_selector or ())),
    )


class _Config(Struct, frozen=True):
    policy: str | None = None
    never_inject_selector: tuple[LabelSelector, ...] | None = None
    always_inject_selector: tuple[LabelSelector, ...] | None = None


def _readable(selectors: tuple[LabelSelector, ...]) -> Iterator[Selector]:
    for selector in selectors:
        try:
            yield convert(selector)
        except ValueError:
            continue  # Istiod logs a warning and passes over it.
