"""Paths and lists: a name that no object can have is never sent; a list is read page by page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import InvalidNameError
from istio_aux.model.pod import OwnerReference, Pod
from unit.apiserver import ApiServer, refusal
from unit.asynchronous import driven

SOURCE = Path(actions.__file__).parents[1]

BAD = ["", ".", "..", "../pods", "a/b", "a?watch=1", "a#b", "a%2fb", "A", "a b", "a\n", "é", "-a",
       "a-", "a..b", "a.-b", "a" * 254, "a;b", "a\x00", "\u0661"]  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_no_object_can_be_called_is_in_no_path(name: str) -> None:
    with pytest.raises(InvalidNameError, match=r"no object can have it"):
        actions.pod_path("training", name)
    if name:
        with pytest.raises(InvalidNameError, match=r"no object can have it"):
            actions.collection("v1", "pods", name)


@pytest.mark.parametrize("api", ["", "v1/", "batch/", "batch/..", "batch/../v1", "/v1", "a/b/v1",
                                 "batch/v1?", "Batch/v1"])  # fmt: skip
def test_what_no_group_can_be_called_is_in_no_path(api: str) -> None:
    with pytest.raises(InvalidNameError, match="serves none of that name"):
        actions.collection(api, "jobs", "training")


def test_an_error_shows_the_beginning_of_a_long_name_in_one_line() -> None:
    with pytest.raises(InvalidNameError) as caught:
        actions.pod_path("training", "\n" + "x" * 100_000)
    assert str(caught.value) == rf'name "\n{"x" * 59}…": no object can have it (RFC 1123)'


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (actions.collection("v1", "pods"), "/api/v1/pods"),
        (actions.collection("batch/v1", "jobs", "a"), "/apis/batch/v1/namespaces/a/jobs"),
        (actions.pod_path("a", "b.c-0", "exec"), "/api/v1/namespaces/a/pods/b.c-0/exec"),
        (actions.pod_path("a" * 63, "b" * 253), f"/api/v1/namespaces/{'a' * 63}/pods/{'b' * 253}"),
    ],
)
def test_names_are_in_paths_as_the_api_server_has_them(path: str, expected: str) -> None:
    assert path == expected


def test_no_other_file_makes_a_path() -> None:
    made = re.compile(r"""["'][^"'\s`]*(/api/v1|/apis/|/namespaces/)""")
    found = {
        str(file.relative_to(SOURCE)): line.strip()
        for file in sorted(SOURCE.rglob("*.py"))
        for line in file.read_text().splitlines()
        if made.search(line)
    }
    assert found.keys() == {"kube/actions.py"}, found


@pytest.mark.parametrize(
    "owner",
    [
        OwnerReference(api_version="batch/v1", kind="Job", name="../../secrets", uid="1"),
        OwnerReference(api_version="batch/v1", kind="Job", name="a?watch=1", uid="1"),
        OwnerReference(api_version="batch/../v1", kind="Job", name="a", uid="1"),
    ],
)
@driven
async def test_an_owner_that_cannot_be_is_not_asked_for(owner: OwnerReference) -> None:
    async with ApiServer() as api, Client(api.access()) as client:
        with pytest.raises(InvalidNameError):
            await actions.read_job(client, "training", owner)
        assert api.requests == []


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "training"}}


async def names(api: ApiServer) -> list[str]:
    async with Client(api.access()) as client:
        pages = actions.pages(client, "/api/v1/pods", Pod, {}, limit=2)
        return [item.metadata.name async for page in pages for item in page.items]


@driven
async def test_a_long_list_comes_in_pages() -> None:
    async with ApiServer() as api:
        for name in "abcde":
            await api.put("pods", pod(name))
        assert await names(api) == list("abcde")
        assert [query["limit"] for query in api.queries] == ["2", "2", "2"]
        assert ["continue" in query for query in api.queries] == [False, True, True]


@driven
async def test_a_list_whose_snapshot_expires_between_pages_begins_again_in_larger_ones() -> None:
    async def expired(request: web.Request) -> web.StreamResponse | None:
        return refusal(410, "Expired", "too old") if "continue" in request.query else None

    async with ApiServer() as api:
        api.faults.append(expired)
        for name in "abcde":
            await api.put("pods", pod(name))
        # The pages before are passed again, which a set of keys ignores.
        assert await names(api) == [*"ab", *"abcde"]
        assert [query["limit"] for query in api.queries] == ["2", "2", "10"]
