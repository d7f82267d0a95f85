"""Finds the pods that a user names: ``tfjob/mnist``, ``job/x``, ``pod``, a label selector.

Types are found by API discovery, as in kubectl. The pods of an object are those whose
ownerReferences lead to it, directly or through other objects, as from a pod through its Job to a
CronJob. Rights in one namespace are enough.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from istio_aux.cli.output import Output
from istio_aux.judge.installation import Installation
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import UNREAD, ApiError, KubeError, gap
from istio_aux.kube.objects import Key, T, Unreadable, decoded
from istio_aux.model import owners, templates
from istio_aux.model.moment import in_utc, zoned
from istio_aux.model.pod import NO_TEXT, OwnerReference, Pod, Resource, convert
from istio_aux.model.selectors import NamespaceSelectors, Selector
from istio_aux.model.sidecars import SidecarRule
from istio_aux.model.text import UNDECODABLE, listed, one_line, problem, quoted, with_article

# Reasons of Events about refused pods: of the Job controller (k8s controller_utils.go
# FailedCreatePodReason), of the training-operator (control/pod_control.go).
REFUSED = ("FailedCreate", "FailedCreatePod")

# Reasons of Events, ours and the kubelet's, that say why a pod failed.
TELLING = ("HeldNotNative", "BackOff", "FailedPostStartHook")

_NEVER = datetime.min.replace(tzinfo=UTC)
LONGEST_WHY = 300  # Characters of the message of an Event that are shown: a tenant may write one.

# Limit of the kinds of owners that are listed to find the pods of an object, because tenants write
# ownerReferences.
MOST_KINDS = 32


def place(namespace: str) -> str:
    """A namespace, or all of them, in words."""
    return f"namespace {namespace}" if namespace else "all namespaces"


class UnanswerableError(KubeError):
    """There is no answer; the message says why, and what to give instead."""


class ClusterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a command about a cluster, by their names; each command reads its own."""

    config: Installation | None = None  # Used instead of the settings in the cluster.
    kubeconfig: Path | None = None
    context: str | None = None
    user: str | None = None  # The user to impersonate, if any.
    output: Output = Output()
    targets: Sequence[str] = ()  # As `find` takes them.
    only: Collection[str] | None = None  # UIDs of the pods of `targets`; None: all pods.
    namespace: str | None = None
    all_namespaces: bool = False
    selector: Selector = Selector()  # Selects pods.
    selectors: NamespaceSelectors | None = None  # None: those of the settings.
    sidecars: tuple[SidecarRule, ...] | None = None  # None: those of the settings.
    patience: float = 300.0  # Seconds after which the answer is what is known by then.
    dry_run: bool = True
    limit: int = 10  # Pods that are restarted at most.
    holders: bool = False  # Whether to show only what keeps pods.
    report: Path | None = None  # The file for the HTML of `cli.page`.
    pre: bool = False  # Whether istio-aux is still to be installed.
    to: str = ""  # The target of a move: see `judge.moving`.
    ignore: Collection[str] = ()  # Codes of findings to leave out.

    @classmethod
    def of(cls, arguments: Namespace) -> Self:
        """Make the request of parsed arguments, about a cluster or about files in its place."""
        fields = cls.__struct_fields__
        return cls(**{each: value for each, value in vars(arguments).items() if each in fields})

    def wants(self, uid: str) -> bool:
        """Whether a pod is one of the targets, if there are any."""
        return self.only is None or uid in self.only

    def among(self, looked_at: int | None, namespace: str = "") -> str:
        """Where pods were looked for, and how many there were, if it is known."""
        space = "" if self.all_namespaces else self.namespace or namespace
        labels = f" with {self.selector}" if self.selector.requirements else ""
        number = "" if looked_at is None else f" ({looked_at}{labels} looked at)"
        return f"in {place(space)}{number}" + ("; -A looks at all namespaces" if space else "")


# What a command does about a cluster; it returns the exit status.
Answer = Callable[[Client, ClusterRequest], Awaitable[int]]


