"""What the rules need to know of a pod: most of it is which containers are finished (`kubelet`)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property

from istio_aux.model import resources
from istio_aux.model.annotations import QUIT_AFTER, SIDECARS
from istio_aux.model.found import ContainerVerdict
from istio_aux.model.kubelet import OBEYS, Kubelet, depends_on_kubelet, finished, restarting_all
from istio_aux.model.moment import zoned
from istio_aux.model.pod import PROXY, ContainerState, Pod, Terminated
from istio_aux.model.pod_settings import PodSettings
from istio_aux.model.policy import QuitPolicy
from istio_aux.model.sidecars import ENDS_LAST, How, SidecarRule, classic, combined, is_off

_NO_STATE = ContainerState()
# Reasons of a container that waits for its first start; its image may be on the way.
BEING_MADE = frozenset({"", "ContainerCreating", "PodInitializing"})


class PodFacts:
    """A pod as the rules see it: the pod, and what follows from it. Nothing raises.

    The annotations of the pod, ``settings``, refine the ``policy`` of the cluster's admin.
    """

    def __init__(self, pod: Pod, policy: QuitPolicy, kubelet: Kubelet | None = OBEYS) -> None:
        """Read a pod. ``kubelet`` is None if the version of the pod's kubelet was not read."""
        self.pod = pod
        self.policy = policy
        self._kubelet = kubelet
        self._obeyed = kubelet.obeys if kubelet else None
        self.settings = PodSettings.of(pod)
        self._rules = {
            name: rule
            for name, rule in combined(
                policy.sidecars,
                self.settings.sidecars,
                classic(pod.containers),
                stays=True,
            ).items()
            if name not in self.settings.after
        }

    @cached_property
    def containers(self) -> Mapping[str, ContainerVerdict]:
        """A verdict on each container, by name: the native sidecars, then the others."""
        verdicts = dict[str, ContainerVerdict]()
        native = self.pod.native_sidecars
        told = (name for name, rule in self._rules.items() if rule.how is How.QUIT)
        ending = {PROXY, *told, *(container.name for container in native)}
        for container in (*native, *self.pod.containers):
            done, why = finished(container, self.pod, obeyed=self._obeyed)
            role = "sidecar" if container.name in ending else "payload"
            if role == "payload" and (cause := self._ignored(container.name)):
                role = "ignored"
                why += f"; ignored: {cause}"
            verdicts[container.name] = ContainerVerdict(role=role, finished=done, why=why)
        return verdicts

    @cached_property
    def initializing(self) -> Mapping[str, ContainerVerdict]:
        """The init containers that are still to end or, if they are native, to start, in order.

        The kubelet starts one after another (kuberuntime computeInitContainerActions). Containers
        without a reported state are left out.
        """
        verdicts = dict[str, ContainerVerdict]()
        pod = self.pod
        started = {each.name for each in pod.statuses() if each.started}
        for container in pod.init_containers if pod.status.phase == "Pending" else ():
            name = container.name
            native = container.restart_policy == "Always"
            state = pod.states.get(name)
            ended = pod.exits.get(name)
            done = name in started if native else ended and ended.exit_code == 0
            if state and not done:
                unready = ", not ready" if native and state.running else ""
                verdicts[name] = ContainerVerdict(
                    role="sidecar" if native else "init",
                    finished=False,
                    why=finished(container, pod).why + unready,
                )
        return verdicts

    @cached_property
    def payload_started(self) -> bool:
        """Whether a payload container has started, or may have."""
        return not all(self._is_new(n) for n, v in self.containers.items() if v.role != "sidecar")

    @cached_property
    def holding(self) -> int | None:
        """Seconds for which the hook of the proxy holds the payload; None: it holds nothing.

        The kubelet starts one container after another, and waits for the hook of each. Meanwhile it
        reports nothing (k8s@1.36 kuberuntime_manager.go SyncPod), so a running proxy may be shown
        as waiting. So may a ready one, while the image of the payload is pulled.
        """
        pod = self.pod
        pending = pod.status.phase == "Pending" and pod.restart_policy != "Always"
        if not (pending and pod.has_sidecar and pod.containers):
            return None
        first, *others = pod.containers
        waits = first.name == PROXY and all(self._is_new(each.name) for each in others)
        made = not self.initializing and all(
            each.name in pod.states for each in pod.init_containers
        )
        starts = self.state(PROXY).running or self._is_new(PROXY)
        return first.holds if waits and made and starts else None

    def _is_new(self, container: str) -> bool:
        """Whether the kubelet reports that a container is still to start for the first time."""
        waits = self.state(container).waiting
        return bool(waits and waits.reason in BEING_MADE and not self.pod.restarts(container))

    @property
    def table(self) -> dict[str, ContainerVerdict]:
        """All verdicts, for people: those of `initializing` first."""
        return {**self.initializing, **self.containers, **self.initializing}

    def _ignored(self, name: str) -> str | None:
        """Why a container does not keep the proxy running; None: it does."""
        after = self.settings.after
        if after:
            return None if name in after else f"not named by annotation {QUIT_AFTER}"
        rule = self._rules.get(name)
        if rule is None or rule.how is not How.IGNORE:
            return None
        if rule in self.settings.sidecars:
            return f"annotation {SIDECARS}"
        return "option sidecars" if rule in self.policy.sidecars else "it ends after all others"

    @cached_property
    def unfinished(self) -> Mapping[str, str]:
        """Payload containers that may still run, each with the reason."""
        return {
            n: v.why for n, v in self.containers.items() if v.role == "payload" and not v.finished
        }

    @cached_property
    def finished_payload(self) -> list[str]:
        """Payload containers that will not run again."""
        return [n for n, v in self.containers.items() if v.role == "payload" and v.finished]

    @cached_property
    def outlasting(self) -> list[str]:
        """Ignored containers that run on after the proxy: they keep the pod, without network."""
        return [
            name
            for name, verdict in self.containers.items()
            if verdict.role == "ignored" and not verdict.finished and name not in ENDS_LAST
        ]

    @property
    def proxy_finished(self) -> bool:
        """Whether the proxy is there and will not run again."""
        return PROXY in self.containers and self.containers[PROXY].finished

    @property
    def never_met(self) -> bool:
        """Whether the proxy had ended before any payload container started: its hold gave up."""
        end = self.ended(PROXY)
        payload = [*self.unfinished, *self.finished_payload]
        begins = (it.started_at for name in payload if (it := self.state(name).running))
        first = min(filter(None, map(zoned, begins)), default=None)
        again = any(map(self.pod.restarts, payload)) or bool(self.finished_payload)
        return bool(end and first and first >= end and not again)

    @property
    def unclear(self) -> bool:
        """Whether the unknown version of the kubelet decides if a container is finished."""
        return self._obeyed is None and depends_on_kubelet(self.pod)

    @property
    def needs_kubelet(self) -> bool:
        """Whether the version of the kubelet is to be read."""
        return self._kubelet is None and self.unclear

    @property
    def partly_finished(self) -> bool:
        """Whether a payload container is finished, or may be."""
        return bool(self.finished_payload) or self.unclear

    @cached_property
    def restarting(self) -> str | None:
        """Why every container is about to start again; None: they are not."""
        return restarting_all(self.pod, obeyed=self._obeyed)

    @cached_property
    def sidecars(self) -> tuple[SidecarRule, ...]:
        """The rules for unfinished sidecars that are told to exit, in the pod's order."""
        return tuple(
            rule
            for container in self.pod.containers
            if (rule := self._rules.get(container.name)) is not None
            and rule.how is How.QUIT
            and not self.containers[container.name].finished
        )

    @cached_property
    def lacks(self) -> str:
        """Why the next sidecar cannot be told to exit: its switch is off; empty if it may be on."""
        off = (
            each.name for each in self.pod.containers if each.name == self.target and is_off(each)
        )
        for rule in self.sidecars[:1]:
            if rule.switch and any(off):
                return (
                    f"{rule.container} cannot be told to exit: it needs {rule.switch}, which is"
                    " off: turn it on for new pods"
                )
        return ""

    @property
    def target(self) -> str:
        """The container that has to exit next."""
        return self.sidecars[0].container if self.sidecars else PROXY

    def state(self, container: str) -> ContainerState:
        """What the kubelet reports of a container; an empty state if it reports nothing."""
        return self.pod.states.get(container, _NO_STATE)

    @cached_property
    def exits(self) -> Mapping[str, Terminated]:
        """How each terminated container exited, without init containers."""
        return {
            c.name: self.pod.exits[c.name] for c in self.pod.containers if c.name in self.pod.exits
        }

    @property
    def created(self) -> datetime | None:
        """The creation of the pod, by the clock of the API server."""
        return zoned(self.pod.metadata.creation_timestamp)

    @cached_property
    def payload_ended(self) -> datetime | None:
        """The end of the last payload container that is finished; None: unknown."""
        return max(filter(None, map(self.ended, self.finished_payload)), default=None)

    def ended(self, container: str) -> datetime | None:
        """The end of a container that is terminated; None: unknown."""
        ended = self.exits.get(container)
        return zoned(ended.finished_at) if ended else None

    @property
    def not_ended(self) -> Mapping[str, str]:
        """The containers that have not ended, whether they will be started again or not."""
        return {n: v.why for n, v in self.table.items() if not self.state(n).terminated}

    @property
    def gone_by(self) -> datetime | None:
        """The end of the grace period of a pod that is being deleted; None: it is not."""
        return zoned(self.pod.metadata.deletion_timestamp)

    @property
    def held_since(self) -> datetime | None:
        """Since when the pod is being deleted, or is kept from starting or ending; None: unknown.

        Once a pod has finished, the kubelet deletes it with a grace period of 0, which moves its
        deletionTimestamp to the present (apiserver rest.BeforeDelete).
        """
        if gone_by := self.gone_by:
            with suppress(OverflowError):  # A grace period in a file may be any number.
                return gone_by - timedelta(
                    seconds=self.pod.metadata.deletion_grace_period_seconds or 0
                )
            return gone_by
        if not (self.initializing or self.holding):
            return self.payload_ended
        ended = (
            exited.finished_at
            for each in self.pod.init_containers
            if (exited := self.pod.exits.get(each.name)) and exited.exit_code == 0
        )
        return max(filter(None, map(zoned, (self.pod.status.start_time, *ended))), default=None)

    @property
    def requests(self) -> resources.Requests | None:
        """What the pod requests if it is Terminating, partly finished or not started; else None."""
        idle = self.partly_finished or self.initializing or self.gone_by or self.holding
        return resources.held(self.pod) if idle else None
