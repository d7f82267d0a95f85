"""Reads what the cluster says about injection: Istio's webhooks and istiods' injection policies.

`injector.rules` decides with it. Permissions may be missing: then it is unknown, not an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from istio_aux.injector import injection
from istio_aux.injector.injection import Expectation, Hook, InjectionPolicy, expected, hooks_of
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, KubeError
from istio_aux.model.pod import Pod
from istio_aux.model.webhooks import Configuration, ControlPlane

_log = logging.getLogger(__name__)

DEADLINE = 3.0  # Seconds for a ConfigMap: the state of its injector waits for it.


async def read(
    client: Client, plane: ControlPlane, known: InjectionPolicy | None
) -> InjectionPolicy | None:
    """Read the policy of an istiod; None if it is unknown.

    Args:
        client: an open client.
        plane: the istiod. The ConfigMap of one behind a URL is out of reach.
        known: the last policy. It stays while the API server does not answer, or if the text
            cannot be read: istiod keeps its last one, too.
    """
    if not plane.namespace:
        return None
    try:
        async with asyncio.timeout(DEADLINE):
            data = await actions.read_config_map(client, plane.namespace, plane.config_map)
        return injection.read_policy(data[injection.POLICY_KEY])
    except ApiError as error:
        why, policy = str(error), known if error.code >= 500 or error.code == 429 else None
    except (KubeError, TimeoutError) as error:
        why, policy = str(error) or "no answer in time", known
    except (ValueError, KeyError, RecursionError) as error:
        why, policy = f"no injection policy: {error}", known
    _log.debug(
        "ConfigMap %s/%s: %s", plane.namespace, plane.config_map, why,
        extra={"event": "policy", "revision": plane.revision},
    )  # fmt: skip
    return policy


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """Istio's webhooks (None if they cannot be read), their policies, and what cannot be read."""

    hooks: tuple[Hook, ...] | None = None
    policies: Mapping[ControlPlane, InjectionPolicy] = {}
    gaps: tuple[str, ...] = ()

    def expected(self, pod: Pod, namespace_labels: Mapping[str, str] | None) -> Expectation:
        """Decide whether ``pod`` would get a sidecar if it were created now; see `injection`."""
        if self.hooks is None:
            return Expectation(expected=None, reason="Istio's webhooks are not known")
        # Without webhooks, unknown labels do not matter.
        known: Mapping[str, str] | None = namespace_labels if self.hooks else {}
        return expected(pod, known, self.hooks, self.policies)


async def survey(client: Client) -> Survey:
    """Read webhook configurations and injection policies once, as `audit` does.

    Raises:
        KubeError: the API server does not answer.
    """
    try:
        pages = actions.pages(client, actions.CONFIGURATIONS, Configuration, {})
        read_pages = [page async for page in pages]
    except ApiError as error:
        return Survey(gaps=(f"{actions.CONFIGURATIONS}: {error}",))
    gaps = [f"cannot read configuration {bad}" for page in read_pages for bad in page.unreadable]
    if gaps:  # It may be Istio's.
        return Survey(gaps=tuple(gaps))
    # A list that started again has some objects twice.
    found = {item.metadata.name: item for page in read_pages for item in page.items}
    hooks = hooks_of(found.values())
    policy_of: dict[ControlPlane, InjectionPolicy] = {}
    for plane in sorted({hook.control_plane for hook in hooks if hook.control_plane.namespace}):
        if policy := await read(client, plane, None):
            policy_of[plane] = policy
        else:
            gaps.append(f"no policy in ConfigMap {plane.namespace}/{plane.config_map}")
    return Survey(hooks=hooks, policies=policy_of, gaps=tuple(gaps))
