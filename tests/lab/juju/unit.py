"""One unit: its pod with charm and containers, and the queue of events that it has yet to see.

The packed charm is unpacked once. A dispatch of it has an environment, a private root, an outcome.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import hashlib
import ipaddress
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lab import Cluster, Process
from tools import cache, interpreters
from tools.errors import ToolError

from . import hooktools
from .container import CREDENTIALS, GONE, PATH, Bind, Container, Image, User, interpreter, rooted
from .store import State, Store


@dataclasses.dataclass(frozen=True)
class Metadata:
    """A charm's metadata.yaml, config.yaml and actions.yaml, as far as they matter here."""

    name: str
    charm_user: str
    containers: Mapping[str, User]
    peers: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]
    actions: Mapping[str, Any]

    @classmethod
    def read(cls, charm: Path) -> Metadata:
        with zipfile.ZipFile(charm) as archive:
            present = set(archive.namelist())
            metadata, config, actions = (
                yaml.safe_load(archive.read(name)) if name in present else {}
                for name in ("metadata.yaml", "config.yaml", "actions.yaml")
            )
        containers: dict[str, Any] = metadata.get("containers") or {}
        return cls(
            name=metadata["name"],
            charm_user=metadata.get("charm-user", "root"),
            containers={
                name: User((of or {}).get("uid", 0), (of or {}).get("gid", 0), "_daemon_")
                for name, of in containers.items()
            },
            peers=tuple(metadata.get("peers") or ()),
            options=config.get("options") or {},
            actions=actions or {},
        )

    def config(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that have a value: the given ones over the defaults."""
        merged = {**{name: option.get("default") for name, option in self.options.items()}, **given}
        return {name: value for name, value in merged.items() if value is not None}

    def parameters(self, action: str, given: Mapping[str, Any]) -> dict[str, Any]:
        properties: dict[str, Any] = self.actions[action].get("params") or {}
        defaults = {name: of["default"] for name, of in properties.items() if "default" in of}
        return {**defaults, **given}


def hand_out(charm: Path, folder: Path, *, python: Path, user: User) -> None:
    """Make `folder` the charm's content, owned by the user; its bytecode is there already."""
    source = _unpacked(charm, python, user)
    # What a unit writes are new files: nothing in a charm changes its own code in place.
    shutil.copytree(source, folder, symlinks=True, copy_function=_link, dirs_exist_ok=True)
    for path, _, _ in os.walk(folder):
        os.chown(path, user.uid, user.gid)


def _unpacked(charm: Path, python: Path, user: User) -> Path:
    key = hashlib.sha256(charm.read_bytes() + f"{python} {user.uid}".encode()).hexdigest()[:16]

    def unpack(folder: Path) -> None:
        _extract(charm, folder)
        # Once, so that no unit's first dispatch compiles what it imports. What does not compile is
        # for a dispatch to say.
        subprocess.run(
            [python, "-m", "compileall", "-q", str(folder)], capture_output=True, check=False
        )
        for path in folder.rglob("*"):
            os.chown(path, user.uid, user.gid, follow_symlinks=False)

    return cache.once("unpacked", key, unpack, saying="unpacking the charm")


def _link(source: str, target: str) -> str:
    Path(target).unlink(missing_ok=True)
    os.link(source, target)
    return target


def _extract(charm: Path, folder: Path) -> None:
    with zipfile.ZipFile(charm) as archive:
        for entry in archive.infolist():
            path = archive.extract(entry, folder)
            # zipfile drops the permissions that an archive made on Unix keeps here.
            if mode := entry.external_attr >> 16 & 0o777:
                Path(path).chmod(mode)


VERSION = "3.6.13"
# A first dispatch takes 2 s; a charm that hangs is told apart from one that works.
TIMEOUT = 120
# charm-user of metadata.yaml (Juju 3.6: caas/kubernetes/provider/constants).
USERS = {"root": User(), "sudoer": User(171, 171, "sjuju"), "non-root": User(170, 170, "juju")}


@dataclasses.dataclass(frozen=True)
class Event:
    """An event for one unit: the name in JUJU_DISPATCH_PATH and what else the environment says."""

    name: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    # What the hook tools have to know, "relation" and "action"; and whether its changes are "lost".
    context: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a dispatch went."""

    event: str
    began: float  # When, in seconds since the epoch.
    environment: Mapping[str, str]  # What the event added to the environment.
    status: int
    tools: tuple[str, ...]  # The hook tools that were called, in order, without juju-log.
    log: tuple[str, ...]  # What went to juju-log.
    # Of an action: its `results`, and why it `failed`, if it did.
    results: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


class DispatchError(ToolError):
    """A hook failed, or its event's name reached no handler; the message ends with the log."""


class Charm:
    """The unpacked charm of one unit and all it takes to dispatch it."""

    def __init__(self, cluster: Cluster, folder: Path, *, label: str) -> None:
        """Keep what it needs below `folder`; `label` names the dispatches in the cluster's logs."""
        self._cluster, self._folder, self._label = cluster, folder, label
        self._network = Path()  # See `place`.
        self._process: Process | None = None
        self._user = USERS["root"]
        self._python, _ = interpreters.shipped()
        self._hooks = folder / "hooks"
        self._numbers = itertools.count(1)
        for name in ("containers", "root-charm", "hooks", "tools", "serviceaccount"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        hooktools.install(folder / "tools")
        interpreters.link(self._python, folder / "python")

    def place(self, charm: Path, network: Path) -> None:
        """Unpack the charm in a new pod, which has no earlier state and this `network`."""
        self._network = network
        self.metadata = Metadata.read(charm)
        self._user = USERS[self.metadata.charm_user]
        shutil.rmtree(self._folder / "charm", ignore_errors=True)
        hand_out(charm, self._folder / "charm", python=self._python, user=self._user)

    def kill(self) -> None:
        if self._process:
            self._process.kill()

    def run(self, unit: str, event: Event, store: Store, environment: Mapping[str, str]) -> Outcome:
        """Dispatch one event and promote what it did when it succeeds. Raises DispatchError."""
        hook = self._hooks / f"{next(self._numbers):04}-{event.name.replace('/', '-')}"
        store.open_hook(hook, event.context)
        model = store.read()["model"]
        home = f"/var/lib/juju/agents/unit-{unit.replace('/', '-')}"
        command = rooted(
            [f"{home}/charm/dispatch"],
            mount_point=self._folder / "root-charm",
            binds=self._binds(home, hook),
            environment={
                **environment,
                **_environment(unit, model, event),
                "PATH": os.pathsep.join([f"{self._folder}/tools", f"{self._folder}/python", PATH]),
                "JUJU_CONTEXT_ID": str(hook),
                "JUJU_CHARM_DIR": f"{home}/charm",
                "CHARM_DIR": f"{home}/charm",
            },
            folder=f"{home}/charm",
            network=self._network,
            user=self._user,
        )
        with hooktools.answering(hook, unit):
            for path in (hook, *hook.iterdir()):
                os.chown(path, self._user.uid, self._user.gid)
            began = time.time()
            self._process = process = self._cluster.spawn(self._label, command)
            status = process.wait(TIMEOUT)
        state = json.loads((hook / "state.json").read_text())
        if unit not in state["units"]:
            raise DispatchError(f"{unit}: {event.name}: the unit was removed before its hook began")
        lost, refused = event.context.get("lost", False), store.refuses(hook, unit)
        store.close_hook(hook, unit, succeeded=status == 0 and not lost and not refused)
        if refused:
            raise DispatchError(f"{unit}: {event.name}: cannot apply changes: permission denied")
        outcome = _outcome(event, began, status, hook, state["units"][unit])
        self._check(unit, outcome, process.log)
        return outcome

    def _binds(self, home: str, hook: Path) -> Sequence[Bind]:
        folder = self._folder
        return [
            *interpreter(self._python),
            Bind(folder / "charm", f"{home}/charm", writable=True),
            Bind(folder / "containers", "/charm/containers", writable=True),
            Bind(folder / "serviceaccount", CREDENTIALS),
            Bind(folder / "tools", str(folder / "tools")),
            Bind(folder / "python", str(folder / "python")),
            Bind(hook, str(hook), writable=True),
        ]

    def _check(self, unit: str, outcome: Outcome, log: Path) -> None:
        """Raise unless ops says that a handler ran: an unknown event ends with status 0."""
        emitted = any("Emitting Juju event" in line for line in outcome.log)
        if outcome.status == 0 and emitted:
            return
        went = f"exit status {outcome.status}" if emitted else "no handler ran: unknown event?"
        tail = [*outcome.log[-15:], *log.read_text(errors="replace").splitlines()[-25:]]
        raise DispatchError(f"{unit}: {outcome.event}: {went}\n" + "\n".join(tail))


def _environment(unit: str, model: State, event: Event) -> dict[str, str]:
    """Return what every dispatch has, and what this event adds."""
    kind, _, name = event.name.rpartition("/")
    return {
        "JUJU_DISPATCH_PATH": event.name if kind else f"hooks/{name}",
        "JUJU_HOOK_NAME": "" if kind else name,
        "JUJU_UNIT_NAME": unit,
        "JUJU_MODEL_NAME": model["name"],
        "JUJU_MODEL_UUID": model["uuid"],
        "JUJU_VERSION": VERSION,
        "LANG": "C.UTF-8",
        "HOME": "/tmp",
        **event.environment,
    }


def _outcome(event: Event, began: float, status: int, hook: Path, unit: State) -> Outcome:
    tools, log = (tuple((hook / name).read_text().splitlines()) for name in ("tools", "log"))
    return Outcome(event.name, began, event.environment, status, tools, log, unit.get("action", {}))


# Changes that Pebble's checks make, with the status that tells (Juju's agent, 3.6).
_CHECKS = {"perform-check": ("Error", "failed"), "recover-check": ("Done", "recovered")}
# One number for each pod of the process, for networks that must not collide.
_INDICES = itertools.count(1)
# From a container's start to its first probe; until then it is not ready. Juju: 30 s.
_PROBE_SECONDS = 3.0
# Seconds that a pod has from SIGTERM to SIGKILL (Kubernetes' default, which Juju keeps).
GRACE = 30

# Apart from the lab's own bridge and its pods; one small network a pod.
_NETWORKS = ipaddress.ip_network("10.251.0.0/16")


class Unit:
    """A unit of an application; `Model` drives it.

    Attributes:
        address: that of its present pod.
        queue: the events that it has yet to see.
        history: how its dispatches went.
        turn: the lock of the hook that runs.
        containers: those of its present pod, by name.
        away: it has no pod, or one that terminates.
        leaving: it is removed, and sees nothing more of what is queued.
        retry_at: when, by the monotonic clock, the hook that failed may be tried again.
    """

    def __init__(
        self, cluster: Cluster, name: str, folder: Path, environment: Mapping[str, str]
    ) -> None:
        """Make a unit without a pod; `environment` is that of each container."""
        self.name, self.folder, self.address = name, folder, ""
        self.queue: collections.deque[Event] = collections.deque()
        self.history: list[Outcome] = []
        self.turn = threading.Lock()
        self.away, self.leaving = True, False
        self.retry_at = 0.0
        self._attempts = 0
        self.charm = Charm(cluster, folder, label=f"juju-{name.replace('/', '-')}")
        self._cluster, self._environment = cluster, environment
        self._network = Path()  # See `start`.
        self.containers: dict[str, Container] = {}
        self._booted: dict[str, str] = {}
        self._noticed: dict[str, datetime.datetime] = {}
        self._probed: dict[str, tuple[str | None, float]] = {}

    def start(self, charm: Path, images: Mapping[str, Image]) -> None:
        """Start a pod with this charm and a container for each image; nothing is left of before."""
        self._network, self.address = _network(self._cluster, self.folder, next(_INDICES))
        self.charm.place(charm, self._network)
        self._booted.clear()
        self._noticed.clear()
        self.containers.clear()
        self.boot(images)
        self.away = False

    def boot(self, images: Mapping[str, Image]) -> None:
        for name, image in images.items():
            self.containers[name] = Container(
                self._cluster,
                name,
                self.folder,
                label=f"{self.name.replace('/', '-')}-{name}",
                image=image,
                environment=self._environment,
                network=self._network,
                user=self.charm.metadata.containers[name],
            )

    def terminate(self) -> None:
        """Let the containers end by themselves, as the kubelet does first; then kill them."""
        for container in self.containers.values():
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(container.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            for container in self.containers.values():
                container.process.wait(GRACE)
        self._kill_containers()

    def kill(self) -> None:
        """Kill the containers and the hook that runs, as a node does that fails."""
        self.charm.kill()
        self._kill_containers()

    def _kill_containers(self) -> None:
        for container in self.containers.values():
            container.process.end()

    def ready(self) -> bool:
        """Say whether the pod is there and every container passes its readiness probe."""
        containers = self.containers.values()
        return not self.away and bool(containers) and all(map(self._probe, containers))

    def _probe(self, container: Container) -> bool:
        boot, now = container.boot_id(), time.monotonic()
        known, since = self._probed.get(container.name, (None, now))
        if boot is None or boot != known:
            self._probed[container.name] = boot, now
            return False
        return now > since + _PROBE_SECONDS and container.ready()

    def run(self, event: Event, store: Store) -> Outcome:
        """Dispatch one event now and remember its outcome. Raises as `Charm.run` does."""
        outcome = self.charm.run(self.name, event, store, self._environment)
        self.history.append(outcome)
        return outcome

    def fail(self, event: Event, first: float, most: float) -> None:
        """Put an event that failed before all others, until its next attempt is due."""
        self.queue.appendleft(event)
        self.retry_at = time.monotonic() + min(first * 2**self._attempts, most)
        self._attempts += 1

    def succeed(self) -> None:
        """Forget that a hook has failed."""
        self._attempts, self.retry_at = 0, 0.0

    def poll(self) -> None:
        """Queue the events that the containers' Pebbles give rise to."""
        for container in self.containers.values():
            try:
                self._poll(container)
            except GONE:
                continue

    def _poll(self, container: Container) -> None:
        workload = {"JUJU_WORKLOAD_NAME": container.name}
        if (boot := container.boot_id()) and boot != self._booted.get(container.name):
            self._booted[container.name] = boot
            self.queue.append(Event(f"{container.name}-pebble-ready", workload))
        for notice in container.notices(self._noticed.get(container.name)):
            self._noticed[container.name] = notice.last_repeated
            if str(notice.type) in ("custom", "NoticeType.CUSTOM"):
                details = {"ID": notice.id, "TYPE": "custom", "KEY": notice.key}
                extra = {f"JUJU_NOTICE_{key}": value for key, value in details.items()}
                self.queue.append(
                    Event(f"{container.name}-pebble-custom-notice", {**workload, **extra})
                )
                continue
            telling, happened = _CHECKS.get(notice.last_data.get("kind", ""), ("", ""))
            change = container.change(notice.key) if telling else None
            if change and change.status == telling:
                check = {"JUJU_PEBBLE_CHECK_NAME": notice.last_data["check-name"]}
                self.queue.append(
                    Event(f"{container.name}-pebble-check-{happened}", {**workload, **check})
                )


def _network(cluster: Cluster, folder: Path, index: int) -> tuple[Path, str]:
    """Make a pod's network namespace; return its file, which the cluster sees, and address."""
    path = folder / f"network-{index}"
    ours, theirs = (_NETWORKS[4 * index + end] for end in (1, 2))
    path.touch()
    file, link = shlex.quote(str(path)), f"unit{index}"
    inside = f"nsenter --net={file} ip"
    script = f"""
        unshare --net={file} ip link set lo up
        ip link add {link} type veth peer name eth0 netns {file}
        ip address add {ours}/30 dev {link}
        ip link set {link} up
        {inside} address add {theirs}/30 dev eth0
        {inside} link set eth0 up
        {inside} route add default via {ours}
    """
    process = cluster.spawn(f"network-{index}", ["sh", "-euxc", script])
    if status := process.wait(30):
        raise ChildProcessError(f"network {index}: exit status {status}: {process.log}")
    return path, str(theirs)
