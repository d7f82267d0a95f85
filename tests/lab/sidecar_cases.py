"""One table of pods with other sidecars than Istio's: which of them become native. Data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from istio_aux.model import sidecars
from istio_aux.model.annotations import INJECT, NATIVE_SIDECAR, SIDECARS, START
from istio_aux.model.owners import JobCounts
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.start.native_sidecars import MOST

from lab.images import BUSYBOX

OPTION = "vault-agent=native,cloud-sql-proxy=native"
WANTED = {SIDECARS: "vault-agent=native"}
MANY = tuple(f"helper-{number}" for number in range(MOST + 1))


def container(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": BUSYBOX, **more}


JOB = (container("main"), container("vault-agent"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pod, and its containers after admission."""

    name: str
    option: str = OPTION  # What the admin has set.
    capability: Capability = Capability.NATIVE
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    containers: Sequence[Mapping[str, Any]] = JOB
    # Fields of the pod's spec, in place of `restartPolicy: Never`.
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])
    regular: Sequence[str] = ("main", "vault-agent")  # Names of its containers afterwards.
    # Names of its init containers afterwards, with `*` for those that restart always.
    init: Sequence[str] = ()
    warns: str = ""  # Part of the warning to its author.
    counted: bool = False  # Its Job counts the exit codes of native sidecars.

    @property
    def setting(self) -> StartPolicy:
        """What the admin has set, and what can be had."""
        option = sidecars.parse(self.option)
        job = JobCounts(exits=True) if self.counted else None
        return StartPolicy(capability=self.capability, sidecars=option, job=job)

    @property
    def pod(self) -> dict[str, Any]:
        """The pod as its author wrote it."""
        metadata: dict[str, Any] = {"generateName": "case-", "annotations": dict(self.annotations)}
        spec = {"restartPolicy": "Never", "containers": [*self.containers], **self.spec}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    @property
    def expected(self) -> tuple[list[str], list[str]]:
        """Its containers and init containers in the end."""
        return list(self.regular), list(self.init)


