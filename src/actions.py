"""The charm's actions: what they take, whom they ask, and what they answer."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Final

import httpx2
import ops

import config
import probe
import workload
from probe import Probe, Unmeshed

# apimachinery pkg/util/validation: a namespace is IsDNS1123Label, a pod IsDNS1123Subdomain.
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_POD: Final = re.compile(rf"{_LABEL}/(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
# Two requests of the API server, each of which the workload gives 10 s at most.
_PATIENCE: Final = 30.0


class Actions(ops.Object):
    """Answers the actions; it changes nothing.

    Args:
        charm: whose actions they are.
        transport: where requests to the workload go, None for the network.
    """

    def __init__(self, charm: ops.CharmBase, transport: httpx2.BaseTransport | None) -> None:
        super().__init__(charm, "actions")
        self._charm = charm
        self._transport = transport
        self.framework.observe(charm.on.list_unmeshed_action, self._on_list_unmeshed)
        self.framework.observe(charm.on.explain_action, self._on_explain)

    def _on_list_unmeshed(self, event: ops.ActionEvent) -> None:
        answer = probe.ask(workload.STATUS_URL, self._transport)
        if why := _unknown(answer):
            event.fail(why)
            return
        event.set_results(
            {
                "total": answer.unmeshed_total,
                "unknown": answer.unmeshed_unknown,
                "pods": "\n".join(map(_line, answer.unmeshed)),
                "json": json.dumps(list(map(dataclasses.asdict, answer.unmeshed)), default=str),
            }
        )

    def _on_explain(self, event: ops.ActionEvent) -> None:
        pod = event.params["pod"]
        if not isinstance(pod, str) or not _POD.fullmatch(pod):
            event.fail(f"pod: {json.dumps(pod)}: expected NAMESPACE/NAME")
            return
        container = self._charm.unit.get_container(workload.CONTAINER)
        if not container.can_connect():
            event.fail(f"container {workload.CONTAINER}: Pebble does not answer")
            return
        results: dict[str, str] = {}
        command = ["istio-aux", "explain", "--output", "text", "--kubeconfig", workload.KUBECONFIG]
        try:
            options = config.load(self._charm.config, self._charm.model.name)
            command += ["--ignore-containers", ",".join(options.ignore_containers)]
            answer = probe.ask(workload.STATUS_URL, self._transport)
            results["new-pods"] = _start(options.start_mode, answer)
        except config.InvalidOptionError as error:
            # The workload still runs with the last valid ones, which nobody knows any more.
            event.log(f"without the options, of which some are not valid: {error}")
        try:
            text, _ = container.exec([*command, pod], timeout=_PATIENCE).wait_output()
        except ops.pebble.ExecError as error:  # pyright: ignore[reportUnknownVariableType]  of str
            said = str(error.stderr or "").strip()  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            event.fail(said or f"{pod}: exit status {error.exit_code}")
        except (ops.pebble.Error, TimeoutError) as error:
            event.fail(f"container {workload.CONTAINER}: {error}")
        else:
            event.set_results({"explanation": text.strip(), **results})


def _line(pod: Unmeshed) -> str:
    since = f"since {pod.since:%Y-%m-%d %H:%M}Z"
    return f"{pod.namespace}/{pod.name} {pod.owner or 'no owner'} {since}: {pod.reason}"


def _start(mode: str, answer: Probe) -> str:
    """Return how new pods that end are started, and what makes it so."""
    if mode != "auto":
        return f"start-mode: {mode}"
    how = "native" if answer.capability == "native" else "held, not native"
    return f"{how}; {answer.capability_why or 'not known yet whether Istio can do more'}"


def _unknown(answer: Probe) -> str:
    """Return why it is not known which pods have no sidecar, the empty text if it is."""
    if why := answer.ignorance():
        return why
    if answer.race == "off":
        return "race-policy: off: nobody looks for such pods"
    return "" if answer.injectors else "not known yet whether Istio injects"
