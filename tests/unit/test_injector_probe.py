"""How an injector is asked by dry runs, what answers mean; istiod's stand-in is as istiod is."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import jsonpatch
import pytest
from aiohttp import web
from istio_aux.injector import probe
from istio_aux.injector.probe import Rhythm, ask, check_kubelets
from istio_aux.injector.probe_rules import WORD, Question
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.model.answers import Liveness
from istio_aux.model.policy import Capability
from istio_aux.model.selectors import parse_namespaces
from lab.kubelet import pods
from unit.apiserver import refusal
from unit.istiod import (
    ISTIOS,
    QUICK,
    TEMPLATE,
    Cluster,
    Natively,
    admit,
    chain,
    dead,
    watching,
)
from unit.process import until
from unit.rules.pods import DATA, ENABLED
from unit.test_injector_watcher import injector, told

# How an injector is asked by dry runs, and what bad answers, and none, mean.

N, C, U = Capability.NATIVE, Capability.CLASSIC, Capability.UNKNOWN
ON_REQUEST: Natively = "on request"
OFTEN = Rhythm(live=0.05, other=0.05, read=0.05)
Later = Callable[[dict[str, Any]], web.Response | None]


def drops(pod: dict[str, Any]) -> web.Response | None:
    """A webhook after Istio's that knows init containers only as they were before 1.28."""
    for container in pod["spec"].get("initContainers", []):
        container.pop("restartPolicy", None)
    return None


def drops_and_is_refused(pod: dict[str, Any]) -> web.Response | None:
    """The same, as the API server then takes it: such a container may have no probes and hooks."""
    if not is_native(pod):
        return None
    why = "spec.initContainers[1].startupProbe: Forbidden: may not be set for init containers"
    return refusal(422, "Invalid", f'Pod "istio-aux-probe-" is invalid: {why}')


def denies(pod: dict[str, Any]) -> web.Response | None:
    """A policy that refuses native sidecars."""
    return refusal(403, "Forbidden", "denied by policy: no sidecars") if is_native(pod) else None


def forbidden(_pod: dict[str, Any]) -> web.Response:
    """The account may create no pods, as on Kubernetes before 1.30."""
    return refusal(403, "Forbidden", 'pods is forbidden: cannot create resource "pods"')


def is_native(pod: dict[str, Any]) -> bool:
    return "istio-proxy" in {c["name"] for c in pod["spec"].get("initContainers", [])}


def asked_in(*namespaces: str) -> list[Question]:
    return [Question(name, {}) for name in namespaces]


@pytest.mark.parametrize(
    ("world", "later", "capability", "why"),
    [
        ("default", (), Capability.UNASKED, "native unasked"),
        ("on request", (), N, "native on request"),
        ("never", (), C, "Istio makes no native sidecars"),
        ("default", (drops,), C, "a webhook after Istio's removes restartPolicy"),
        ("on request", (drops_and_is_refused,), C, "startupProbe: Forbidden"),
        ("on request", (denies,), C, "denied by policy: no sidecars"),
        ("default", (denies,), C, "denied by policy: no sidecars"),
        ("default", (drops_and_is_refused,), C, "startupProbe: Forbidden"),
    ],
)
async def test_the_whole_chain_of_webhooks_decides(
    world: Natively, later: tuple[Later, ...], capability: Capability, why: str
) -> None:
    """A classic sidecar is asked for only where one that Istio makes native is refused."""
    async with Cluster() as api, Client(api.access()) as client:
        api.dry_run = chain(world, *later)

        found = await ask(client, asked_in("team"))

        assert (found.injected, found.native.capability) == (True, capability)
        assert why in found.native.why
        refused = world == "default" and later in {(denies,), (drops_and_is_refused,)}
        assert len(api.dry_runs) == (3 if refused else 2)
        metadata = api.dry_runs[0]["metadata"]
        assert metadata["generateName"] == "istio-aux-probe-"
        assert WORD in metadata["annotations"].values()


