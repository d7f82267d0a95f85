"""`bug-report`: reads what the commands read of a cluster, and writes it to one archive.

Every answer is decoded into the type that its readers use, trimmed (`cli.trimmed`), and encoded
again, so what no type declares is in no archive. `kube.recorded` plays it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from istio_aux import revision
from istio_aux.cli import archive, check, cluster, report, trimmed, workloads
from istio_aux.cli.installation import installations
from istio_aux.cli.trimmed import Names
from istio_aux.cli.workloads import ClusterRequest, Named, PodEvent
from istio_aux.injector import injection
from istio_aux.injector.probe import ServerVersion
from istio_aux.kube import actions
from istio_aux.kube.actions import Node
from istio_aux.kube.client import Client, Params
from istio_aux.kube.errors import ApiError, KubeError
from istio_aux.kube.objects import T, decoded
from istio_aux.kube.recorded import Answers, Asked, Recorded, Reply
from istio_aux.model import kept
from istio_aux.model.answers import ProcessStatus
from istio_aux.model.election import LeaseRecord
from istio_aux.model.names import EVENT_CONTROLLER, STATUS_PORT
from istio_aux.model.owners import Job, group
from istio_aux.model.pod import Metadata, Pod, Struct
from istio_aux.model.templates import WORKLOADS
from istio_aux.model.text import UNDECODABLE, printable_json
from istio_aux.model.webhooks import SERVICE, Configuration, EndpointSlice, Namespace
from istio_aux.rights import ADMISSION, LEASES

# Bytes of an object, of all of its kind, and of all kinds: `archive` reads so many with ease.
LARGEST, MOST, ALL = 64 << 10, 24 << 20, 64 << 20
UNITS, _CONTAINER = 5, "istio-aux"
LINES, LONGEST_LOG, _LINE = 500, 512 << 10, 4 << 10  # Of a unit's log: lines, bytes, and of a line.
_LOGGED, _NAMED = ("time", "level", "event", "outcome", "status"), ("namespace", "pod", "uid")
_ENDED = {"fieldSelector": "status.phase!=Running,status.phase!=Pending,status.phase!=Unknown"}
_EVENTS = (*(f"type=Warning,reason={it}" for it in (*workloads.REFUSED, *workloads.TELLING)),
           f"reportingComponent={EVENT_CONTROLLER}")  # fmt: skip
_SINGLES: Mapping[str, type[Struct]] = {
    "version": ServerVersion, f"apis/{ADMISSION}/v1": actions.ServedList,
    "api": actions.Discovery, "apis": actions.Discovery,
}  # fmt: skip


class _Lease(Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: LeaseRecord = LeaseRecord()


class HearingClient(Client):
    """A client that remembers what was asked by a POST, and what came back."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.heard = dict[Asked, bytes | ApiError]()

    async def post(self, path: str, body: bytes, params: Params = ()) -> bytes:
        """As `Client.post`."""
        asked = Asked.of(path, body)
        try:
            self.heard[asked] = answer = await super().post(path, body, params)
        except ApiError as error:
            self.heard[asked] = error
            raise
        return answer


async def bug_report(client: HearingClient, request: ClusterRequest) -> int:
    """Write the archive, and print what is in it; return the exit status."""
    # Its questions, to rights and injectors, are heard.
    late = [it.what for it in await check.results(client, request) if it.check == "time"]
    first = {each.namespace for each in client.heard}
    made, now = _Report(client, Names(anonymous=request.anonymous, first=first)), client.clock()
    made.left_out += late
    await made.read()
    files = await made.files(now.wall)
    manifest = {
        "made": now.date, "program": version("istio-aux"), "revision": revision(),
        "anonymous": request.anonymous, "leftOut": made.left_out,
        "files": {name: _about(name) for name in files},
    }  # fmt: skip
    files[archive.MANIFEST] = msgspec.json.format(msgspec.json.encode(manifest))
    path = request.destination or Path(f"istio-aux-{now.date:%Y%m%dT%H%M%SZ}.tar.gz")
    try:
        archive.write(path, files, now.wall)
    except OSError as error:
        report.complain(f"{path}: {error.strerror or error}")
        return cluster.FAILED
    for name, body in files.items():
        report.write(f"{len(body):>9}  {name}")
    for line in made.left_out:
        report.complain(f"left out: {line}")
    report.write(f"\n{path}: look at it before you send it; istio-aux audit -f {path} reads it")
    return 0


def _about(name: str) -> str:
    if name.startswith(("api/", "apis/")):
        return "what the API server has of that, as far as commands read it"
    what = "what audit finds here" if name == "audit.jsonl" else "single answers of the API server"
    return "what a unit says of itself" if name.startswith("units/") else what


