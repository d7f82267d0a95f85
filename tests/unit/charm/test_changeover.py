"""When the issuer of a unit's certificate changes: what the API server trusts, and who serves what.

Hooks of units overlap: each sees what Juju had stored when it began, and the next leader what is
published. Those of one unit after the other are in `test_certificates_relation`.
"""

from __future__ import annotations

import dataclasses

import pytest

import certificates
from certificates import Issuers, Leaf

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
