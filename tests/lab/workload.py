"""The workload program as a process of a lab cluster, with what the charm would give it.

ServiceAccount, ClusterRole and webhook configuration are the charm's own (``manifests``), and so is
the certificate (``certificates``): what runs here runs with the rights that it ships with. It is
started with chosen settings, in namespaces that are made for it, and its metrics are read. The
charm's options are as `juju config` would set them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpx2
import yaml
from istio_aux import settings
from istio_aux.model import names
from istio_aux.model.annotations import START, STARTED_WITH
from lightkube import Client, codecs
from lightkube.codecs import AnyResource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

import certificates
import config
import lab.istio
import manifests
import probe
from inputs import Inputs
from lab import meshed, tools
from lab.clusters import CHECKOUT
from lab.fixtures import make_namespace, vacate
from lab.kubelet import ScriptedKubelet
from lab.processes import PATIENCE, reserve_port
from lab.scene import Scene

OPTIONS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).parents[2].joinpath("config.yaml").read_text()
)["options"]


def configured(model: str, given: Mapping[str, Any] | None = None) -> config.Config:
    """The options of an application in a model: those that are given, and defaults."""
    values = {name: option["default"] for name, option in OPTIONS.items()} | dict(given or {})
    return config.Config(
        model=model, **{name.replace("-", "_"): value for name, value in values.items()}
    )


def rendered_from(app: str, model: str, given: Mapping[str, Any]) -> manifests.Values:
    """What the charm's own code renders its objects from, with these options."""
    issuers = certificates.Issuers(
        silent=True, own=certificates.make_authority(app, model).certificate
    )
    values = Inputs(
        app, model, True, datetime.now(UTC), configured(model, given), "", issuers
    ).values()
    assert values
    return values


PROGRAM = Path(sys.executable).with_name("istio-aux")
# Seconds. Measured on 2 busy cores: gone 1.1 s after SIGTERM.
STOP = 30.0
# Seconds for a command. Measured on 2 busy cores: 15 s.
ANSWER = 300
DEFAULT = str(settings.DEFAULTS.namespace_selectors)