class PodEvent(Resource, frozen=True):
    """An Event about a pod, or about what makes pods."""

    involved_object: OwnerReference = OwnerReference()  # It is in the Event's own namespace.
    reason: str = ""
    message: str = ""
    last_timestamp: datetime | None = None
    event_time: datetime | None = None

    @property
    def at(self) -> datetime:
        """When it was last seen; `_NEVER` if it does not say."""
        return in_utc(zoned(self.last_timestamp or self.event_time) or _NEVER)

    @property
    def refused(self) -> str:
        """What it says as one of `REFUSED`."""
        return f"its pods were refused, last at {self.at:%H:%M:%S}Z: {self.message[:LONGEST_WHY]}"


class _Target(msgspec.Struct, frozen=True):
    """A pod or another object, or all objects of its ``type`` if ``name`` is empty.

    An empty ``namespace`` means all namespaces. ``text`` is what the user wrote; without a ``type``
    it says what is wrong with that.
    """

    text: str
    namespace: str = ""
    type: actions.ServedType | None = None
    name: str = ""


_ALL = Selector()
ANY: Mapping[str, str] = {}  # A field selector that matches every pod.
_SIMILAR = 0.75  # Of two names, for `difflib`: the default of 0.6 takes "none" for "alone".
_POD = actions.ServedType("", "v1", "pods", "Pod", ("pods", "pod", "po"))


async def find(
    client: Client,
    request: ClusterRequest,
    fields: Mapping[str, str] = ANY,
    *,
    told: list[str] | None = None,
) -> AsyncGenerator[Pod | str]:
    """Yield each pod of the targets once, and for a target without pods a line that says why.

    A target is ``TYPE/NAME``, ``TYPE`` (then the targets behind the first are names), ``NAME`` of a
    pod, or ``NAMESPACE/NAME`` of a pod; a type is its plural, singular, short name or kind, and may
    have ``.GROUP`` at its end. If the account may not read an object, its pods are found by the
    name in their ownerReferences. The default target is all pods, the default namespace that of the
    credentials. The label selector applies to all pods that are not named themselves. Finished pods
    are yielded, too, unless the field selector ``fields`` excludes them from lists.

    A line about a Job that has pods, such as why it failed, is appended to ``told``.

    Raises:
        KubeError: the API server refuses the pods or does not answer.
    """
    targets, types, seen = request.targets, [_POD], set[str]()
    if any(target.rpartition("/")[0].lower() not in _POD.names for target in targets):
        types = await actions.served_types(client)
    search = _Search(client, request, fields, types)
    for target in search.targets():
        found, search.why, search.job = False, list[str](), ""
        async for each in search.pods(target):
            found = True
            if isinstance(each, str | Unreadable):
                yield each if isinstance(each, str) else f"cannot read pod {each}"
            elif each.metadata.uid not in seen:
                seen.add(each.metadata.uid)
                yield each
        if found and search.job and told is not None:
            told.append(f"{target.text}: {search.job}")
        if not found and targets:
            labels = request.selector
            chosen = f" that match {quoted(str(labels))}" if labels.requirements else ""
            where = f" in namespace {target.namespace}" if target.namespace else ""
            because = "; ".join(await search.no_pods(target))
            yield f"{target.text}: no pods{chosen}{where}{because and f': {because}'}"