@pytest.mark.parametrize(
    ("answer", "reached", "why"),
    [
        ((500, "InternalError", f'failed calling webhook "{ISTIOS}": EOF'), True, "EOF"),
        ((400, "", f'admission webhook "{ISTIOS}" denied the request: no'), True, "denied"),
        ((403, "Forbidden", "cannot create resource"), False, "cannot create resource"),
        ((404, "NotFound", "no such namespace"), False, "no such namespace"),
        ((500, "InternalError", "etcd is away"), None, "etcd is away"),
        ((401, "Unauthorized", "no such token"), None, "no such token"),
    ],
)
async def test_the_api_servers_answer_to_a_dry_run_is_reported(
    answer: tuple[int, str, str], reached: bool | None, why: str
) -> None:
    """That it does not let us ask says nothing of the injector."""
    async with Cluster() as api, Client(api.access()) as client:
        api.dry_run = lambda _pod: refusal(*answer)
        if reached is None:
            with pytest.raises(ApiError, match=why):
                await ask(client, asked_in("plain", "other"))
            return

        found = await ask(client, asked_in("plain", "other"))

        assert (found.injected, found.reached) == (False, reached)
        assert why in found.why
        assert len(api.dry_runs) == (2 if reached else 6)


@pytest.mark.parametrize(
    ("version", "kubelets", "capability"),
    [
        ("v1.32.2", ["v1.20.0"], N),
        ("v1.31.4", ["v1.31.4", "v1.28.2"], C),
    ],
)
async def test_below_1_32_the_nodes_are_looked_at(
    version: str, kubelets: list[str], capability: Capability
) -> None:
    async with Cluster() as api, Client(api.access()) as client:
        api.kubernetes, api.kubelets = version, kubelets
        old = version < "v1.32"

        found = await check_kubelets(client)

        assert (found.capability if found else N) is capability
        assert ("GET /api/v1/nodes" in api.requests) is old
        api.refuse("/nodes", 403, "Forbidden", "nodes is forbidden")
        refused = await check_kubelets(client)
        assert ("nodes is forbidden" in refused.why if refused else False) is old
        assert (refused.capability if refused else N) is (U if old else N)


async def test_a_round_of_dry_runs_is_bounded_says_who_refuses_and_the_next_goes_on() -> None:
    """Rounds without an answer have growing pauses between them."""
    names = [f"team-{number:02}" for number in range(25)]
    async with Cluster() as api:
        api.dry_run = lambda _pod: refusal(
            403, "Forbidden", f'pods "x" is forbidden: exceeded quota: {"gpu" * 99}'
        )
        for name in names:
            api.put("namespaces", {"metadata": {"name": name, "labels": ENABLED}})
        async with watching(api) as watcher:
            api.publish()
            api.configure()
            found = await told(watcher, Liveness.NOT_PROBED)
            await until(lambda: "team-00" in injector(watcher).why, "it says who refuses")
            found = injector(watcher)
            await until(lambda: len(api.dry_runs) >= 90, "it has asked everywhere")
    asked = [pod["metadata"]["namespace"] for pod in api.dry_runs[::3]]
    assert asked[:30] == [*names, *names[:5]]
    assert found.why.startswith("namespaces refuse the pod: team-00: exceeded quota: gpugpu")
    assert found.why.endswith("… and 7 more")


@pytest.mark.parametrize("code", [429, 503, 504, 500, 502])
async def test_dry_runs_wait_for_as_long_as_an_api_server_asks_that_is_busy(code: int) -> None:
    """An injector that is not live is asked every second."""
    async with Cluster() as api, watching(api) as watcher:
        api.dry_run = lambda _pod: refusal(code, "", "slow down", headers={"Retry-After": "60"})
        api.lead()
        await until(lambda: watcher.control_planes.known, "it was asked")
        assert "slow down" in (await told(watcher, Liveness.NOT_PROBED)).why
        asked = len(api.dry_runs)
        await asyncio.sleep(5 * QUICK.other)
        assert len(api.dry_runs) == asked


