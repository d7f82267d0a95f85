"""The program as a process: `istio-aux serve` and `istio-aux audit`, signals and exit statuses."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from istio_aux.app import endless_task
from istio_aux.parts import identity
from unit.apiserver import ApiServer
from unit.asynchronous import background, driven, until
from unit.core.pods import RUNNING, exited
from unit.selection import managed
from unit.served import config, finished_pod, freeing, run, serving


@driven
async def test_it_serves_watches_and_frees(tmp_path: Path) -> None:
    async with ApiServer() as api:
        api.on_exec = freeing(api)
        async with serving(tmp_path, api) as served:
            await served.ready()
            await finished_pod(api, "job")
            await until(lambda: served.events("quit"), "the pod is freed")
            assert (await served.ask("/livez"))[0] == 200
            status = await served.status()
            assert status["ready"] is True
            assert status["selected-namespaces"] == ["training"]
            assert (status["stuck-pods"], status["quits-total"]) == ([], 1)
            metrics = (await served.ask("/metrics"))[1]
            assert 'istio_aux_quits_total{outcome="exited",rung="exec"} 1.0' in metrics
            trust = ssl.create_default_context(cafile=str(served.crt))
            url = f"https://{served.addresses['webhook']}/mutate"
            post = {"json": {}, "ssl": trust}
            async with aiohttp.ClientSession() as session, session.post(url, **post) as answer:
                assert answer.status == 400


@driven
async def test_it_is_not_ready_before_it_has_seen_all_and_says_what_is_missing(
    tmp_path: Path,
) -> None:
    async with ApiServer() as api:
        path = api.kubeconfig(tmp_path)
        await api.stop()
        async with serving(tmp_path, api, kubeconfig=str(path)) as served:
            await until(lambda: served.events("watch"), "the API server is missed", within=30)
            code, text = await served.ask("/readyz")
            assert code == 503
            assert "pods: no complete list yet: /api/v1/pods: Cannot connect to host" in text
            assert "namespaces: no complete list yet" in text
            assert (await served.status())["ready"] is False
            assert (await served.ask("/livez"))[0] == 200
            await api.start()
            await served.ready()


@driven
async def test_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    async with ApiServer() as api, serving(tmp_path, api) as served:
        await served.ready()
        trust = ssl.create_default_context(cafile=str(served.crt))
        host, port = served.addresses["webhook"].split(":")
        # A connection that idles, as the API server keeps some: it must not delay the end.
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trust)
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert await served.process.wait() == 0
        assert time.monotonic() - began < 9, "the deadline of an exec is 10 s"
        # A review that raced with the close would be sent again for this answer.
        assert (await reader.read()).startswith(b"HTTP/1.1 503")
        writer.close()
    assert [line["event"] for line in served.log[-2:]] == ["stop", "stopped"]


@driven
async def test_a_hung_exec_does_not_delay_the_end(tmp_path: Path) -> None:
    async def hang(_socket: web.WebSocketResponse, *_: str) -> None:
        await asyncio.sleep(30)

    async with ApiServer() as api:
        api.on_exec = hang
        await finished_pod(api, "job")
        async with serving(tmp_path, api) as served:
            await until(lambda: api.execs, "the exec hangs", within=30)
            began = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            assert await served.process.wait() == 0
            assert time.monotonic() - began < 9, "the deadline of an exec is 10 s"


@driven
async def test_a_second_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    async with ApiServer() as api, serving(tmp_path, api) as served:
        await served.ready()
        served.process.send_signal(signal.SIGTERM)
        await until(lambda: served.events("stop"), "the first has arrived")
        served.process.send_signal(signal.SIGTERM)
        assert await served.process.wait() == 1
    assert served.events("stopped") == []


@driven
async def test_kill_9_in_the_middle_of_an_attempt_loses_nobody(tmp_path: Path) -> None:
    async def hang(_socket: web.WebSocketResponse, *_: str) -> None:
        await asyncio.sleep(30)

    async with ApiServer() as api:
        api.on_exec = hang
        await finished_pod(api, "job")
        async with serving(tmp_path, api) as served:
            await until(lambda: api.execs, "the attempt is made", within=30)
            served.process.kill()
        api.on_exec = freeing(api)
        async with serving(tmp_path, api) as served:
            await until(lambda: served.events("quit"), "the next process frees it", within=30)


@driven
async def test_of_two_processes_one_acts_and_hands_over_when_it_is_told_to_end(
    tmp_path: Path,
) -> None:
    """T26: the other finds what is left to do, and never meets a command of the first."""
    closed = asyncio.Event()
    released: list[bool] = []

    async def hang(socket: web.WebSocketResponse, *_: str) -> None:
        await socket.receive()
        closed.set()

    async def note_release(request: web.Request) -> None:
        if request.method == "PUT" and not (await request.json())["spec"]["holderIdentity"]:
            released.append(closed.is_set())

    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
    async with ApiServer() as api:
        api.on_exec = hang
        api.faults.append(note_release)
        async with serving(tmp_path / "one", api, lease="istio-aux/istio-aux") as one:
            await until(lambda: one.events("lease"), "one leads", within=30)
            async with serving(tmp_path / "two", api, lease="istio-aux/istio-aux") as two:
                await asyncio.gather(one.ready(), two.ready())
                await finished_pod(api, "job")
                await until(lambda: api.execs, "one acts", within=30)
                leader, other = await one.status(), await two.status()
                assert (leader["leader"], other["leader"]) == (True, False)
                assert leader["lease-holder"] == other["lease-holder"] != ""
                assert "istio_aux_leader 0.0" in (await two.ask("/metrics"))[1]
                api.on_exec = freeing(api)
                one.process.send_signal(signal.SIGTERM)
                assert await one.process.wait() == 0
                assert released == [True], "once, and after the exec had ended"
                await until(lambda: two.events("quit"), "two frees the pod", within=30)
                assert (await two.status())["leader"] is True
                assert "istio_aux_leader 1.0" in (await two.ask("/metrics"))[1]


@driven
async def test_with_quit_and_race_policy_off_no_pod_is_looked_at(tmp_path: Path) -> None:
    async with ApiServer() as api:
        await finished_pod(api, "job")
        async with serving(tmp_path, api, quit="off", race_policy="off") as served:
            await served.ready()
            status = await served.status()
    assert (status["quit"], status["race"], status["watched-pods"]) == ("off", "off", 0)
    assert not any("pods" in request for request in api.requests)


@driven
async def test_what_the_settings_say_of_pods_counts(tmp_path: Path) -> None:
    async with ApiServer() as api:
        api.on_exec = freeing(api)
        settings = {"ignore_containers": "[helper]", "quit": "dry-run"}
        async with serving(tmp_path, api, **settings) as served:
            await served.ready()
            containers = {"istio-proxy": RUNNING, "main": exited(0), "helper": RUNNING}
            await finished_pod(api, "job", containers)
            await until(lambda: served.events("decision"), "it is decided on", within=30)
            assert served.events("decision")[0]["action"] == "would quit"
            assert (await served.status())["quit"] == "dry-run"
    assert api.execs == []


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"namespace_selector": "a in b"}, 'config.yaml: namespace-selector: "a in b": expected'),
        ({"tls_key": "/absent"}, "/absent: no certificate and key: No such file"),
        ({"kubeconfig": "/absent"}, "/absent: No such file or directory"),
    ],
)
@driven
async def test_what_cannot_be_used_is_one_line_and_exit_2(
    settings: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    async with ApiServer() as api:
        path = config(tmp_path, api, **settings)
        code, out, err = await run("serve", "--config", str(path))
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


@driven
async def test_a_port_that_is_taken_is_one_line_and_exit_1(tmp_path: Path) -> None:
    async with ApiServer() as api:
        taken = api.url.removeprefix("https://")
        path = config(tmp_path, api, status_address=taken)
        code, out, _ = await run("serve", "--config", str(path))
    assert code == 1
    assert "address already in use" in json.loads(out.splitlines()[-1])["message"]


@driven
async def test_audit_prints_what_it_finds(tmp_path: Path) -> None:
    async with ApiServer() as api:
        await finished_pod(api, "job")
        kubeconfig = str(api.kubeconfig(tmp_path))
        code, out, _ = await run("audit", "--kubeconfig", kubeconfig, "-o", "json")
        assert (code, json.loads(out)["name"]) == (0, "job")
        code, out, _ = await run("audit", "--kubeconfig", kubeconfig, "-n", "other")
        assert (code, out.splitlines()[-1].split(": ", 1)[1]) == (
            0,
            "0; stuck: 0, blocked: 0, lost: 0, unmeshed: 0",
        )


@driven
async def test_audit_says_in_one_line_why_it_cannot(tmp_path: Path) -> None:
    async with ApiServer() as api:
        kubeconfig = str(api.kubeconfig(tmp_path))
        await api.stop()
        code, out, err = await run("audit", "--kubeconfig", kubeconfig)
        assert (code, out) == (1, "")
        assert "Cannot connect to host" in err
        assert err.count("\n") == 1
        await api.start()
    code, _, err = await run("audit", "--kubeconfig", str(tmp_path / "absent"))
    assert (code, err.count("\n")) == (2, 1)


def test_a_process_is_the_same_candidate_again_where_only_it_can_listen() -> None:
    assert identity(8443) == identity(8443)
    assert identity(8443) != identity(8444)
    assert identity(0) != identity(0)


@driven
async def test_pods_that_cannot_be_read_cost_themselves_only(tmp_path: Path) -> None:
    """Also those of a namespace that is not selected, and also after a restart."""
    async with ApiServer() as api:
        api.on_exec = freeing(api)
        deep = {"name": "deep", "namespace": "other", "managedFields": managed(9000)}
        odd = {"name": "odd", "namespace": "other"}
        running = {"spec": {"restartPolicy": "Never"}, "status": {"phase": "Running"}}
        await api.put("pods", {"metadata": deep, **running})
        await api.put("pods", {"metadata": odd, **running, "spec": {"containers": "none"}})
        for life in ("first", "second"):
            async with serving(tmp_path, api) as served:
                await served.ready()
                await finished_pod(api, f"job-{life}")
                await until(lambda served=served: served.events("quit"), "the pod is freed")
                status = await served.status()
                assert status["unreadable-total"] == 1
                why = "Expected `array | null`, got `str` - at `$.spec.containers`"
                assert status["unreadable-objects"] == [
                    {"path": "/api/v1/pods", "namespace": "other", "name": "odd", "reason": why}
                ]
                metrics = (await served.ask("/metrics"))[1]
                assert "istio_aux_unreadable_objects 1.0" in metrics
                assert "istio_aux_internal_errors_total 0.0" in metrics


@driven
async def test_what_is_to_run_for_ever_survives_errors_that_nobody_foresaw() -> None:
    """Each is told, and the next attempt comes later and later."""
    told: list[str] = []
    lives: list[float] = []

    async def work() -> None:
        lives.append(asyncio.get_running_loop().time())
        if len(lives) == 1:
            raise RecursionError("too deep")
        if len(lives) > 2:
            await asyncio.sleep(60)

    def failed(name: str, error: BaseException | None) -> None:
        told.append(f"{name}: {error!r}")

    async with background(endless_task("watch", work, failed, (0.02, 0.1))):
        await until(lambda: len(lives) == 3, "it runs again")
    assert told == ["watch: RecursionError('too deep')", "watch: None"]
