"""What the charm reads from Juju and from its container, once an event, into a frozen `Inputs`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import ops
from istio_aux.model.policy import RacePolicy

import certificates
import cluster
import config
import probe
from certificates import Issuers, OwnAuthority
from cluster import Found
from config import Applications, Config, union
from container import CONTAINER, answers
from manifests import Values, webhook_configuration
from relations import active, istio, note, noted, sidecar

# Key in the peer relation: the options when all were last good. A new unit finds them there.
_LAST_GOOD: Final = "last-good-options"


@dataclass(frozen=True)
class Inputs:
    """The facts on which the charm decides. The last five come from the cluster, for the leader."""

    app: str
    model: str  # Its namespace: named as the model, or `controller-<name>` for a controller's.
    leader: bool
    now: datetime
    config: Config | None  # The last good one while an option is invalid; None: there is none.
    invalid: str  # Which options are invalid and why.
    issuers: Issuers = field(repr=False)
    log: str = ""  # The command that shows the log of this unit's workload.
    answer: probe.Answer | None = None  # The workload's; None while Pebble does not answer.
    control_planes: tuple[istio.ControlPlane, ...] = ()
    requesters: tuple[sidecar.Requester, ...] = ()
    ambient: bool = False  # An ambient mesh is related; its policies may refuse the API server.
    revisions: tuple[str, ...] = ()
    namespaces: tuple[Found, ...] = ()
    shared: tuple[str, ...] = ()  # Namespaces that another installation selects, too.
    has_webhook: bool = False  # The MutatingWebhookConfiguration exists.
    dry_runs: bool = True  # ValidatingAdmissionPolicies can limit pod creation to dry runs.

    def applications(self) -> tuple[Applications, ...]:
        """Return the applications whose pods get a sidecar, by the option or by a relation."""
        named = self.config.applications if self.config else ()
        return union([*named, *(one.application for one in self.requesters if one.application)])

    def settings(self) -> dict[str, Any]:
        """Return the workload's settings, without paths; empty without a configuration."""
        if self.config is None:
            return {}
        root = istio.root_namespace(self.control_planes)
        return {
            **self.config.settings,
            **({"root-namespace": root} if root else {}),
            "application": f"{self.model}/{self.app}",
            "webhook-configuration": webhook_configuration(self.app, self.model),
            "lease": f"{self.model}/{self.app}",
            "applications": config.as_file(self.applications(), self.config.namespaces),
        }

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
            ca_bundle="".join(f"{certificate}\n" for certificate in bundle),
            acts=self.config.quit == "enabled",
            deletes=self.config.dead_proxy == "delete",
            inject=self.applications(),
            inject_namespaces=self.config.namespaces,
            repairs=self.config.race_policy == RacePolicy.RESTART,
            revisions=self.revisions,
            dry_runs=self.dry_runs,
            owner=next((each.uid for each in self.namespaces if each.name == self.model), ""),
            ambient=self.ambient,
            settings=self.settings(),
        )


def observe(
    charm: ops.CharmBase,
    transport: probe.Transport,
    own: OwnAuthority | None = None,
    pki: certificates.Requirer | None = None,
) -> Inputs:
    """Read the inputs, with what both providers of certificates offer. This changes nothing."""
    options: Config | None = None
    invalid = ""
    namespace = cluster.namespace()
    try:
        options = charm.load_config(Config, model=namespace)
    except (ValueError, TypeError) as error:
        lacks = charm.meta.config.keys() - charm.config.keys()
        invalid = f"Juju gives no {', '.join(sorted(lacks))}" if lacks else str(error)
        defaults = {name: option.default for name, option in charm.meta.config.items()}
        kept = noted(charm.model, charm.app).get(_LAST_GOOD, "")
        options = config.recall(kept, defaults, namespace)
    now = datetime.now(UTC)
    container = charm.unit.get_container(CONTAINER)
    return Inputs(
        app=charm.app.name,
        log=f"kubectl logs -n {namespace} {charm.unit.name.replace('/', '-')} -c {CONTAINER}",
        model=namespace,
        leader=charm.unit.is_leader(),
        now=now,
        config=options,
        invalid=invalid,
        answer=probe.ask(transport) if answers(container) else None,
        issuers=certificates.observe(
            charm.model, container, own or OwnAuthority(charm.model), pki, now
        ),
        control_planes=istio.control_planes(charm.model),
        requesters=sidecar.requesters(charm, namespace),
        ambient=bool(active(charm.model, istio.SERVICE_MESH)),
    )


def remember(model: ops.Model, inputs: Inputs) -> None:
    """Note good options, which outlive pods, leaders and revisions of the charm; leader only."""
    if inputs.config and not inputs.invalid:
        note(model, model.app, {_LAST_GOOD: json.dumps(inputs.config.options)})
