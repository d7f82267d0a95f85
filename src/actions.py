"""The charm's actions. All but `restart-unmeshed` and `replace-authority` only read.

What they answer comes from the workload: from its status port, or from its command line, which runs
in the workload's container with the workload's own account. Every answer is bounded, whatever
tenants call their pods (`LARGEST`), and comes while somebody waits for it (`ANSWER`).
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final

import httpx2
import ops
from istio_aux.model.answers import PAGE, ListedPod, PodPage
from istio_aux.model.policy import RacePolicy
from istio_aux.model.selectors import DNS_LABEL, DNS_SUBDOMAIN
from msgspec import structs

import certificates
import cluster
import config
import endpoints
import objects
import probe
import workload
from cluster import ReconcileError
from inputs import CONTAINER, observe
from probe import Probe
from relations import istio

# Bytes of one result with its key, or of a failure. `action-set` gets each as one argument, and
# Linux starts no process with an argument over 128 KiB (MAX_ARG_STRLEN, execve(2)).
LARGEST: Final = 96 * 1024
_CUT: Final = "\n… (cut: the answer is larger than an action can return)"
# Characters of one text about a pod: some quote what a tenant wrote.
_LONGEST: Final = 500

# Seconds from the action's start to its answer: `juju run` waits for 60 s, and then shows nothing
# of an action that goes on (juju#20103).
ANSWER: Final = 50.0
# Seconds of these that a command has not for its work, but for its start and its end; and that are
# left for the charm when the command has ended.
_AROUND: Final = 3.0
_AFTER: Final = 5.0
# Order of the findings by result; "problem" and results that only a newer image knows come first.
_PLACES: Final = {"unknown": 1, "note": 2, "ok": 3}

Results = Mapping[str, Any]
Finding = Mapping[str, str]


class RefusedError(Exception):
    """Why the action fails, in one line that says what to do."""


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
        self,
        charm: ops.CharmBase,
        transport: httpx2.BaseTransport | None,
        kubernetes: httpx2.BaseTransport | None = None,
    ) -> None:
        super().__init__(charm, "actions")
        self._charm = charm
        self._transport, self._kubernetes = transport, kubernetes
        self.framework.observe(charm.on.list_unmeshed_action, self._on_list_unmeshed)
        self.framework.observe(charm.on.list_stuck_action, self._on_list_stuck)
        self.framework.observe(charm.on.explain_action, self._on_explain)
        self.framework.observe(charm.on.run_check_action, self._on_run_check)
        self.framework.observe(charm.on.restart_unmeshed_action, self._on_restart_unmeshed)
        self.framework.observe(charm.on.replace_authority_action, self._on_replace_authority)

    @_action
    def _on_list_unmeshed(self, event: ops.ActionEvent) -> Results:
        answer = probe.ask(probe.STATUS_URL, self._transport)
        if why := _unknown(answer):
            raise RefusedError(why)
        page = self._page(event, probe.STATUS_URL, "unmeshed")
        return {"unknown": answer.unmeshed_unknown, **_listed(page)}

    @_action
    def _on_list_stuck(self, event: ops.ActionEvent) -> Results:
        page = self._page(event, probe.STATUS_URL, "stuck", "blocked", "lost")
        page = page if page.leader else self._page_of_leader(event)
        return {
            "holders": "\n".join(_plain(holder.text) for holder in page.holders),
            **_listed(page),
        }

    def _page_of_leader(self, event: ops.ActionEvent) -> PodPage:
        """Ask the other units: only the one that holds the Lease knows stuck pods."""
        with cluster.connect(self._kubernetes) as client:
            pods = endpoints.ready_pods(client, self._charm.app.name, cluster.namespace())
        failures: list[str] = []
        for pod, addresses in sorted(pods.items()):
            for address in addresses:
                try:
                    page = self._page(event, probe.url_of(address), "stuck", "blocked", "lost")
                except RefusedError as refusal:
                    failures.append(f"{endpoints.unit_of(pod)}: {refusal}")
                    continue
                if page.leader:
                    return page
        holder = probe.ask(probe.STATUS_URL, self._transport).lease_holder
        known = f"{holder} holds the Lease" if holder else "no unit holds the Lease yet"
        raise RefusedError(
            f"only the unit that holds the Lease knows stuck pods: {known}; run the action there"
            f"{': ' if failures else ''}{'; '.join(failures[:3])}"
        )

    def _page(self, event: ops.ActionEvent, url: str, *states: str) -> PodPage:
        """Return the page that the parameters ask for."""
        limit = _whole_number(event, "limit", PAGE, most=PAGE)
        after = event.params.get("after", "")
        if after != "":
            _expect_pod("after", after)
        page = probe.page(url, states, after=after, limit=limit, transport=self._transport)
        if isinstance(page, str):
            raise RefusedError(page)
        return page

    @_action
    def _on_explain(self, event: ops.ActionEvent) -> Results:
        pod = event.params["pod"]
        _expect_pod("pod", pod)
        results: dict[str, str] = {}
        given: list[str] = []
        try:
            options = config.load(self._charm.config, cluster.namespace())
            given = ["--sidecars", options.sidecars]
            if pods := options.pod_selector:
                given += ["--pod-selector", pods, "--applications", workload.APPLICATIONS]
            answer = probe.ask(probe.STATUS_URL, self._transport)
            results["new-pods"] = _start(options.start_mode, answer)
        except config.InvalidOptionError as error:
            # The charm does not keep the last valid options, with which the workload runs.
            event.log(f"explained without the charm's options, because they are invalid: {error}")
        command = ["explain", "--output", "text", *given, pod]
        status, text, why = self._run(command)
        if status:
            raise RefusedError(why or f"{pod}: exit status {status}")
        return {"explanation": text.strip(), **results}

    @_action
    def _on_run_check(self, _: ops.ActionEvent) -> Results:
        results = [*self._charms_findings(), *self._workloads_findings()]
        results.sort(key=lambda each: _PLACES.get(each["result"], 0))
        works = all(each["result"] in {"ok", "note"} for each in results)
        lines = [
            f"{one['result']}: {one['check']}: {one['what']}"
            + (f"; to do: {one['do']}" if one.get("do") else "")
            for one in results
        ]
        shown, records = _fitting(zip(map(_plain, lines), results, strict=True))
        return {"works": str(works).lower(), "findings": shown, "json": records}

    def _charms_findings(self) -> Iterator[Finding]:
        """Yield what only the charm knows: its options, its rights, its units."""
        charm, inputs = self._charm, observe(self._charm)
        if inputs.invalid:
            yield _finding("options", "problem", inputs.invalid, "correct it with `juju config`")
        if why := istio.disagreement(inputs.control_planes):
            yield _finding("relations", "problem", why, "remove one of these relations")
        with cluster.connect(self._kubernetes) as client:
            try:
                cluster.check_permissions(client, inputs.model, leader=True)
                yield _finding("trust", "ok", "the charm has its rights")
            except ReconcileError as error:
                if error.refused:
                    trust = f"run `juju trust {charm.app.name} --scope=cluster`"
                    yield _finding("trust", "problem", f"the charm may not {error}", trust)
                else:
                    yield _finding("trust", "unknown", str(error))
            try:
                model, now = inputs.model, inputs.now
                units = endpoints.look(client, inputs.app, model, now, self._transport)
                silent = [units.waits] if units.waits else units.silent
            except ReconcileError as error:
                silent = [str(error)]
        for why in silent:
            do = "see `juju status`; units answer each other on port 8080"
            yield _finding("units", "problem", why, do)
        if not silent:
            yield _finding("units", "ok", "every unit behind the Service answers")
        if why := probe.ask(probe.STATUS_URL, self._transport).reason_unknown():
            yield _finding("workload", "problem", why, "see `juju debug-log` and `pebble logs`")

    def _workloads_findings(self) -> Iterator[Finding]:
        """Yield what the workload's command `check` finds, with the rights of the workload."""
        command = ["check", "--config", workload.CONFIG, "--output", "json"]
        try:
            _, text, errors = self._run(command, timed=True)
            yield from map(json.loads, text.splitlines())
        except (RefusedError, ValueError) as error:
            text, errors = "", str(error)
        if not text.strip():
            why = errors.splitlines()[-1] if errors else "no answer"
            yield _finding("workload", "unknown", f"it checked nothing: {why}")

    @_action
    def _on_restart_unmeshed(self, event: ops.ActionEvent) -> Results:
        limit = _whole_number(event, "limit", 10, most=PAGE)
        namespace = event.params.get("namespace", "")
        if not isinstance(namespace, str) or (namespace and not DNS_LABEL.fullmatch(namespace)):
            raise RefusedError(f"namespace: {json.dumps(namespace)}: expected one namespace")
        dry_run = event.params.get("dry-run", True) is not False
        command = ["restart-unmeshed", "--config", workload.CONFIG, "--output", "json"]
        command += ["--limit", str(limit), *(["--namespace", namespace] if namespace else [])]
        if dry_run:
            status, text, why = self._run([*command, "--dry-run"], timed=True)
        else:
            with self._evicting():
                status, text, why = self._run(command, timed=True)
        if status and not text.strip():
            raise RefusedError(why or f"exit status {status}")
        # Those that are kept come last.
        judged = sorted(
            map(json.loads, text.splitlines()), key=lambda pod: pod["outcome"] == "kept"
        )
        lines = [f"{p['namespace']}/{p['name']} {p['outcome']}: {p['reason']}" for p in judged]
        pods, records = _fitting(zip(map(_plain, lines), judged, strict=True))
        outcomes = [pod["outcome"] for pod in judged]
        done = "would-restart" if dry_run else "restarted"
        counts = {each: outcomes.count(each) for each in (done, "kept")}
        counts["not-shown"] = len(judged) - len(pods.splitlines())
        return {**counts, "unfinished": why if status else "", "pods": pods, "json": records}

    @contextlib.contextmanager
    def _evicting(self) -> Generator[None]:
        """Give the workload the right to evict pods for a while.

        Only the leader does: no other unit writes the role, and its own hooks wait for the action.
        """
        inputs = observe(self._charm)
        race = inputs.config.race_policy if inputs.config else RacePolicy.NONE
        if RacePolicy(race).restarts:
            why = "the workload restarts these pods already; list-unmeshed says what each waits for"
            raise RefusedError(f"race-policy: {race}: {why}")
        if not inputs.leader:
            raise RefusedError(f"run it on the leader: juju run {inputs.app}/leader ...")
        with (
            cluster.connect(self._kubernetes) as client,
            objects.evicting(client, inputs, self._transport),
        ):
            yield

    @_action
    def _on_replace_authority(self, event: ops.ActionEvent) -> Results:
        inputs = observe(self._charm)
        if not inputs.leader:
            raise RefusedError(f"run it on the leader: juju run {inputs.app}/leader ...")
        own = certificates.OwnAuthority(self._charm.model)
        if not own.secret_id:
            raise RefusedError("there is no certificate authority yet")
        try:
            own.replace(inputs.now)
        except ops.ModelError as error:
            raise RefusedError(f"the certificate authority is not stored: {error}") from error
        # The next event goes on with it; Juju sends none to this unit.
        workload.wake(self._charm.unit.get_container(CONTAINER), event, wanted=True)
        return {"replaced": "true", "lost": own.reason}

    def _run(self, command: Sequence[str], *, timed: bool = False) -> tuple[int, str, str]:
        """Run the workload's command line; return its exit status, stdout and stderr.

        A command with an option `--timeout` is `timed`: it answers with what it has by then.
        """
        container = self._charm.unit.get_container(CONTAINER)
        if not container.can_connect():
            raise RefusedError(f"container {CONTAINER}: Pebble does not answer")
        name, *arguments = command
        patience = max(_AROUND + 1, self.end - monotonic() - _AFTER)
        argv = ["istio-aux", name, "--kubeconfig", workload.KUBECONFIG, *arguments]
        argv += ["--timeout", f"{patience - _AROUND:.0f}"] if timed else []
        try:
            text, errors = container.exec(argv, timeout=patience).wait_output()
        except ops.pebble.ExecError as error:  # pyright: ignore[reportUnknownVariableType]  of str
            outputs = (error.stdout, error.stderr)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            text, errors = (str(each or "") for each in outputs)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            return error.exit_code, text, errors.strip()
        except (ops.pebble.Error, TimeoutError) as error:
            raise RefusedError(f"container {CONTAINER}: {error}") from error
        return 0, text, (errors or "").strip()