def ask(kubeconfig: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the program with its output in pipes."""
    return subprocess.run(
        [PROGRAM, *argv, "--kubeconfig", kubeconfig],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True, text=True, timeout=ANSWER, check=False,
    )  # fmt: skip


class Workload:
    """One ``istio-aux serve``, run under its own ServiceAccount ``<name>-workload``.

    ``name`` is the application's, ``model`` the namespace it is deployed to, ``folder`` where its
    files go; ``more`` are further settings of its file.

    Attributes:
        authority: signs its certificate; the API server trusts it.
        inject: the applications whose pods get a sidecar.
        revisions: Istio's, whose injection policies its account may read; ``default`` always.
    """

    def __init__(
        self,
        cluster: lab.Cluster,
        folder: Path,
        *,
        name: str = "istio-aux",
        model: str = "istio-aux",
        selector: str = DEFAULT,
        inject: tuple[config.Applications, ...] = (),
        revisions: tuple[str, ...] = (),
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.model = model
        self.selector = selector
        self.authority = certificates.make_authority(name, model)
        self.trusted: tuple[str, ...] = ()  # Other issuers in the caBundle, as PEM.
        self.inject, self.revisions = inject, revisions
        self._more = more or {}
        self._place(name, folder)

    def _place(self, unit: str, folder: Path) -> None:
        """Give this process a name, a folder and ports of its own."""
        self.unit = unit
        self.webhook_port, self.status_port = reserve_port(), reserve_port()
        self._folder = folder
        self._process: lab.Process | None = None
        self._settings = {
            "namespace-selectors": self.selector,
            "webhook-address": f"{self.cluster.host}:{self.webhook_port}",
            "webhook-configuration": manifests.webhook_configuration(self.name, self.model),
            "status-address": f"{self.cluster.host}:{self.status_port}",
            "tls-certificate": str(folder / "tls.crt"),
            "tls-key": str(folder / "tls.key"),
            "applications": str(folder / "applications"),
            "application": f"{self.model}/{self.name}",
            **self._more,
        }

    def replica(self, unit: str) -> Self:
        """Another process of this application, which is deployed: same account, same Service."""
        replica = copy.copy(self)
        replica._place(unit, self._folder / unit)
        replica._write_files()
        return replica

    def deploy(self) -> None:
        """Make everything but the webhook configuration: account, role, files."""
        with self.cluster.client() as client:
            client.apply(Namespace(metadata=ObjectMeta(name=self.model)), field_manager="lab")
            for resource in manifests.render_access(self.values()):
                client.apply(resource, field_manager="lab", force=True)
        self._write_files()
        self.kubeconfig = self.cluster.kubeconfig_for(
            self.model, manifests.service_account(self.name)
        )

    def use_token_file(self) -> Path:
        """Move its token into a file, which is read again when it changes; return the file."""
        document = json.loads(self.kubeconfig.read_text())
        (user,) = document["users"]
        file = self._folder / "token"
        file.write_text(user["user"]["token"])
        user["user"] = {"tokenFile": str(file)}
        self.kubeconfig = self._folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(document))
        return file

    def _write_files(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.renew_certificate()
        (self._folder / "applications").write_text(config.as_file(self.inject))
        self.config.write_text(yaml.safe_dump(self._settings))

    def renew_certificate(self) -> str:
        """Write a new certificate of ``authority``, and then its key; returns the chain, PEM."""
        leaf = certificates.issue(self.authority, certificates.service_names(self.name, self.model))
        (self._folder / "tls.crt").write_text(leaf.chain)
        (self._folder / "tls.key").write_text(leaf.private_key)
        return leaf.chain

    @property
    def config(self) -> Path:
        return self._folder / "config.yaml"

    @property
    def argv(self) -> list[str]:
        return [
            *(str(PROGRAM), "serve"),
            *("--config", str(self.config), "--kubeconfig", str(self.kubeconfig)),
        ]

    @property
    def process(self) -> lab.Process:
        """The program's process, the last one if it was started several times."""
        assert self._process, f"{self.name} was never started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self, argv: Sequence[str] | None = None) -> None:
        self._process = self.cluster.spawn(self.unit, argv or self.argv)

    def await_ready(self, timeout: float = PATIENCE) -> None:
        def ready() -> bool:
            self.process.check()
            return self.get("/readyz")[0] == 200

        lab.until(ready, what=f"{self.unit} to be ready ({self.process.log})", timeout=timeout)

    def await_capability(self, capability: str) -> None:
        """Return when the program says that cluster and Istio can do this."""

        def said() -> bool:
            status = self.status()
            if status.get("capability") != capability:
                # A time-out shows it.
                raise LookupError(status.get("capability-why"), status.get("injectors"))
            return True

        what = f"{self.unit} to say {capability} ({self.process.log})"
        lab.until(said, what=what, ignoring=(LookupError,))

    def status(self) -> dict[str, Any]:
        """What ``/status`` says; empty when nobody answers."""
        code, body = self.get("/status")
        return json.loads(body) if code == 200 else {}

    def select(self, namespace: str, *, selected: bool = True) -> None:
        """Label a namespace by the first selector, or not; return when it is noticed."""
        key, _, value = self.selector.partition(";")[0].partition("=")
        labels = {key: value if selected else None}
        with self.cluster.client() as client:
            client.patch(Namespace, namespace, {"metadata": {"labels": labels}})
        lab.until(
            lambda: (namespace in self.status().get("selected-namespaces", [])) is selected,
            what=f"{self.name} to notice namespace {namespace}",
        )

    def stop(self) -> int:
        """End the program by SIGTERM and return its exit status."""
        self.process.kill(signal.SIGTERM)
        return self.process.wait(STOP)

    def publish(self) -> None:
        """Make the Service of the process, and the charm's webhook configuration."""
        self.enlist()
        with self.cluster.client() as client:
            for resource in manifests.render_webhook(self.values()):
                client.apply(resource, field_manager="lab", force=True)

    def enlist(self, *, ready: bool = True) -> None:
        """Make the process an endpoint of its Service, ready or not."""
        self.cluster.publish(
            self.model, self.name, names.WEBHOOK_PORT, self.webhook_port,
            endpoint=self.unit, ready=ready,
        )  # fmt: skip

    def await_admission(self, namespace: str) -> None:
        """Return when pods that are created in a selected namespace are changed."""
        # Changed also where Istio makes sidecars native unasked.
        pod = meshed.pod(namespace, "probe", sidecar=None, annotations={START: "hold"})

        def changed() -> bool:
            with self.cluster.client() as client:
                made = client.create(pod, dry_run=True)
            assert made.metadata
            return STARTED_WITH in (made.metadata.annotations or {})

        lab.until(changed, what=f"pods of {namespace} to be changed by {self.name}")

    def values(self) -> manifests.Values:
        """What the charm would render its objects from, with options equal to the settings."""
        return manifests.Values(
            app=self.name,
            model=self.model,
            namespace_selectors=config.parse_namespaces_selected(self.selector),
            pod_selector=config.parse_selector(self._settings.get("pod-selector", "")),
            ca_bundle="\n".join((self.authority.certificate, *self.trusted, "")),
            acts=self._settings.get("quit", "enabled") == "enabled",
            deletes=self._settings.get("dead-proxy") == "delete",
            inject=self.inject,
            revisions=self.revisions,
            repairs=self._settings.get("race-policy") == "restart",
            settings={**self._settings, "applications": config.as_file(self.inject)},
        )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.process.log.read_text().splitlines()]

    def withdraw(self) -> None:
        """Delete what `publish` made, except the Service."""
        with self.cluster.client() as client:
            for resource in manifests.render_webhook(self.values()):
                assert resource.metadata is not None
                client.delete(type(resource), str(resource.metadata.name))

    def get(self, path: str) -> tuple[int, str]:
        """What the status port answers: HTTP status and body; (0, reason) when nobody does."""
        url = f"http://{self.cluster.host}:{self.status_port}{path}"
        try:
            with probe.connect() as client:
                answer = client.get(url, timeout=5)
        except httpx2.HTTPError as error:
            return 0, str(error)
        return answer.status_code, answer.text


