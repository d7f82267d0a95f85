"""Read an istiod's injection policy from its ConfigMap.

Only the reading may live here; `core.injection` has its meaning.
"""

from __future__ import annotations

import asyncio
import logging

from istio_aux.core import injection
from istio_aux.core.injection import InjectionPolicy
from istio_aux.core.webhooks import ControlPlane
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, KubeError

_log = logging.getLogger(__name__)

DEADLINE = 3.0
"""Seconds: what is known of an injector waits for it."""


async def read(
    client: Client, plane: ControlPlane, known: InjectionPolicy | None
) -> InjectionPolicy | None:
    """Return the policy of an istiod, None where it is not known.

    Args:
        client: an open client.
        plane: which istiod; of one behind a URL nothing can be read.
        known: what was read last. It holds on while the API server is away, and while the text
            cannot be understood: istiod goes on with what it had, too.
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
    # It is asked again and again: what is the matter is worth a line to who looks for it.
    _log.debug(
        "ConfigMap %s/%s: %s", plane.namespace, plane.config_map, why,
        extra={"event": "policy", "revision": plane.revision},
    )  # fmt: skip
    return policy
