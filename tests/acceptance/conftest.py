"""Fixtures of the acceptance tests: a cluster of the user's own, in namespaces that come and go."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import httpx2
import lab.fixtures
import pytest
from lab.meshed import annotations_of, has_sidecar
from lab.workloads import ACCEPTANCE, Workload
from lightkube import ApiError, Client, KubeConfig
from lightkube.core.exceptions import ConfigError
from lightkube.models.core_v1 import (
    Container,
    ContainerState,
    ContainerStateTerminated,
    PodSpec,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

KUBECONFIG = "LAB_KUBECONFIG"
# On each namespace that a run makes, with the name of the run.
MARK = "istio-aux.io/acceptance"
LABELS = ("istio-injection=enabled", "io.datastrophic/istio-aux=enabled")
STARTED_WITH = "istio-aux.io/started-with"
# The kubelet's reasons for a container whose image it cannot get (kubelet images/types.go).
NO_IMAGE = {"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"}
# Busybox's `command -v` looks at its first name only.
PROGRAMS = "for it in nc sleep tail; do command -v $it || exit; done"
# Seconds until Kubernetes has removed the namespaces; measured: 10 s.
GONE = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    """What differs from cluster to cluster."""
    group = parser.getgroup("acceptance", "the cluster of the environment variable LAB_KUBECONFIG")
    group.addoption(
        "--image",
        default="docker.io/library/busybox:1.36",
        help="an image with busybox's sh, nc, sleep and tail; default: %(default)s",
    )
    group.addoption(
        "--namespace-label",
        action="append",
        metavar="KEY=VALUE",
        help="a label of the namespace whose pods Istio injects and istio-aux looks after; "
        f"may be given more than once; default: {' and '.join(LABELS)}",
    )
    group.addoption(
        "--workload",
        action="append",
        metavar="NAME",
        choices=[workload.name for workload in ACCEPTANCE],
        help="run this workload; may be given more than once; default: all of them",
    )
    group.addoption(
        "--patience",
        type=float,
        default=300,
        metavar="SECONDS",
        help="how long nothing may happen: an image may have to be pulled; default: %(default)s",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each workload that was asked for."""
    if "workload" in metafunc.fixturenames:
        metafunc.parametrize("workload", chosen(metafunc.config), ids=lambda found: found.name)


def chosen(config: pytest.Config) -> list[Workload]:
    """The workloads that were asked for."""
    names = config.option.workload
    return [workload for workload in ACCEPTANCE if not names or workload.name in names]


def refuse(why: str) -> NoReturn:
    """End the run with one line: nothing that follows could say more."""
    pytest.exit(f"acceptance: {why}", returncode=1)


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """The file that says which cluster it is."""
    named = os.environ.get(KUBECONFIG, "")
    if not named:
        refuse(f"{KUBECONFIG} is not set: the kubeconfig of the cluster to run in is expected")
    return Path(named).expanduser()


@pytest.fixture(scope="session")
def client(kubeconfig: Path) -> Iterator[Client]:
    """The account of the kubeconfig, which may make and remove namespaces."""
    try:
        with Client(
            KubeConfig.from_file(kubeconfig), field_manager="istio-aux-acceptance"
        ) as client:
            next(iter(client.list(Namespace)), None)
            yield client
    except (ConfigError, httpx2.TransportError, ApiError) as error:
        refuse(f"{KUBECONFIG}: {kubeconfig}: {error}")


