"""From what a user names to pods: ``tfjob/mnist``, ``job/x``, ``pod``, a label selector.

A type is found as kubectl finds it, in what the API server serves. The pods of an object are those
that lead to it by their ownerReferences, over any number of objects between them, such as CronJob,
Job and pod. Rights in one namespace are enough.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from istio_aux.kube import actions
from istio_aux.kube.actions import ServedType
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, InvalidNameError, KubeError, UnreadableError
from istio_aux.kube.objects import Key, Reader, Unreadable
from istio_aux.model import owners
from istio_aux.model.pod import Metadata, OwnerReference, Pod, Struct
from istio_aux.model.selectors import Selector
from istio_aux.model.templates import WORKLOADS
from istio_aux.model.text import listed, quoted

_REFUSED = ("FailedCreate", "FailedCreatePod")
"""Reasons of Events about refused pods: of the Job controller (k8s controller_utils.go
FailedCreatePodReason), of the training-operator (control/pod_control.go)."""

LONGEST_WHY = 300  # Characters of the message of an Event that are shown: a tenant may write one.

MOST_KINDS = 32
"""Kinds of owners that are listed at most to find the pods of an object: tenants write
ownerReferences."""


def gap(error: KubeError, right: str) -> str:
    """Say why something is not known; ``right`` is what reads it."""
    forbidden = isinstance(error, ApiError) and error.code == 403
    return f"this account may not {right}" if forbidden else f"cannot {right}: {error}"


class _Owned(Struct, frozen=True):
    metadata: Metadata = Metadata()


class _Involved(Struct, frozen=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _Event(Struct, frozen=True):
    metadata: Metadata = Metadata()
    involved_object: _Involved = _Involved()
    message: str = ""
    last_timestamp: datetime | None = None
    event_time: datetime | None = None


class RefusedPods(msgspec.Struct, frozen=True):
    """Pods that the API server refused to a workload: its kind and name, when last, and why."""

    namespace: str
    owner: str  # Such as job/mnist.
    at: datetime
    why: str  # The message of the Event, cut.

    def __str__(self) -> str:
        return f"its pods were refused, last at {self.at:%H:%M:%S}Z: {self.why}"


class _Target(msgspec.Struct, frozen=True):
    """Pods, or objects of a type; without a name all of them, in all namespaces if that is empty.

    ``text`` is what the user wrote; without a type it is a problem with that.
    """

    text: str
    namespace: str = ""
    type: ServedType | None = None
    name: str = ""


_ALL = Selector()
_POD = ServedType("", "v1", "pods", "Pod", ("pods", "pod", "po"))
_pod = Reader(Pod, "pod")
_job = Reader(owners.Job, "Job")
_owned = Reader(_Owned, "object")


async def find(
    client: Client,
    targets: Sequence[str],
    *,
    namespace: str,
    all_namespaces: bool = False,
    selector: Selector = _ALL,
) -> AsyncGenerator[Pod | str]:
    """Yield the pods of each target, each pod once, and for a target without one a line with why.

    A target is ``TYPE/NAME``, ``TYPE`` (then the targets behind the first are names), ``NAME`` of a
    pod, or ``NAMESPACE/NAME`` of a pod; a type is its plural, singular, short name or kind, and may
    have ``.GROUP`` at its end. An object that the account may not read is found by its name in the
    ownerReferences of pods. Without targets it is all pods. A pod without a namespace of its own
    is in ``namespace``. The labels of a pod that is not named itself match ``selector``. Finished
    pods are yielded, too.

    Raises:
        KubeError: the API server refuses the pods or does not answer.
    """
    seen = set[str]()
    wanted = [_Target("pods", "" if all_namespaces else namespace, _POD)]
    types = [_POD]
    if targets:
        if any(target.rpartition("/")[0].lower() not in _POD.names for target in targets):
            types = await actions.served_types(client)
        wanted = _wanted(targets, types, namespace, all_namespaces=all_namespaces)
    for target in wanted:
        found = False
        async for each in _pods(client, target, types, selector):
            found = True
            if isinstance(each, str | Unreadable):
                yield each if isinstance(each, str) else f"cannot read pod {each}"
            elif each.metadata.uid not in seen:
                seen.add(each.metadata.uid)
                yield each
        if not found and targets:
            yield f"{target.text}: no pods{_where(target.namespace)}"


def _wanted(
    targets: Sequence[str], types: Sequence[ServedType], namespace: str, *, all_namespaces: bool
) -> list[_Target]:
    """Read what the user wrote, as kubectl does."""
    first, *names = targets
    kind = None if "/" in first else _type(first, types)
    if kind and names:
        targets, kind = [f"{first}/{name}" for name in names], None
    if kind:
        return [_Target(first, "" if all_namespaces else namespace, kind)]
    wanted = list[_Target]()
    for text in targets:
        left, slash, name = text.rpartition("/")
        kind = _type(left, types) if slash else _POD
        if kind is None:  # NAMESPACE/NAME, unless the type is misspelt.
            wanted.append(_Target(text, left, _POD, name))
        elif all_namespaces:
            wanted.append(_Target(f"{text}: expected no name with -A"))
        elif not kind.namespaced:
            wanted.append(_Target(f"{text}: a {kind.kind} is in no namespace, so it owns no pods"))
        else:
            wanted.append(_Target(text, namespace, kind, name))
    return wanted


def _type(name: str, types: Sequence[ServedType]) -> ServedType | None:
    """The first type of that name; the API server lists what it prefers first."""
    wanted = name.lower()
    return next((each for each in types if wanted in each.names), None)


async def _pods(
    client: Client, target: _Target, types: Sequence[ServedType], selector: Selector
) -> AsyncGenerator[Pod | Unreadable | str]:
    kind, where = target.type, target.namespace
    if kind is None:
        yield target.text
    elif kind.kind != "Pod":
        async for each in _owned_pods(client, target, kind, types, selector):
            yield each
    elif target.name:
        try:
            yield _pod.read(await client.get(actions.pod_path(where, target.name)))
        except (ApiError, InvalidNameError, UnreadableError) as error:
            missing = isinstance(error, ApiError) and error.code == 404
            hint = _misspelt(target, types) if missing else ""
            yield f"{where}/{target.name}: {error}{hint}"
    else:
        async for each in list_pods(client, where, {}, selector):
            yield each


def _misspelt(target: _Target, types: Sequence[ServedType]) -> str:
    """What else ``LEFT/NAME`` may have meant; empty if it was no such thing."""
    left, slash, _ = target.text.rpartition("/")
    if not slash or _type(left, types):
        return ""
    known = [each.kind.lower() for each in types if (each.group, each.kind) in WORKLOADS]
    return f"; {quoted(left)} is no type of this cluster either; types with pods: {listed(known)}"


async def list_pods(
    client: Client, namespace: str, fields: Mapping[str, str], selector: Selector = _ALL
) -> AsyncGenerator[Pod | Unreadable]:
    """List pods, each once: a list that starts again shows pods twice."""
    path, seen = actions.collection("v1", "pods", namespace), set[Key]()
    selection = {**fields, "labelSelector": str(selector)}
    async for page in actions.pages(client, path, Pod, selection):
        for each in (*page.unreadable, *page.items):
            key = each.key if isinstance(each, Unreadable) else each.metadata.key
            if key not in seen:
                seen.add(key)
                yield each


async def _owned_pods(
    client: Client,
    target: _Target,
    kind: ServedType,
    types: Sequence[ServedType],
    selector: Selector,
) -> AsyncGenerator[Pod | Unreadable | str]:
    """Yield the pods of one object, or of all objects of a type."""
    uid = why = ""
    if target.name:
        try:
            path = actions.object_path(kind.api, kind.plural, target.namespace, target.name)
            body = await client.get(path)
            uid = _owned.read(body).metadata.uid
        except (ApiError, InvalidNameError, UnreadableError) as error:
            if not (isinstance(error, ApiError) and error.code == 403):
                yield f"{target.namespace}: {target.text}: {error}"
                return
            why = gap(error, f"get {target.text}")
        else:
            refused = await refused_pods(client, target.namespace, uid)
            why = str(refused[uid]) if uid in refused else _childless(body)

    def wanted(owner: OwnerReference) -> bool:
        return owner.uid == uid if uid else kind.is_of(owner) and target.name in {"", owner.name}

    above, found = _Owners(client, target.namespace, types), False
    async for each in list_pods(client, target.namespace, {}, selector):
        if isinstance(each, Unreadable):
            yield each
        elif await above.has(each, wanted):
            found = True
            yield each
    if not found:
        chosen = f" that match {quoted(str(selector))}" if selector.requirements else ""
        because = "; ".join(filter(None, (why, *sorted(above.gaps))))
        text = f"{target.text}: no pods{chosen}{_where(target.namespace)}"
        yield f"{text}: {because}" if because else text


class _Owners:
    """Reads the owners of owners: each kind once, when one of it is met. ``gaps``: what could not.

    So references in a circle end.
    """

    def __init__(self, client: Client, namespace: str, types: Sequence[ServedType]) -> None:
        self._client, self._namespace, self.gaps = client, namespace, list[str]()
        self._types = {(each.group, each.kind): each for each in reversed(types)}
        self._read = set[tuple[str, str]]()
        self._owners: dict[str, tuple[OwnerReference, ...]] = {}  # By the UID of what is owned.

    async def has(self, pod: Pod, wanted: Callable[[OwnerReference], bool]) -> bool:
        """Whether an object that is ``wanted`` owns the pod, over any number of others."""
        known, due = set[str](), [*(pod.metadata.owner_references or ())]
        while due:
            owner = due.pop()
            if wanted(owner):
                return True
            if owner.uid not in known:
                known.add(owner.uid)
                await self._list((owners.group(owner), owner.kind))
                due += self._owners.get(owner.uid, ())
        return False

    async def _list(self, key: tuple[str, str]) -> None:
        of = self._types.get(key)
        # A kind that is not served has no objects.
        if of is None or key in self._read or len(self._read) == MOST_KINDS:
            return
        self._read.add(key)
        path = actions.collection(of.api, of.plural, self._namespace if of.namespaced else "")
        # Only metadata: a tenant may name a Secret as the owner of a pod.
        pages = actions.pages(self._client, path, _Owned, {}, accept=actions.ONLY_METADATA)
        try:
            async for page in pages:
                found = (item.metadata for item in page.items)
                self._owners |= {each.uid: each.owner_references or () for each in found}
        except ApiError as error:
            self.gaps.append(gap(error, f"list {of.plural}"))


def _where(namespace: str) -> str:
    return f" in namespace {namespace}" if namespace else ""


async def refused_pods(client: Client, namespace: str, uid: str = "") -> Mapping[str, RefusedPods]:
    """Read from Events whose pods were refused last, by UID; of one object, if ``uid`` is given.

    It is empty where Events may not be listed, and without a namespace it is of all namespaces.
    """
    found = dict[str, RefusedPods]()
    path = actions.collection("v1", "events", namespace)
    one = f",involvedObject.uid={uid}" if uid else ""
    for reason in _REFUSED:
        try:
            chosen = {"fieldSelector": f"type=Warning,reason={reason}{one}"}
            pages = [page async for page in actions.pages(client, path, _Event, chosen)]
        except ApiError:
            return found
        for event in (item for page in pages for item in page.items):
            about, at = event.involved_object, event.last_timestamp or event.event_time
            if at is None or (about.uid in found and found[about.uid].at >= at):
                continue
            owner = f"{about.kind.lower()}/{about.name}"
            why = event.message[:LONGEST_WHY]
            found[about.uid] = RefusedPods(about.namespace, owner, at.astimezone(UTC), why)
    return found


def _childless(body: bytes) -> str:
    """Why an object may have no pods."""
    try:
        job = _job.read(body)
    except UnreadableError:  # Of another kind, which has other fields of these names.
        return ""
    if job.finished:
        return "it is finished, and pods of it may be deleted"
    if job.run_policy.suspend:
        return "it is suspended"
    return "its controller has not made them yet, or has deleted them"
