"""In any order of hooks, the API server trusts what each unit's workload serves.

Three units share a cluster, a peer relation and the authority's secret. Their hooks overlap: each
sees what Juju had stored when it began, which may be before the last hooks of the others ended.
Some hooks fail at their end, after they have changed the cluster; some workloads are late to read
their new certificate. Meanwhile a provider comes, changes its root, revokes, and goes, containers
are emptied, and another unit leads.

The last tests have single rules of the change.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import pki
from lab.nightly import NIGHTLY
from lab.pki import Provider
from ops import testing

import certificates
from certificates import Issuers, Leaf

from .apiserver import ApiServer
from .conftest import Unit, set_up
from .test_certificates import authorities, bundle

STEPS = 60


@dataclasses.dataclass
class Stored:
    """What Juju has stored of the application."""

    units: dict[int, dict[str, str]]
    app: dict[str, str]
    authority: testing.Secret | None = None


class Application:
    """Three units, each with a container of its own."""

    def __init__(self, units: list[Unit], seed: int) -> None:
        self.chance = random.Random(seed)
        self.units, self.api = units, units[0].api
        self.leader = 0
        self.providers = (Provider(), Provider(), None)
        self.provider: Provider | None = None
        self.refuses = False
        self.stored = Stored({number: {} for number in range(3)}, {})
        self.past = [copy.deepcopy(self.stored)]
        self.seen = [0, 0, 0]  # How much of the past each unit has seen.
        for unit in units:
            # What the workload serves follows the file, later.
            unit.process.certificate = unit.kubeconfig.with_name("served.crt")

    def served(self, number: int) -> Leaf:
        """What the unit's workload serves."""
        file = self.units[number].process.certificate
        return Leaf(file.read_text() if file.exists() else "", "")

    def follow(self, number: int) -> None:
        """Have the workload read its certificate, as it does within 2 s."""
        if source := self.units[number].files.get("tls/tls.crt"):
            self.units[number].process.certificate.write_text(source)

    def hook(self, number: int, *, fails: bool = False, overlap: int = 0) -> None:
        """Run a hook of a unit, which began before the last `overlap` hooks of others ended."""
        unit, own = self.units[number], self.stored.units[number]
        began = max(self.seen[number], len(self.past) - 1 - overlap)
        view = self.past[began]
        peers = testing.PeerRelation(
            "peers",
            peers_data={n: view.units[n] for n in range(3) if n != number},
            local_unit_data=own,
            local_app_data=view.app,
        )
        leads = number == self.leader
        mine = unit.state.secrets - authorities(unit)
        shared = set[testing.Secret]()
        if view.authority:
            owner = "app" if leads else None
            shared.add(dataclasses.replace(view.authority, owner=owner))
        before = unit.state
        others = {one for one in before.relations if one.endpoint == "certificates"}
        changes = {"leader": leads, "secrets": {*mine, *shared}, "planned_units": 3}
        unit.run(relations={peers, *others}, **changes)
        # A unit's next hook sees at least what its last one has seen.
        self.seen[number] = began
        if fails:
            unit.state = dataclasses.replace(before, containers=unit.state.containers)
            return
        (after,) = unit.state.get_relations("peers")
        self.stored.units[number] = dict(after.local_unit_data)
        if leads:
            self.stored.app = dict(after.local_app_data)
            self.stored.authority = next(iter(authorities(unit)), None)
        self.past.append(copy.deepcopy(self.stored))
        self.seen[number] = len(self.past) - 1

    def relate(self) -> None:
        """Let the provider answer each unit, or make the relation as it should be."""
        for unit in self.units:
            kept = {one for one in unit.state.relations if one.endpoint != "certificates"}
            present = unit.state.get_relations("certificates")
            if self.provider:
                relation = present[0] if present else testing.Relation("certificates")
                assert isinstance(relation, testing.Relation)
                asking = pki.requests(relation.local_unit_data)
                answers = [self.provider.issue(asked) for asked in asking]
                answers = [{**one, "revoked": self.refuses} for one in answers]
                kept.add(dataclasses.replace(relation, remote_app_data=pki.databag(*answers)))
            unit.state = dataclasses.replace(unit.state, relations=kept)

    def check(self) -> None:
        """The promise: the API server accepts what each workload serves."""
        if "MutatingWebhookConfiguration" not in self.api.kinds():
            return
        trusted = bundle(self.api)
        for number in range(3):
            served = self.served(number)
            assert not served.chain or served.issuer in trusted, f"unit {number}"

    def settle(self) -> None:
        """Run hooks until nothing is left to do."""
        for _ in range(8):
            for number in range(3):
                self.hook(number)
                self.check()
                self.follow(number)
                self.check()


