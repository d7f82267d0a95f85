"""What the workload sends to quit a container is what admission allows, by the rendered policy.

`tests/cluster/test_exec_policy.py` shows that the API server reads the policy's lists like this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from istio_aux import settings
from istio_aux.model.annotations import STATUS_PORT
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import Policy, Rung
from istio_aux.model.sidecars import SHIPPED
from istio_aux.quit import rules as quitting
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Blocker, Quit, Wait
from unit.rules.pods import RUNNING, exited, job

import config
import workload

from .test_security import granted, rendered
from .test_workload import NAMES, OPTIONS

Execution = tuple[str, tuple[str, ...]]
"""A container, and a command in it."""

PORTS = (0, 1, 8080, *range(14_990, 15_100), 65_535)
SIDECARS = (
    "",
    *SHIPPED,
    ",".join(SHIPPED),
    "helper=/bin/kill -TERM 1",
    "helper=9000/stop",
    "a=stop,b=/bin/sh -c exit,c=1/,vault-agent=kill 1,d=K --f=x;y|z $(1) 'q' \"q\" \\ {} [?x]",
)


def sent(policy: Policy, ports: Iterable[int]) -> set[Execution]:
    """All that is executed in pods with these status ports, and with each sidecar."""
    done, proxy = exited(0), {PROXY: RUNNING}
    pods = [
        *(job({"main": done, **proxy}, annotations={STATUS_PORT: f"{p}"}) for p in ports),
        *(job({"main": done, rule.container: RUNNING, **proxy}) for rule in policy.sidecars),
    ]
    return {
        each for pod in pods for each in executions(quitting.decide(PodFacts(pod, policy), None))
    }


def executions(decision: quitting.Action) -> Iterator[Execution]:
    """As the quit controller sends them."""
    if isinstance(decision, Wait):
        assert decision.blocked_by == (Blocker("quit-via", "option"),)
        return
    assert isinstance(decision, Quit)
    for rung in decision.rungs:
        if rung is not Rung.PORT_FORWARD:
            rule, port = decision.rule, decision.status_port
            yield decision.target, rule.command if rule else quitting.command(rung, port)


def allowed(objects: list[dict[str, Any]]) -> set[Execution]:
    """What roles and policy allow to execute."""
    if ("ClusterRole", "pods/exec", "get") not in granted(objects):
        return set()
    rules = {
        rule["message"]: rule["expression"]
        for found in objects
        if found["kind"] == "ValidatingAdmissionPolicy"
        for rule in found["spec"]["validations"]
    }
    name = "variables.options.?container.orValue('')"
    by_name = re.fullmatch(
        rf"!variables.executes \|\| {re.escape(name)} in (\{{.*\}})",
        rules["executes in the containers that it makes exit only"],
    )
    by_command = re.fullmatch(
        r"!variables.executes \|\| variables.options.\?command.orValue\(\[\]\) in (\{.*\})"
        rf"\[\?{re.escape(name)}\].orValue\(\[\]\)",
        rules["executes the commands that make a container exit only"],
    )
    assert by_name
    assert by_command
    assert by_name[1] == by_command[1]
    # JSON strings, lists and maps are CEL.
    lists = json.loads(by_command[1])
    return {(name, tuple(command)) for name, commands in lists.items() for command in commands}


def policy_of(options: dict[str, Any], folder: Path) -> Policy:
    """The workload's, from the settings that the charm writes."""
    defaults = {name: option["default"] for name, option in OPTIONS.items()}
    file = folder / "config.yaml"
    loaded = config.load(defaults | options, "kubeflow")
    file.write_text(yaml.safe_dump(workload.settings(loaded, NAMES)))
    return settings.load(file).quit_policy


@pytest.mark.parametrize("sidecars", SIDECARS)
@pytest.mark.parametrize("via", config.CHOICES["quit-via"])
def test_what_is_sent_is_allowed_and_nothing_else(via: str, sidecars: str, tmp_path: Path) -> None:
    options = {"quit-via": via, "quit-sidecars": sidecars}

    assert sent(policy_of(options, tmp_path), PORTS) == allowed(rendered(options))


@pytest.mark.parametrize("quit_", ["dry-run", "off"])
def test_nothing_may_be_executed_if_nothing_is_quit(quit_: str) -> None:
    assert allowed(rendered({"quit": quit_, "quit-sidecars": "helper=kill 1"})) == set()
