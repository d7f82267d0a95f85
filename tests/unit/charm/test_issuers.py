"""The rules of a change of issuers, each by itself; `test_changeover.py` has them together."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import certificates
from certificates import Authority, Leaf
from issuers import Issuers

NAMES = certificates.service_names("istio-aux", "kubeflow")
OWN, OTHER = (certificates.make_authority(name, "kubeflow") for name in ("own", "other"))
A, B = OWN.certificate, OTHER.certificate
# What the unit serves, and what it wants to serve instead.
OLD, NEW = certificates.issue(OWN, NAMES), certificates.issue(OTHER, NAMES)
NOW = datetime.now(UTC)


def issuers(
    published: dict[str, set[str]],
    trusted: set[str] | None,
    *,
    silent: bool = False,
    served: Leaf = OLD,
    wants: Leaf | str = OLD,
    authority: Authority | None = OWN,
) -> Issuers:
    found = {unit: frozenset(needs) for unit, needs in published.items()}
    noted = None if trusted is None else frozenset(trusted)
    return Issuers("a/0", found, silent, noted, authority, served, wants)


def test_what_a_unit_needs_is_in_the_bundle_before_it_is_noted() -> None:
    known = issuers({"a/0": {A}, "a/1": {A, B}}, {A})

    assert set(known.bundle()) == {A, B} == known.needed()


def test_what_no_unit_needs_stays_in_the_bundle_until_it_is_noted_as_not_trusted() -> None:
    known = issuers({"a/0": {A}, "a/1": {A}}, {A, B})

    assert set(known.bundle()) == {A, B}
    assert known.needed() == {A}
    assert set(issuers({"a/0": {A}, "a/1": {A}}, {A}).bundle()) == {A}


def test_nothing_is_dropped_while_a_unit_has_published_nothing() -> None:
    known = issuers({"a/0": {B}}, {A, B}, silent=True, served=NEW, wants=NEW)

    assert known.needed() == {A, B}


def test_a_new_unit_makes_the_own_authority_trusted_again() -> None:
    known = issuers({"a/0": {B}}, {B}, silent=True, served=NEW, wants=NEW)

    assert known.needed() == {A, B}


@pytest.mark.parametrize(
    ("published", "noted", "applied", "serves"),
    [
        pytest.param({A, B}, {A, B}, (), NEW, id="published and noted"),
        pytest.param({A, B}, {A}, (A, B), NEW, id="published and applied in this event"),
        pytest.param({A, B}, {A}, (), OLD, id="not trusted yet"),
        pytest.param({A}, {A, B}, (), OLD, id="trusted, but the next leader could drop it"),
        pytest.param(None, {A, B}, (A, B), OLD, id="nothing published yet"),
        pytest.param(None, None, (), OLD, id="nothing noted yet"),
    ],
)
def test_a_unit_serves_another_issuers_certificate_when_it_is(
    published: set[str] | None, noted: set[str] | None, applied: tuple[str, ...], serves: Leaf
) -> None:
    known = issuers({"a/0": published} if published else {}, noted, wants=NEW)

    choice = known.choose(applied, NAMES, NOW)

    assert choice.leaf == serves
    assert choice.waits is (serves == OLD)


def test_a_new_unit_signs_its_certificate_as_soon_as_there_is_an_authority() -> None:
    known = issuers({}, None, silent=True, served=Leaf("", ""), wants=A)

    choice = known.choose((), NAMES, NOW)

    assert choice.leaf
    assert choice.leaf.issuer == A


def test_a_new_unit_serves_nothing_while_the_own_authority_is_not_trusted() -> None:
    known = issuers({"a/1": {B}}, {B}, silent=True, served=Leaf("", ""), wants=A)

    assert known.choose((), NAMES, NOW).leaf is None


def test_without_the_authority_the_leader_still_knows_the_bundle() -> None:
    known = issuers({"a/0": {A}}, {A}, authority=None)

    assert known.bundle() == (A,)
    assert known.choose((), NAMES, NOW).leaf == OLD
