"""The charm's actions. All but `restart-unmeshed` and `replace-authority` only read.

What they answer comes from the workload: from its status port, or from its command line, which runs
in the workload's container with the workload's own account.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import msgspec
import ops
from istio_aux.model.answers import PAGE, PodPage, Sidecars
from istio_aux.model.findings import Code
from istio_aux.model.found import Found
from istio_aux.model.policy import RacePolicy
from istio_aux.model.selectors import DNS_LABEL, DNS_SUBDOMAIN
from istio_aux.model.text import listed, printable
from lightkube import Client

import certificates
import cluster
import objects
import probe
import workload
from cluster import ReconcileError
from container import CONTAINER, PEBBLE_FAILS, read, trouble
from inputs import Inputs, observe
from relations import istio

# Bytes of one result with its key, or of a failure. `action-set` gets each as one argument, and
# Linux starts no process with an argument over 128 KiB (MAX_ARG_STRLEN, execve(2)).
LARGEST: Final = 96 * 1024
_CUT: Final = "\n… (cut: the answer is larger than an action can return)"

# Seconds from the action's start to its answer: `juju run` waits for 60 s, and then shows nothing
# of an action that goes on (juju#20103).
ANSWER: Final = 50.0
# Seconds of these for a command to start and to end, beside its work; and for the charm after the
# command has ended.
_AROUND: Final = 3.0
_AFTER: Final = 5.0
# Timeout of each read of a check; with an API server that hangs, two or three reads take it.
_PATIENCE: Final = 3.0

# What a check found, worst first.
_RESULTS: Final = ("problem", "unknown", "note", "ok")
_NAMED: Final = 100  # Namespaces that a finding names.
_TROUBLED: Final = ("stuck", "blocked", "lost", "unstarted")

Results = Mapping[str, Any]


class RefusedError(Exception):
    """Why the action fails, in one line that says what to do."""


@dataclass(frozen=True)
class Paging:
    """Which pods an action lists."""

    limit: int = PAGE
    after: str = ""


@dataclass(frozen=True)
class Restarted:
    """Which pods are restarted."""

    namespace: str = ""
    limit: int = 10
    dry_run: bool = True


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a check found; the workload's command `check` prints such objects."""

    check: str
    result: str  # One of `_RESULTS`.
    what: str
    do: str = ""
    code: str = ""  # One of `Code`; the image may be of another revision.
    run: str = ""

    def __str__(self) -> str:
        what = f"{self.code}: {self.what}" if self.code else self.what
        do = ": ".join(filter(None, (self.do, self.run)))
        return f"{self.result}: {self.check}: {what}" + (do and f"; to do: {do}")


def _action(
    answer: Callable[[Actions, ops.ActionEvent], Results],
) -> Callable[[Actions, ops.ActionEvent], None]:
    """Make a handler of a method that returns the results, or raises why the action fails."""

    @functools.wraps(answer)
    def handle(actions: Actions, event: ops.ActionEvent) -> None:
        actions.end = monotonic() + ANSWER
        try:
            results = answer(actions, event)
        except (RefusedError, ReconcileError) as refusal:
            event.fail(_bounded(str(refusal)))
        else:
            event.set_results({key: _bounded(value, key) for key, value in results.items()})

    return handle


