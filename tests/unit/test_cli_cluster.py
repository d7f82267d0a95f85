"""`istio-aux audit`, and `explain` of a cluster's pods, as a user runs them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from unit.apiserver import ApiServer
from unit.asynchronous import driven, until
from unit.rules.pods import RUNNING, State, exited
from unit.screens import Run, Shown, run
from unit.test_cli_audit import fill, put

__all__ = ["run"]

FINISHED: dict[str, State] = {"main": exited(0), "istio_proxy": RUNNING}
SUMMARY = "pods: 6; stuck: 2, blocked: 1, lost: 1, unmeshed: 0"


async def ask(run: Run, api: ApiServer, folder: Path, *argv: str, **screens: int | None) -> Shown:
    """Run the command line beside the server, on a thread of its own."""
    kubeconfig = str(api.kubeconfig(folder))
    return await asyncio.to_thread(run, *argv, "--kubeconfig", kubeconfig, **screens)


@driven
async def test_audit_shows_a_table_in_a_terminal(run: Run, tmp_path: Path) -> None:
    """With a colour for each state, and reasons below the rows where they do not fit beside."""
    async with ApiServer() as api:
        await fill(api)
        shown = await ask(run, api, tmp_path, "audit", columns=60)
    assert (shown.status, shown.err) == (0, "")
    table, held, summary = shown.out.split("\n\n")
    header, *lines = table.splitlines()
    rows = [line for line in lines if line[0] != " "]
    assert "\x1b[1mSTATE\x1b[0m" in header
    assert [row.split()[2] for row in rows] == [
        "\x1b[31mstuck\x1b[0m", "\x1b[33mblocked\x1b[0m", "\x1b[35mlost\x1b[0m",
        "\x1b[31mstuck\x1b[0m",
    ]  # fmt: skip
    assert "    not finished: vault (running)" in lines
    assert held.startswith("2 pods are held by istio-proxy since ")
    assert "\x1b[31mstuck: 2\x1b[0m" in summary


@driven
async def test_audit_cuts_and_colours_nothing_in_a_pipe(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The width of the terminal and COLUMNS do not matter."""
    monkeypatch.setenv("COLUMNS", "60")
    async with ApiServer() as api:
        await fill(api)
        shown = await ask(run, api, tmp_path, "audit", columns=None, errors=60)
    assert "\x1b" not in shown.out
    assert "…" not in shown.out
    assert "not finished: vault (running)" in shown.out
    assert shown.out.endswith(f"\n\n{SUMMARY}\n")


@driven
async def test_audit_takes_the_options_of_serve(run: Run, tmp_path: Path) -> None:
    """A pod whose vault agent is ignored is stuck; one in its grace period is not yet."""
    just_now = datetime.now(UTC).isoformat()
    async with ApiServer() as api:
        await put(api, "fresh", main=exited(0, at=just_now), istio_proxy=RUNNING)
        await put(api, "old", main=exited(0, at="2020-01-01T00:00:00Z"), vault=RUNNING,
                  istio_proxy=RUNNING)  # fmt: skip
        told = ("--ignore-containers", "vault", "--quit-grace", "3600")
        shown = await ask(run, api, tmp_path, "audit", "-o", "json", *told)
    assert [(item["name"], item["state"]) for item in objects(shown)] == [("old", "stuck")]


@driven
async def test_a_long_list_shows_its_progress_in_a_terminal(run: Run, tmp_path: Path) -> None:
    """On stderr, and wiped in the end; in a pipe there is nothing of it."""
    async with ApiServer() as api:
        for number in range(101):
            await put(api, f"job-{number}", main=RUNNING, istio_proxy=RUNNING)
        shown = await ask(run, api, tmp_path, "audit", columns=None, errors=100)
        piped = await ask(run, api, tmp_path, "audit", columns=100, errors=None)
    assert shown.err == "\x1b[2K100 pods read ...\r\x1b[2K\r"
    assert (piped.status, piped.err) == (0, "")


