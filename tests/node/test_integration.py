"""A dry run of the integration tests that need no other charm, by the stand-in for Juju.

Waits, predicates and the reading of `juju status` are jubilant's own, kubectl and the API server
are real. What Juju itself would do is not shown: see lab/juju.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import jubilant
import lab
import lab.juju
import pytest
from lab import tools

pytestmark = pytest.mark.nightly("tox -e integration-collect reads them")
FOLDER = Path(__file__).resolve().parents[1] / "integration"
GIVEN = {"juju", "charm", "image", "profile"}


def _story() -> dict[str, Callable[..., None]]:
    """The tests of test_charm.py that need nothing but these fixtures, in their order."""
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("real_juju", FOLDER / "test_charm.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    return {n: test for n, test in tests.items() if {*inspect.signature(test).parameters} <= GIVEN}


STORY = _story()
helpers = sys.modules["helpers"]


class Juju:
    """What the tests call of `jubilant.Juju`, answered by the stand-in."""

    wait_timeout = 400

    def __init__(self, there: lab.juju.Model) -> None:
        self._there, self.model = there, there.name

    def deploy(self, charm: Path, app: str, *, trust: bool, resources: Mapping[str, str]) -> None:
        assert resources == {helpers.IMAGE: "of this checkout"}
        assert self._there.deploy(charm, trust=trust).name == app

    def trust(self, app: str, *, scope: str) -> None:
        assert scope == "cluster"
        self._there.apps[app].trust()

    def config(self, app: str, values: Mapping[str, Any] | None = None, *, reset: str = "") -> None:
        options = (
            {reset: self._there.apps[app]._metadata.options[reset]["default"]} if reset else {}
        )
        self._there.apps[app].configure(**options, **(values or {}))

    def cli(self, command: str, app: str, number: str) -> None:
        assert command == "scale-application"
        self._there.apps[app].scale(int(number))

    def remove_application(self, app: str) -> None:
        self._there.apps[app].remove()

    def run(self, unit: str, action: str, parameters: Mapping[str, Any]) -> jubilant.Task:
        results = self._there.apps[unit.partition("/")[0]].action(action, **parameters).results
        task = jubilant.Task("1", "failed" if results["failed"] else "completed")
        if results["failed"]:
            raise jubilant.TaskError(task)
        return task

    def wait(self, ready: Callable[[jubilant.Status], bool], **how: Any) -> jubilant.Status:
        return jubilant.Juju.wait(cast("jubilant.Juju", self), ready, **how)

    def _cli(self, *command: str, **_: Any) -> tuple[str, str]:
        """What `juju status --format json` prints, of the stand-in's store."""
        assert command == ("status", "--format", "json")
        units = self._there.store.read()["units"]
        apps: dict[str, Any] = {}
        for app in self._there.apps.values():
            own = {name: unit for name, unit in units.items() if unit["application"] == app.name}
            apps[app.name] = {
                **dict.fromkeys(("charm", "charm-origin", "charm-name"), app.name),
                "charm-rev": 0,
                "exposed": False,
                "application-status": _shown(*app.status()),
                "units": {
                    name: {
                        "workload-status": _shown(**unit["status"]),
                        "juju-status": _shown(**unit["agent"]),
                    }
                    for name, unit in own.items()
                },
            }
        model = dict.fromkeys(("name", "type", "controller", "cloud", "version"), "lab")
        return json.dumps({"model": model, "machines": {}, "applications": apps}), ""


def _shown(status: str, message: str) -> dict[str, str]:
    return {"current": status, "message": message}


@pytest.fixture(scope="module")
def juju(cluster: lab.Cluster) -> Iterator[Juju]:
    """A model, and kubectl with its cluster."""
    with (
        pytest.MonkeyPatch.context() as patch,
        lab.juju.Model(cluster, f"dry-{secrets.token_hex(3)}") as model,
    ):
        patch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        patch.setenv("PATH", str(tools.path("kubectl").parent), prepend=":")
        yield Juju(model)


@pytest.fixture(scope="module")
def profile(juju: Juju) -> str:
    """A namespace as the profile controller makes it; it goes with the cluster."""
    helpers.kubectl("create", "namespace", helpers.PROFILE)
    helpers.kubectl("label", "namespace", helpers.PROFILE, *helpers.PROFILE_LABELS)
    return helpers.PROFILE


@pytest.mark.parametrize("name", STORY)
def test_the_stand_in_tells_the_story(name: str, request: pytest.FixtureRequest) -> None:
    STORY[name](
        **{
            needed: "of this checkout" if needed == "image" else request.getfixturevalue(needed)
            for needed in inspect.signature(STORY[name]).parameters
        }
    )