def outcome(spec: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names of regular and of init containers, without Istio's, as a case has them."""
    inits = [
        each["name"] + ("*" if each.get("restartPolicy") == "Always" else "")
        for each in spec.get("initContainers") or []
        if not each["name"].startswith("istio-")
    ]
    return [each["name"] for each in spec["containers"] if each["name"] != "istio-proxy"], inits


MADE: Mapping[str, Any] = {"regular": ["main"], "init": ["vault-agent*"]}
OWN: Mapping[str, Any] = {"option": ""}
CASES = [
    Case(name="by option", **MADE),
    Case(name="by option, when it starts again when it fails",
         spec={"restartPolicy": "OnFailure"}, **MADE),
    Case(name="no container is named", containers=[container("main")], regular=["main"]),
    Case(name="by annotation", annotations=WANTED, **OWN, **MADE),
    Case(name="neither option nor annotation", **OWN),
    Case(name="neither, and its program is known", **OWN, init=["fluent-bit*"], regular=["main"],
         containers=[container("main"), container("fluent-bit", image="fluent/fluent-bit:4")]),
    Case(name="an annotation with the name overrides the option",
         annotations={SIDECARS: "vault-agent=ignore"}),
    Case(name="an annotation with other names leaves the option in force",
         annotations={SIDECARS: "other=ignore"}, **MADE),
    Case(name="an empty annotation leaves the option in force", annotations={SIDECARS: ""}, **MADE),
    Case(name="names that are not there are ignored",
         annotations={SIDECARS: " other=native, vault-agent=native,,"}, **OWN, **MADE),
    Case(name="several keep their order, behind the author's init containers",
         containers=[container("vault-agent"), container("main"), container("cloud-sql-proxy")],
         spec={"initContainers": [container("b"), container("a", restartPolicy="Always")]},
         regular=["main"], init=["b", "a*", "vault-agent*", "cloud-sql-proxy*"]),
    Case(name="an init container that is named stays as it is",
         annotations={SIDECARS: "setup=native"},
         spec={"initContainers": [container("setup")]},
         regular=["main"], init=["setup", "vault-agent*"]),
    Case(name="probes, hooks and ports go with it",
         containers=[container("main"), container(
             "vault-agent", ports=[{"containerPort": 8200}],
             lifecycle={"preStop": {"exec": {"command": ["true"]}}},
             startupProbe={"tcpSocket": {"port": 8200}},
             livenessProbe={"tcpSocket": {"port": 8200}},
             readinessProbe={"tcpSocket": {"port": 8200}})], **MADE),
    Case(name="a pod that runs on", spec={"restartPolicy": "Always"}),
    Case(name="a pod that runs on, by annotation", annotations=WANTED,
         spec={"restartPolicy": "Always"}, warns="vault-agent: restartPolicy Always"),
    Case(name="a container is left that is resized in its own way",
         containers=[container("main"), container("cloud-sql-proxy"), container(
             "vault-agent",
             resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}])],
         init=["cloud-sql-proxy*"],
         warns="left alone: vault-agent: it has a restartPolicy or a resizePolicy of its own"),
    Case(name="all containers are named", annotations={SIDECARS: "main=native"},
         warns="main, vault-agent: the pod would have no payload"),
    Case(name="the only container is named", containers=[container("vault-agent")],
         regular=["vault-agent"], warns="the pod would have no payload"),
    Case(name="istio-proxy is named",
         annotations={SIDECARS: "istio-proxy=native"}, warns="and not istio-proxy"),
    Case(name="a name that is none", annotations={SIDECARS: "Vault Agent=native"},
         warns="expected NAME=native or NAME=ignore separated by commas"),
    Case(name="a long value that is none", annotations={SIDECARS: "A" * 1000},
         warns="expected NAME=native or NAME=ignore separated by commas"),
    *(
        Case(name=f"only an admin says {how}", annotations={SIDECARS: f"vault-agent={how}"},
             warns="expected NAME=native or NAME=ignore separated by commas")
        for how in ("quit", "9000/stop")
    ),
    Case(name="more than are changed",
         annotations={SIDECARS: ",".join(f"{each}=native" for each in MANY)},
         containers=[container(each) for each in ("main", *MANY)], regular=["main", *MANY],
         warns="helper-0, helper-1"),
    Case(name="the author refuses a sidecar of Istio's", annotations={INJECT: "false", **WANTED}),
    Case(name="the author wants Istio's sidecar classic", annotations={NATIVE_SIDECAR: "false"}),
    Case(name="the proxy is held, not native",
         annotations={START: "hold", NATIVE_SIDECAR: "false", **WANTED},
         warns="vault-agent: istio-proxy is not native, so it would start after them"),
]  # fmt: skip

# Not on the cluster tier, whose workloads know that sidecars can be native.
NOT_NATIVE = [
    Case(name="native sidecars cannot be had", capability=Capability.CLASSIC),
    Case(name="nobody knows whether native sidecars can be had", capability=Capability.UNKNOWN),
    Case(name="by annotation, where native sidecars cannot be had", annotations=WANTED,
         capability=Capability.CLASSIC, warns="vault-agent: sidecars cannot be native here"),
    Case(name="by annotation, where nobody knows whether native sidecars can be had",
         annotations=WANTED, capability=Capability.UNKNOWN,
         warns="it is not known whether sidecars can be native here"),
]  # fmt: skip
RULED = [
    Case(name="its Job would count its exit code", counted=True,
         warns="vault-agent: a rule of podFailurePolicy that names no container counts its exit"),
    *(
        Case(name=f"a container is left that has {fields}",
             containers=[container("main"), container("vault-agent", **fields)],
             warns="left alone: vault-agent: it has a restartPolicy or a resizePolicy of its own")
        for fields in ({"restartPolicy": "Never"}, {"restartPolicy": "Always"},
                       {"restartPolicyRules": [{"action": "Restart"}]})
    ),
]  # fmt: skip