class Actions(ops.Object):
    """Handles the actions of `charm`; the transports are for tests, None for the network."""

    end = 0.0  # When the running action has to have its answer, by the monotonic clock.

    def __init__(
        self, charm: ops.CharmBase, transport: probe.Transport, kubernetes: probe.Transport
    ) -> None:
        super().__init__(charm, "actions")
        self._charm = charm
        self._container = charm.unit.get_container(CONTAINER)
        self._transport = transport
        self._kubernetes = kubernetes
        self.framework.observe(charm.on.list_unmeshed_action, self._on_list_unmeshed)
        self.framework.observe(charm.on.list_stuck_action, self._on_list_stuck)
        self.framework.observe(charm.on.explain_action, self._on_explain)
        self.framework.observe(charm.on.run_check_action, self._on_run_check)
        self.framework.observe(charm.on.restart_unmeshed_action, self._on_restart_unmeshed)
        self.framework.observe(charm.on.replace_authority_action, self._on_replace_authority)

    @_action
    def _on_list_unmeshed(self, event: ops.ActionEvent) -> Results:
        answer = probe.ask(self._transport)
        if answer.missing or not answer.status:
            raise RefusedError(f"workload: {answer.missing}")
        if answer.status.race == RacePolicy.NONE:
            raise RefusedError("race-policy: none: the workload does not look for such pods")
        if not answer.status.injectors:
            raise RefusedError("not known yet whether Istio injects")
        return {
            "unknown": answer.status.unmeshed_unknown,
            **_listed(self._page(event, probe.STATUS_URL, "unmeshed")),
        }

    @_action
    def _on_list_stuck(self, event: ops.ActionEvent) -> Results:
        page = self._page(event, probe.STATUS_URL, *_TROUBLED)
        if not page.leader:
            page = self._page_of_leader(event)
        return {
            "holders": "\n".join(printable(holder.text) for holder in page.holders),
            **_listed(page),
        }

    def _page_of_leader(self, event: ops.ActionEvent) -> PodPage:
        status = probe.ask(self._transport).status
        if not (status and status.lease_holder):
            raise RefusedError("no unit holds the Lease yet, so none knows stuck pods")
        try:
            with cluster.connect(self._kubernetes) as client:
                pod = status.lease_holder.rpartition("_")[0]
                url = probe.url_of_pod(client, pod, cluster.namespace())
            return self._page(event, url, *_TROUBLED)
        except ReconcileError as error:
            leader = f"{status.lease_holder} holds the Lease and knows stuck pods"
            raise RefusedError(f"{leader}; run the action there: {error}") from error

    def _page(self, event: ops.ActionEvent, url: str, *states: str) -> PodPage:
        paging = event.load_params(Paging)
        if paging.after:
            _pod("after", paging.after)
        return probe.page(url, states, paging.after, paging.limit, self._transport)

    @_action
    def _on_explain(self, event: ops.ActionEvent) -> Results:
        namespace, pod = _pod("pod", event.params["pod"])
        text, why = self._run("explain", "--namespace", namespace, f"pod/{pod}")
        if why:
            raise RefusedError(why)
        return {"explanation": text}

    @_action
    def _on_run_check(self, _: ops.ActionEvent) -> Results:
        found = [*self._charms_findings(), *self._workloads_findings()]
        found.sort(key=lambda each: _RESULTS.index(each.result))
        works = all(each.result in {"ok", "note"} for each in found)
        shown, records = _fitting(map(str, found), map(msgspec.to_builtins, found))
        return {
            "works": str(works).lower(),
            "findings": shown,
            "json": records,
        }

    def _charms_findings(self) -> Iterator[Finding]:
        inputs = observe(self._charm, self._transport)
        if inputs.invalid:
            do = "correct it with `juju config`"
            yield Finding("options", "problem", inputs.invalid, do, Code.BAD_OPTION)
        if why := istio.migration(inputs.control_planes):
            do = "after a migration remove the old one"
            yield Finding("relations", "note", why, do, Code.TWO_PLANES)
        with cluster.connect(self._kubernetes, patience=_PATIENCE) as client:
            for check, find in (("trust", _trust), ("units", _units)):
                try:
                    yield find(client, inputs)
                except ReconcileError as error:
                    do = f"run `juju trust {inputs.app} --scope=cluster`" if error.refused else ""
                    result, code = ("problem", Code.RIGHTS) if do else ("unknown", Code.UNKNOWN)
                    yield Finding(check, result, str(error), do, code)
        if inputs.answer and inputs.answer.status:
            yield _sidecars(inputs.answer.status.sidecars)
        if inputs.answer and inputs.answer.missing:
            do = "see `juju debug-log` and `pebble logs`"
            yield Finding("workload", "problem", inputs.answer.missing, do, Code.NOT_READY)

    def _workloads_findings(self) -> Iterator[Finding]:
        text, why = self._run("check", "--output", "json", timed=True)
        yield from (msgspec.json.decode(line, type=Finding) for line in text.splitlines())
        if not text:
            last = why.splitlines()[-1] if why else "no answer"
            yield Finding("workload", "unknown", f"it checked nothing: {last}", code=Code.UNKNOWN)

    @_action
    def _on_restart_unmeshed(self, event: ops.ActionEvent) -> Results:
        asked = event.load_params(Restarted)
        if asked.namespace and not DNS_LABEL.fullmatch(asked.namespace):
            raise RefusedError(f"namespace: {json.dumps(asked.namespace)}: expected one namespace")
        command = [
            "restart-unmeshed",
            "--output",
            "json",
            "--limit",
            str(asked.limit),
        ]
        command += ["--namespace", asked.namespace] if asked.namespace else []
        if asked.dry_run:
            text, why = self._run(*command, timed=True)
        else:
            inputs = self._leading()
            if inputs.config and inputs.config.race_policy == RacePolicy.RESTART:
                why = "the workload restarts these pods already"
                raise RefusedError(f"race-policy: restart: {why}; list-unmeshed has the reasons")
            with cluster.connect(self._kubernetes) as client, objects.evicting(client, inputs):
                text, why = self._run(*command, "--yes", timed=True)
        if why and not text:
            raise RefusedError(why)
        judged = [json.loads(line) for line in text.splitlines()]
        judged.sort(key=lambda pod: pod["outcome"] == "kept")  # Those that are kept come last.
        lines = [f"{p['namespace']}/{p['name']} {p['outcome']}: {p['reason']}" for p in judged]
        pods, records = _fitting(lines, judged)
        outcomes = [pod["outcome"] for pod in judged]
        done = "would-restart" if asked.dry_run else "restarted"
        counts = {each: outcomes.count(each) for each in (done, "kept")}
        counts["not-shown"] = len(judged) - len(pods.splitlines())
        return {
            **counts,
            "unfinished": why,
            "pods": pods,
            "json": records,
        }

    def _leading(self) -> Inputs:
        """Return what the leader observes; no other unit may write what it owns."""
        inputs = observe(self._charm, self._transport)
        if not inputs.leader:
            raise RefusedError(f"run it on the leader: juju run {inputs.app}/leader ...")
        return inputs

    @_action
    def _on_replace_authority(self, event: ops.ActionEvent) -> Results:
        inputs = self._leading()
        own = certificates.OwnAuthority(self._charm.model)
        if not own.secret_id:
            raise RefusedError("there is no certificate authority yet")
        try:
            own.replace(inputs.now)
        except ops.ModelError as error:
            raise RefusedError(f"the certificate authority is not stored: {error}") from error
        # Juju sends this unit no event, so Pebble wakes it to go on with the new authority.
        workload.wake(self._container, event, wanted=True)
        return {"replaced": "true", "lost": own.reason}

    def _run(self, command: str, *arguments: str, timed: bool = False) -> tuple[str, str]:
        """Run the workload's command line; return stdout, and why it failed, empty if it did not.

        A command with an option `--timeout` is `timed`: it answers with what it has by then.
        """
        patience = max(_AROUND + 1, self.end - monotonic() - _AFTER)
        argv = [
            "istio-aux",
            command,
            "--kubeconfig",
            workload.KUBECONFIG,
            "--config",
            workload.CONFIG,
            *arguments,
        ]
        argv += ["--timeout", f"{patience - _AROUND:.0f}"] if timed else []
        try:
            if not read(self._container, workload.CONFIG):
                return "", "the workload has no settings yet: `juju status` says what it waits for"
            return self._container.exec(argv, timeout=patience).wait_output()[0].strip(), ""
        except ops.pebble.ExecError as error:  # pyright: ignore[reportUnknownVariableType]  of str
            text = str(error.stdout or "")  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            why = str(error.stderr or "")  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            return text.strip(), why.strip() or f"exit status {error.exit_code}"
        except PEBBLE_FAILS as error:
            return "", str(trouble(error))


