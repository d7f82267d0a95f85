"""`audit -f`: the pods of files that `kubectl get` wrote, as of the newest time in them.

Namespaces, MutatingWebhookConfigurations and Istio's ConfigMaps in the same files show which
namespaces are selected, what an installation does, and whether Istio injects. What the files lack
is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from istio_aux.cli import cluster, files, report
from istio_aux.cli.workloads import ClusterRequest
from istio_aux.injector.capture import CONFIG_MAP, Agent, NodeAgents, is_agent, read_config
from istio_aux.injector.injection import POLICY_KEY, InjectionPolicy, hooks_of, read_policy
from istio_aux.injector.rules import ControlPlanes
from istio_aux.judge.installation import Installations, Judgement, Labels, installations
from istio_aux.judge.pods import judge, outside, state_of
from istio_aux.model import kept
from istio_aux.model.documents import BadNameError, Document, check_names
from istio_aux.model.findings import Code, Remark
from istio_aux.model.kubelet import OBEYS, Kubelet, depends_on_kubelet
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Key, Pod, decode
from istio_aux.model.text import UNDECODABLE, listed, one_line, problem
from istio_aux.model.webhooks import ConfigMap, Configuration, ControlPlane, Namespace
from istio_aux.repair.rules import AwaitCapture

_CONFIGURATION = "MutatingWebhookConfiguration"
_NO_CONFIGURATIONS = "no mutatingwebhookconfigurations were given"


def audit(paths: Sequence[str], request: ClusterRequest) -> int:
    """Print what is wrong with the pods of these files; return the exit status.

    It is 1 if some pods could not be judged, and 2 if a document is bad or there is no pod.
    """
    snapshot = _Snapshot()
    status = files.answer_each(paths, snapshot.add)
    if not (snapshot.pods or snapshot.bad["Pod"]):
        if snapshot.left_out or snapshot.namespaces or snapshot.configurations or snapshot.maps:
            report.complain("no pods were given")
        return files.BAD_INPUT
    now = snapshot.newest or files.present()
    status = max(status, cluster.show_audit(snapshot.audit(request, now), request, now.date))
    if kinds := [f"{number} {kind}" for kind, number in sorted(snapshot.left_out.items())]:
        report.complain(f"left out: {listed(kinds)}: audit does not read these kinds")
    if snapshot.newest:
        report.complain(f"judged as of {now.date:%Y-%m-%d %H:%M:%S}Z, the newest time given")
    return status


class _Snapshot:
    """The objects of a cluster in files. If an object is there twice, the last one counts."""

    def __init__(self) -> None:
        self.newest: Moment | None = None
        self.left_out = Counter[str]()  # Objects of other kinds.
        self.pods = dict[Key, Pod]()
        self.namespaces = dict[str, Labels]()  # By namespace.
        self.configurations = dict[str, Configuration]()
        # The data of ConfigMaps, by their namespace and name.
        self.maps = dict[tuple[str, str], Mapping[str, str]]()
        self.bad: dict[str, list[str]] = {"Pod": [], _CONFIGURATION: []}  # By kind: those unread.

    def add(self, document: Document, body: bytes) -> Iterable[str]:
        """Keep an object of the file ``body``. ValueError: it cannot be read."""
        (group, kind), _ = files.kind_of(document)
        self.newest = max(
            filter(None, (self.newest, files.newest(body))),
            default=None,
        )
        try:
            match group, kind:
                case "", "Pod":
                    pod = decode(document.readable)
                    check_names(kind, pod.metadata.name, pod.metadata)
                    self.pods[pod.metadata.key] = pod
                case "", "Namespace":
                    namespace = msgspec.json.decode(document.readable, type=Namespace)
                    check_names(kind, namespace.metadata.name, namespace.metadata)
                    self.namespaces[namespace.metadata.name] = kept.labels(namespace)
                case "", "ConfigMap":
                    found = msgspec.json.decode(document.readable, type=ConfigMap)
                    self.maps[found.metadata.namespace, found.metadata.name] = found.data or {}
                case "admissionregistration.k8s.io", "MutatingWebhookConfiguration":
                    configuration = msgspec.json.decode(document.readable, type=Configuration)
                    self.configurations[configuration.metadata.name] = configuration
                case _:
                    self.left_out[kind] += 1
        except UNDECODABLE as error:
            if kind not in self.bad:
                raise
            self.bad[kind].append(f"at {document.place}: {problem(error)}")
            if isinstance(error, BadNameError):
                raise
        return ()

    def audit(self, request: ClusterRequest, now: Moment) -> report.Audit:
        """Judge the pods as of ``now``. What a file does not say of a pod is not known."""
        found, tally = self._installations(request), cluster.Tally()
        mesh, unread = self._control_planes()
        agents = self._agents()
        tally.unreadable += self.bad["Pod"]
        spaces = set[str]()
        for pod in self.pods.values():
            where, phase = pod.metadata.namespace, pod.status.phase
            wanted = request.namespace in {None, where} and request.selector.matches(pod.labels)
            if not wanted or phase == "Succeeded":
                continue
            spaces.add(where)
            labels = self.namespaces.get(where)
            judged = _judge(pod, labels, found, now)
            if phase == "Failed":
                tally.add(judge(pod, judged, lately=now))
                continue
            tally.pods += 1
            meshed = outside(pod, labels, judged, mesh.expected, agents, now=now.date)
            notes = (
                [Remark(Code.MESH_UNKNOWN, meshed[0].reason)]
                if isinstance(meshed[0], AwaitCapture)
                else []
            )
            told = tally.add(judge(pod, judged, meshed, notes, lately=now))
            if not told and (why := _unsure(judged, _judge(pod, labels, found, None))):
                tally.unsure[why] += 1
        notes = list[str]()
        if unlabelled := sorted(spaces - self.namespaces.keys()):
            notes.append(
                "not known whether namespaces are selected, as they were not given:"
                f" {listed(unlabelled)}"
            )
        audit = tally.audit(found, request, unread=unread, notes=notes)
        unknown = f", {audit.unknown} cannot be judged" if audit.unknown else ""
        return msgspec.structs.replace(audit, among=f"{audit.among}{unknown}")

    def _installations(self, request: ClusterRequest) -> Installations:
        if request.config:
            return Installations((request.config,))
        if not (self.configurations or self.bad[_CONFIGURATION]):
            return Installations(gap=_NO_CONFIGURATIONS)
        return installations(self.configurations.values(), self.bad[_CONFIGURATION])

    def _agents(self) -> NodeAgents:
        """Istio's CNI agents, and their settings as far as they were given."""
        agents = NodeAgents(unread="istio-cni's pods were not given")
        agents.agents = {key: Agent.of(pod) for key, pod in self.pods.items() if is_agent(pod)}
        for name in agents.namespaces:
            try:
                agents.configs[name] = read_config(self.maps[name, CONFIG_MAP])
            except KeyError:
                agents.configs[name] = "it was not given"
            except UNDECODABLE as error:
                agents.configs[name] = one_line(str(error))
        return agents

    def _control_planes(self) -> tuple[ControlPlanes, Sequence[str]]:
        """What is known of Istio's injectors, and what is missing."""
        unread = self.bad[_CONFIGURATION]  # It may be Istio's.
        if unread or not self.configurations:
            return ControlPlanes(), unread or [_NO_CONFIGURATIONS]
        hooks = hooks_of(map(kept.configuration, self.configurations.values()))
        policies, missing = dict[ControlPlane, InjectionPolicy](), list[str]()
        for plane in sorted({hook.control_plane for hook in hooks}):
            try:
                policies[plane] = read_policy(
                    self.maps[plane.namespace, plane.config_map].get(POLICY_KEY, "")
                )
            except (KeyError, *UNDECODABLE):
                missing.append(f"no policy in ConfigMap {plane.namespace}/{plane.config_map}")
        return ControlPlanes(hooks=hooks, policies=policies, known=True), missing


def _judge(pod: Pod, labels: Labels | None, found: Installations, now: Moment | None) -> Judgement:
    """Judge a pod; the action is unknown without the ``labels`` of its namespace."""
    judged = found.judge(
        pod,
        labels,
        now,
        kubelet=Kubelet(None) if depends_on_kubelet(pod) else OBEYS,
    )
    if labels is None and not judged.left_out and judged.action != "ignore":
        judged = judged._replace(
            action="unknown",
            reason=judged.decision.reason,
            left_out=f"namespace {pod.metadata.namespace} was not given",
        )
    return judged


def _unsure(judged: Judgement, later: Judgement) -> str:
    """Say why a pod that does not hang as of the newest time may hang; empty if it does not.

    ``later`` is the judgement if the pod stays as it is.
    """
    pod = judged.facts.pod
    if not pod.status.phase:
        return "a pod has no status"
    if judged.decision.stage == "held":
        return "a payload is held, and only its proxy knows whether it is ready"
    if state_of(pod, later.decision):
        return "what keeps a pod had not lasted long at the newest time"
    return ""
