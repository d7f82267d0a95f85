"""Whatever the options were, their present values alone decide what there is: Acto's question.

From each set of options to each other one, also over a bad value, and while the unit is replaced:
objects, settings and Pebble's plan are those of a new application that never had other options.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from lab.nightly import NIGHT, sampled
from ops import testing

import workload

from .conftest import Copies, Unit

Options = dict[str, str | int]

NAMESPACES = ("team-a", "team-b")
# Some values of each option, all but the first with consequences of their own.
VALUES: dict[str, tuple[str | int, ...]] = {
    "namespace-selectors": ("team=a", "team=a; team in (b,c),!d", ""),
    "pod-selector": ("", "app=job", "app in (a,b),!c"),
    "inject-selector": ("", "app=step"),
    "start-mode": ("auto", "native", "hold", "none"),
    "peers": ("mesh", "direct"),
    "sidecars": ("", "vault-agent=native,otel=9000/stop", "log=ignore", "none"),
    "quit": ("enabled", "dry-run", "disabled"),
    "quit-grace": (0, 30),
    "dead-proxy": ("report", "delete"),
    "race-policy": ("report", "restart", "none"),
    "inject-applications": ("", "tensorboard", "*,cos/grafana"),
    "inject-namespaces": ("", "team-a", "team-a,team-b"),
    "log-level": ("info", "debug"),
}
SETS: dict[str, Options] = {
    "defaults": {},
    "all rights": {
        "race-policy": "restart", "dead-proxy": "delete", "quit-grace": 30, "peers": "direct",
        "sidecars": "vault-agent=native,otel=9000/stop", "namespace-selectors": "team=a; team=b",
    },
    "no rights": {"quit": "disabled", "race-policy": "none", "start-mode": "none"},
    "injected": {
        "inject-applications": "*,cos/grafana", "inject-namespaces": "team-a,team-b",
        "inject-selector": "app=step", "race-policy": "restart",
    },
    "narrow": {"pod-selector": "app in (a,b),!c", "quit": "dry-run", "inject-namespaces": "team-a"},
}  # fmt: skip
BAD: Options = {"quit": "perhaps", "namespace-selectors": "=,="}
WAYS = ("at once", "over a bad value", "replaced over a bad value")
_SECRET = ("token", "tls/")


def made(unit: Unit) -> dict[str, Any]:
    """What the charm has made: in the cluster, in its container, and for Juju."""
    objects = {
        path: {**each, "metadata": {k: v for k, v in each["metadata"].items() if k != "uid"}}
        for path, each in unit.api.objects.items()
    }
    plan = unit.container.plan.to_dict()
    plan.get("services", {}).pop(workload.WAKE, None)  # It stays, and runs only while it `wakes`.
    return {
        **objects,
        **{name: text for name, text in unit.files.items() if not name.startswith(_SECRET)},
        "plan": plan,
        "wakes": unit.wakes,
        "status": unit.state.unit_status,
        "ports": unit.state.opened_ports,
        "noted": unit.noted,
    }


def configured(unit: Unit, options: Options) -> dict[str, Any]:
    """What there is once the options are set, and the next event has come."""
    unit.run(unit.on.config_changed(), config=dict(options))
    unit.run()
    return made(unit)


def changed(unit: Unit, way: str, options: Options) -> dict[str, Any]:
    """The same, over a bad value, with which the unit perhaps starts anew."""
    if way != "at once":
        assert isinstance(unit.run(unit.on.config_changed(), config={**BAD}), testing.BlockedStatus)
        if way.startswith("replaced"):
            unit.replace()
    return configured(unit, options)


def differences(found: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    return sorted(key for key in {*found, *fresh} if found.get(key) != fresh.get(key))


class Application:
    """Makes new applications, and remembers what each set of options makes of one."""

    def __init__(self, new: Copies, folders: pytest.TempPathFactory) -> None:
        self._new, self._folders = new, folders
        self._fresh = dict[str, dict[str, Any]]()

    @contextmanager
    def begin(self) -> Iterator[Unit]:
        """Yield the unit of a new application, in a cluster with namespaces."""
        with self._new(self._folders.mktemp("application")) as unit:
            for name in NAMESPACES:
                unit.api.add_namespace(name)
            yield unit

    def walk(self, start: Options, steps: list[tuple[str, Options]]) -> Iterator[str]:
        """Yield each step after which something is otherwise than in a new application."""
        before = start
        with self.begin() as unit:
            configured(unit, start)
            for way, options in steps:
                if wrong := differences(changed(unit, way, options), self.fresh(options)):
                    yield f"from {before} to {options}, {way}: {', '.join(wrong)}"
                before = options

    def fresh(self, options: Options) -> dict[str, Any]:
        key = repr(sorted(options.items()))
        if key not in self._fresh:
            with self.begin() as unit:
                self._fresh[key] = configured(unit, options)
        return self._fresh[key]


@pytest.fixture
def application(
    installed: tuple[Copies, Copies], tmp_path_factory: pytest.TempPathFactory
) -> Application:
    return Application(installed[0], tmp_path_factory)


def every_pair() -> list[str]:
    """A walk that goes once from each set to each other."""
    names, walk = [*SETS], list[str]()
    for low, first in enumerate(names):
        for second in names[low + 1 :]:
            walk += [first, second]
        walk.append(first)
    return walk


def test_every_way_between_option_sets_ends_as_a_new_application_begins(
    application: Application,
) -> None:
    walk = every_pair()
    steps = [(WAYS[number % 3], SETS[name]) for number, name in enumerate(walk[1:])]
    assert [*application.walk(SETS[walk[0]], steps)] == []


@pytest.mark.nightly("five sets of options")
def test_no_walk_of_this_night_ends_otherwise_than_a_new_application(
    application: Application,
) -> None:
    dice = Random(f"options {NIGHT}")
    sets = [
        {name: dice.choice(values) for name, values in VALUES.items() if dice.random() < 0.5}
        for _ in range(15)
    ]
    steps = [(dice.choice(WAYS), dice.choice(sets)) for _ in range(300)]
    again = f"NIGHTLY={NIGHT} tox -e nightly -- tests/unit/charm/test_option_sets.py"
    assert sampled(again, application.walk({}, steps)) == []
