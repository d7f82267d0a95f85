"""The charm's actions. They only read."""

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
from config import DNS_LABEL
from inputs import CONTAINER
from probe import Probe, Unmeshed

# The name of a pod is apimachinery's IsDNS1123Subdomain.
_POD: Final = re.compile(rf"{DNS_LABEL}/(?=.{{1,253}}\Z){DNS_LABEL}(?:\.{DNS_LABEL})*")
# Seconds: two requests to the API server, with a timeout of 10 s each.
_PATIENCE: Final = 30.0


class Actions(ops.Object):
    """Handles the actions of `charm`; `transport` leads to the workload, None for the network."""

    def __init__(self, charm: ops.CharmBase, transport: httpx2.BaseTransport | None) -> None:
        super().__init__(charm, "actions")
        self._charm = charm
        self._transport = transport
        self.framework.observe(charm.on.list_unmeshed_action, self._on_list_unmeshed)
        self.framework.observe(charm.on.explain_action, self._on_explain)

    def _on_list_unmeshed(self, event: ops.ActionEvent) -> None:
        answer = probe.ask(probe.STATUS_URL, self._transport)
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
        container = self._charm.unit.get_container(CONTAINER)
        if not container.can_connect():
            event.fail(f"container {CONTAINER}: Pebble does not answer")
            return
        results: dict[str, str] = {}
        command = ["istio-aux", "explain", "--output", "text", "--kubeconfig", workload.KUBECONFIG]
        try:
            options = config.load(self._charm.config, self._charm.model.name)
            command += ["--ignore-containers", ",".join(options.ignore_containers)]
            answer = probe.ask(probe.STATUS_URL, self._transport)
            results["new-pods"] = _start(options.start_mode, answer)
        except config.InvalidOptionError as error:
            # The charm does not keep the last valid options, with which the workload runs.
            event.log(f"explained without the charm's options, because they are invalid: {error}")
        try:
            text, _ = container.exec([*command, pod], timeout=_PATIENCE).wait_output()
        except ops.pebble.ExecError as error:  # pyright: ignore[reportUnknownVariableType]  of str
            why = str(error.stderr or "").strip()  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            event.fail(why or f"{pod}: exit status {error.exit_code}")
        except (ops.pebble.Error, TimeoutError) as error:
            event.fail(f"container {CONTAINER}: {error}")
        else:
            event.set_results({"explanation": text.strip(), **results})


def _line(pod: Unmeshed) -> str:
    since = f"since {pod.since:%Y-%m-%d %H:%M}Z"
    return f"{pod.namespace}/{pod.name} {pod.owner or 'no owner'} {since}: {pod.reason}"


def _start(mode: str, answer: Probe) -> str:
    """Return how new pods that end are started, and why."""
    if mode != "auto":
        return f"start-mode: {mode}"
    how = "native" if answer.capability == "native" else "held, not native"
    return f"{how}; {answer.capability_why or 'not known yet whether Istio can do more'}"


def _unknown(answer: Probe) -> str:
    """Return why the workload does not know which pods have no sidecar, or the empty text."""
    if why := answer.ignorance():
        return why
    if answer.race == "off":
        return "race-policy: off: the workload does not look for such pods"
    return "" if answer.injectors else "not known yet whether Istio injects"
