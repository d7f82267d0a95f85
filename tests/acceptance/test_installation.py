"""Whether istio-aux does in this cluster what it promises: Jobs start, end and count as without a
sidecar, and a pod that missed its sidecar is found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lab
import pytest
from acceptance.conftest import chosen
from lab.meshed import has_sidecar
from lab.workloads import Seen, Workload, await_ends, describes
from lightkube import ApiError, Client
from lightkube.models.apps_v1 import DeploymentSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Event, Namespace, Pod

DEFAULT = {"io.datastrophic/istio-aux": "enabled"}
FOUND = "NoSidecar"  # The reason of the Event.
APP: dict[str, Any] = {"app": "early"}


@dataclass(frozen=True)
class Ends:
    """How the workloads ended without a sidecar and with one, and which this cluster cannot run."""

    plain: Mapping[str, Seen]
    meshed: Mapping[str, Seen]
    impossible: Mapping[str, str]

    def possible(self, workload: Workload) -> None:
        """Skip the test of a workload that this cluster cannot run, and say why."""
        if why := self.impossible.get(workload.name):
            pytest.skip(why)


@pytest.fixture(scope="module")
def ends(
    *,
    client: Client,
    namespaces: tuple[str, str, str],
    installed: None,
    patience: float,
    image: str,
    request: pytest.FixtureRequest,
) -> Ends:
    """All workloads without a sidecar and with one, started at once and seen to their ends."""
    plain, meshed, _ = namespaces
    wanted = chosen(request.config)
    impossible = {w.name: why for w in wanted if (why := obstacle(client, w, plain))}
    possible = [workload for workload in wanted if workload.name not in impossible]
    for workload in possible:
        for namespace in (plain, meshed):
            client.create(workload.in_namespace(namespace, image))
    without, beside = await_ends(client, [(plain,), (meshed,)], possible, quiet=patience)
    return Ends(without, beside, impossible)


def obstacle(client: Client, workload: Workload, namespace: str) -> str:
    """Why this cluster cannot run a workload; nothing if it can."""
    try:
        made = client.create(workload.in_namespace(namespace), dry_run=True)
    except ApiError as error:
        if error.status.code == 404:
            return f"this cluster knows no {workload.kind}"
        if error.status.code == 422:
            return f"this Kubernetes refuses it: {error.status.message}"
        raise
    # An older API server drops fields that it does not know.
    dropped = restart_rules(workload.manifest) - restart_rules(made.to_dict())
    return f"this Kubernetes does not know {', '.join(sorted(dropped))}" if dropped else ""


def restart_rules(document: Any) -> set[str]:
    """The fields of single containers about restarts in a document."""
    if isinstance(document, list):
        return {found for each in document for found in restart_rules(each)}
    if not isinstance(document, dict):
        return set()
    found = {found for each in document.values() for found in restart_rules(each)}
    if "image" in document:
        found |= document.keys() & {"restartPolicy", "restartPolicyRules"}
    return found


def test_check_finds_nothing_that_would_keep_it_from_working(
    kubeconfig: Path, installed: None, labels: Mapping[str, str]
) -> None:
    """With the rights of the kubeconfig, which the deployed workload does not need to have."""
    if not DEFAULT.items() <= labels.items():
        pytest.skip("`check` looks at the namespaces of the default namespace-selectors")
    command = (Path(sys.executable).with_name("istio-aux"), "check", "--kubeconfig", kubeconfig)

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_nobody_can_tell_from_its_end_that_it_had_a_sidecar(ends: Ends, workload: Workload) -> None:
    """Same conditions, counts, phases, exit codes and restarts; every proxy ended with 0."""
    ends.possible(workload)
    without, beside = (ended[workload.name] for ended in (ends.plain, ends.meshed))

    assert describes(workload, without.outcome), without.outcome
    assert (beside.outcome, beside.proxies) == (without.outcome, beside.freed)


@pytest.fixture
def early(
    client: Client,
    namespaces: tuple[str, str, str],
    installed: None,
    patience: float,
    image: str,
) -> str:
    """A namespace that nobody looks after, with a pod of a Deployment that runs."""
    *_, late = namespaces
    main = Container(name="main", image=image, command=["sleep", "100000"])
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels=APP),
        spec=PodSpec(containers=[main], terminationGracePeriodSeconds=1),
    )
    spec = DeploymentSpec(selector=LabelSelector(matchLabels=APP), template=template)
    client.create(Deployment(metadata=ObjectMeta(name="early", namespace=late), spec=spec))
    lab.until(lambda: running(client, late), timeout=patience, what="a pod without a sidecar")
    return late


def test_a_pod_from_before_its_namespace_was_meshed_is_reported_or_restarted(
    client: Client, early: str, labels: Mapping[str, str], patience: float
) -> None:
    """As its option race-policy says; with `none` nothing is found."""
    client.patch(Namespace, early, {"metadata": {"labels": dict(labels)}})

    def found() -> bool:
        reported = [event for event in client.list(Event, namespace=early) if event.reason == FOUND]
        return bool(reported) or any(map(has_sidecar, running(client, early)))

    lab.until(found, timeout=patience, what=f"the Event {FOUND}, or a new pod with a sidecar")


def running(client: Client, namespace: str) -> list[Pod]:
    pods = client.list(Pod, namespace=namespace, labels=APP)
    return [pod for pod in pods if pod.status and pod.status.phase == "Running"]
