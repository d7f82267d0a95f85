"""What a cluster says of Istio's injectors, read once: for who only looks, as `audit` does.

Only the reading may live here; what it means for a pod is `core.injection`. What may not be read is
no error: it is unknown, and said to be.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from istio_aux.core.injection import Expectation, Hook, InjectionPolicy, expected, hooks_of
from istio_aux.core.pod import NewPod
from istio_aux.core.webhooks import Configuration, ControlPlane
from istio_aux.injector import policies
from istio_aux.injector.order import CONFIGURATIONS
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.kube.lists import Lister


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        hooks: Istio's webhooks that may be called for a new pod; None if they may not be read.
        policies: of the istiods behind them, as far as they may be read.
        gaps: what could not be read, one line each; for people.
    """

    hooks: tuple[Hook, ...] | None = None
    policies: Mapping[ControlPlane, InjectionPolicy] = {}
    gaps: tuple[str, ...] = ()

    def expected(self, pod: NewPod, namespace_labels: Mapping[str, str] | None) -> Expectation:
        """Say whether ``pod`` would get a sidecar if it were created now; see `injection`."""
        if self.hooks is None:
            return Expectation(expected=None, reason="Istio's webhooks are not known")
        # Where there are none, the labels that cannot be read do not matter.
        known: Mapping[str, str] | None = namespace_labels if self.hooks else {}
        return expected(pod, known, self.hooks, self.policies)


async def survey(client: Client) -> Survey:
    """Read webhook configurations and injection policies.

    Raises:
        KubeError: the API server does not answer.
    """
    try:
        pages = Lister(client, CONFIGURATIONS, Configuration).pages({})
        read = [page async for page in pages]
    except ApiError as error:
        return Survey(gaps=(f"{CONFIGURATIONS}: {error}",))
    gaps = [f"cannot read configuration {found}" for page in read for found in page.unreadable]
    if gaps:  # It may be Istio's.
        return Survey(gaps=tuple(gaps))
    # A list that had to be begun again shows objects twice.
    hooks = hooks_of({item.metadata.name: item for page in read for item in page.items}.values())
    policy_of: dict[ControlPlane, InjectionPolicy] = {}
    for plane in sorted({hook.control_plane for hook in hooks if hook.control_plane.namespace}):
        if policy := await policies.read(client, plane, None):
            policy_of[plane] = policy
        else:
            gaps.append(f"no policy in ConfigMap {plane.namespace}/{plane.config_map}")
    return Survey(hooks=hooks, policies=policy_of, gaps=tuple(gaps))
