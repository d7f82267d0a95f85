"""What a process keeps of an object that says much: never more than of another, or a little more.

The fields are those of the decoded types, so that a new one is among them. All that is left in
memory is counted, also in tasks and reports, but not what only caches hold: these have bounds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st
from istio_aux.injector import injection
from istio_aux.kube.access import Access
from istio_aux.model import kept, pod as pods
from istio_aux.model.annotations import INJECT, QUIT_AFTER, REDIRECTION
from istio_aux.model.pod import Metadata, OwnerReference, Pod
from istio_aux.model.policy import RacePolicy
from istio_aux.model.selectors import parse_namespaces
from istio_aux.model.webhooks import Configuration, ControlPlane, EndpointSlice, Namespace, Service
from istio_aux.repair.rollout import Sidecar
from istio_aux.repair.rules import Candidate
from istio_aux.settings import DEFAULTS
from istio_aux.wiring import Wiring
from lab.nightly import NIGHTLY
from msgspec import inspect, structs
from unit.controllers import mesh
from unit.rules.pods import (
    ENABLED,
    JOB,
    RUNNING,
    decide_repair,
    document,
    exited,
    expected,
    raw,
    unmeshed,
)

from benchmarks import pods as benchmark

Document = dict[str, Any]
Made = Iterator[tuple[str, Callable[[], Any]]]

pytestmark = pytest.mark.usefixtures("only_new")

FEW = 8 if NIGHTLY else 3
"""Objects by which the caches are filled, and as many by which it is measured."""
SALT = "s0000s"
"""What every text of an object begins with: another object has its number in it."""
NAMED = {"name": f"object-{SALT}", "uid": f"uid-{SALT}", "resourceVersion": "1"}
BOUNDED = {
    ".metadata.name": 253,
    ".metadata.generateName": 253,
    ".metadata.namespace": 63,
    ".metadata.uid": 36,
    ".metadata.resourceVersion": 19,
    ".spec.nodeName": 253,
}
"""Characters of what the API server bounds or makes itself (pkg/apis/core/validation)."""


def pod(containers: Document, **fields: Any) -> Document:
    """A pod with names of its own."""
    body = document(containers, **fields)
    owners = [it | {"name": "a", "uid": f"owner-{SALT}"}
              for it in body["metadata"].get("ownerReferences", ())]  # fmt: skip
    more = {"ownerReferences": owners} if owners else {}
    return body | {"metadata": body["metadata"] | NAMED | more}


SELECTOR = {"matchLabels": ENABLED, "matchExpressions": [{"key": "a", "operator": "Exists"}]}
HOOK = {
    "name": "namespace.sidecar-injector.istio.io",
    "clientConfig": {"service": {"namespace": "istio-system", "name": "istiod"}, "caBundle": "Y"},
    "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["*"]}],
    "namespaceSelector": SELECTOR,
    "objectSelector": SELECTOR,
}  # fmt: skip
SLICE = {
    "metadata": {**NAMED, "labels": {"kubernetes.io/service-name": "istiod"}},
    "endpoints": [{"addresses": ["10.0.0.1"]}],
    "ports": [{"name": "https-webhook", "port": 15017}],
}
BY_ADMINS = 100 << 10
"""Bytes for what only admins write, which may have long certificates and selectors."""
BASES: dict[str, tuple[type[Any], Document, int]] = {
    "pod that is quit": (Pod, pod({"main": exited(0), "istio-proxy": RUNNING}), 4096),
    "pod that is blocked": (
        Pod, pod({"main": exited(0), "logger": RUNNING, "istio-proxy": RUNNING}), 4096
    ),
    "pod without sidecar": (Pod, pod({"main": RUNNING}, owner=JOB), 4096),
    "namespace": (Namespace, {"metadata": {**NAMED, "labels": ENABLED}}, 4096),
    "EndpointSlice": (EndpointSlice, SLICE, 4096),
    "configuration": (Configuration, {"metadata": NAMED, "webhooks": [HOOK]}, BY_ADMINS),
    "another's configuration": (
        Configuration, {"metadata": NAMED, "webhooks": [{**HOOK, "name": "another"}]}, 4096
    ),
    "injection policy": (injection.PolicyDocument, {}, BY_ADMINS),
}  # fmt: skip
"""Objects of which something is kept, and bytes that a long field may cost beyond that."""


class Text:
    """Texts that no two objects have in common."""

    def __init__(self, size: int) -> None:
        self.size, self._number = size, 0

    def short(self) -> str:
        """Another one each time."""
        self._number += 1
        return f"{SALT}{self._number}"

    def long(self) -> str:
        """One character that is no ASCII makes all of them four times as large."""
        return f"{SALT}-\N{GRINNING FACE}".ljust(self.size, "x")


SCALARS: Mapping[type[Any], Any] = {
    inspect.BoolType: True, inspect.IntType: 200, inspect.FloatType: 200,
    inspect.DateTimeType: "2026-11-21T08:16:26Z",
}  # fmt: skip


def small(kind: Any, text: Text) -> Any:
    """A value of the type with all of its fields, as short as it can be."""
    made: Any = SCALARS.get(type(kind))
    match kind:
        case inspect.UnionType():
            some = (it for it in kind.types if not isinstance(it, inspect.NoneType))
            made = small(next(some), text)
        case inspect.StructType():
            made = {it.encode_name: small(it.type, text) for it in kind.fields}
        case inspect.DictType():
            made = {text.short(): small(kind.value_type, text)}
        case inspect.VarTupleType():
            made = [small(kind.item_type, text)]
        case inspect.StrType():
            made = text.short()
        case inspect.RawType() | inspect.CustomType():  # Any JSON.
            made = {text.short(): text.short()}
        case _:
            assert made is not None, kind
    return made


def many(kind: Any, text: Text) -> list[Any]:
    """So many small values that they have the size together."""
    each = len(msgspec.json.encode(small(kind, text)))
    return [small(kind, text) for _ in range(max(1, text.size // each))]


def large(kind: Any, text: Text) -> Made:
    """What makes values of the size, each by one field of the type, by the path of that field."""
    match kind:
        case inspect.UnionType():
            for each in kind.types:
                yield from large(each, text)
        case inspect.StructType():
            rest = {it.encode_name: small(it.type, text) for it in kind.fields if it.required}
            for field in kind.fields:
                for path, made in large(field.type, text):
                    name = field.encode_name
                    yield f".{name}{path}", lambda n=name, m=made: {**rest, n: m()}
        case inspect.DictType() | inspect.VarTupleType():
            yield from large_collection(kind, text)
        case inspect.StrType():
            yield "", text.long
        case inspect.RawType() | inspect.CustomType():
            yield "", lambda: {text.short(): text.long()}
        case _:
            return


def large_collection(kind: inspect.DictType | inspect.VarTupleType, text: Text) -> Made:
    """As `large`, of many values and of one."""
    if isinstance(kind, inspect.DictType):
        yield "{many}", lambda: {text.short(): v for v in many(kind.value_type, text)}
        yield "{key}", lambda: {text.long(): small(kind.value_type, text)}
        for path, made in large(kind.value_type, text):
            yield f"{{}}{path}", lambda m=made: {text.short(): m()}
        return
    yield "[many]", lambda: many(kind.item_type, text)
    if isinstance(kind.item_type, inspect.StructType):
        yield "[many alike]", lambda: [{}] * (text.size // 30)
    for path, made in large(kind.item_type, text):
        yield f"[]{path}", lambda m=made: [m()]


def merged(base: Any, more: Any) -> Any:
    """The base with more: the first item of a list is what the others have in common."""
    if isinstance(base, dict) and isinstance(more, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in more.items()}}
    if isinstance(base, list) and isinstance(more, list) and base:
        return [merged(base[0], each) for each in more] + base[1:]
    return more


def hostile(kind: type[Any], base: Document, size: int) -> Iterator[tuple[str, bytes]]:
    """Objects with so much of one field, by its path; the first one has none."""
    yield "", msgspec.json.encode(base)
    for path, make in large(inspect.type_info(kind), Text(size)):
        more = make()
        if path in BOUNDED:
            _, part, field = path.split(".")
            more[part][field] = more[part][field][: BOUNDED[path]]
        yield path, msgspec.json.encode(merged(base, more))


class Process:
    """All that `serve` keeps, without its requests, as the leader that restarts pods."""

    def __init__(self) -> None:
        access = Access("https://127.0.0.1:1", ssl.create_default_context(), lambda: "")
        race = structs.replace(DEFAULTS.repair_policy, race=RacePolicy.RESTART)
        self.wiring = Wiring(structs.replace(DEFAULTS, lease=None, repair_policy=race), access)
        self.store = self.wiring._repair.store
        self.injectors = self.wiring._injectors
        self.watches = {name: watch for name, (watch, _) in self.wiring._watches._watches.items()}
        self.watches["slices"] = self.injectors._watch(Service("istio-system", "istiod"))
        self.wiring._repair.store.set_injectors(mesh())

    async def take(self, kind: type[Any], text: bytes, number: int) -> Callable[[], object]:
        """An object arrives; returns what removes it."""
        if kind is injection.PolicyDocument:
            plane, policies = ControlPlane("istio-system", str(number)), self.injectors._policies
            with suppress(ValueError):
                policies[plane] = injection.read_policy(text.decode())
            return lambda: policies.pop(plane, None)
        found = msgspec.json.decode(text, type=kind)
        names = {Pod: "pods", Namespace: "namespaces", Configuration: "injectors"}
        watch, key = self.watches[names.get(kind, "slices")], found.metadata.key
        watch._apply(found)
        await self.store.catch_up()
        self.wiring._events._waiting.clear()  # It is bounded, whatever is in it.
        return lambda: watch._delete(key)


async def cost(process: Process, kind: type[Any], text: bytes) -> int:
    """Bytes that one more such object leaves in memory beside caches, which have bounds."""
    before, removing = 0, list[Callable[[], object]]()
    for number in range(2 * FEW):
        if number == FEW:
            before = traced()
        other = text.replace(SALT.encode(), f"s{number:04}s".encode())
        removing.append(await process.take(kind, other, number))
    left = (traced() - before) // FEW
    for remove in removing:
        remove()
    await asyncio.sleep(0)
    return left


def traced() -> int:
    """Bytes in memory, with empty caches."""
    for cached in (pods._same, pods._key):
        cached.cache_clear()
    pods._interned.clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def table(name: str, size: int) -> list[tuple[str, int, int]]:
    """The path of each field, its object's size, and what it leaves beyond the first one."""
    kind, base, _ = BASES[name]
    process, rows, usual = Process(), list[tuple[str, int, int]](), 0
    made = [*hostile(kind, base, size)]
    tracemalloc.start()
    await cost(process, kind, made[0][1])
    for path, text in made:
        left = await cost(process, kind, text)
        rows.append((path, len(text), left - usual))
        usual = usual or left
    tracemalloc.stop()
    return rows


