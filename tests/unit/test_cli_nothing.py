"""What each command says when it finds nothing or may not look: where it looked, what helps."""

from __future__ import annotations

import pytest
from unit.apiserver import ApiServer
from unit.rules.pods import RUNNING
from unit.screens import Ask, put_pod

LOOKING = ("audit", "explain", "quit", "quit --yes", "restart-unmeshed", "restart-unmeshed --yes")
NAMESPACES = "/api/v1/namespaces"


@pytest.mark.parametrize("command", LOOKING)
@pytest.mark.parametrize(
    ("where", "path", "answer"),
    [
        ("-A", "/api/v1/pods", "all namespaces: give -n NAMESPACE"),
        ("-n other", f"{NAMESPACES}/other/pods", "namespace other: give another namespace by -n"),
    ],
)
async def test_a_refusal_is_one_line_that_says_what_to_give_and_is_asked_for_once(
    ask: Ask, command: str, where: str, path: str, answer: str
) -> None:
    async with ApiServer() as api:
        api.refuse(path, 403, "Forbidden", "pods is forbidden: " + 60 * "some ")
        shown = await ask(api, *command.split(), *where.split())
    assert (shown.status, shown.out) == (1, "")
    said = [line for line in shown.err.splitlines() if not line.startswith("judged by")]
    assert said == [f"this account may not list pods in {answer}"]
    assert api.requests.count(f"GET {path}") == 1


async def test_who_cannot_know_which_pods_lack_a_sidecar_is_told_another_way(ask: Ask) -> None:
    async with ApiServer() as api:
        api.refuse(NAMESPACES, 403, "Forbidden", "no")
        await put_pod(api, "one", {"main": RUNNING}, namespace="team")
        shown = await ask(api, "restart-unmeshed", "-n", "team")
    way = (
        "where the pod of a Job has no sidecar, delete the Job and apply it again, "
        "as `kubectl replace --force -f` does"
    )
    assert (shown.out, shown.err) == ("", f"this account may not list namespaces: {way}\n")


async def test_check_says_in_the_same_words_what_the_account_may_not_read(ask: Ask) -> None:
    async with ApiServer() as api:
        api.refuse("GET /api/v1/nodes", 403, "Forbidden", "nodes is forbidden: User x cannot")
        shown = await ask(api, "check", columns=None)
    [line] = [line for line in shown.out.splitlines() if line.split()[:1] == ["kubernetes"]]
    assert line.endswith("not known: this account may not list nodes")


@pytest.mark.parametrize("command", LOOKING)
async def test_a_namespace_that_does_not_exist_is_named(ask: Ask, command: str) -> None:
    """The API server lists no pods of it, as of one that is empty."""
    async with ApiServer() as api:
        shown = await ask(api, *command.split(), "-n", "resaerch")
    assert (shown.status, shown.out) == (1, "")
    assert "namespace resaerch does not exist\n" in shown.err


EVERYWHERE = "; -A looks at all namespaces"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("audit", "no pod hangs or lacks its sidecar in all namespaces (1 looked at)"),
        ("explain -n empty", f"there is no pod in namespace empty (0 looked at){EVERYWHERE}"),
        ("quit", f"no pod hangs in namespace default (0 looked at){EVERYWHERE}"),
    ],
)
async def test_nothing_found_says_where_it_looked(ask: Ask, argv: str, said: str) -> None:
    async with ApiServer() as api:
        for name in ("default", "empty"):
            api.put("namespaces", {"metadata": {"name": name}})
        await put_pod(api, "one", {"main": RUNNING, "istio-proxy": RUNNING}, namespace="team")
        shown = await ask(api, *argv.split(), columns=None, errors=None)
    assert shown.status == 0
    assert said in (shown.out + shown.err).splitlines()
