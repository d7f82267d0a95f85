"""From the last revision to this one. The tests build on one another."""

from __future__ import annotations

from pathlib import Path

import jubilant
from helpers import (
    APP,
    IMAGE,
    ISTIO,
    await_active,
    completed,
    created,
    deploy,
    has_sidecar,
    is_started,
    pods,
    webhooks,
)


def test_a_job_completes_with_the_last_revision(
    juju: jubilant.Juju, before: str, image: str, istio: str, profile: str
) -> None:
    deploy(juju, before, image)
    juju.integrate(f"{APP}:istio-pilot", f"{ISTIO}:istio-pilot")
    await_active(juju)
    assert has_sidecar(completed(istio, profile, "before"))


def test_an_upgrade_replaces_the_pods_and_keeps_webhooks(
    juju: jubilant.Juju, charm: Path, image: str, profile: str
) -> None:
    """The status of the old pods says nothing of the new ones: their UIDs do."""
    old = pods(juju)

    juju.refresh(APP, path=charm, resources={IMAGE: image})
    juju.wait(
        lambda status: (
            pods(juju).isdisjoint(old)
            and not any(unit.upgrading_from for unit in status.apps[APP].units.values())
            and jubilant.all_active(status, APP)
            and jubilant.all_agents_idle(status, APP)
        ),
        error=lambda status: jubilant.any_error(status, APP),
    )

    assert webhooks(juju)
    assert is_started(created(profile))


def test_a_job_completes_with_this_revision(juju: jubilant.Juju, istio: str, profile: str) -> None:
    assert has_sidecar(completed(istio, profile, "after"))