class _Report:
    """What was read, trimmed."""

    def __init__(self, client: HearingClient, names: Names) -> None:
        self._client, self._names, self.left_out = client, names, list[str]()
        self._objects = dict[str, list[bytes]]()  # By path, without its first slash.
        self._singles, self._files = dict[str, Reply](), dict[str, bytes]()
        self._hooks, self._units = list[Configuration](), list[Metadata]()
        self._owners = dict[tuple[str, str], None]()  # Group and kind.

    async def read(self) -> None:
        """Read all. Webhooks come first: an anonymous report keeps labels that they select."""
        await self._list(actions.CONFIGURATIONS, Configuration, self._configuration)
        for plane in {it.control_plane(hook) for it in self._hooks for hook in it.webhooks or ()}:
            await self._policy(plane.namespace, plane.config_map)
        services = {it.client_config.service for each in self._hooks for it in each.webhooks or ()}
        for each in filter(None, services):
            path = actions.collection("discovery.k8s.io/v1", "endpointslices", each.namespace)
            chosen = {"labelSelector": f"{SERVICE}={each.name}"}
            await self._list(path, EndpointSlice, kept.endpoints, chosen)
        await self._list(actions.NAMESPACES, Namespace, _namespace)
        await self._list(actions.NODES, Node, lambda it: it)
        for fields in (actions.NOT_TERMINAL, _ENDED):  # The first ones matter more.
            await self._list(actions.PODS, Pod, self._pod, fields)
        await self._owned()
        for fields in _EVENTS:
            path, chosen = actions.collection("v1", "events"), {"fieldSelector": fields}
            await self._list(path, PodEvent, lambda it: it, chosen)
        for each in installations(self._hooks).found:
            if lease := each.settings.lease:
                path = actions.collection(f"{LEASES}/v1", "leases", lease[0])
                only = {"fieldSelector": f"metadata.name={lease[1]}"}
                await self._list(path, _Lease, lambda it: it, only)
        for path, kind in _SINGLES.items():
            accept = actions.GROUPS if kind is actions.Discovery else ""
            try:
                answer = await self._client.get(f"/{path}", accept=accept)
                found = decoded(answer, kind)
                if isinstance(found, actions.Discovery) and self._names.anonymous:
                    found = actions.only(found, self._owners.keys() | WORKLOADS.keys())
                self._singles[path] = Reply(body=_raw(found))
            except ApiError as error:
                self._singles[path] = self._reply(error)
        for each in self._units[:UNITS]:
            await self._unit(each)
        if not self._units:
            self.left_out.append("units: none was found: no log, metrics and status of istio-aux")

    async def files(self, wall: float) -> dict[str, bytes]:
        """The files of the archive by name, and what `audit` finds in them."""
        names = self._names
        questions = {
            str(Asked(names(it.namespace), names(it.name), it.rest)): self._reply(answer)
            for it, answer in self._client.heard.items()
        }
        answers = Answers(wall=wall, singles=self._singles, questions=questions)
        objects = {path: [*map(msgspec.json.decode, its)] for path, its in self._objects.items()}
        found = list[report.Finding]()
        try:
            audit = await cluster.audit_pods(Recorded(answers, objects), ClusterRequest())
            found = audit.findings
        except KubeError as error:
            self._leave("audit.jsonl", error)
        return {
            "audit.jsonl": b"\n".join(map(msgspec.json.encode, found)),
            archive.ANSWERS: msgspec.json.encode(answers),
            **{f"{path}.json": b"[%b]" % b",\n".join(it) for path, it in self._objects.items()},
            **self._files,
        }

    async def _list(
        self, path: str, kind: type[T], keep: Callable[[T], object],
        selection: Mapping[str, str] | None = None, accept: str = "",
    ) -> None:  # fmt: skip
        """Add what ``keep`` leaves of the objects of a collection, or why they are not listed."""
        match, left = actions.PATH.fullmatch(path), 0
        key = f"{match[1]}/{match[3]}" if match else path[1:]
        items = self._objects.get(key, [])
        others = sum(len(it) for kind, its in self._objects.items() for it in its if kind != key)
        size, most = sum(map(len, items)), min(MOST, ALL - others)
        pages = actions.pages(self._client, path, kind, selection or {}, accept=accept)
        try:
            async for page in pages:
                left += len(page.unreadable)
                for each in filter(None, map(keep, page.items)):
                    body = msgspec.json.encode(self._trimmed(each))
                    size += len(body)
                    if len(body) > LARGEST or size > most:
                        left += 1
                    else:
                        items.append(body)
            self._objects[key] = items
        except ApiError as error:
            if key not in self._objects:
                self._singles[key] = self._reply(error)
            self._leave(key, error)
        if left:
            self.left_out.append(f"{key}: {left} objects are too much, or cannot be read")

    def _trimmed(self, found: object) -> Any:
        new = trimmed.trimmed(msgspec.json.decode(msgspec.json.encode(found)), self._names)
        if isinstance(found, Configuration):
            new["metadata"]["name"] = self._names.configuration(found.metadata.name)
        return new

    def _reply(self, answer: bytes | ApiError) -> Reply:
        """An answer to a POST: a pod, or whether there is a right; or an error."""
        if isinstance(answer, ApiError):
            return Reply(code=answer.code, message=self._names.text(str(answer)))
        pod, right = decoded(answer, Pod), decoded(answer, actions.AccessReview)
        new = self._trimmed(trimmed.pod(pod, self._names))
        return Reply(body=_raw(new if pod.containers else right))

    def _leave(self, what: str, error: Exception) -> None:
        self.left_out.append(f"{what}: {self._names.text(str(error))}")

    def _configuration(self, found: Configuration) -> Configuration | None:
        """Those of Istio's, and ours with its settings; None for others."""
        small, about = kept.configuration(found), found.metadata
        if not small.webhooks:
            return None
        whole = replace(small, metadata=replace(about, owner_references=None))
        self._hooks.append(whole)
        services = filter(None, (it.client_config.service for it in small.webhooks))
        self._names.spaces |= {it.namespace for it in services}
        return whole

    def _pod(self, found: Pod) -> Pod:
        self._note(found.metadata)
        ours = any(each.name == _CONTAINER for each in found.containers)
        if ours and found.metadata.namespace in self._names.spaces:
            self._units.append(found.metadata)
        return trimmed.pod(found, self._names)

    def _note(self, about: Metadata) -> None:
        self._owners.update({(group(it), it.kind): None for it in about.owner_references or ()})

    async def _policy(self, namespace: str, name: str) -> None:
        """An injection policy: nothing else of its ConfigMap. `audit` says if there is none."""
        try:
            data = await actions.read_config_map(self._client, namespace, name)
            found = injection.read_document(data[injection.POLICY_KEY])
        except (KubeError, KeyError, *UNDECODABLE):
            return
        text = msgspec.json.encode(self._trimmed(found)).decode()
        about = {"name": name, "namespace": self._names(namespace)}
        body = {"metadata": about, "data": {injection.POLICY_KEY: text}}
        self._objects.setdefault("api/v1/configmaps", []).append(msgspec.json.encode(body))

    async def _owned(self) -> None:
        """The metadata of what owns pods, over any number of owners."""

        def noted(found: Job | Named) -> Job | Named:
            self._note(found.metadata)
            return found

        await self._list(actions.collection("batch/v1", "jobs"), Job, noted)
        types, done = await actions.served_types(self._client), {("batch", "Job")}
        served = {(it.group, it.kind): it for it in reversed(types)}
        while due := [it for it in self._owners if it in served and it not in done]:
            done.add(due[0])
            of = served[due[0]]
            # Of the core group, which has Secrets, not even names are kept.
            if len(done) <= workloads.MOST_KINDS and (
                of.group or of.plural.endswith("controllers")
            ):
                path = actions.collection(of.api, of.plural)
                await self._list(path, Named, noted, accept=actions.ONLY_METADATA)

    async def _unit(self, about: Metadata) -> None:
        """What `/status` and `/metrics` of a unit say, and the end of its log."""
        pod = actions.pod_path(about.namespace, about.name)
        port, folder = f"{pod}:{STATUS_PORT}/proxy", f"units/{self._names(about.name)}"
        log = {"container": _CONTAINER, "tailLines": str(LINES), "limitBytes": str(LONGEST_LOG)}
        for name, path, params, keep in (
            ("status.json", f"{port}/status", {}, self._status),
            ("metrics.txt", f"{port}/metrics", {}, _metrics),
            ("log.jsonl", f"{pod}/log", log, self._log),
        ):
            try:
                answer = await self._client.get(path, params, longest=LONGEST_LOG * 2)
                self._files[f"{folder}/{name}"] = keep(answer)
            except KubeError as error:
                self._leave(f"{folder}/{name}", error)

    def _status(self, answer: bytes) -> bytes:
        found = msgspec.to_builtins(decoded(answer, ProcessStatus))
        if self._names.anonymous:  # Only numbers, and what is no text that a tenant could write.
            plain = {"version", "revision", "capability", "quit", "race", "start-mode"}
            found = {k: v for k, v in found.items() if k in plain or isinstance(v, int)}
        return msgspec.json.format(printable_json(msgspec.json.encode(found)))

    def _log(self, answer: bytes) -> bytes:
        """The lines of the workload's JSON; Pebble writes its own before each, and others."""
        lines = list[bytes]()
        for line in answer.splitlines()[-LINES:]:
            try:
                facts = msgspec.json.decode(line[max(line.find(b"{"), 0) :], type=dict[str, object])
            except UNDECODABLE:
                continue
            if self._names.anonymous:
                named = {key: self._names(str(facts[key])) for key in _NAMED if key in facts}
                facts = {**{key: facts[key] for key in _LOGGED if key in facts}, **named}
            text = trimmed.without_secrets(msgspec.json.encode(facts).decode())
            lines += [printable_json(text.encode())] if len(text) <= _LINE else []
        return b"\n".join(lines)


def _namespace(found: Namespace) -> Namespace:
    return replace(found, metadata=replace(found.metadata, labels=dict(kept.labels(found))))


def _metrics(answer: bytes) -> bytes:
    """Series of ours: their labels have no names of objects."""
    ours = (b"istio_aux_", b"process_", b"python_")
    return b"\n".join(line for line in answer.splitlines() if line.startswith(ours))


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
