"""What Juju has done to other charms, done to the packed charm by the stand-in.

Each test names the threads that tell of it. The page on failures has them in one table. After each
test both units serve, and the application is active.
"""

from __future__ import annotations

import secrets
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lab.juju
import pytest
import yaml
from lab.fixtures import evicts, serving
from lab.juju.unit import Event, Unit
from lightkube import Client
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration

import certificates
from certificates import parse_bundle

pytestmark = pytest.mark.nightly("unit/charm/test_certificates.py, unit/charm/test_scenarios.py")
CONTAINER = "istio-aux"
PILOT = {"_supported_versions": "- v1\n", "data": "service-name: istiod.istio-system.svc\n"}


@pytest.fixture(scope="module")
def app(cluster: lab.Cluster, charm: Path) -> Iterator[lab.juju.App]:
    """Two units, settled."""
    with lab.juju.Model(cluster, f"cruel-{secrets.token_hex(3)}") as model:
        app = model.deploy(charm, trust=True, units=2)
        app.settle()
        yield app


@pytest.fixture(autouse=True)
def well(client: Client, app: lab.juju.App) -> Iterator[None]:
    """After each test all is as before."""
    yield
    settle(app)
    lab.until(lambda: app.status()[0] == "active", what="the application to be active")
    addresses = {unit.address for unit in app.units}
    assert len(addresses) == 2
    lab.until(lambda: serving(client, app) == addresses, what="both units to serve")


def settle(app: lab.juju.App) -> None:
    """With a relation to Istio, the charm waits for an Istio that is not there."""
    app.settle(waiting=True)


def content(unit: Unit, name: str) -> str:
    return (unit.containers[CONTAINER].files() / "etc/istio-aux" / name).read_text()


def setting(unit: Unit, name: str) -> Any:
    return yaml.safe_load(content(unit, "config.yaml")).get(name)


def issuers(app: lab.juju.App) -> set[str]:
    """The authorities that have signed what the units serve."""
    return {certificates.Leaf(content(unit, "tls/tls.crt"), "").issuer for unit in app.units}


def trusted(client: Client, app: lab.juju.App) -> set[str]:
    found = client.get(MutatingWebhookConfiguration, f"istio-aux-{app.model.name}.{app.name}")
    bundles = [hook.clientConfig.caBundle or "" for hook in found.webhooks or ()]
    return {pem for each in bundles for pem in parse_bundle(b64decode(each).decode())}


def config_changed(app: lab.juju.App) -> None:
    for unit in app.units:
        app.model.agent.run(unit, Event("config-changed"))


def test_a_lost_authority_is_replaced_while_each_unit_serves(
    client: Client, app: lab.juju.App
) -> None:
    """juju#20710, juju#21058, juju#22310: the record is there, the content is gone."""
    (old,) = issuers(app)
    app.lose_secrets()
    config_changed(app)
    status, message = app.status()
    assert status == "waiting"
    assert "certificate authority cannot be read" in message
    assert len(serving(client, app)) == 2

    done = app.action("replace-authority").results["results"]

    assert done["replaced"] == "true"
    # The charm is woken after 7 s, 17 s, 37 s; an authority changes over in four events.
    lab.until(
        lambda: old not in issuers(app) and len(issuers(app)) == 1,
        timeout=600,
        what="the units to serve what another authority has signed",
    )


def test_a_relation_ends_without_its_data(app: lab.juju.App) -> None:
    """operator#1306: nor does the hook know whose relation it is."""
    asking = {"application": "sidecar-it", "model": app.model.name}
    given = {"istio-pilot": PILOT, "sidecar": asking, "metrics-endpoint": {}}
    relations = [app.integrate(name, f"{name}-it", data=data) for name, data in given.items()]
    settle(app)
    asked = f"{app.model.name}/sidecar-it"
    assert asked in content(app.leader, "applications")

    for relation in relations:
        relation.remove(bare=True)

    assert setting(app.leader, "root-namespace") is None
    assert asked not in content(app.leader, "applications")


def test_what_a_hook_did_is_done_again_when_juju_lost_it(app: lab.juju.App) -> None:
    """juju#15224: the agent is killed before it stores what the hook wrote."""
    with app.model.outage():
        relation = app.integrate("istio-pilot", "istio-pilot", data=PILOT)
        app.run("config-changed", lost=True)
        assert relation.data() == {}
        assert setting(app.leader, "root-namespace") == "istio-system"

        app.run("config-changed")
        assert relation.data()["_supported_versions"] == "- v1\n"
    settle(app)
    relation.remove()


