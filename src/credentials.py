"""What a unit's workload proves itself with: its token towards the API server, its leaf towards it.

Both live in the container only; what is still good there is kept, so that nothing is written and
no token is asked for without need.
"""

from __future__ import annotations

from collections.abc import Mapping

from lightkube import Client

import certificates
import cluster
import manifests
import tokens
import workload
from certificates import Authority, Leaf
from cluster import Problem
from inputs import Inputs
from workload import Access


def access(client: Client, present: Mapping[str, str], inputs: Inputs) -> Access | Problem:
    """Return how the workload reaches the API server, with its present or a new token."""
    account = manifests.service_account(inputs.app)
    uid = cluster.account_uid(client, account, inputs.model)
    if isinstance(uid, Problem):
        return uid
    token = present[workload.TOKEN]
    if tokens.is_due(token, uid, inputs.now):
        answer = cluster.request_token(client, account, inputs.model)
        if isinstance(answer, Problem):
            return answer
        token = answer
    server, ca = cluster.endpoint(client)
    return Access(server, ca, token)


def leaf(present: Mapping[str, str], inputs: Inputs, authority: Authority) -> Leaf:
    """Return what the unit serves: its present leaf while that is good, else a new one."""
    names = certificates.service_names(inputs.app, inputs.model)
    served = Leaf(present[workload.TLS_CERTIFICATE], present[workload.TLS_KEY])
    if certificates.usable(served, authority, names, inputs.now):
        return served
    return certificates.issue(authority, names)
