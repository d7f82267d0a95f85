"""A client that answers from what was recorded of a cluster, so that commands read both alike.

It selects and pages as the API server does, and changes nothing. What it plays may be hostile:
`cli.archive` bounds it, and readers decode each object as if it came from a cluster.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from istio_aux.kube.access import Access
from istio_aux.kube.actions import PATH
from istio_aux.kube.client import Client, Params
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import ApiError
from istio_aux.kube.objects import decoded
from istio_aux.model import selectors
from istio_aux.model.moment import Moment, Seconds
from istio_aux.model.pod import NO_TEXT, Metadata, Struct

Object = dict[str, Any]

_ARCHIVE = "it is an archive:"
_SIGN = re.compile("(!?=)")


class Reply(Struct, frozen=True):
    """What the API server answered: an object, or the code and the message of an error."""

    code: int = 0
    message: str = ""
    body: msgspec.Raw = NO_TEXT

    def read(self) -> bytes:
        """The object; raises the error."""
        if self.code:
            raise ApiError(self.code, self.message)
        return bytes(self.body)


class Answers(Struct, frozen=True):
    """What was recorded beside the objects of collections."""

    wall: Seconds  # When, since 1970.
    singles: Mapping[str, Reply] = {}  # By path; of a collection, why there is none.
    questions: Mapping[str, Reply] = {}  # By `Asked`.


class _Posted(Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: msgspec.Raw = NO_TEXT


class Asked(NamedTuple):
    """What a POST asks: a right, or how a pod in a namespace would be changed."""

    namespace: str
    name: str
    rest: str

    @classmethod
    def of(cls, path: str, body: bytes) -> Asked:
        """Read a request; of a pod, labels and containers do not count."""
        match, posted = PATH.fullmatch(path), decoded(body, _Posted)
        if match and match[2]:
            return cls(match[2], "", str(sorted((posted.metadata.annotations or {}).items())))
        asked = decoded(bytes(posted.spec), dict[str, dict[str, str]])["resourceAttributes"]
        return cls(asked.pop("namespace"), asked.pop("name"), str(sorted(asked.items())))


async def _nowhere() -> Access:
    raise ApiError(404, f"{_ARCHIVE} nothing else is in it")


class Recorded(Client):
    """Answers as the API server did when it was recorded."""

    def __init__(self, answers: Answers, collections: Mapping[str, Sequence[Object]]) -> None:
        """``collections`` are objects by path, such as ``api/v1/pods``, of all namespaces."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        super().__init__(Access("", tls, lambda: None, renewed=_nowhere))
        self._answers, self._collections = answers, collections
        self._found = dict[tuple[str, str], dict[object, list[Object]]]()
        self._lists = dict[str, Sequence[Object]]()  # Those that are read, by their `continue`.

    def clock(self) -> Moment:
        """The moment of the record."""
        return Moment(system_clock().monotonic, self._answers.wall)

    async def get(self, path: str, params: Params = (), **_: Any) -> bytes:
        """As `Client.get`."""
        match = PATH.fullmatch(path)
        api, namespace, plural, name = match.groups() if match else ("", "", "", "")
        collection, singles, asked = f"{api}/{plural}", self._answers.singles, dict(params)
        if single := singles.get(path[1:]) or singles.get(collection):
            return single.read()
        if not name and collection in self._collections:
            items = self._lists.pop(asked.get("continue", ""), None)
            if items is None:
                items = [it for it in self._of(collection, namespace) if _matches(it, asked)]
            return self._page(items, asked)
        items = [
            it for it in self._of(collection, name, "metadata.name")
            if namespace in (None, _field(it, "metadata.namespace"))
        ]  # fmt: skip
        if not items:
            why = f'{plural} "{name}" not found' if name else f"the archive has no {plural}"
            raise ApiError(404, why, reason="NotFound")
        return msgspec.json.encode(items[0])

    def _of(
        self, collection: str, value: str | None, path: str = "metadata.namespace"
    ) -> Sequence[Object]:
        """The objects that have a value at ``path``, or all; each path is looked at once."""
        items = self._collections.get(collection, ())
        if value is None:
            return items
        if (found := self._found.get((collection, path))) is None:
            found = self._found[collection, path] = dict[object, list[Object]]()
            for it in items:
                field = _field(it, path)
                found.setdefault(field if isinstance(field, str) else None, []).append(it)
        return found.get(value, ())

    def _page(self, items: Sequence[Object], params: Mapping[str, str]) -> bytes:
        begin = int(params.get("continue", "0").partition(" ")[0])
        end = begin + int(params.get("limit", len(items)))
        meta = {"resourceVersion": "1", "continue": ""}
        if end < len(items):
            meta["continue"] = f"{end} {id(items)}"
            self._lists[meta["continue"]] = items
        return msgspec.json.encode({"metadata": meta, "items": items[begin:end]})

    async def post(self, path: str, body: bytes, *_: Any, **_more: Any) -> bytes:
        """What was answered to the same question; `ApiError` if it was not asked."""
        answer = self._answers.questions.get(str(Asked.of(path, body)))
        return (answer or Reply(code=403, message=f"{_ARCHIVE} this was not asked")).read()

    async def watch(self, *_: Any, **_more: Any) -> AsyncGenerator[bytes]:
        """Nothing happens in a record."""
        yield b""
        await asyncio.Event().wait()


def _field(found: object, path: str) -> object:
    for step in path.split("."):
        found = cast("Object", found).get(step, "") if isinstance(found, dict) else ""
    return found


def _matches(found: Object, params: Mapping[str, str]) -> bool:
    for term in filter(None, params.get("fieldSelector", "").split(",")):
        path, sign, value = _SIGN.split(term, maxsplit=1)
        if (_field(found, path) == value) is (sign == "!="):
            return False
    labels = _field(found, "metadata.labels")
    chosen = selectors.parse(params.get("labelSelector", ""))
    return chosen.matches(cast("dict[str, str]", labels) if isinstance(labels, dict) else {})