def renamed(
    resources: Sequence[AnyResource], values: manifests.Values, name: str
) -> list[AnyResource]:
    """The webhooks that were rendered of these values, under a name of their own.

    They are waited for longer: the machine may be busy, where nothing is about time.
    """
    text = json.dumps([resource.to_dict() for resource in resources])
    text = text.replace(manifests.webhook_configuration(values.app, values.model), name)
    text = text.replace('"timeoutSeconds": 3', '"timeoutSeconds": 30')
    return [codecs.from_dict(each) for each in json.loads(text)]


Programs = Callable[..., Workload]
"""Has a `program` until the file ends: ``programs("strict", {"quit-grace": 2}, publish=True)``."""
Stages = Callable[..., Scene]
"""Makes a namespace that a workload serves: ``stages(workload, changed=True)``."""


@contextlib.contextmanager
def program(
    cluster: lab.Cluster,
    folder: Path,
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    start: bool = True,
    publish: bool = False,
    **more: Any,
) -> Iterator[Workload]:
    """A workload that is deployed, and ready unless ``start`` is False, as `declared` has it.

    ``publish``: with its webhook.
    """
    workload = declared(cluster, folder, name, settings, **more)
    workload.deploy()
    if start:
        workload.start()
        workload.await_ready()
    if publish:
        workload.publish()
    yield workload
    if publish:
        workload.withdraw()
    end_at_once(workload)


@contextlib.contextmanager
def late_istio(cluster: lab.Cluster, folder: Path, name: str, revision: str) -> Iterator[None]:
    """Istio comes, as this revision, and a workload restarts what missed its sidecar."""
    istio = lab.istio.install(cluster, f"istio-{revision}", revision=revision)
    with program(cluster, folder, name, {"race-policy": "restart"}, revisions=(revision,)):
        yield
    istio.remove()


def end_at_once(workload: Workload) -> None:
    """End it at once: the second or two of a polite end are for tests that are about that."""
    if workload.running:
        workload.process.end()


def declared(
    cluster: lab.Cluster,
    folder: Path,
    name: str,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> Workload:
    """A workload for namespaces with label ``lab.test/<name>: yes``, not deployed yet."""
    selector = f"lab.test/{name}=yes"
    arguments = {"name": name, "model": name, "selector": selector, "more": settings, **more}
    return Workload(cluster, folder, **arguments)


@contextlib.contextmanager
def stage(
    client: Client, kubelet: ScriptedKubelet, workload: Workload, *, changed: bool = False
) -> Iterator[Scene]:
    """A new namespace that the workload serves; ``changed``: also by its webhook."""
    name = f"{workload.name}-{secrets.token_hex(3)}"
    make_namespace(client, name)
    workload.select(name)
    if changed:
        workload.await_admission(name)
    yield Scene(client, kubelet, name, name)
    vacate(client, name)


def follow(cluster: lab.Cluster, commands: str) -> subprocess.CompletedProcess[str]:
    """Run the shell commands of a page, where `kubectl` and `istio-aux` are; each must succeed."""
    programs = (str(PROGRAM.parent), str(tools.path("kubectl").parent), os.environ["PATH"])
    environment = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "HOME": str(cluster.state),
        "PATH": os.pathsep.join(programs),
    }
    done = subprocess.run(
        ["sh", "-euc", commands], env=environment, cwd=CHECKOUT, timeout=ANSWER,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def is_taken(cluster: lab.Cluster, token: str) -> bool:
    trusted = ssl.create_default_context(cafile=str(cluster.ca))
    with httpx2.Client(verify=trusted, trust_env=False) as http:
        headers = {"Authorization": f"Bearer {token}"}
        return http.get(f"{cluster.server}/version", headers=headers).status_code != 401


def metric(workload: Workload, series: str) -> float:
    """The value of a series now, as `/metrics` names it. Raises KeyError: it is not there."""
    _, kept = workload.get("/metrics")
    # The answer may have been kept for a second. The next one counts more CPU time.
    text = lab.until(
        lambda: text if (text := workload.get("/metrics")[1]) != kept else "", what="other metrics"
    )
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}[series]
