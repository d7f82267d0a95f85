"""An object that cannot be decoded affects no other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from istio_aux.cli import cluster
from istio_aux.kube.client import Client
from istio_aux.kube.lease import Lease
from istio_aux.model.policy import Policy
from unit.apiserver import ApiServer
from unit.asynchronous import driven, until
from unit.electing import LEASE, candidate, renewed
from unit.screens import Run, run
from unit.store import line, managed
from unit.watching import Seen, lists, on_watch, paging, pod, stream, watching

DEPTHS = [1500, 9000]
"""More than msgspec can pass over on Python 3.11 and 3.12, and nearly what the API server takes."""

__all__ = ["run"]

UNREADABLE = {"spec": {"containers": "none"}}


async def listed_again(api: ApiServer) -> None:
    """Wait for the next list; the watch does not report what changed before it."""
    before = lists(api)
    await api.forget_history()
    await api.cut()
    await until(lambda: lists(api) > before and api.watches, "it was listed again")


def deep(name: str, levels: int = 9000) -> dict[str, object]:
    return pod(name, managedFields=managed(levels))


@pytest.mark.parametrize("levels", DEPTHS)
@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "in pages"])
@driven
async def test_a_pod_with_deep_managed_fields_is_listed_like_any_other(
    streaming: bool, levels: int
) -> None:
    seen = Seen()
    async with ApiServer() as api:
        api.streaming = streaming
        await api.put("pods", deep("deep", levels))
        await api.put("pods", pod("a"))
        async with watching(api, seen) as watch:
            await until(lambda: seen.names == {"a", "deep"}, "both are there")
            await watch.synced.wait()
            assert watch.unreadable == {}


@driven
async def test_what_cannot_be_read_any_more_is_neither_gone_nor_changed() -> None:
    """Not in the stream, and not by the next list."""
    seen = Seen()
    async with paging() as api, watching(api, seen) as watch:
        await api.put("pods", pod("a"))
        await until(lambda: seen.names == {"a"}, "it is there")
        await api.put("pods", pod("a", "Succeeded") | UNREADABLE)
        await until(lambda: watch.unreadable, "it cannot be read")
        await listed_again(api)
        assert seen.phases == {"a": "Running"}
        [(key, why)] = watch.unreadable.items()
        assert (str(key), why) == (
            "training/a", "Expected `array | null`, got `str` - at `$.spec.containers`"
        )  # fmt: skip
        await api.put("pods", pod("a", "Failed"))
        await until(lambda: seen.phases == {"a": "Failed"}, "it can be read again")
        assert watch.unreadable == {}


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "in pages"])
@driven
async def test_an_unreadable_object_that_is_gone_is_forgotten(streaming: bool) -> None:
    seen = Seen()
    async with ApiServer() as api:
        api.streaming = streaming
        await api.put("pods", pod("vanishes") | UNREADABLE)
        await api.put("pods", pod("deleted") | UNREADABLE)
        async with watching(api, seen) as watch:
            await until(lambda: len(watch.unreadable) == 2, "both cannot be read")
            await until(lambda: api.watches, "the watch is open")
            await api.remove("pods", "training", "deleted")
            await until(lambda: len(watch.unreadable) == 1, "the deletion is told")
            await api.remove("pods", "training", "vanishes")
            await api.forget_history()
            await api.cut()
            await until(lambda: watch.unreadable == {}, "a list shows that it is gone")


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":{"name":"\xff","namespace":"training","uid":"1","resourceVersion":"9"}}',
        b'{"metadata":{"name":"\\ud800","uid":"1"}}',
        b'{"metadata":{"name":1,"namespace":[],"uid":{},"resourceVersion":null}}',
        b'{"metadata":{"name":"a"},"status":{"phase":' + b"9" * 5000 + b"}}",
        b'"none"',
        b"[" * 9000 + b"]" * 9000,
    ],
    ids=["no UTF-8", "half a character", "no texts", "a long number", "no object", "deep"],
)  # fmt: skip
@driven
async def test_an_event_that_is_whole_never_ends_the_stream(body: bytes) -> None:
    async def odd(request: web.Request) -> web.StreamResponse:
        event = b'{"type":"MODIFIED","object":' + body + b"}\n"
        response = await stream(request, event, line("ADDED", pod("a", resourceVersion="99")))
        await asyncio.sleep(60)
        return response

    seen = Seen()
    async with paging() as api:
        api.faults.append(on_watch(odd))
        async with watching(api, seen) as watch:
            await until(lambda: seen.names == {"a"}, "what follows is told")
            assert len(watch.unreadable) == 1
            assert seen.restarts == []


@driven
async def test_a_lease_with_deep_managed_fields_is_held_and_renewed() -> None:
    async with ApiServer() as api, candidate(api) as one:
        await one.leads()
        found = api.get(*LEASE)
        assert found
        found["metadata"]["managedFields"] = managed(9000)
        await api.put("leases", found)
        await renewed(api)
        await renewed(api)
        assert one.told == [True]


@driven
async def test_a_process_with_an_unhandled_exception_no_longer_leads() -> None:
    """Others may: the error is likely to come again, and nobody could tell what was led."""
    async with ApiServer() as api, Client(api.access()) as client:
        told: list[bool] = []

        def changed(leads: bool) -> None:
            told.append(leads)
            if leads:
                raise RuntimeError("nobody foresaw this")

        lease = Lease(client, "istio-aux", "istio-aux", "one", changed=changed)
        with pytest.raises(RuntimeError, match="nobody foresaw this"):
            await lease.run()
        assert (lease.held, told) == (False, [True, False])


@driven
async def test_audit_says_which_pods_it_cannot_read() -> None:
    async with ApiServer() as api:
        await api.put("namespaces", {"metadata": {"name": "training"}})
        await api.put("pods", deep("deep"))
        for index in range(4):
            await api.put("pods", pod(f"odd-{index}") | UNREADABLE)
        found = await cluster.audit_pods(api.access(), cluster.Scope(), Policy())
    why = "Expected `array | null`, got `str` - at `$.spec.containers`"
    assert (found.pods, found.unknown) == (1, 4)
    assert found.gaps == (
        *(f"cannot read pod training/odd-{index}: {why}" for index in range(3)),
        "and 1 more",
    )


@driven
async def test_explain_answers_for_the_other_pods(run: Run, tmp_path: Path) -> None:
    async with ApiServer() as api:
        await api.put("pods", deep("deep"))
        await api.put("pods", pod("odd") | UNREADABLE)
        config = str(api.kubeconfig(tmp_path))
        argv = ("explain", "--kubeconfig", config, "training/odd", "training/deep")
        shown = await asyncio.to_thread(run, *argv, columns=None)
    assert shown.err == (
        "training/odd: the answer is no pod: Expected `array | null`, got `str` - at"
        " `$.spec.containers`\n"
    )
    assert json.loads(shown.out)["name"] == "deep"
    assert shown.status == 1
