"""What the charm reads from Juju and from its container, once an event, into a frozen `Inputs`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

import ops
from istio_aux.model import sidecars
from istio_aux.model.policy import RacePolicy

import certificates
import cluster
import config
import issuers
from certificates import Authority, Leaf, Unreadable
from config import Applications, Config, union
from issuers import Choice, Issuers, Offer
from manifests import Values
from relations import istio, sidecar
from relations.tls import Requirer

CONTAINER: Final = "istio-aux"


@dataclass(frozen=True)
class Inputs:
    """The facts on which the charm decides. The leader adds the last seven from the cluster."""

    app: str
    model: str  # Its namespace: its name, but `controller-<controller>` for a controller's model.
    leader: bool
    now: datetime
    config: Config | None  # None when an option is invalid.
    invalid: str  # Which options are invalid and why.
    container_ready: bool  # Pebble answers in the workload's container.
    authority: Authority | Unreadable | None = field(repr=False)
    issuers: Issuers = field(repr=False)
    offer: Offer | None = field(repr=False)  # None without the relation `certificates`.
    control_planes: tuple[istio.ControlPlane, ...] = ()
    requesters: tuple[sidecar.Requester, ...] = ()
    ambient: bool = False  # An ambient mesh is related.
    admission: Literal["webhook", "policy"] = "webhook"
    capability: str = "unknown"  # What Istio can do: see `istio_aux.model.policy.Capability`.
    revisions: tuple[str, ...] = ()
    owner: str = ""  # UID of the model's Namespace.
    jobs_suspended: bool = False  # A Job is suspended, and race-policy is not `restart-jobs`.
    has_webhook: bool = False  # The MutatingWebhookConfiguration exists.
    dry_runs: bool = True  # ValidatingAdmissionPolicies can refuse all that is no dry run.

    def choose(self, *, applied: bool) -> Choice:
        """Return what the unit serves; `applied` says that this event applied the caBundle."""
        names = certificates.service_names(self.app, self.model)
        return self.issuers.choose(self.issuers.bundle() if applied else (), names, self.now)

    def applications(self) -> tuple[Applications, ...]:
        """Return the applications whose pods get a sidecar, by the option or by a relation."""
        named = self.config.inject_applications if self.config else ()
        return union([*named, *(one.application for one in self.requesters if one.application)])

    def values(self) -> Values | None:
        """Return what the owned objects depend on; None on other units and while it is unknown."""
        bundle = self.issuers.bundle()
        if not self.leader or self.config is None or not bundle:
            return None
        return Values(
            app=self.app,
            model=self.model,
            namespace_selectors=config.parse_namespaces_selected(self.config.namespace_selectors),
            pod_selector=config.parse_selector(self.config.pod_selector),
            inject_selector=config.parse_selector(self.config.inject_selector),
            ca_bundle="".join(f"{certificate}\n" for certificate in bundle),
            acts=self.config.quit == "enabled",
            sidecars=sidecars.parse(self.config.sidecars),
            deletes=self.config.dead_proxy == "delete",
            start_mode=self.config.start_mode,
            peers=self.config.peers,
            admission=self.admission,
            capability=self.capability,
            inject=self.applications(),
            inject_namespaces=self.config.inject_namespaces,
            repairs=RacePolicy(self.config.race_policy).restarts,
            # The workload must be able to resume what it suspended under earlier options.
            repairs_jobs=self.config.race_policy == RacePolicy.RESTART_JOBS or self.jobs_suspended,
            revisions=self.revisions,
            dry_runs=self.dry_runs,
            owner=self.owner,
            ambient=self.ambient,
        )


def observe(charm: ops.CharmBase, provider: Requirer | None = None) -> Inputs:
    """Read the inputs, with what the `provider` of certificates offers. This changes nothing."""
    options: Config | None = None
    invalid, namespace = "", cluster.namespace()
    try:
        options = config.load(charm.config, namespace)
    except config.InvalidOptionError as error:
        invalid = str(error)
    leader, now = charm.unit.is_leader(), datetime.now(UTC)
    container = charm.unit.get_container(CONTAINER)
    authority = certificates.read_authority(charm.model, leader=leader)
    offer = provider.offer(now) if provider else None
    names = certificates.service_names(charm.app.name, namespace)
    known = authority if isinstance(authority, Authority) else None
    return Inputs(
        app=charm.app.name,
        model=namespace,
        leader=leader,
        now=now,
        config=options,
        invalid=invalid,
        container_ready=container.can_connect(),
        authority=authority,
        issuers=issuers.observe(
            charm.model, known, _served(container), offer, names=names, now=now
        ),
        offer=offer,
        control_planes=istio.control_planes(charm.model),
        requesters=sidecar.requesters(charm, namespace),
        ambient=istio.beside_ambient_mesh(charm.model),
    )


def _served(container: ops.Container) -> Leaf:
    """Return the certificate and key in the container; empty fields if they cannot be read."""
    try:
        with (
            container.pull(certificates.TLS_CERTIFICATE) as chain,
            container.pull(certificates.TLS_KEY) as key,
        ):
            return Leaf(chain.read(), key.read())
    except (ops.pebble.Error, OSError):
        return Leaf("", "")