async def list_pods(
    client: Client,
    namespace: str,
    fields: Mapping[str, str],
    selector: Selector = _ALL,
    wants: Callable[[str], bool] = lambda _uid: True,
) -> AsyncGenerator[Pod | Unreadable]:
    """List the pods that are wanted, each once: a list that is restarted returns pods again.

    Raises:
        UnanswerableError: the account may not list them, or the namespace does not exist, for which
            the API server returns an empty list.
    """
    path, seen = actions.collection("v1", "pods", namespace), set[Key]()
    try:
        async for page in actions.pages(
            client,
            path,
            Pod,
            {**fields, "labelSelector": str(selector)},
        ):
            for each in (*page.unreadable, *page.items):
                key = each.key if isinstance(each, Unreadable) else each.metadata.key
                if key not in seen:
                    seen.add(key)
                    if wants(key.uid):
                        yield each
    except ApiError as error:
        if error.code != 403:
            raise
        other = "another namespace by -n" if namespace else "-n NAMESPACE"
        raise UnanswerableError(
            f"{gap(error, f'list pods in {place(namespace)}')}: give {other}"
        ) from None
    # An error other than 404, such as 403, proves nothing.
    with suppress(*UNREAD):
        path = f"{actions.NAMESPACES}/{namespace}"
        if namespace and not seen and await actions.read(client, path, Resource) is None:
            raise UnanswerableError(f"namespace {namespace} does not exist")


class _Manifest(Resource, frozen=True):
    spec: msgspec.Raw = NO_TEXT


class FoundTemplate(NamedTuple):
    """The pod of a template as its workload will make it."""

    pod: Pod
    workload: str  # As ``KIND/NAME``.
    job: owners.JobCounts | None  # What the pod's Job counts as a failure; None: there is no Job.


async def list_templates(client: Client, unread: list[str]) -> AsyncGenerator[FoundTemplate]:
    """Yield the pod templates of workloads that no other such workload makes.

    For ``unread`` see `list_known`.
    """
    for kind in await actions.served_types(client):
        if not templates.WORKLOADS.get((kind.group, kind.kind)):
            continue
        async for each in list_known(
            client,
            actions.collection(kind.api, kind.plural),
            _Manifest,
            unread,
            f"cannot read {kind.kind} ",
        ):
            about = each.metadata
            if (owner := about.controller) and templates.WORKLOADS.get(
                (owners.group(owner), owner.kind)
            ):
                continue
            name = f"{kind.kind}/{about.name}"
            try:
                for template in templates.read(
                    {
                        "metadata": {"name": about.name, "namespace": about.namespace},
                        "spec": msgspec.json.decode(each.spec),
                    },
                    kind.group,
                    kind.kind,
                ):
                    yield FoundTemplate(convert(template.pod), name, template.job)
            except UNDECODABLE as error:
                unread.append(f"{about.namespace}: {name}: {problem(error)}")


async def list_known(
    client: Client, path: str, kind: type[T], unread: list[str], prefix: str = ""
) -> AsyncGenerator[T]:
    """List a collection, each object once: a list that is restarted returns objects again.

    Why it, or an object of it, cannot be read is appended to ``unread``; ``prefix`` stands before
    the name of an object.
    """
    seen = set[Key]()
    try:
        async for page in actions.pages(client, path, kind, {}):
            unread += (f"{prefix}{bad}" for bad in page.unreadable)
            for each in page.items:
                if each.metadata.key not in seen:
                    seen.add(each.metadata.key)
                    yield each
    except ApiError as error:
        unread.append(gap(error, f"list {path.rpartition('/')[2]}"))


