"""The charm's options: what Juju hands over, parsed once into a frozen `Config`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar, get_args

import namespaces
from applications import Applications, parse_applications, parse_namespaces

FailurePolicy = Literal["Ignore", "Fail"]
LogLevel = Literal["debug", "info", "warning", "error"]
QuitMode = Literal["on", "dry-run", "off"]
DeadProxy = Literal["report", "delete"]
StartMode = Literal["auto", "native", "hold", "off"]
Admission = Literal["auto", "webhook", "policy"]
RacePolicy = Literal["report", "restart", "off"]

T = TypeVar("T")

# apimachinery pkg/util/validation: IsDNS1123Label.
_CONTAINER: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


class InvalidOptionError(ValueError):
    """One or more options have a value that is not allowed; the message names each of them."""


@dataclass(frozen=True)
class Config:
    """The options, valid.

    Attributes:
        namespace_selector: the option as the user wrote it, which is also what the workload reads.
        namespace_label_selector: the same as a Kubernetes LabelSelector, for the webhook.
        failure_policy: what the API server does with a pod when the webhook does not answer.
        log_level: the least severe level that the workload logs.
        quit: whether the workload tells proxies to exit.
        quit_grace: seconds between the end of the last payload container and that.
        ignore_containers: names of containers that never keep a proxy alive, sorted.
        dead_proxy: what becomes of a pod whose proxy ended before its payload.
        start_mode: how the payload is made to start after its proxy.
        admission: who changes pods for that; `auto` goes by what the API server serves.
        race_policy: what becomes of pods that missed their sidecar.
        restart_jobs: whether those of Jobs may be restarted too.
        inject_applications: whose pods are to get a sidecar, one entry for each model.
        inject_namespaces: names of the namespaces whose pods are, sorted.
    """

    namespace_selector: str
    failure_policy: FailurePolicy
    log_level: LogLevel
    namespace_label_selector: Mapping[str, object] = field(default_factory=dict[str, object])
    quit: QuitMode = "on"
    quit_grace: int = 0
    ignore_containers: tuple[str, ...] = ()
    dead_proxy: DeadProxy = "report"
    start_mode: StartMode = "auto"
    admission: Admission = "auto"
    race_policy: RacePolicy = "report"
    restart_jobs: bool = False
    inject_applications: tuple[Applications, ...] = ()
    inject_namespaces: tuple[str, ...] = ()


def load(options: Mapping[str, object], model: str) -> Config:
    """Return the options of `config.yaml` as a `Config`.

    Args:
        options: value by name, with the defaults.
        model: the charm's own model, for applications that are named without one.

    Raises:
        InvalidOptionError: with a clause for each bad option: name, value, what is allowed.
    """
    problems: list[str] = []

    def parsed(name: str, parse: Callable[[str], T], default: T) -> T:
        try:
            return parse(str(options[name]))
        except ValueError as error:
            problems.append(f"{name}: {error}")
            return default

    nothing: Mapping[str, object] = {}
    selector = parsed("namespace-selector", namespaces.parse, nothing)
    applications = parsed("inject-applications", lambda text: parse_applications(text, model), ())
    meshed = parsed("inject-namespaces", parse_namespaces, ())
    ignored = str(options["ignore-containers"])
    containers = {name.strip() for name in ignored.split(",")} if ignored.strip() else set[str]()
    if not all(map(_CONTAINER.fullmatch, containers)):
        problems.append(
            f"ignore-containers: {json.dumps(ignored)}: expected container names"
            " separated by commas, such as cloud-sql-proxy,vault-agent"
        )
    grace = int(str(options["quit-grace"]))
    if grace < 0:
        problems.append(f"quit-grace: {grace}: expected seconds, 0 or more")
    for name, allowed in CHOICES.items():
        if options[name] not in allowed:
            problems.append(f"{name}: {json.dumps(options[name])}: expected {' or '.join(allowed)}")
    if problems:
        raise InvalidOptionError("; ".join(problems))
    return Config(
        namespace_selector=str(options["namespace-selector"]),
        namespace_label_selector=selector,
        failure_policy=options["failure-policy"],  # pyright: ignore[reportArgumentType]  checked above
        log_level=options["log-level"],  # pyright: ignore[reportArgumentType]  checked above
        quit=options["quit"],  # pyright: ignore[reportArgumentType]  checked above
        quit_grace=grace,
        ignore_containers=tuple(sorted(containers)),
        dead_proxy=options["dead-proxy"],  # pyright: ignore[reportArgumentType]  checked above
        start_mode=options["start-mode"],  # pyright: ignore[reportArgumentType]  checked above
        admission=options["admission"],  # pyright: ignore[reportArgumentType]  checked above
        race_policy=options["race-policy"],  # pyright: ignore[reportArgumentType]  checked above
        restart_jobs=options["restart-jobs"] is True,
        inject_applications=applications,
        inject_namespaces=meshed,
    )


CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "failure-policy": get_args(FailurePolicy),
    "log-level": get_args(LogLevel),
    "quit": get_args(QuitMode),
    "dead-proxy": get_args(DeadProxy),
    "start-mode": get_args(StartMode),
    "admission": get_args(Admission),
    "race-policy": get_args(RacePolicy),
}
