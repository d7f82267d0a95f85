"""The repair controller's knowledge depends on the present state alone, not on its history."""

from __future__ import annotations

import asyncio
import ssl
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.events import Events
from istio_aux.model import pod as pods
from istio_aux.model.annotations import DATAPLANE, REDIRECTION
from istio_aux.model.answers import Liveness
from istio_aux.model.applications import PodOptions, parse
from istio_aux.model.documents import run_now
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod
from istio_aux.model.selectors import NamespaceSelectors, Selector
from istio_aux.model.selectors import parse as parse_selector
from istio_aux.repair.controller import RepairController
from istio_aux.repair.rollout import Sidecar
from istio_aux.repair.rules import Candidate
from istio_aux.telemetry import Telemetry
from oracle.pods import pod as oracles
from unit.process import Led
from unit.repairing import BARE, SIDECAR, mesh
from unit.rules.pods import INJECT, JOB, REPLICAS, REPORT, RESTART, STATEFUL, raw

SPACES = ("shop", "bank")
INJECTS = "istio-injection=enabled"
LABELS = ({}, {"istio-injection": "enabled"}, {"istio-injection": "disabled"})
MESHES = (mesh(), mesh(Liveness.REFUSED), mesh(known=False))
FILES = ("", "bank/web", "bank/*\nshop/db")
CLIENT = Client(Access("https://127.0.0.1:1", ssl.create_default_context(), lambda: ""))


class World:
    """A controller that is told of changes, and how things are."""

    def __init__(self, random: Random) -> None:
        self.random, self.version = random, 0
        self.policy = random.choice([REPORT, RESTART, RESTART])
        web, injected = parse_selector("app.kubernetes.io/name=web"), parse_selector(INJECTS)
        self.options = PodOptions(
            namespaces=NamespaceSelectors(random.choice([(Selector(),), (injected, web)])),
            pods=random.choice([Selector(), web]),
            inject=random.choice([None, web]),
        )
        self.namespaces: dict[str, dict[str, str]] = {}
        self.pods: dict[str, Pod] = {}
        self.details: dict[str, dict[str, Any]] = {}
        self.mesh, self.file = MESHES[2], ""
        self.repair = self.newcomer()

    def newcomer(self) -> RepairController:
        """A controller that knows namespaces and nothing else, and does nothing."""
        telemetry, events = Telemetry(), Events(CLIENT, "host")
        return RepairController(
            CLIENT, self.namespaces, telemetry, events, policy=self.policy, options=self.options,
            clock=lambda: Moment(0.0, 0.0), leadership=Led(),
        )  # fmt: skip

    def happen(self) -> None:
        """Something is different."""
        choose = self.random.choice
        match self.random.randrange(7):
            case 0:
                self.mesh = choose(MESHES)
                self.repair.store.set_injectors(self.mesh)
            case 1:
                namespace = choose(SPACES)
                self.namespaces[namespace] = dict(choose(LABELS))
                self.repair.store.invalidate(namespace)
            case 2:
                self.file = choose(FILES)
                self.repair.store.set_applications(parse(self.file)[0])
            case 3 if self.pods:
                pod = self.pods.pop(choose(sorted(self.pods)))
                self.repair.store.delete(pod.metadata.key, pod)
            case _:
                self.apply(self.pod(choose(SPACES), self.random.randrange(6)))

    def apply(self, pod: Pod) -> None:
        self.pods[pod.metadata.uid] = pod
        self.repair.store.apply(pod)

    def pod(self, namespace: str, number: int) -> Pod:
        choose = self.random.choice
        self.version += 1
        owner = choose([REPLICAS, STATEFUL, JOB, None])
        new: dict[str, Any] = {
            "owner": (owner, f"{owner} {self.random.randrange(2)}"),
            "labels": {
                "app.kubernetes.io/name": choose(["web", "db"]),
                **choose([{}, {INJECT: "true"}]),
            },
            "annotations": choose([{}, {INJECT: "false"}]),
            "phase": choose(["Pending", "Running", "Unknown"]),
            "ready": choose([True, False]),
            "deleting": choose([True, False, False]),
        }
        # Mostly one thing changes.
        known = self.details.setdefault(f"{namespace}-{number}", new)
        changed = choose(sorted(new))
        known[changed] = new[changed]
        details = {name: value for name, value in known.items() if name != "owner"}
        owner, owner_uid = known["owner"]
        # A pod keeps its spec (k8s@1.36 validation.go ValidatePodUpdate).
        return pods.convert(
            raw(
                SIDECAR if number % 3 == 0 else BARE, name=f"web-{number}", namespace=namespace,
                uid=f"{namespace}-{number}", version=str(self.version),
                owner=owner, owner_uid=owner_uid, spec={"hostNetwork": number == 5}, **details,
            )
        )  # fmt: skip