async def test_a_hung_istiod_is_live_no_more_and_one_that_is_slow_is_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked twice. A slow one has more time from its first answer on, and stays live."""
    monkeypatch.setattr(probe, "DEADLINE", 0.5)
    monkeypatch.setattr(probe, "DRY_RUN", 60.0)
    states, answering = list[Liveness](), asyncio.Event()
    async with (
        Cluster() as api,
        watching(
            api, rhythm=OFTEN, changed=lambda mesh: states.append(mesh.injectors[0].state)
        ) as watcher,
    ):
        api.lead()
        await told(watcher, Liveness.LIVE)
        working = api.dry_run

        async def slow(pod: dict[str, Any]) -> web.Response:
            await answering.wait()
            await asyncio.sleep(0.75)
            made = working(pod)
            assert isinstance(made, web.Response)
            return made

        asked = len(api.dry_runs)
        api.dry_run = slow
        assert "no answer within 0.5 s" in (await told(watcher, Liveness.NOT_PROBED)).why
        assert len(api.dry_runs) >= asked + 2

        states.clear()
        answering.set()
        await told(watcher, Liveness.LIVE)
        asked = len(api.dry_runs)
        await until(lambda: len(api.dry_runs) > asked + 4, "it answers late, again and again")
        assert states == [Liveness.LIVE]


@pytest.mark.parametrize("code", [429, 503, 500])
async def test_an_api_server_that_is_busy_or_broken_leaves_what_was_known_for_a_while(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It creates no pods either."""
    async with Cluster() as api, watching(api, rhythm=OFTEN) as watcher:
        api.dry_run = chain(ON_REQUEST)
        api.lead()
        await until(lambda: watcher.control_planes.native.capability is N, "it is native")

        api.dry_run = lambda _pod: refusal(code, "", "later")
        before = len(api.dry_runs)
        await until(lambda: len(api.dry_runs) > before + 3, "it was asked again")
        assert watcher.control_planes.native.capability is N

        monkeypatch.setattr(probe, "KEPT", 0.0)
        assert f"{code}: later" in (await told(watcher, Liveness.NOT_PROBED)).why
        assert watcher.control_planes.native.capability is U


@pytest.mark.parametrize("after", [60, None])
async def test_versions_that_cannot_be_read_now_are_read_after_growing_pauses(
    after: int | None,
) -> None:
    """The list of all nodes is the most expensive request of a probe."""
    async with Cluster() as api:
        api.kubernetes, api.dry_run = "v1.31.0", chain(ON_REQUEST)
        asked = api.refuse("/nodes", 429, "", "later", after=after)
        async with watching(api, rhythm=OFTEN) as watcher:
            api.lead()
            await told(watcher, Liveness.LIVE)
            dry_runs = len(api.dry_runs)
            await until(lambda: len(api.dry_runs) > dry_runs + 30, "it is asked again")
            assert "later" in watcher.control_planes.native.why
        assert len(asked) in ([1] if after else range(2, 15))


async def test_many_changes_of_configurations_are_few_questions() -> None:
    """A controller of another program may write its configuration many times a second."""
    async with Cluster() as api, watching(api, rhythm=Rhythm(live=3600.0, other=0.5)) as watcher:
        api.lead()
        await told(watcher, Liveness.LIVE)
        before, began = len(api.dry_runs), asyncio.get_running_loop().time()
        for number in range(50):
            metadata = {"name": "policies", "annotations": {"at": str(number)}}
            api.put("mutatingwebhookconfigurations", {"metadata": metadata})
            await asyncio.sleep(0.01)
        await until(lambda: len(api.dry_runs) > before, "it is asked")
        rounds = (asyncio.get_running_loop().time() - began) / 0.5
        assert len(api.dry_runs) <= before + 2 * (rounds + 1), "two pods each time"


async def test_an_injector_that_died_is_asked_until_it_injects_and_begins_anew() -> None:
    """What its sidecars were before says nothing of now: it may be another version."""
    async with Cluster() as api, watching(api, rhythm=OFTEN) as watcher:
        api.dry_run = chain(ON_REQUEST)
        api.lead()
        await until(lambda: watcher.control_planes.native.capability is N, "it is native")
        api.dry_run = dead
        assert "connection refused" in (await told(watcher, Liveness.REFUSED)).why
        assert watcher.control_planes.native.capability is U

        api.dry_run = chain("never")

        await told(watcher, Liveness.LIVE)
        assert watcher.control_planes.native.capability is C


async def test_of_an_injector_that_may_not_be_called_for_the_pod_nothing_is_known() -> None:
    async with Cluster() as api, watching(api) as watcher:
        api.dry_run = lambda pod: web.json_response(pod, status=201)
        api.lead(matchConditions=[{"name": "app", "expression": "has(object.spec.x)"}])
        assert "matchConditions" in (await told(watcher, Liveness.NOT_PROBED)).why

        api.dry_run = chain(ON_REQUEST)
        await told(watcher, Liveness.LIVE)


