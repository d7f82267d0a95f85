"""A cluster, from its start to its end, and what a test may do with it.

A child process can keep one running, which outlives its parent (`up`, playground).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import httpx2
from lightkube import ApiError, Client, KubeConfig
from lightkube.models.core_v1 import ServicePort, ServiceSpec
from lightkube.models.discovery_v1 import Endpoint, EndpointConditions, EndpointPort
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Service, ServiceAccount
from lightkube.resources.discovery_v1 import EndpointSlice

from lab import control_plane, egress, images, node, tools
from lab.control_plane import KeyPair
from lab.processes import Process, Tree, ending, sweep, until
from tools import cache

Level = Literal["api", "node"]

CHECKOUT = Path(__file__).parents[2]  # Several checkouts share the cache.
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager")
# For the lab's own programs.
PYTHON = {"PYTHONPATH": f"{CHECKOUT / 'tests'}{os.pathsep}{CHECKOUT}"}
# From so much on they collect garbage instead of growing to twice what they use.
FRUGAL = {"GOMEMLIMIT": os.environ.get("GOMEMLIMIT", "6GiB")}
# With `off` the API server collects no garbage below that limit: benchmarks would measure how long
# a program waits for it.
GARBAGE = {"GOGC": gogc} if (gogc := os.environ.get("LAB_GOGC")) else {}


@contextlib.contextmanager
def cluster(level: Level = "api", *, held: bool = False) -> Iterator[Cluster]:
    """A Kubernetes that lives as long as the `with` block, or the process, whichever ends first.

    Its logs are kept when the block ends by an exception or `keep_logs` was set. `held` notes that
    nothing else happens in the block, so that `python -m lab down` may end this process.
    """
    sweep()
    if level == "node":
        node.prepare()
    programs = tools.ensure([*CONTROL_PLANE, *(node.PROGRAMS if level == "node" else ())])
    tree = Tree(isolate=level == "node")
    made: Cluster | None = None
    keep_logs = True
    try:
        made = Cluster(level, tree, programs)
        made.start(held=held)
        yield made
        keep_logs = made.keep_logs
    finally:
        with ending(f"cluster {tree.name}"):
            if made:
                made.close_clients()
            tree.close(keep_logs=keep_logs)
        if keep_logs:
            cache.say(f"{tree.name}: its logs are in {tree.logs}")


class Cluster:
    """A running Kubernetes; made by `cluster`.

    Attributes:
        level: `api` or `node`.
        name: unique on this machine; also that of its network interface and its cgroup.
        server: the URL of the API server, good inside and outside of the cluster's namespaces.
        etcd: the URL of etcd, for the harness on the level `api`.
        ca: the certificate of its authority.
        kubeconfig: a file that gives all rights.
        host: the address at which the API server and pods reach what `spawn` started; the harness
            reaches it as well.
        harness: the address at which the API server and what `spawn` started reach the harness.
        logs: the folder of the logs, one file a process, those of pods in `pods`.
        audit: the API server's audit log, one JSON object a line (`audit-policy.yaml`).
        state: a folder that vanishes with the cluster.
        keep_logs: set it to keep the logs; an exception in the `with` block does as well.
        tree: the supervisor and its processes.
    """

    def __init__(self, level: Level, tree: Tree, programs: Mapping[str, Path]) -> None:
        self.level = level
        self.name = tree.name
        self.logs = tree.logs
        self.audit = tree.logs / "audit.log"
        self.state = tree.state
        self.keep_logs = False
        self.tree = tree
        self._programs = programs
        self._processes: dict[str, Process] = {}
        self._clients: list[Client] = []
        cable = node.furnish(tree) if level == "node" else None
        self._endpoints = node.endpoints(cable) if cable else control_plane.on_loopback()
        self._files = control_plane.credentials(tree.state / "pki", self._endpoints)
        self.host = self._endpoints.public
        self.harness = cable.outside if cable else "127.0.0.1"
        self.server = self._endpoints.server
        self.etcd = f"http://127.0.0.1:{self._endpoints.etcd}"
        self.ca = self._files.authority.pair.certificate
        self.kubeconfig = control_plane.write_kubeconfig(
            tree.state / "kubeconfig", self.server, self.ca, user="admin", has=self._files.admin
        )
        self._config = KubeConfig.from_file(self.kubeconfig)

    def start(self, *, held: bool = False) -> None:
        """Start every component and return when pods can be made."""
        at, files, programs = self._endpoints, self._files, self._programs
        self.spawn("etcd", control_plane.etcd(programs["etcd"], self.state, at), env=FRUGAL)
        server, manager = "kube-apiserver", "kube-controller-manager"
        way = self._egress() if tools.before(34) else None
        arguments = control_plane.kube_apiserver(programs[server], at, files, self.audit, way)
        self.spawn(server, arguments, env={**FRUGAL, **GARBAGE})
        if self.level == "node":
            node.start_runtime(self, self.tree)
            self.load(images.pause())
        self.await_api()
        # Not earlier: it exits after 10 s without an API server, and a busy machine needs longer.
        self.spawn(manager, control_plane.kube_controller_manager(programs[manager], at, files))
        if self.level == "node":
            scheduler = "kube-scheduler"
            self.spawn(scheduler, control_plane.kube_scheduler(programs[scheduler], at, files))
            node.start(self, programs, files)
        with self.client() as client:
            # The controller manager makes it, and without it no pod can be created.
            until(
                lambda: client.get(ServiceAccount, "default", namespace="default"),
                what=f"the default ServiceAccount ({self.logs / manager}.log)",
                ignoring=(ApiError,),
            )
        record = {
            "level": self.level,
            "harness": os.getpid(),
            "held": held,
            "checkout": str(CHECKOUT),
            "kubeconfig": str(self.kubeconfig),
        }
        # Renamed into place: a reader sees all of it or nothing.
        new = self.state / "record.new"
        new.write_text(json.dumps(record))
        new.rename(self.state / "record.json")

    def _egress(self) -> Path:
        """Start the stand-in for kube-proxy, and return the API server's file about it."""
        at, admin = self.state / "egress", self._files.admin
        argv = [sys.executable, "-m", "lab.egress", at, self.server, self.ca]
        self.spawn("egress", [*argv, admin.certificate, admin.key], env=PYTHON)
        return egress.configuration(self.state, at)

    def await_api(self) -> None:
        def ready() -> bool:
            self.process("kube-apiserver").check()
            return (
                control_plane.get_status(self.server, self.ca, self._files.admin, "/readyz") == 200
            )

        what = f"the API server to be ready ({self.logs / 'kube-apiserver.log'})"
        until(ready, what=what, ignoring=(httpx2.HTTPError,))

    def collect_garbage(self) -> None:
        """Have the API server collect its garbage, which takes seconds if it has many objects."""
        # The runtime's own handler: net/http/pprof handler.ServeHTTP.
        control_plane.get_status(
            self.server, self.ca, self._files.admin, "/debug/pprof/heap?gc=1", patience=100
        )

    def client(self) -> Client:
        """A client with all rights, closed with the cluster."""
        # Seconds. On a busy machine a late answer is no error.
        client = Client(
            self._config, trust_env=False, field_manager="lab", timeout=httpx2.Timeout(100)
        )
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()

    def issue(self, name: str, common_name: str, **more: Sequence[str]) -> KeyPair:
        """A certificate of the cluster's authority; further arguments as of `Authority.issue`."""
        return self._files.authority.issue(name, common_name, **more)

    def kubeconfig_for(self, namespace: str, service_account: str) -> Path:
        """A kubeconfig with a token of the ServiceAccount, good for an hour."""
        with self.client() as client:
            token = control_plane.request_token(client, namespace, service_account)
        path = self.state / f"kubeconfigs/{namespace}-{service_account}"
        return control_plane.write_kubeconfig(
            path, self.server, self.ca, user=service_account, has=token, namespace=namespace
        )

    def load(self, image: Path) -> None:
        """Import an image tarball. Raises ValueError on level `api`, where no pod runs."""
        if self.level != "node":
            raise ValueError(f"{image.name}: images are for level node, this is level {self.level}")
        node.load(self.tree, image)

    def process(self, name: str) -> Process:
        """The process spawned with this name, a component or one of `spawn`. Raises KeyError."""
        return self._processes[name]

    def publish(
        self,
        namespace: str,
        name: str,
        port: int,
        target_port: int,
        *,
        endpoint: str = "",
        ready: bool = True,
        host: str = "",
        headless: bool = False,
    ) -> None:
        """Make or change a Service and its endpoint, a process at `host`:`target_port`.

        `endpoint` names it if the Service has several: they are told apart by their ports. `host`
        is by default the address of what `spawn` started. Pods reach none that is not `headless`.
        """
        service = Service(
            metadata=ObjectMeta(name=name, namespace=namespace),
            spec=ServiceSpec(
                clusterIP="None" if headless else None,
                ports=[ServicePort(port=port, targetPort=target_port)],
            ),
        )
        endpoints = EndpointSlice(
            metadata=ObjectMeta(
                name=endpoint or name,
                namespace=namespace,
                labels={"kubernetes.io/service-name": name},
            ),
            # An IPv4 endpoint may not be a loopback address; the API server dials what it finds.
            addressType="FQDN" if self.level == "api" else "IPv4",
            endpoints=[
                Endpoint(addresses=[host or self.host], conditions=EndpointConditions(ready=ready))
            ],
            ports=[EndpointPort(name="", port=target_port, protocol="TCP")],
        )
        with self.client() as client:
            client.apply(service)
            client.apply(endpoints)

    def spawn(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start a process inside the cluster's namespaces; it dies with the cluster."""
        self._processes[name] = process = self.tree.spawn(name, argv, env=env, cwd=cwd)
        return process


# Lets the caller go, and returns when this process is told to end.
Stay = Callable[[], None]


def in_child(play: Callable[[Stay], None]) -> int:
    """Run `play` in a session of its own; return 0 once it stays, 2 if it ends before.

    The child lives on until it gets a signal. It is forked before any thread exists.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        play(lambda: _stay(writing))
        os._exit(0)
    os.close(writing)
    try:
        stays = os.read(reading, 1)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGINT)
        raise
    return 0 if stays else 2


def _stay(writing: int) -> None:
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    sys.stdout.flush()
    os.write(writing, b"1")
    os.close(writing)
    # The terminal belongs to the caller again.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    told.wait()


def instructions(cluster: Cluster, *more: str, program: Path | None = None) -> str:
    """What to paste, what to try then (`more`), and how to end a cluster that stays."""
    # On PATH, as an alias has no completion; last, as beside the program is a Python.
    last = f":{program.parent}" if program else ""
    lines = (
        f"{cluster.name} (level {cluster.level}) stays. Paste:\n",
        f"export KUBECONFIG={cluster.kubeconfig}",
        f'export PATH={tools.path("kubectl").parent}:"$PATH"{last}',
        "\nThen try:\n\nkubectl get pods --all-namespaces",
        *more,
        f"\nLogs of its components: {cluster.logs}",
        f"End it: make lab-down, or python -m lab down {cluster.name}",
    )
    return "\n".join(lines)