@pytest.fixture(params=range(8 if NIGHTLY else 1))
def application(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Application]:
    api = ApiServer()
    with contextlib.ExitStack() as stack:
        units = [
            stack.enter_context(set_up(tmp_path / str(number), api, number=number))
            for number in range(3)
        ]
        yield Application(units, request.param)


def test_no_unit_ever_serves_what_the_api_server_does_not_trust(application: Application) -> None:
    app = application
    app.settle()
    assert "MutatingWebhookConfiguration" in app.api.kinds()
    for _ in range(STEPS):
        happening: Any = app.chance.choice(["hook"] * 6 + ["follow"] * 3 + ["change"])
        number = app.chance.randrange(3)
        match happening:
            case "hook":
                app.hook(number, fails=app.chance.random() < 0.2, overlap=app.chance.randrange(3))
            case "follow":
                app.follow(number)
            case _:
                change(app, number)
        app.check()

    app.provider, app.refuses = Provider(), False
    app.relate()
    app.settle()
    app.relate()  # The provider answers what has been asked meanwhile.
    app.settle()
    assert bundle(app.api) == {app.provider.ca}
    assert {app.served(number).issuer for number in range(3)} == {app.provider.ca}


def change(app: Application, number: int) -> None:
    """Let something happen."""
    match app.chance.randrange(6):
        case 0 | 1:
            app.provider = app.chance.choice(app.providers)
        case 2:
            app.refuses = not app.refuses
        case 3:
            app.leader = number
        case 4:
            for file in (app.units[number].etc / "tls").glob("*"):
                file.unlink()
            app.units[number].process.certificate.unlink(missing_ok=True)
        case _:
            pass
    app.relate()


NAMES = certificates.service_names("istio-aux", "kubeflow")
OWN, OTHER = (certificates.make_authority(name, "kubeflow") for name in ("own", "other"))
A, B = OWN.certificate, OTHER.certificate
# What the unit serves, and what it wants to serve instead.
OLD, NEW = certificates.issue(OWN, NAMES), certificates.issue(OTHER, NAMES)


def test_what_no_unit_needs_stays_in_the_bundle_until_it_is_noted_as_not_trusted() -> None:
    known = Issuers(frozenset({A}), trusted=frozenset({A, B}), own=A, served=OLD, wants=OLD)

    assert (known.needed(), set(known.bundle())) == ({A}, {A, B})


def test_while_a_unit_has_published_nothing_no_issuer_is_dropped_and_our_own_is_trusted() -> None:
    trusted = frozenset({B})
    known = Issuers(trusted, silent=True, trusted=trusted, own=A, served=NEW, wants=NEW)

    assert known.needed() == {A, B}
    assert dataclasses.replace(known, silent=False).needed() == {B}


@pytest.mark.parametrize(
    ("published", "noted", "applied", "serves"),
    [
        pytest.param({A, B}, {A, B}, False, NEW, id="published and noted"),
        pytest.param({A, B}, {A}, True, NEW, id="published and applied in this event"),
        pytest.param({A, B}, {A}, False, OLD, id="not trusted yet"),
        pytest.param({A}, {A, B}, False, OLD, id="trusted, but the next leader could drop it"),
        pytest.param(set(), {A, B}, True, OLD, id="nothing published yet"),
        pytest.param(set(), None, False, OLD, id="nothing noted yet"),
    ],
)
def test_a_unit_serves_another_issuers_certificate_when_it_is(
    published: set[str], noted: set[str] | None, applied: bool, serves: Leaf
) -> None:
    trusted = None if noted is None else frozenset(noted)
    known = Issuers(frozenset(published), trusted=trusted, own=A, served=OLD, wants=NEW)

    assert known.choose(applied=applied) == serves