def test_two_leaders_are_one_when_the_old_one_knows(app: lab.juju.App) -> None:
    """juju#20975: Juju refuses all that the old one's hook has written when that ends."""
    run, (old, new) = app.model.agent.run, app.units
    assert app.leader is old
    with app.model.outage():
        app.elect(1, deposed=False)
        relation = app.integrate("istio-pilot", "istio-pilot", data=PILOT)
        with pytest.raises(lab.juju.DispatchError, match="permission denied"):
            run(old, Event("config-changed"))
        run(new, Event("config-changed"))
        assert "_supported_versions" in relation.data()
        app.elect(1)
        run(old, Event("config-changed"))
    settle(app)
    relation.remove()
    app.elect(0)


def test_a_unit_that_departed_and_is_still_listed_counts_no_more(
    client: Client, app: lab.juju.App
) -> None:
    """juju#23326: Juju 4 lists it in the peer relation for good."""
    app.scale(3)
    settle(app)
    app.scale(2, forgotten=True)

    config_changed(app)

    assert "istio-aux/2" not in app.status()[1]
    old = trusted(client, app)
    app.action("replace-authority")
    lab.until(
        lambda: not old & issuers(app),
        timeout=400,
        what="the units to serve what another authority has signed",
    )

    def forgotten() -> bool:
        """A unit says what it serves when its workload does, which takes a moment."""
        config_changed(app)
        return not old & trusted(client, app)

    lab.until(forgotten, timeout=400, what="what only the removed unit needed not to be trusted")
    app.scale(3)
    settle(app)
    app.scale(2)


def test_hooks_of_a_new_pod_run_before_its_pebble_does(app: lab.juju.App) -> None:
    """traefik-k8s-operator#561, operator#1033."""
    unit = app.replace_pod(1, boot=False)
    lab.until(lambda: unit.history[-1].event == "start" and not unit.queue, what="the first hooks")
    app.boot(unit)
    lab.until(unit.ready, what="the unit to serve")


def test_an_action_that_dies_in_an_upgrade_leaves_no_right(
    client: Client, app: lab.juju.App
) -> None:
    """juju#16922: the action of a unit whose pod is replaced fails."""
    with ThreadPoolExecutor() as pool:
        restarts = pool.submit(app.action, "restart-unmeshed", **{"dry-run": False})
        lab.until(lambda: evicts(client, app), what="the right to evict")
        app.replace_pod(0, killed=True)
        with pytest.raises(lab.juju.DispatchError):
            restarts.result()

    app.settle(failing=True)

    assert not evicts(client, app)


def test_a_pod_that_was_replaced_without_a_word_serves_again(app: lab.juju.App) -> None:
    """postgresql-k8s-operator#680: no upgrade-charm follows a pod whose stop hook failed."""
    unit = app.replace_pod(0, killed=True, told=False)

    lab.until(unit.ready, what="the unit to serve")

    assert unit.history[-1].event != "upgrade-charm"


def test_the_units_serve_while_the_controller_is_away(client: Client, app: lab.juju.App) -> None:
    """juju#21512, juju#18468: options wait, and nothing else."""
    with app.model.outage():
        app.configure(quit_grace=7)
        hooks = [len(unit.history) for unit in app.units]
        assert len(serving(client, app)) == 2
        assert [len(unit.history) for unit in app.units] == hooks

    settle(app)

    assert [setting(unit, "quit-grace") for unit in app.units] == [7, 7]


def test_a_storm_of_changes_ends_with_the_last_one(client: Client, app: lab.juju.App) -> None:
    """juju#9498, operator#1211: config-changed comes often, and also without a change."""
    for grace in range(1, 6):
        app.configure(quit_grace=grace)
    settle(app)
    assert setting(app.leader, "quit-grace") == 5

    def known() -> tuple[Any, ...]:
        about = client.get(
            MutatingWebhookConfiguration, f"istio-aux-{app.model.name}.{app.name}"
        ).metadata
        pid = app.leader.containers[CONTAINER].service_pid(CONTAINER)
        return pid, about and about.resourceVersion

    before = known()
    for _ in range(5):
        app.run("config-changed")
    assert known() == before