@pytest.mark.parametrize("size", [2_600, 1_500_000] if NIGHTLY else [20_000])
@pytest.mark.parametrize("name", BASES)
async def test_a_field_of_any_length_costs_a_few_kilobytes_at_most(name: str, size: int) -> None:
    """2,600 bytes are a little less than is kept of an object."""
    (_, _, usual), *rows = await table(name, size)
    assert usual < 4096
    assert len(rows) > 5
    assert [row for row in rows if row[2] > BASES[name][2]] == []


def text(size: int) -> str:
    """A text of that size, another one in each object."""
    return SALT.ljust(size, "x")


def crowded(
    containers: Document, names: tuple[int, ...], owner: tuple[int, ...], labels: int, said: str
) -> bytes:
    """A pod with so many characters in each field of which something is kept."""
    name, space, node = names
    says = {INJECT: text(16), REDIRECTION: text(16), **({QUIT_AFTER: said} if said else {})}
    body = pod(
        containers, owner=JOB, labels={f"a{n}": text(50) for n in range(labels // 60)},
        annotations=says, spec={"nodeName": text(node)},
    )  # fmt: skip
    body["metadata"] |= {"name": text(name), "namespace": text(space)}
    keys = ("apiVersion", "kind", "name", "uid")
    body["metadata"]["ownerReferences"] = [
        {"controller": True, **{key: text(size) for key, size in zip(keys, owner, strict=True)}}
    ]
    return msgspec.json.encode(body)


def blocked(loggers: int) -> Document:
    """So many containers keep the pod of one that has finished."""
    more = {f"{chr(97 + n)}{text(62)}": RUNNING for n in range(loggers)}
    return {"main": exited(0), **more, "istio-proxy": RUNNING}


CROWDS: dict[str, Callable[[int], Document]] = {
    "quit": lambda _: {"main": exited(0), "istio-proxy": RUNNING},
    "blocked": blocked,
    "without sidecar": lambda _: {"main": RUNNING},
}
NAMES = (253, 63, 253)
"""The longest ones of a pod, its namespace and its node, which the API server bounds."""


async def left(body: bytes) -> int:
    """What such a pod leaves in a new process: dicts grow at other times in an older one."""
    process = Process()
    tracemalloc.start()
    found = await cost(process, Pod, body)
    tracemalloc.stop()
    return found


@pytest.mark.parametrize("name", CROWDS)
@settings(max_examples=100 if NIGHTLY else 20)
@given(
    st.tuples(*(st.integers(10, 300) for _ in range(3)), st.integers(10, 70)),
    st.integers(0, 3300),
    st.sampled_from(["", "a", "\N{GRINNING FACE}" * 300]),
)
@example((100, 46, 190, 64), 2900, "")
@example((100, 46, 190, 64), 2000, "")
@example((100, 46, 190, 64), 1900, "\N{GRINNING FACE}" * 300)
@example((10, 10, 10, 36), 2300, "")
def test_much_in_all_fields_costs_a_few_kilobytes_at_most_together(
    name: str, owner: tuple[int, ...], labels: int, said: str
) -> None:
    few = crowded(CROWDS[name](1), (10,) * 3, (10,) * 4, 0, "")
    much = crowded(CROWDS[name](20), NAMES, owner, labels, said)
    assert asyncio.run(left(much)) - asyncio.run(left(few)) <= 4096


SHARES = {"job": 400, "unmeshed": 80, "refusing": 760, "other": 760}
"""Of 2,000 pods, in the proportions of the benchmark."""
USUAL = 1420
"""Bytes that are kept of each of them by who restarts pods, as measured on Python 3.11."""


def large_cluster() -> Iterator[bytes]:
    """The benchmark's pods, in namespaces of fifty, each with a controller of its own."""
    bodies = {**benchmark.bodies("node"), **benchmark.crowd("node")}
    for kind, share in SHARES.items():
        for number in range(share):
            name, place = f"{kind}-{number}", "plain" if kind == "other" else "mesh"
            text = bodies[kind].replace(benchmark.NAME, name).replace(benchmark.OWNER, f"of-{name}")
            text = text.replace(benchmark.NAMESPACE, f"{place}-{number // 50}")
            status = bodies["running" if kind == "job" else "alone"].replace(
                benchmark.NOW, "2026-11-21T08:16:26Z"
            )
            body = json.loads(text) | json.loads(status)
            body["metadata"] |= {"uid": f"{name:>36}", "resourceVersion": "1"}
            yield msgspec.json.encode(body)


async def test_what_is_kept_of_each_of_two_thousand_pods_grows_by_less_than_a_tenth(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A short relative of `tox -e bench -- scale`."""
    caplog.set_level("ERROR")
    process = Process()
    for number in range(16):
        labels = {**ENABLED, "io.datastrophic/istio-aux": "enabled"}
        metadata = Metadata(name=f"mesh-{number}", labels=labels)
        process.watches["namespaces"]._apply(Namespace(metadata=metadata))
    tracemalloc.start()
    before = traced()
    for text in large_cluster():
        process.watches["pods"]._apply(msgspec.json.decode(text, type=Pod))
    await process.store.catch_up()
    process.wiring._events._waiting.clear()
    each = (traced() - before) / sum(SHARES.values())
    tracemalloc.stop()
    assert process.store.count(Sidecar.MISSING) == SHARES["unmeshed"]
    assert len(process.wiring._quit.known) == SHARES["job"]
    assert USUAL / 2 < each < USUAL * 1.1


MANY = {f"a{number}": "" for number in range(1000)}


def test_a_namespace_with_too_many_labels_is_selected_by_nothing_and_unknown_to_istios_rules() -> (
    None
):
    """Also a selector that every namespace matches might not match all of its labels."""
    labels = kept.labels(Namespace(metadata=Metadata(name="shop", labels=MANY)))
    for selectors in ("", "!a"):
        assert not parse_namespaces(selectors).matches(labels)
    found = expected(unmeshed(), labels, mesh().hooks, mesh().policies)
    assert found.expected is None
    assert "3072 bytes are too much to judge" in found.reason


def test_of_a_configuration_that_says_too_much_nothing_is_guessed() -> None:
    """It may be Istio's own, with a selector that nobody can keep."""
    hook = {**HOOK, "namespaceSelector": {"matchLabels": MANY}}
    body = {"metadata": {"name": "large"}, "webhooks": [hook, hook]}
    large = kept.configuration(msgspec.convert(body, Configuration))
    assert kept.configuration(large) == large
    found = expected(unmeshed(), ENABLED, injection.hooks_of([large]), {})
    assert found.expected is None
    assert found.reason.endswith("its configuration is too much to judge")


def test_the_same_ca_bundle_is_kept_once() -> None:
    """The bound counts it once, too."""
    hooks = [{**HOOK, "clientConfig": {"caBundle": f"{'a' * 9}"}} for _ in range(3)]
    body = msgspec.json.encode({"metadata": {"name": "istio"}, "webhooks": hooks})
    found = kept.configuration(msgspec.json.decode(body, type=Configuration)).webhooks
    assert len({id(hook.client_config.ca_bundle) for hook in found or ()}) == 1


async def test_a_pod_that_changes_and_what_pods_have_in_common_are_kept_once() -> None:
    """Else 50,000 pods cost 10 MiB more once they are listed again."""
    wiring = Wiring(DEFAULTS, Access("https://127.0.0.1:1", ssl.create_default_context(), str))
    store, quits = wiring._repair.store, wiring._quit
    proxied = {"main": RUNNING, "istio-proxy": RUNNING}
    for version, number in product("12", range(20)):  # More pods than the last keys are cached of.
        name = f"web-{number}"
        named: Document = {"name": name, "uid": name, "version": version, "owner_uid": name}
        store.apply(pods.convert(raw(**named)))
        quits.apply(pods.convert(raw(proxied, restart="Never", spec={"nodeName": "n-1"}, **named)))
    bare = {key: pod.bare or Candidate() for key, pod in store.pods.items()}
    assert all(pod.version == "2" and pod.key is key for key, pod in bare.items())
    owners = [pod.owner or OwnerReference() for pod in bare.values()]
    assert len({id(text) for owner in owners for text in (owner.kind, owner.api_version)}) == 2
    assert len({(state.node, id(state.node)) for state in quits.known.values()}) == 1
    assert len({id(state.decision) for state in quits.known.values()}) == 1


@pytest.mark.parametrize("part", ["apiVersion", "kind", "name", "uid"])
def test_a_controller_that_no_object_can_be_is_none(part: str) -> None:
    body = raw()
    body["metadata"]["ownerReferences"][0][part] = "a" * 1000
    decision = decide_repair(pods.convert(body))
    assert "the pod has no controller that would make a new one" in decision.reason