def known(repair: RepairController) -> tuple[Any, ...]:
    """All that a controller knows, without the order in which it learned it."""
    asyncio.run(repair.store.catch_up())
    owners = {
        uid: (str(owner), sorted((r.key, r.replica) for r in owner.pods))
        for uid, owner in repair.store.owners.items()
    }
    said = {
        (pod.namespace, pod.name): (pod.owner, pod.reason) for pod in run_now(repair.unmeshed())
    }
    return (
        said,
        repair.store.count(Sidecar.UNKNOWN),
        len(repair.store.pods),
        owners,
        repair.applications(),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_process_that_saw_all_changes_knows_what_a_new_one_finds(seed: int) -> None:
    """istio#15873: level, not edge: also what is kept of a pod is enough to decide on it again."""
    world = World(Random(seed))
    for _ in range(30):
        world.happen()
    newcomer = world.newcomer()
    for pod in world.pods.values():
        newcomer.store.apply(pod)
    newcomer.store.set_applications(parse(world.file)[0])
    newcomer.store.set_injectors(world.mesh)
    assert known(world.repair) == known(newcomer)
    whole = {pod.metadata.key: Candidate.of(pod) for pod in world.pods.values()}
    for key, stored in world.repair.store.pods.items():
        assert stored.candidate in (None, whole[key])


TORCH = [(f"kubeflow.org/{version}", "PyTorchJob") for version in ("v1", "v2")]
OWNERS = (JOB, REPLICAS, STATEFUL, ("example.com/v1", "Other"), *TORCH)
ANNOTATED = ("sidecar.istio.io/status", "kubernetes.io/config.mirror")
PLACES = ["shop", "kubeflow", "team"]
NETWORK = "PodReadyToStartContainers"


def generated(number: int) -> Pod:
    """One of the oracle's pods, mostly without a proxy, with what repair reads beside it."""
    random, document = Random(number), oracles(1, number)
    metadata, spec, status = document["metadata"], document["spec"], document["status"]
    if random.random() < 0.95:
        for containers in ("containers", "initContainers"):
            spec[containers] = [it for it in spec[containers] if it["name"] != "istio-proxy"]
    spec["hostNetwork"] = random.random() < 0.05
    status["conditions"][0]["status"] = random.choice(["True", "False"])
    injection = random.choice([{}, {}, {INJECT: "true"}, {INJECT: "false"}, {INJECT: "maybe"}])
    mark = {random.choice(ANNOTATED): ""} if random.random() < 0.05 else {}
    captured = random.choice([{}, {REDIRECTION: "enabled"}, {REDIRECTION: "pending"}])
    status |= {"podIP": random.choice(["", "10.0.0.7"]), "startTime": "2026-11-21T08:16:26Z"}
    network = f"2026-11-21T{random.choice([8, 9]):02}:16:30Z"
    status["conditions"] += [{"type": NETWORK, "status": "True", "lastTransitionTime": network}]
    name = random.choice(["web", "db", "istio-aux"])
    owners = [
        {"apiVersion": api, "kind": kind, "name": "web", "uid": f"{kind}-1", "controller": True}
        for api, kind in random.sample(OWNERS, random.choice([0, 1, 1, 1, 1, 2]))
    ]
    document["metadata"] = {
        **metadata, "name": f"web-{number}", "namespace": random.choice(PLACES),
        "resourceVersion": "41", "creationTimestamp": "2026-11-21T08:16:26Z",
        "ownerReferences": owners, "annotations": {**injection, **mark, **captured},
        "labels": {
            "app.kubernetes.io/name": name,
            **random.choice([{}, {}, {}, {INJECT: "true"}, {DATAPLANE: "ambient"}]),
        },
    }  # fmt: skip
    return pods.convert(document)