def _finding(check: str, result: str, what: str, do: str = "") -> Finding:
    return {"check": check, "result": result, "what": what, **({"do": do} if do else {})}


def _listed(page: PodPage) -> Results:
    """Return the results of an action that lists pods: as many as fit, and where to go on."""
    entries = [
        (_line(pod), {key: value for key, value in _texts(pod) if value is not None})
        for pod in page.pods
    ]
    pods, documents = _fitting(entries)
    shown = len(pods.splitlines())
    more = page.next
    if shown < len(page.pods):
        last = page.pods[shown - 1]
        more = f"{last.namespace}/{last.name}"
    return {"total": page.total, "next": more, "pods": pods, "json": documents}


def _fitting(entries: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[str, str]:
    """Return as many entries as fit into two results: as lines of text, and as a JSON list."""
    lines, records = list[str](), list[str]()
    room = LARGEST - len("findings=")
    for line, entry in entries:
        record = json.dumps(entry)
        room -= max(len(line.encode()), len(record)) + len(", ")
        if room < 0:
            break
        lines.append(line)
        records.append(record)
    return "\n".join(lines), f"[{', '.join(records)}]"


def _texts(pod: ListedPod) -> Iterator[tuple[str, Any]]:
    for key, value in structs.asdict(pod).items():
        yield key, value if value is None or isinstance(value, int) else _plain(str(value))


def _line(pod: ListedPod) -> str:
    since = f" since {pod.since:%Y-%m-%d %H:%M}Z" if pod.since else ""
    what = _plain(pod.owner) or "no owner" if pod.state == "unmeshed" else pod.state
    tries = "" if pod.attempts is None else f", {pod.attempts} attempts"
    return f"{_plain(pod.namespace)}/{_plain(pod.name)} {what}{since}{tries}: {_plain(pod.reason)}"


def _plain(text: str) -> str:
    """Return the text in one line, without control characters, and cut if it is long."""
    shown = "".join(char if char.isprintable() else " " for char in text[: _LONGEST + 1])
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def _bounded(value: Any, key: str = "") -> Any:
    """Return the value, cut if it would be too large for an argument."""
    if not isinstance(value, str):
        return value
    room = LARGEST - len(f"{key}=")
    encoded = value.encode()
    if len(encoded) <= room:
        return value
    return encoded[: room - len(_CUT.encode())].decode(errors="ignore") + _CUT


def _expect_pod(parameter: str, value: object) -> None:
    namespace, _, name = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not (DNS_LABEL.fullmatch(namespace) and DNS_SUBDOMAIN.fullmatch(name) and len(name) <= 253):
        raise RefusedError(f"{parameter}: {json.dumps(value)}: expected NAMESPACE/NAME")


def _whole_number(event: ops.ActionEvent, parameter: str, default: int, *, most: int) -> int:
    value = event.params.get(parameter, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise RefusedError(f"{parameter}: {json.dumps(value)}: expected 1 to {most}")
    return value


def _start(mode: str, answer: Probe) -> str:
    """Return how new pods that end are started, and why."""
    if mode != "auto":
        return f"start-mode: {mode}"
    how = "native" if answer.capability == "native" else "held, not native"
    return f"{how}; {answer.capability_why or 'not known yet whether Istio can do more'}"


def _unknown(answer: Probe) -> str:
    """Return why the workload does not know which pods have no sidecar, or the empty text."""
    if why := answer.reason_unknown():
        return why
    if answer.race == RacePolicy.NONE:
        return "race-policy: none: the workload does not look for such pods"
    return "" if answer.injectors else "not known yet whether Istio injects"