class _Search(msgspec.Struct):
    """Finds the pods of targets. ``why`` has the reasons why the present target may have none.

    A kind of owners is listed when its first object is met, and never again. So a cycle of
    ownerReferences ends.
    """

    client: Client
    request: ClusterRequest
    fields: Mapping[str, str]
    types: Sequence[actions.ServedType]
    why: list[str] = []
    job: str = ""  # Why the target, if it is a Job, has failed or makes no pods.
    listed: dict[tuple[str, str], str] = {}  # By kind: why it cannot be listed, or the empty text.
    owners: dict[str, tuple[OwnerReference, ...]] = {}  # By the UID of the owned object.

    def targets(self) -> Iterator[_Target]:
        """Parse what the user wrote as kubectl does; the default is all pods."""
        namespace = self.request.namespace or self.client.namespace
        first, *names = given = self.request.targets or ("pods",)
        kind, everywhere = None if "/" in first else self._type(first), self.request.all_namespaces
        if kind and not names:
            yield _Target(first, "" if everywhere else namespace, kind)
            return
        for text in [f"{first}/{name}" for name in names] if kind else given:
            prefix, slash, name = text.rpartition("/")
            kind = self._type(prefix) if slash else _POD
            if kind is None:  # NAMESPACE/NAME, unless the type is misspelt.
                yield _Target(text, prefix, _POD, name)
            elif everywhere:
                yield _Target(f"{text}: expected no name with -A")
            elif not kind.namespaced:
                yield _Target(
                    f"{text}: {with_article(kind.kind)} is in no namespace, so it owns no pods"
                )
            else:
                yield _Target(text, namespace, kind, name)

    def _type(self, name: str) -> actions.ServedType | None:
        """The first type of that name; the API server lists what it prefers first."""
        return next((each for each in self.types if name.lower() in each.names), None)

    async def pods(self, target: _Target) -> AsyncGenerator[Pod | Unreadable | str]:
        """Yield the pods of a target, or what is wrong with it."""
        kind, where = target.type, target.namespace
        if kind is None:
            yield target.text
        elif kind.kind == "Pod" and target.name:
            try:
                yield decoded(await self.client.get(actions.pod_path(where, target.name)), Pod)
            except UNREAD as error:
                hint = (self._hint(target) or await self._near(target)) if error.code == 404 else ""
                yield f"{where}/{target.name}: {error}{hint}"
        else:
            async for each in self._owned(target, kind):
                yield each

    def _hint(self, target: _Target) -> str:
        """A hint that a target ``NAMESPACE/NAME`` may have meant a type; else empty."""
        prefix, slash, _ = target.text.rpartition("/")
        if not slash or self._type(prefix):
            return ""
        known = [
            each.kind.lower()
            for each in self.types
            if (each.group, each.kind) in templates.WORKLOADS
        ]
        return (
            f"; {quoted(prefix)} is no type of this cluster either;"
            f" types with pods: {listed(known)}"
        )

    async def _near(self, target: _Target) -> str:
        """A hint at the owner of pods, or the pod, whose name is the same or the most similar."""
        meant = dict[str, str]()
        with suppress(KubeError):
            async for each in list_pods(self.client, target.namespace, ANY):
                if isinstance(each, Pod):
                    meant.setdefault(each.metadata.name, each.metadata.name)
                    for owner in each.metadata.owner_references or ():
                        meant[owner.name] = f"{owner.kind.lower()}/{owner.name}"
        near = get_close_matches(target.name, meant, 1, _SIMILAR)
        return f"; did you mean {quoted(meant[near[0]])}?" if near else ""

    async def _owned(
        self,
        target: _Target,
        kind: actions.ServedType,
    ) -> AsyncGenerator[Pod | Unreadable | str]:
        """Yield the pods of one object, or of all objects of a type; of pods, all."""
        uid, where = "", target.namespace
        if target.name:
            try:
                body = await self.client.get(
                    actions.object_path(kind.api, kind.plural, where, target.name)
                )
                uid = decoded(body, Resource, "object").metadata.uid
            except UNREAD as error:
                if error.code != 403:
                    near = await self._near(target) if error.code == 404 else ""
                    yield f"{where}: {target.text}: {error}{near}"
                    return
                self.why.append(gap(error, f"get {target.text}"))
            else:
                refused = await refused_pods(self.client, where, uid)
                self.why += [refused[uid].refused] if uid in refused else []
                self.job = _of_job(body, kind)

        def wanted(owner: OwnerReference) -> bool:
            key = owners.group(owner), owner.kind
            named = key == (kind.group, kind.kind) and target.name in {"", owner.name}
            return owner.uid == uid if uid else named

        async for each in list_pods(self.client, where, self.fields, self.request.selector):
            if (
                kind.kind == "Pod"
                or isinstance(each, Unreadable)
                or await self._leads(each, where, wanted)
            ):
                yield each

    async def no_pods(self, target: _Target) -> list[str]:
        """Why the present target has no pods, as far as that is known."""
        if self.job:
            events = await _events_of_pods(self.client, target.namespace, target.name)
            self.why += [self.job, *events]
        if self.why and target.name and (near := await self._near(target)):
            return [f"{self.why[0]}{near}"]
        return [*self.why, *sorted(filter(None, self.listed.values()))]

    async def _leads(
        self,
        pod: Pod,
        namespace: str,
        wanted: Callable[[OwnerReference], bool],
    ) -> bool:
        """Whether a ``wanted`` object owns the pod, directly or through other objects."""
        known, due = set[str](), [*(pod.metadata.owner_references or ())]
        while due:
            owner = due.pop()
            if wanted(owner):
                return True
            if owner.uid not in known:
                known.add(owner.uid)
                await self._list((owners.group(owner), owner.kind), namespace)
                due += self.owners.get(owner.uid, ())
        return False

    async def _list(self, key: tuple[str, str], namespace: str) -> None:
        of = next((each for each in self.types if (each.group, each.kind) == key), None)
        # A kind that is not served has no objects.
        if of is None or key in self.listed or len(self.listed) == MOST_KINDS:
            return
        self.listed[key] = ""
        try:
            async for page in actions.pages(
                self.client,
                actions.collection(of.api, of.plural, namespace if of.namespaced else ""),
                Resource,
                {},
                # Only metadata: a tenant may name a Secret as the owner of a pod.
                accept=actions.ONLY_METADATA,
            ):
                for item in page.items:
                    self.owners[item.metadata.uid] = item.metadata.owner_references or ()
        except ApiError as error:
            self.listed[key] = gap(error, f"list {of.plural}")


