"""Sidecars that need no option: how each is recognized, and what becomes of it (`KNOWN`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from istio_aux.model import sidecars
from istio_aux.model.annotations import NATIVE_SIDECAR, QUIT, QUIT_AFTER, SIDECARS, START
from istio_aux.model.known_sidecars import KNOWN, Known
from istio_aux.model.pod import Container
from istio_aux.model.policy import Capability, QuitPolicy, StartMode, StartPolicy
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.pairs import GCSFUSE_FIX
from istio_aux.quit.rules import Action, Quit, Wait
from lab.sidecar_cases import Case, container, outcome
from unit.rules.pods import RUNNING, State, exited, job, waiting
from unit.rules.starting import patched, planned
from unit.rules.table import POLICY, decide

NATIVE = StartPolicy(capability=Capability.NATIVE)
ROWS = pytest.mark.parametrize("row", KNOWN, ids=lambda row: row.names.split()[0])
SQL = next(row for row in KNOWN if row.names.startswith("cloud-sql-proxy"))
GCSFUSE = next(row for row in KNOWN if row.ends_last)


def first(row: Known) -> str:
    return row.names.split()[0]


def image(row: Known, place: int = 0) -> str:
    return f"registry.example:5000/{row.images.split()[place]}:1.2"


def beside(row: Known, *, of: str = "", **more: Any) -> list[dict[str, Any]]:
    """A payload, and the program in a container of its name, or with another image."""
    return [container("main"), container(first(row)) | {"image": of or image(row), **more}]


def started(row: Known, how: StartPolicy = NATIVE, **case: Any) -> list[str]:
    """The init containers of a new pod with that program."""
    case.setdefault("containers", beside(row))
    return outcome(patched(Case(name="", **case).pod, how)["spec"])[1]


def ended(row: Known, policy: QuitPolicy = POLICY, **fields: Any) -> Action:
    """The decision on a classic pod whose payload is done, and whose sidecar runs."""
    states: Mapping[str, State] = {"main": exited(0), first(row): RUNNING, "istio-proxy": RUNNING}
    fields.setdefault("details", {first(row): {"image": image(row)}})
    return decide(job(fields.pop("containers", states), **fields), policy)


@ROWS
def test_a_program_is_known_by_name_and_image(row: Known) -> None:
    digest = f"@sha256:{'0' * 64}"
    names, images = row.names.split(), [image(row, at) for at in range(len(row.images.split()))]
    assert names
    for found in [*images, f"{images[0]}{digest}", row.images.split()[0], f"mirror/{images[0]}"]:
        assert [sidecars.known(Container(name=name, image=found)) for name in names] == [row] * len(
            names
        )
    others = (f"{images[0]}/main", images[0].replace("/", "/my-"), "busybox", "", "@", ":", "/")
    for found in others:
        assert sidecars.known(Container(name=names[0], image=found)) is None, found
    assert sidecars.known(Container(name="main", image=images[0])) is None


def test_there_are_the_twenty_best_known() -> None:
    assert len(KNOWN) > 20
    assert all(row.source for row in KNOWN)


@ROWS
def test_it_becomes_native_where_it_can(row: Known) -> None:
    assert started(row) == ([f"{first(row)}*"] if row.native else [])
    assert started(row, containers=beside(row, of="busybox")) == []
    again = patched(Case(name="", containers=beside(row)).pod, NATIVE)
    assert planned(again, NATIVE).ops == ()


@ROWS
def test_a_classic_one_is_told_to_exit_or_keeps_the_proxy(row: Known) -> None:
    """One that only a signal ends is not ignored: it would lose its network before it ends."""
    found, payload = ended(row), ended(row, details={first(row): {"image": "busybox"}})

    assert isinstance(payload, Wait)
    if row.port:
        assert isinstance(found, Quit)
        assert found.rule == sidecars.SidecarRule(first(row), row.port, row.path, row.switch)
    elif row.ends_last:
        assert isinstance(found, Quit)
        assert found.target == "istio-proxy"
    else:
        assert isinstance(found, Wait)
        assert found.blocked_by == (first(row),)


SHELL: dict[str, Any] = {
    "command": ["/bin/sh", "-c", "cloud-sql-proxy & until test -e /done; do sleep 1; done"]
}
HOOK: dict[str, Any] = {
    "lifecycle": {"postStart": {"exec": {"command": ["until-the-payload-listens"]}}}
}


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"spec": {"restartPolicy": "Always"}}, "the pod is not meant to end"),
        ({"annotations": {"workflows.argoproj.io/node-name": "a"}}, "Argo ends it"),
        ({"annotations": {QUIT_AFTER: "main"}}, "the author says what decides"),
        ({"annotations": {QUIT: "false"}}, "the author wants none of it"),
        ({"annotations": {START: "none"}}, "the author wants no order"),
        ({"annotations": {START: "hold"}}, "the proxy is classic"),
        ({"annotations": {SIDECARS: "none"}}, "the author turns it off"),
        ({"annotations": {SIDECARS: "cloud-sql-proxy=ignore"}}, "the author says otherwise"),
        ({"option": "none"}, "the admin turns it off"),
        ({"option": "cloud-sql-proxy=quit"}, "the admin says otherwise"),
        ({"containers": beside(SQL, **SHELL)}, "a script may end by itself"),
        ({"containers": beside(SQL, **HOOK)}, "its hook may wait for the payload"),
        ({"containers": beside(SQL, restartPolicy="Never")}, "its author means something else"),
        ({"containers": beside(SQL)[1:]}, "it is the payload"),
        ({"containers": [*beside(SQL)[1:], container("main", args=["curl :9091/quitquitquit"])]},
         "the payload ends it: it would start again"),
        ({"containers": [*beside(SQL)[1:], container("main", args=["train; pkill cloud"])],
          "spec": {"shareProcessNamespace": True}}, "the payload kills it"),
        ({"capability": Capability.CLASSIC}, "native ones do not work here"),
        ({"capability": Capability.UNKNOWN}, "it is not known whether they do"),
        ({"counted": True}, "its Job would count what it exits with"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_it_stays_where_anything_speaks_against_it(case: dict[str, Any], why: str) -> None:
    case.setdefault("containers", beside(SQL))
    found = Case(name=why, **{"option": "", **case})

    plan = planned(found.pod, found.setting)

    assert started(SQL, found.setting, **case) == []
    warned = [text for text in plan.warnings if "cloud-sql-proxy" in text]
    assert bool(warned) is found.counted, "what nobody asked for warns only where it matters"


def test_start_mode_none_leaves_it_beside_a_native_proxy() -> None:
    proxy = {"initContainers": [container("istio-proxy", restartPolicy="Always")]}
    injected: dict[str, Any] = {"annotations": {"sidecar.istio.io/status": "{}"}, "spec": proxy}
    none = StartPolicy(capability=Capability.NATIVE, mode=StartMode.NONE)

    assert started(SQL, **injected) == ["cloud-sql-proxy*"]
    assert started(SQL, none, **injected) == []


def test_the_shell_of_an_injector_is_no_script() -> None:
    vault = next(row for row in KNOWN if row.is_script)
    made = beside(vault, command=["/bin/sh", "-ec"], args=["vault agent -config=/home/config"])
    assert started(vault, containers=made, annotations={NATIVE_SIDECAR: "true"}) == ["vault-agent*"]


@pytest.mark.parametrize(
    ("option", "own", "role"),
    [
        ("", "", "sidecar"),
        ("none", "", "payload"),
        ("", "none", "payload"),
        ("none,cloud-sql-proxy=quit", "", "sidecar"),
        ("other=native", "other=ignore", "sidecar"),
        ("cloud-sql-proxy=ignore", "", "ignored"),
        ("cloud-sql-proxy=native", "", "sidecar"),
        ("", "cloud-sql-proxy=native", "sidecar"),
        ("", "cloud-sql-proxy=ignore", "ignored"),
        ("cloud-sql-proxy=9000/stop", "", "sidecar"),
    ],
)
def test_option_and_annotation_count_before_what_is_known(option: str, own: str, role: str) -> None:
    states = {"main": exited(0), "cloud-sql-proxy": RUNNING, "istio-proxy": RUNNING}
    details = {"cloud-sql-proxy": {"image": image(SQL)}}
    pod = job(states, details=details, annotations={SIDECARS: own})
    found = PodFacts(pod, QuitPolicy(sidecars=sidecars.parse(option)))
    assert found.containers["cloud-sql-proxy"].role == role


def test_the_classic_mounter_of_gcs_fuse_is_freed_or_named_with_what_frees_it() -> None:
    """gcs-fuse-csi-driver pkg/csi_driver/utils.go putExitFile: it waits for istio-proxy."""
    mounter, off = first(GCSFUSE), QuitPolicy(sidecars=sidecars.parse("none"))
    other: dict[str, Any] = {"details": {mounter: {"image": "registry/mounter"}}}
    for found in (ended(GCSFUSE, off), ended(GCSFUSE, **other)):
        assert isinstance(found, Wait)
        assert (found.blocked_by, found.fix) == ((mounter,), GCSFUSE_FIX)
        assert found.code == "IA0112"
    assert isinstance(
        ended(GCSFUSE, QuitPolicy(sidecars=sidecars.parse(f"{mounter}=ignore"))), Quit
    )
    proxy: dict[str, Any] = {"istio-proxy": RUNNING}
    states: dict[str, Any] = {"main": exited(0), mounter: RUNNING}
    pods: list[dict[str, Any]] = [
        {"containers": {**states, **proxy, "main": RUNNING}},
        {"containers": {**states, **proxy, "logger": RUNNING}},
        {"containers": {**states, **proxy, mounter: waiting("ImagePullBackOff")}},
        {"containers": {**states, "istio-proxy": exited(0)}},
        {"containers": states, "sidecars": proxy},
        {"containers": {mounter: RUNNING, **proxy}},
    ]
    for pod in pods:
        assert ended(GCSFUSE, **other, **pod).fix == "", pod
