"""Which injectors are worth asking, and what is said of those of which little can be seen."""

from __future__ import annotations

import pytest
from istio_aux.core.liveness import Facts, Probe, State, can_be_probed, targets
from istio_aux.core.webhooks import Service
from unit.core.mesh import DEFAULT, ORIGINAL, REVISED, each_webhook, recorded
from unit.core.test_liveness import (
    ACTIVE,
    GONE,
    INJECTS,
    LIVE,
    OTHER,
    but,
    endpoints,
    one,
    target,
)


def test_one_behind_a_url_may_be_trusted_as_the_system_does() -> None:
    """A vendor's that runs istiod for its users has no caBundle."""
    configuration = each_webhook(DEFAULT, clientConfig={"url": "https://mesh.example.com/inject"})
    probed = {target(configuration): INJECTS}

    assert one(configuration, but(probes={})).state is State.NOT_PROBED
    assert one(configuration, but(probes=probed)).live


def test_where_endpoints_cannot_be_seen_the_probe_alone_decides() -> None:
    unseen = frozenset({Service("istio-system", "istiod")})

    assert one(ACTIVE, but(slices=(), unseen=unseen)).live
    assert one(ACTIVE, but(slices=(), unseen=unseen, probes={})).state is State.NOT_PROBED


def test_a_question_that_nobody_heard_shows_nothing() -> None:
    """T40: neither that it is live nor that it is not."""
    unheard = Probe(injected=False, why="no connection within 1 s", asked=False)
    found = one(ACTIVE, but(probes={target(ACTIVE): unheard}))

    assert (found.state, found.why) == (State.NOT_PROBED, "no connection within 1 s")


def test_webhooks_with_one_endpoint_are_one_to_ask() -> None:
    found = targets([ACTIVE, recorded(ORIGINAL), OTHER])

    assert {each: {name for name, _ in names} for each, names in found.items()} == {
        target(ACTIVE): {DEFAULT},
        target(OTHER): {REVISED},
    }
    assert {webhook.partition(".sidecar")[0] for _, webhook in found[target(ACTIVE)]} == {
        "namespace",
        "object",
        "rev.namespace",
        "rev.object",
    }
    assert targets([ACTIVE, OTHER], root="kubeflow") == {}


@pytest.mark.parametrize(
    ("facts", "worth"),
    [
        (LIVE, True),
        (but(probes={}), True),
        (but(slices=[endpoints("istiod", GONE)]), False),
    ],
)
def test_only_one_that_could_be_live_is_worth_asking(facts: Facts, worth: bool) -> None:
    assert can_be_probed(target(ACTIVE), facts) is worth