def _of_job(body: bytes, kind: actions.ServedType) -> str:
    """Why a Job has failed or makes no pods now; empty for other kinds and unreadable Jobs."""
    api = owners.api_of(OwnerReference(api_version=kind.api, kind=kind.kind))
    if api is None and (kind.group, kind.kind) != ("batch", "CronJob"):
        return ""
    with suppress(KubeError):
        return owners.podless(decoded(body, owners.Job), api)
    return ""


_POD_OF_JOB = re.compile("(?:[0-9]{1,10}-)?[a-z0-9]{5}")  # A pod's name after its Job's.


async def _events_of_pods(client: Client, namespace: str, job: str) -> list[str]:
    """The last Event for each reason in `TELLING` about former pods of a Job, found by name."""
    begin = f"{job}-"
    last = {
        it.reason: it
        for it in await _events(client, namespace, TELLING, "involvedObject.kind=Pod")
        if (name := it.involved_object.name).startswith(begin)
        and _POD_OF_JOB.fullmatch(name, len(begin))
    }
    return [
        f"pod {it.involved_object.name}: {it.reason} at {it.at:%H:%M:%S}Z:"
        f" {one_line(it.message, LONGEST_WHY)}"
        for it in map(last.get, TELLING)
        if it
    ]


async def refused_pods(
    client: Client,
    namespace: str,
    uid: str = "",
    reasons: Sequence[str] = REFUSED,
) -> Mapping[str, PodEvent]:
    """Read the last Event about refused pods of each workload, by UID; of one, if ``uid`` is given.

    Other ``reasons`` select other Warnings about pods. Without a namespace all are read. The result
    is empty if Events may not be listed.
    """
    fields = "type=Warning" + (f",involvedObject.uid={uid}" if uid else "")
    return {it.involved_object.uid: it for it in await _events(client, namespace, reasons, fields)}


async def _events(
    client: Client, namespace: str, reasons: Iterable[str], fields: str
) -> list[PodEvent]:
    """Events that have a time, the last one at the end; none where they may not be listed."""
    found = list[PodEvent]()
    for reason in reasons:
        with suppress(ApiError):
            found += [
                it
                async for page in actions.pages(
                    client,
                    actions.collection("v1", "events", namespace),
                    PodEvent,
                    {"fieldSelector": f"{fields},reason={reason}"},
                )
                for it in page.items
                if it.at > _NEVER
            ]
    return sorted(found, key=lambda it: it.at)
