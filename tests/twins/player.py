"""Plays pairs on the lab's node beside the real Istio, and reports what became of each half.

The two Jobs of a pair are created one after the other, in two namespaces that Istio injects and of
which istio-aux looks after one. Each world has its Istio, and a service in its mesh that notes who
has called it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import lab.istio
from lab import images, workload
from lab.fixtures import await_root, make_namespace
from lab.meshed import PROXY
from lab.workload import Workload
from lab.workloads import Job, Pod
from lightkube import ApiError, Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import (
    ConfigMap,
    Event,
    LimitRange,
    Namespace,
    ResourceQuota,
    Service,
)
from lightkube.types import CascadeType, PatchType

from twins import judge
from twins.judge import Half
from twins.manifests import (
    KNOWN,
    KNOWN_WORDS,
    LABEL,
    NAME,
    PORT,
    PROXY_RESOURCES,
    SERVED,
    USUAL,
    Document,
    Moment,
    Pair,
    container,
)

NATIVE: Mapping[str, lab.istio.World] = {
    "unasked": "default", "on-request": "on request", "never": "never", "revision": "default",
}  # fmt: skip
TAG, OTHER = "twins-tag", "twins-other"
SERVICE = "server"
# It counts how often a container has called, and calls back the address that one may give.
ANSWER = f"""\
#!/bin/sh
who=${{QUERY_STRING%%&*}}
echo "$who" | tee -a /tmp/calls >/proc/1/fd/1
case $QUERY_STRING in
*back=*)
    at=${{QUERY_STRING##*back=}}
    (for n in $(seq 30); do wget -q -O- http://$at:{SERVED}/ && break; sleep 1; done
    ) </dev/null >/dev/null 2>&1 &
esac
printf 'Content-Type: text/plain\\r\\n\\r\\n'
grep -cx "$who" /tmp/calls
"""

_KINDS = {
    "ConfigMap": ConfigMap,
    "LimitRange": LimitRange,
    "ResourceQuota": ResourceQuota,
    "Service": Service,
    "PeerAuthentication": create_namespaced_resource(
        "security.istio.io", "v1", "PeerAuthentication", "peerauthentications"
    ),
    "Sidecar": create_namespaced_resource("networking.istio.io", "v1", "Sidecar", "sidecars"),
}


@dataclass(frozen=True)
class World:
    """An Istio of one kind, and a service in its mesh."""

    name: str
    cluster: lab.Cluster
    istio: lab.istio.Istio
    labels: Mapping[str, str]  # Of namespaces that it injects.
    settings: Mapping[str, str]  # Of a workload beside it.
    revisions: tuple[str, ...]
    server: str  # The address of the service's pod.
    namespace: str  # That of the service.


@contextlib.contextmanager
def world(cluster: lab.Cluster, name: str, *, cni: bool = False) -> Iterator[World]:
    """An Istio that makes sidecars native as this world says, until the block ends.

    ``cni``: whether its pods wait for istio-cni.
    """
    revision = f"twins-{name}"
    names, tags = [revision], [TAG] if name == "revision" else []
    istio = lab.istio.install(
        cluster, revision, revision=revision, native=NATIVE[name], tags=tags,
        resources=PROXY_RESOURCES, cni=cni,
    )  # fmt: skip
    with contextlib.ExitStack() as ends:
        client = ends.enter_context(cluster.client())
        ends.callback(istio.remove)
        # Other worlds may be there, too; in that of a tag, both of its Istios count.
        settings = {} if tags else {"root-namespace": revision}
        if tags:
            ends.callback(
                lab.istio.install(cluster, OTHER, revision=OTHER, native="never", cni=cni).remove
            )
            names.append(OTHER)
        labels = {"istio.io/rev": tags[0] if tags else revision}
        namespace = f"server-{secrets.token_hex(3)}"
        address = _serve(client, namespace, labels)
        ends.callback(client.delete, Namespace, namespace)
        yield World(name, cluster, istio, labels, settings, tuple(names), address, namespace)


def load(cluster: lab.Cluster) -> None:
    """Load the images of the pairs."""
    cluster.load(images.busybox())
    cluster.load(images.stand_in(KNOWN, *KNOWN_WORDS))


def _serve(client: Client, namespace: str, labels: Mapping[str, str]) -> str:
    """Start the service, which takes mutual TLS alone; return the address of its pod."""
    make_namespace(client, namespace, labels)
    await_root(client, namespace)
    strict = {"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
              "metadata": {"name": "strict"}, "spec": {"mtls": {"mode": "STRICT"}}}  # fmt: skip
    create(client, strict, namespace)
    about = {"metadata": {"name": SERVICE}}
    create(client, {"kind": "ConfigMap", **about, "data": {"call": ANSWER}}, namespace)
    ports = [{"name": "tcp", "port": PORT}]
    spec = {"clusterIP": "None", "selector": {"app": SERVICE}, "ports": ports}
    create(client, {"kind": "Service", **about, "spec": spec}, namespace)
    httpd = container("httpd", f": >/tmp/calls; exec httpd -f -p {PORT} -h /www")
    httpd["volumeMounts"] = [{"name": "www", "mountPath": "/www/cgi-bin"}]
    httpd["ports"] = [{"containerPort": PORT}]
    volume = {"name": "www", "configMap": {"name": SERVICE, "defaultMode": 0o755}}
    about = {"name": SERVICE, "namespace": namespace, "labels": {"app": SERVICE}}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [httpd], "volumes": [volume]}
    client.create(Pod.from_dict({"metadata": about, "spec": spec}))

    def address() -> str | None:
        status = client.get(Pod, SERVICE, namespace=namespace)["status"]
        ready = {c["type"] for c in status.get("conditions") or () if c["status"] == "True"}
        return status["podIP"] if "Ready" in ready else None

    return lab.until(address, what="the service in the mesh")


def create(client: Client, document: Document, namespace: str) -> None:
    """Create an object of what a namespace has beside Jobs."""
    metadata = {**document["metadata"], "namespace": namespace}
    client.create(_KINDS[document["kind"]].from_dict({**document, "metadata": metadata}))


QUIET = 75.0
"""Seconds without a change, after which what runs hangs: more than `judge.HANGS`."""
SETTLED = 10.0
"""The same where no Job can be found worse off by waiting."""
LONGEST = 420.0
"""Seconds for which a batch is watched, whatever still changes in it."""
KILLED, BACK = 6.0, 25.0
"""Seconds after the pods' start when the workload is killed, and when it is started again."""
GATE = LABEL
IN = "lab.test/twins-world"


class Played(NamedTuple):
    """A pair, with what became of it with istio-aux, and without."""

    pair: Pair
    ours: Half
    twin: Half


def play(
    beside: World, folder: Path, pairs: Sequence[Pair], moment: Moment = USUAL
) -> list[Played]:
    """Play pairs side by side; returns when all have ended, or nothing changes any more."""
    number = secrets.token_hex(3)
    name = f"twins-{number}"
    settings = {**beside.settings, "quit": moment.quit}
    _await_gone(beside)
    with (
        workload.program(
            beside.cluster, folder / name, name, settings, publish=True,
            revisions=beside.revisions,
        ) as program,
        _places(beside, program, pairs, number) as places,
        beside.cluster.client() as client,
    ):  # fmt: skip
        batch = _Batch(client, beside, number, places, gated=bool(moment.istiod))
        for at, place in enumerate(places):
            batch.create(place, reverse=at % 2 == 1)
        batch.watch(_outages(batch, program, moment))
        return batch.halves()


def _await_gone(beside: World) -> None:
    """Return when no pod of an earlier batch is left: the node has room for 110."""
    labels: dict[str, Any] = {IN: beside.name}
    with beside.cluster.client() as client:
        lab.until(
            lambda: not [*client.list(Pod, namespace="*", labels=labels)],
            what="the pods of the last batch to be gone",
        )


@dataclass(frozen=True)
class _Place:
    """A pair, and its namespaces with istio-aux and without."""

    pair: Pair
    namespaces: tuple[str, str]


@contextlib.contextmanager
def _places(
    beside: World, program: Workload, pairs: Sequence[Pair], number: str
) -> Iterator[list[_Place]]:
    """Namespaces for pairs; those share them that want the same of them."""
    shared: dict[str, tuple[str, str]] = {}
    places: list[_Place] = []
    with beside.cluster.client() as client:
        for at, pair in enumerate(pairs):
            kinds = {each["kind"] for each in pair.around}
            # What a quota allows, other pods must not use.
            alone = at if "ResourceQuota" in kinds else None
            wanted = [each for each in pair.around if each["kind"] not in {"ConfigMap", "Service"}]
            key = json.dumps([alone, wanted, dict(pair.labels)])
            if key not in shared:
                names = (f"with-{number}-{len(shared)}", f"without-{number}-{len(shared)}")
                for each in names:
                    make_namespace(client, each, {**beside.labels, **pair.labels})
                    for document in wanted:
                        create(client, document, each)
                shared[key] = names
            places.append(_Place(pair, shared[key]))
        for ours, twin in shared.values():
            program.select(ours)
            await_root(client, ours)
            await_root(client, twin)
        _await_admission(client, program, shared.values())
        yield places
        for names in shared.values():
            for each in names:
                client.deletecollection(Job, namespace=each, cascade=CascadeType.BACKGROUND)
                client.deletecollection(Pod, namespace=each, grace_period=1)
                client.delete(Namespace, each)


def _await_admission(client: Client, program: Workload, names: Any) -> None:
    """Return when Istio injects all namespaces, and istio-aux changes pods of those that it has."""
    lab.until(
        lambda: program.status().get("capability", "unknown") != "unknown",
        what="istio-aux to know whether sidecars can be native",
    )

    def made(namespace: str) -> str:
        about = {
            "generateName": "probe-", "namespace": namespace,
            "annotations": {"istio-aux.io/start": "hold"},
        }  # fmt: skip
        small = {"requests": {"memory": "8Mi", "cpu": "1m"}}
        spec = {"containers": [container("main", "true", resources=small)]}
        pod = Pod.from_dict({"metadata": about, "spec": {**spec, "restartPolicy": "Never"}})
        try:
            return json.dumps(client.create(pod, dry_run=True).to_dict())
        except ApiError as error:
            if "PodSecurity" in str(error) or "violates" in str(error):
                return f"{PROXY} holdApplicationUntilProxyStarts"  # No pod is admitted there.
            raise

    for ours, twin in names:
        lab.until(
            lambda ours=ours, twin=twin: (
                PROXY in made(twin)
                and all(mark in made(ours) for mark in (PROXY, "holdApplicationUntilProxyStarts"))
            ),
            what=f"pods of {ours} to be held, and those of {twin} to be injected",
            ignoring=(ApiError,),
        )


Act = tuple[float, Callable[[], object]]


def _outages(batch: _Batch, program: Workload, moment: Moment) -> list[Act]:
    """Begin the batch's outages, and return what is due later, by seconds after their begin."""
    acts: list[Act] = []
    if moment.istiod:
        istio = batch.beside.istio
        batch.await_pods()
        istio.go_away()
        batch.open()
        acts.append((moment.istiod, istio.come_back))
    if moment.workload == "killed":
        acts += [(KILLED, program.process.kill), (BACK, program.start)]
    return sorted(acts, key=lambda act: act[0])


@dataclass
class _Batch:
    """Jobs that run side by side, and their pods as they were last seen."""

    client: Client
    beside: World
    number: str
    places: Sequence[_Place]
    gated: bool
    began: float = field(default_factory=time.monotonic)
    jobs: dict[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any])
    pods: dict[str, Any] = field(default_factory=dict[str, Any])
    ends: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])

    def create(self, place: _Place, *, reverse: bool) -> None:
        """Create both Jobs of a pair in one order or the other, with what is theirs alone."""
        for namespace in place.namespaces:
            for document in place.pair.around:
                if document["kind"] in {"ConfigMap", "Service"}:
                    create(self.client, self._filled(place.pair, document, namespace), namespace)
        for namespace in sorted(place.namespaces, reverse=reverse):
            job = self._filled(place.pair, place.pair.job, namespace)
            template = job["spec"]["template"]
            for about in (job["metadata"], template.setdefault("metadata", {})):
                mine = {LABEL: self.number, IN: self.beside.name}
                about["labels"] = {**(about.get("labels") or {}), **mine}
            if self.gated:
                template["spec"]["schedulingGates"] = [{"name": GATE}]
            job["metadata"]["namespace"] = namespace
            self.client.create(Job.from_dict(job))

    def await_pods(self) -> None:
        """Return when each Job has a pod, but for those that get none."""
        seen, since = -1, time.monotonic()

        def quiet() -> bool:
            nonlocal seen, since
            self.look()
            if len(self.pods) != seen:
                seen, since = len(self.pods), time.monotonic()
            return seen == len(self.jobs) or time.monotonic() - since > SETTLED

        lab.until(quiet, what="the Jobs to create their pods", every=1)

    def open(self) -> None:
        """Let all pods start."""
        self.gated = False
        self.began = time.monotonic()
        self.look()

    def watch(self, acts: list[Act]) -> None:
        """Look at Jobs and pods until all is over or quiet, and do what is due."""
        changed, before = time.monotonic(), None
        while self.passed < LONGEST:
            while acts and self.passed >= acts[0][0]:
                acts.pop(0)[1]()
            now = self.look()
            if now != before:
                before, changed = now, time.monotonic()
            quiet = time.monotonic() - changed
            over = len(self.ends) == len(self.jobs)
            if not acts and (over or quiet > self._patience()):
                return
            # One look at all Jobs and pods each second is simpler than two watches.
            time.sleep(1)
        for _, act in acts:
            act()

    @property
    def passed(self) -> float:
        return time.monotonic() - self.began

    def look(self) -> object:
        """Look at everything; returns something that differs when anything has happened."""
        labels: dict[str, Any] = {LABEL: self.number}
        for pod in self.client.list(Pod, namespace="*", labels=labels):
            self.pods[pod["metadata"]["uid"]] = pod
            if not self.gated and pod["spec"].get("schedulingGates"):
                self._open(pod)
        for job in self.client.list(Job, namespace="*", labels=labels):
            key = (job["metadata"]["namespace"], job["metadata"]["name"])
            self.jobs[key] = job
            if judge.ended(job):
                self.ends.setdefault(key, self.passed)
        pods = {uid: judge.half({}, [pod], (), seconds=0).story for uid, pod in self.pods.items()}
        return pods, {*self.ends}

    def _open(self, pod: Any) -> None:
        metadata = pod["metadata"]
        patch = [{"op": "remove", "path": "/spec/schedulingGates"}]
        with contextlib.suppress(ApiError):  # It is gone, or its gate.
            self.client.patch(
                Pod, metadata["name"], patch,  # pyright: ignore[reportArgumentType]
                namespace=metadata["namespace"], patch_type=PatchType.JSON,
            )  # fmt: skip

    def halves(self) -> list[Played]:
        """What became of each pair."""
        calls = self._calls()
        refused = self._refused()
        return [
            Played(
                place.pair,
                *(self._half(place.pair.name, each, calls, refused) for each in place.namespaces),
            )
            for place in self.places
        ]

    def _patience(self) -> float:
        """How long nothing may happen."""
        for place in self.places:
            ours, twin = (self._half(place.pair.name, each, {}, {}) for each in place.namespaces)
            right = ours.end and ours.end == place.pair.ends
            if not right and judge.may_still_matter(ours, twin):
                return QUIET
        return SETTLED

    def _half(
        self,
        name: str,
        namespace: str,
        calls: Mapping[tuple[str, str], set[str]],
        refused: Mapping[tuple[str, str], str],
    ) -> Half:
        key = (namespace, name)
        pods = [
            pod
            for pod in self.pods.values()
            if pod["metadata"]["namespace"] == namespace
            and pod["metadata"]["labels"].get("batch.kubernetes.io/job-name") == name
        ]
        return judge.half(
            self.jobs.get(key, {}), pods, calls.get(key, ()),
            seconds=self.ends.get(key, self.passed), refused=refused.get(key, ""),
        )  # fmt: skip

    def _calls(self) -> dict[tuple[str, str], set[str]]:
        """Who has called the service: containers by namespace and Job."""
        found: dict[tuple[str, str], set[str]] = {}
        for line in self.client.log(SERVICE, namespace=self.beside.namespace, container="httpd"):
            match line.strip().split("/"):
                case [namespace, job, container]:
                    found.setdefault((namespace, job), set()).add(container)
        return found

    def _refused(self) -> dict[tuple[str, str], str]:
        """Why pods of a Job could not be created."""
        found: dict[tuple[str, str], str] = {}
        for namespace in {each for place in self.places for each in place.namespaces}:
            for event in self.client.list(Event, namespace=namespace):
                if event.reason == "FailedCreate":
                    why = (event.message or "").removeprefix("(combined from similar events): ")
                    found[namespace, event.involvedObject.name or ""] = why
        return found

    def _filled(self, pair: Pair, document: Document, namespace: str) -> Document:
        text = json.dumps(document)
        known = {NAME: pair.name, "NAMESPACE": namespace, "SERVER": self.beside.server}
        for word, value in known.items():
            text = text.replace(word, value)
        return json.loads(text)