@pytest.fixture(scope="session")
def labels(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Those of a namespace that Istio injects and istio-aux looks after."""
    given: Sequence[str] = request.config.option.namespace_label or LABELS
    for text in given:
        if "=" not in text:
            refuse(f'--namespace-label: "{text}": KEY=VALUE is expected')
    return {key: value for key, _, value in (text.partition("=") for text in given)}


@pytest.fixture(scope="session")
def patience(request: pytest.FixtureRequest) -> float:
    """Seconds in which something has to happen."""
    return request.config.option.patience


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest) -> str:
    """What the payloads run."""
    return request.config.option.image


@pytest.fixture(scope="session")
def namespaces(client: Client, labels: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """One without sidecars, one with, and one that gets its labels later; all gone at the end."""
    run = secrets.token_hex(4)
    made: list[str] = []
    try:
        for what, more in (
            ("plain", {"istio-injection": "disabled"}),
            ("meshed", labels),
            ("late", {}),
        ):
            name = f"istio-aux-acceptance-{what}-{run}"
            client.create(Namespace(metadata=ObjectMeta(name=name, labels={**more, MARK: run})))
            made.append(name)
            lab.fixtures.await_account(client, name)
        plain, meshed, late = made
        yield plain, meshed, late
    finally:
        for name in made:
            client.delete(Namespace, name)
        lab.until(
            lambda: not list(client.list(Namespace, labels={MARK: run})),
            timeout=GONE,
            what=f"the namespaces with label {MARK}={run} to be gone",
        )


@pytest.fixture(scope="session")
def runnable(client: Client, namespaces: tuple[str, str, str], patience: float, image: str) -> None:
    """The nodes of the cluster get the image, and it has the programs that payloads run."""
    main = Container(name="main", image=image, command=["sh", "-c", PROGRAMS])
    metadata = ObjectMeta(name="image", namespace=namespaces[0])
    client.create(Pod(metadata=metadata, spec=PodSpec(containers=[main], restartPolicy="Never")))
    last = "no node runs a pod with it"

    def ended() -> ContainerStateTerminated | None:
        nonlocal last
        status = client.get(Pod, "image", namespace=namespaces[0]).status
        for container in (status and status.containerStatuses) or ():
            state = container.state or ContainerState()
            if state.waiting and state.waiting.reason in NO_IMAGE:
                last = f"{state.waiting.reason}: {state.waiting.message}"
                if state.waiting.reason != "ErrImagePull":  # That one is the first of its attempts.
                    refuse(f"--image: {image}: {last}")
            return state.terminated
        return None

    try:
        end = lab.until(ended, timeout=patience, what="a pod with the image to end", every=0.5)
    except TimeoutError:
        refuse(f"--image: {image}: {last}")
    if end.exitCode:
        refuse(f"--image: {image}: an image with busybox's sh, nc, sleep and tail is expected")


@pytest.fixture(scope="session")
def installed(
    *,
    client: Client,
    namespaces: tuple[str, str, str],
    labels: Mapping[str, str],
    patience: float,
    image: str,
    runnable: None,
) -> None:
    """Istio injects the pods of the namespace that is meant for it, and istio-aux changes them."""
    where = "a namespace labelled " + ", ".join(f"{key}={labels[key]}" for key in labels)
    last = "no answer"

    def made() -> Pod | None:
        nonlocal last
        pod = Pod(
            metadata=ObjectMeta(name="probe", namespace=namespaces[1]),
            spec=PodSpec(containers=[Container(name="main", image=image)], restartPolicy="Never"),
        )
        try:
            return client.create(pod, dry_run=True)
        except ApiError as error:
            last = f"pods are refused: {error.status.message}"
            return None

    def injected() -> bool:
        nonlocal last
        pod = made()
        if pod is None:
            return False
        last = "its pods get no sidecar"
        return has_sidecar(pod)

    def started() -> bool:
        pod = made()
        return pod is not None and STARTED_WITH in annotations_of(pod)

    try:
        lab.until(injected, timeout=min(patience, 60), what="a sidecar", every=0.5)
    except TimeoutError:
        refuse(f"Istio does not inject {where}: {last}")
    try:
        lab.until(started, timeout=min(patience, 60), what="istio-aux", every=0.5)
    except TimeoutError:
        refuse(
            f"istio-aux does not change the pods of {where}: is it deployed and active, do these "
            "labels match its namespace-selectors, and is its start-mode not none?"
        )