@driven
async def test_a_server_or_a_kubeconfig_that_is_not_there_is_one_line(
    run: Run, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing")
    shown = await asyncio.to_thread(run, "audit", "--kubeconfig", missing)
    assert shown == (2, "", f"{missing}: No such file or directory\n")
    async with ApiServer() as api:
        kubeconfig = str(api.kubeconfig(tmp_path))
        await api.stop()
        for argv in (["audit"], ["explain", "a", "b"]):
            shown = await asyncio.to_thread(run, *argv, "--kubeconfig", kubeconfig)
            assert (shown.status, shown.out) == (1, "")
            assert shown.err.startswith(f"API server {api.url}: Cannot connect")
            assert shown.err.count("\n") == 1


@driven
async def test_explain_reads_pods_of_the_cluster_by_name(run: Run, tmp_path: Path) -> None:
    """With a namespace before the slash, in -n, or in the kubeconfig; after those in files.

    A line names a pod that is not there, the others are answered, and the status is 1.
    """
    file = tmp_path / "pod.json"
    file.write_text('{"kind": "Pod", "metadata": {"name": "on-paper"}}')
    async with ApiServer() as api:
        await put(api, "one", "default", **FINISHED)
        await put(api, "two", "training", main=RUNNING, istio_proxy=RUNNING)
        names = ("none", "one", "training/two")
        from_default = await ask(run, api, tmp_path, "explain", *names, columns=None)
        options = ("-f", str(file), "-n", "training")
        names = ("two", "default/one")
        from_option = await ask(run, api, tmp_path, "explain", *options, *names, columns=None)
    assert (from_default.status, from_option.status) == (1, 0)
    assert from_default.err == 'default/none: 404 NotFound: pods "none" not found\n'
    assert answers(from_default) == [("one", "quit"), ("two", "wait")]
    assert answers(from_option) == [("on-paper", "ignore"), ("two", "wait"), ("one", "quit")]


@driven
async def test_a_pod_of_the_cluster_is_judged_as_of_now(run: Run, tmp_path: Path) -> None:
    """Its grace period counts, unlike that of a pod in a file."""
    just_now = datetime.now(UTC).isoformat()
    async with ApiServer() as api:
        await put(api, "one", "default", main=exited(0, at=just_now), istio_proxy=RUNNING)
        body: Any = api.get("pods", "default", "one")
        body["metadata"]["annotations"] = {"istio-aux.io/quit-grace": "3600"}
        file = tmp_path / "pod.json"
        file.write_text(json.dumps(body))
        shown = await ask(run, api, tmp_path, "explain", "one", "-f", str(file), columns=None)
    assert answers(shown) == [("one", "quit"), ("one", "wait")]


@driven
async def test_an_interrupt_is_quiet(tmp_path: Path) -> None:
    """Ctrl-C while the server takes its time: no traceback, and the status of shells, 130."""
    async with ApiServer() as api:

        async def slow(_request: web.Request) -> web.StreamResponse | None:
            await asyncio.sleep(60)
            return None

        api.faults.append(slow)
        # A shell that runs the tests in the background ignores the signal, also for children.
        listening = "signal.signal(signal.SIGINT, signal.default_int_handler)"
        program = (
            f"import signal, sys; from istio_aux.cli import main; {listening}; sys.exit(main())"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program,
            "audit", "--kubeconfig", str(api.kubeconfig(tmp_path)), stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        await until(lambda: api.requests, "the program to ask", within=30)
        process.send_signal(signal.SIGINT)
        assert await process.communicate() == (b"", b"")
        assert process.returncode == 130


def objects(shown: Shown) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown.out.splitlines()]


def answers(shown: Shown) -> list[tuple[str, str]]:
    return [(item["name"], item["action"]) for item in objects(shown)]


@driven
async def test_a_busy_api_server_is_waited_for(run: Run, tmp_path: Path) -> None:
    """As kubectl does."""
    async with ApiServer() as api:
        await put(api, "job", main=exited(0), istio_proxy=RUNNING)
        api.refuse("/pods", 429, "TooManyRequests", "slow down", times=3, after=0)
        shown = await ask(run, api, tmp_path, "audit", columns=None)
    assert (shown.status, shown.err) == (0, "")
