"""What `juju status` shows."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import Any

import istio_aux
import pytest
from istio_aux.model.resources import Requests
from ops import pebble, testing
from scenario import mocking
from unit.rules import pods

import workload

from .conftest import SINCE, WELL, Unit, injector

LAST_GOOD = "last-good-options"
RUNS = "; the last good configuration runs"
OURS = "io.datastrophic/istio-aux=enabled"
FORMS = "KEY, !KEY, KEY=VALUE, KEY!=VALUE, KEY in (VALUES) or KEY notin (VALUES)"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("quit-grace", -1, "quit-grace: -1: expected seconds, as a number of 0 or more"),
        (
            "sidecars", "daprd=kill",
            'sidecars: "daprd=kill": expected native, ignore, quit or PORT/PATH after =',
        ),
        ("pod-selector", "=", f'pod-selector: "=": expected {FORMS}, found "="'),
        (
            "inject-namespaces",
            "kube-system",
            'inject-namespaces: "kube-system": expected namespaces that Istio does not ignore',
        ),
    ],
)  # fmt: skip
def test_a_bad_option_blocks_and_names_itself_its_value_and_what_is_allowed(
    option: str, value: str | int, message: str, unit: Unit
) -> None:
    assert unit.configure(**{option: value}) == testing.BlockedStatus(message + RUNS)


def note(unit: Unit, **options: Any) -> None:
    """Have noted other options as the last good ones, as another revision did."""
    changed = {name.replace("_", "-"): value for name, value in options.items()}
    unit.note({LAST_GOOD: json.dumps(json.loads(unit.noted[LAST_GOOD]) | changed)})


@pytest.mark.parametrize("leader", [True, False], ids=["leader", "follower"])
def test_a_new_pod_runs_the_last_good_configuration(leader: bool, unit: Unit) -> None:
    unit.configure(race_policy="restart", pod_selector="team")
    files, objects = unit.files, dict(unit.api.objects)

    unit.replace(config={"quit": "of", "race-policy": "none"}, leader=leader)

    assert unit.files.keys() == files.keys()
    assert unit.files["config.yaml"] == files["config.yaml"]
    assert unit.container.service_statuses[workload.SERVICE] is pebble.ServiceStatus.ACTIVE
    assert unit.api.objects == objects
    assert unit.run() == testing.BlockedStatus(
        'quit: "of": expected enabled, dry-run or disabled' + RUNS
    )


@pytest.mark.parametrize(
    ("noted", "runs"),
    [
        ({"start_mode": "turbo"}, {"start-mode": "auto"}),
        ({"quit_via": "exec", "fast": True}, {}),
        ({"sidecars": "a=80/x,a=80/y"}, {"sidecars": ""}),
        ({"quit": "turbo"}, {"quit": "disabled"}),
        ({"quit_grace": -1}, {"quit-grace": 0}),
    ],
    ids=[
        "an unknown value",
        "options that are gone",
        "rules that contradict each other",
        "an unknown word for quits",
        "an unknown number",
    ],
)
def test_a_refresh_that_no_longer_knows_what_is_set_runs_the_last_good_configuration(
    noted: dict[str, Any], runs: dict[str, str], unit: Unit
) -> None:
    unit.configure(race_policy="restart")
    note(unit, **noted)
    before = unit.settings

    unit.replace(unit.on.upgrade_charm(), config={"start-mode": "turbo"})

    assert isinstance(unit.state.unit_status, testing.BlockedStatus)
    assert unit.settings == before | runs


@pytest.mark.parametrize(
    "noted",
    [
        {"namespace_selectors": "="},
        {"pod_selector": "="},
        {"inject_selector": "="},
        {"inject_applications": "A"},
        {"inject_namespaces": "A"},
    ],
    ids=" ".join,
)
def test_a_unit_that_never_had_a_usable_configuration_says_that_nothing_runs(
    noted: dict[str, str], unit: Unit
) -> None:
    """Which pods to look after, the charm never guesses."""
    note(unit, **noted)

    status = unit.replace(config={"pod-selector": "="})

    assert status.message.endswith("; nothing runs: no quits and no admission")
    assert "config.yaml" not in unit.files
    assert unit.run() == status


def test_certificates_and_token_are_renewed_while_an_option_is_invalid(unit: Unit) -> None:
    before = set(unit.files)
    (unit.etc / "token").unlink()
    (unit.etc / "tls" / "tls.crt").unlink()

    unit.configure(log_level="loud")

    assert set(unit.files) == before


def test_a_row_of_juju_status_is_bounded_whatever_tenants_name(unit: Unit) -> None:
    unit.process.stuck = [{"namespace": "a" * 63, "name": f"{n}-{'b' * 251}"} for n in range(5)]
    assert unit.run().message.endswith("… and 2 more")
    assert len(unit.run().message) < 300

    unit.process.applications = [
        {**APPLICATION, "namespace": "a" * 63, "name": f"{n}{'b' * 62}"} for n in range(3)
    ]
    assert len(unit.run().message) == 401
    assert unit.run().message.endswith("…")


APPLICATION = {"live": False, "live-reason": "no injector selects it", "revision": "",
    "root-namespace": "", "meshed": None, "meshed-reason": ""}  # fmt: skip
PODS = [{"namespace": "team-a", "name": f"worker-{n}"} for n in range(6)]


held = partial(pods.held, since=datetime.fromisoformat(SINCE), requests=Requests(gpus=8))


TOTALS = {
    "stuck-total": 900, "lost-total": 700, "blocked-total": 600, "selected-total": 501,
    "unstarted-total": 500,
}  # fmt: skip
NONE = {"namespaces": []}
NO_NAMESPACE = "0 namespaces selected: no namespace has the labels "


REFRESH = "juju refresh istio-aux --resource istio-aux-image=IMAGE"
OF_ANOTHER = {"start-mode": "turbo", "race": "wait", "quit": "later", "speed": 3}


def differ(revision: str) -> str:
    return f"image is of revision {revision}, charm of {istio_aux.revision()}: {REFRESH}"


def says(sentence: str, answer: dict[str, Any], said: str, **options: str) -> Any:
    """What the status says of an answer; a text that begins with `;` follows the usual one."""
    said = said if said and said[0] != ";" else WELL + said
    return pytest.param(answer, options, said, id=sentence)


@pytest.mark.parametrize(
    ("answer", "options", "said"),
    [
        says(
            "pods", {"stuck": PODS[:1], "lost": PODS[1:3], "blocked": PODS[3:]},
            "; stuck: team-a/worker-0; 2 lost their proxy; 3 blocked",
        ),
        says(
            "more pods than the workload lists", {"stuck": PODS[:4], "more": TOTALS},
            WELL.replace("2 namespaces", "501 namespaces")
            + "; stuck: team-a/worker-0, team-a/worker-1, team-a/worker-2 and 897 more"
            "; 700 lost their proxy; 600 blocked; 500 not started",
        ),
        says("pods outside the mesh", {"more": {"unmeshed-total": 612}}, "; 612 outside the mesh"),
        says(
            "a holder",
            {"blocked": PODS[:2], "held": [held("vault-agent"), held("vault-agent")]},
            "; 2 pods are kept by vault-agent since 2026-11-21 19:40Z: 16 GPUs",
        ),
        says(
            "more holders than fit", {"held": [held(f"sidecar-{number}") for number in range(5)]},
            "".join(
                f"; 1 pod is kept by sidecar-{number} since 2026-11-21 19:40Z: 8 GPUs"
                for number in range(3)
            )
            + "; and 2 more holders: list-stuck has them",
        ),
        # istio#43074: only a sidecar that Istio has not injected yet can be made native.
        says(
            "injectors that are called first",
            {"more": {"called-before-us": ["asm-sidecar-injector", "istio-a"]}},
            "; called after asm-sidecar-injector, istio-a, so pods are held, not native",
        ),
        says(
            "an injector that is called first, to no effect",
            {"more": {"called-before-us": ["asm-sidecar-injector"]}}, "; start: hold",
            start_mode="hold",
        ),
        says("that it is unknown who is called first", {"more": {"called-before-us": None}}, ""),
        says(
            "why pods are not native",
            {"more": {"capability": "unknown", "capability-why": "istio: 403"}},
            "; pods are held, not native: istio: 403",
        ),
        says(
            "nothing of native pods before that is known",
            {"more": {"capability": "unknown", "capability-why": ""}}, "",
        ),
        says("that quits are a dry run", {}, "; quit: dry-run", quit="dry-run"),
        says("that all starts are native", {}, "; start: native", start_mode="native"),
        says(
            "the labels that no namespace has", NONE,
            f"{NO_NAMESPACE}{OURS} or app.kubernetes.io/part-of=kubeflow-profile,"
            f"!io.datastrophic/istio-aux; {WELL.partition('; ')[2]}",
        ),
        says(
            "some of many labels that no namespace has", NONE,
            f"{NO_NAMESPACE}a or b=c or d and 2 more; {WELL.partition('; ')[2]}",
            namespace_selectors="a;b=c;d;e;f",
        ),
        says(
            "what to run if the image is of another revision", {"revision": "1a2b3c4d"},
            f"{differ('1a2b3c4d')}; {WELL}",
        ),
        says(
            "which keys such an image does not know",
            {"revision": "1a2b3c4d", "more": {"unknown-keys": ["inject-all", "speed"]}},
            f"{differ('1a2b3c4d')} (it does not know inject-all, speed); {WELL}",
        ),
        says(
            "nothing of what such an image says, and we do not know",
            {"revision": "1a2b3c4d", "more": OF_ANOTHER}, f"{differ('1a2b3c4d')}; {WELL}",
        ),
        says(
            "the version of an image without a revision",
            {"more": {"revision": "", "version": "0.0.9"}}, f"{differ('0.0.9')}; {WELL}",
        ),
        says(
            "that an injector is not live of which such an image says something new",
            {
                "injectors": [injector("sleeping", "it sleeps") | {"native": "half"}],
                "more": {"capability": "half", "capability-why": "one of two"},
            },
            WELL.replace(" live", ": it sleeps,") + "; pods are held, not native: one of two",
        ),
    ],
)  # fmt: skip
def test_the_status_says(
    answer: dict[str, Any], options: dict[str, Any], said: str, unit: Unit
) -> None:
    vars(unit.process).update(answer)

    assert unit.configure(**options) == testing.ActiveStatus(said)


def test_an_event_that_is_not_reconciled_keeps_the_status(unit: Unit) -> None:
    before = unit.state.unit_status
    (peers,) = unit.state.get_relations("peers")

    assert unit.run(unit.on.relation_departed(peers, remote_unit=1, departing_unit=1)) == before


def test_a_workload_that_does_not_run_is_told_with_where_to_look(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mocking._MockPebbleClient, "replan_services", lambda *_, **__: None)
    unit.change_container(service_statuses={workload.SERVICE: pebble.ServiceStatus.ERROR})
    unit.process.running = False

    assert unit.follow() == testing.WaitingStatus(
        "workload does not run: see kubectl logs -n kubeflow istio-aux-0 -c istio-aux"
        " (does not answer: connection refused)"
    )