async def test_it_is_asked_in_a_namespace_with_our_pods_as_soon_as_there_is_one() -> None:
    """Only there does the dry run reach our own webhook, which learns who is an API server."""
    ours = parse_namespaces("team=ours")
    async with Cluster() as api, watching(api, rhythm=OFTEN, selectors=ours) as watcher:
        api.dry_run = chain(ON_REQUEST)
        api.lead()
        await told(watcher, Liveness.LIVE)

        labels = {**ENABLED, "team": "ours"}
        api.put("namespaces", {"metadata": {"name": "zebra", "labels": labels}})

        await until(
            lambda: api.dry_runs[-1]["metadata"]["namespace"] == "zebra", "it is asked there"
        )


async def test_a_live_injector_stays_live_while_it_is_asked_in_further_namespaces() -> None:
    """A round of dry runs asks in some namespaces only, and the one that admitted pods is full."""
    names = [f"team-{number:02}" for number in range(12)]
    states, admits = list[Liveness](), {"team-00"}

    def full(pod: dict[str, Any]) -> web.Response | None:
        admitted = pod["metadata"]["namespace"] in admits
        return None if admitted else refusal(403, "Forbidden", "exceeded quota: pods")

    async with (
        Cluster() as api,
        watching(
            api, rhythm=OFTEN, changed=lambda mesh: states.append(mesh.injectors[0].state)
        ) as watcher,
    ):
        api.dry_run = chain(ON_REQUEST, full)
        for name in names:
            api.put("namespaces", {"metadata": {"name": name, "labels": ENABLED}})
        api.publish()
        api.configure()
        await told(watcher, Liveness.LIVE)
        states.clear()
        admits.clear()
        admits.add("team-11")

        def admitted() -> bool:
            return api.dry_runs[-1]["metadata"]["namespace"] == "team-11"

        await until(admitted, "it is asked where pods are admitted")
        assert {*states} <= {Liveness.LIVE}

        admits.clear()
        assert "exceeded quota" in (await told(watcher, Liveness.NOT_PROBED)).why


# The stand-ins for istiod and its agent, compared with Istio 1.28.10 and 1.30.3.


def recording(case: str) -> Any:
    return json.loads((DATA / f"istio/inject-{case}.json").read_text())


def patched(pod: dict[str, Any], response: dict[str, Any]) -> Any:
    return jsonpatch.apply_patch(pod, json.loads(base64.b64decode(response["response"]["patch"])))


@pytest.mark.parametrize("case", ["classic", "hold", "native"])
def test_makes_the_same_pod_as_istiod(case: str) -> None:
    record = recording(case)
    # istiod compares with the pod as Go writes it, which is how the API server sends it.
    pod = record["request"]["request"]["object"]
    pod["spec"]["containers"][0]["resources"] = {}

    answer, _ = admit(record["request"], TEMPLATE, native=False)

    assert patched(pod, answer) == patched(pod, record["response"])
    assert answer["response"].keys() == record["response"]["response"].keys()


@pytest.mark.parametrize("case", ["annoff", "kube-system", "badcfg"])
def test_leaves_alone_or_refuses_in_the_same_words_as_istiod(case: str) -> None:
    record = recording(case)

    answer, _ = admit(record["request"], TEMPLATE, native=False)

    assert answer == record["response"]


@pytest.mark.parametrize(
    ("command", "port", "exit_code", "quits"),
    [
        ("pilot-agent request --debug-port=15020 POST quitquitquit", 15020, 0, True),
        ("pilot-agent request POST quitquitquit", 15020, 0, True),
        ("pilot-agent request --debug-port=15021 POST quitquitquit", 15020, 0, False),
        ("pilot-agent request --debug-port=15020 GET quitquitquit", 15020, 255, False),
        ("pilot-agent request --debug-port=15520 POST quitquitquit", 15020, 255, False),
        ("pilot-agent request --debug-port=15020 GET stats", 15020, 0, False),
        ("sh -c true", 15020, None, False),
        # Without a status server, as observed with port 0: Envoy's admin ends the proxy.
        ("pilot-agent request --debug-port=15020 POST quitquitquit", 0, 255, False),
        ("pilot-agent request POST quitquitquit", 0, 0, True),
    ],
)
def test_pilot_agent_answers_as_istios_does(
    *, command: str, port: int, exit_code: int | None, quits: bool
):
    answer = pods.execute(command.split(), port)

    assert (answer.exit_code, answer.quits) == (exit_code, quits)