def _trust(client: Client, inputs: Inputs) -> Finding:
    # Without a configuration no Jobs are listed: each kind of them may hang.
    objects.resolve(client, dataclasses.replace(inputs, leader=True, config=None))
    return Finding("trust", "ok", "the charm reads what it needs")


def _units(client: Client, inputs: Inputs) -> Finding:
    if waits := objects.awaited(client, inputs):
        return Finding(
            "units",
            "problem",
            f"the Service lacks {waits}",
            "see `juju status`",
            Code.NOT_READY,
        )
    return Finding("units", "ok", "a unit is ready behind the Service")


def _sidecars(found: Sidecars | None) -> Finding:
    if found is None:
        return Finding(
            "sidecars",
            "note",
            "not known how many pods have a sidecar",
            code=Code.UNKNOWN,
        )
    named = [f"{name} {pods}" for name, pods in found.most.items()]
    named += [""] * (found.namespaces - len(named))
    return Finding(
        "sidecars", "ok", found.text() + (f": {listed(named, most=_NAMED)}" if named else "")
    )


def _listed(page: PodPage) -> Results:
    """Return the results of an action that lists pods: as many as fit, and where to go on."""
    pods, records = _fitting(map(_line, page.pods), map(msgspec.to_builtins, page.pods))
    shown = len(pods.splitlines())
    more = page.next
    if shown < len(page.pods):
        more = f"{page.pods[shown - 1].namespace}/{page.pods[shown - 1].name}"
    return {
        "total": page.total,
        "next": more,
        "pods": pods,
        "json": records,
    }


def _line(pod: Found) -> str:
    since = f" since {pod.since:%Y-%m-%d %H:%M}Z" if pod.since else ""
    what = pod.owner or "no owner" if pod.state == "unmeshed" else pod.state
    tries = "" if pod.attempts is None else f", {pod.attempts} attempts"
    code = f", {pod.code}" if pod.code else ""
    return f"{pod.namespace}/{pod.name} {what}{code}{since}{tries}: {pod.reason}"


def _fitting(lines: Iterable[str], records: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Return as many entries as fit into two results: as lines of text, and as a JSON list."""
    texts = list[str]()
    documents = list[str]()
    room = LARGEST - len("findings=")
    for line, record in zip(map(printable, lines), map(json.dumps, records), strict=True):
        room -= max(len(line.encode()), len(record)) + len(", ")
        if room < 0:
            break
        texts.append(line)
        documents.append(record)
    return "\n".join(texts), f"[{', '.join(documents)}]"


def _bounded(value: Any, key: str = "") -> Any:
    encoded = str(value).encode()
    room = LARGEST - len(f"{key}=")
    if len(encoded) <= room:
        return value
    return encoded[: room - len(_CUT.encode())].decode(errors="ignore") + _CUT


def _pod(parameter: str, value: str) -> tuple[str, str]:
    namespace, _, name = value.partition("/")
    if not (DNS_LABEL.fullmatch(namespace) and DNS_SUBDOMAIN.fullmatch(name) and len(name) <= 253):
        raise RefusedError(f"{parameter}: {json.dumps(value)}: expected NAMESPACE/NAME")
    return namespace, name
