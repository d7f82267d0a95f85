"""What would keep istio-aux from working in a cluster, and what to do about it.

`cli.check` reads the facts, and each function here judges some of them. An unknown fact is never
judged as ok.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from istio_aux.injector.capture import AGENTS, CONFIG_MAP, Agent, CniConfig, NodeAgents, not_ready
from istio_aux.injector.injection import Expectation, injection_label
from istio_aux.injector.probe_rules import of_kubelets
from istio_aux.injector.rules import ControlPlanes
from istio_aux.model.annotations import NOT_NATIVE, PROXY_CONFIG, START, start_order
from istio_aux.model.answers import Liveness
from istio_aux.model.election import LeaseRecord
from istio_aux.model.ending import DRAIN, LONG
from istio_aux.model.findings import Code
from istio_aux.model.pod import Pod, decode
from istio_aux.model.pod_settings import InjectionRequest, ambient_by
from istio_aux.model.policy import Capability, Right, StartPolicy
from istio_aux.model.text import MAY_NOT, NO_COMMAND, Command, command, listed, one_line, shortened
from istio_aux.model.webhooks import Configuration, Service, revision_label, sorted_before
from istio_aux.quit.rules import Action, Quit
from istio_aux.repair import rules as repair
from istio_aux.start.plan import before_injection, plan

NAMED = 5  # Objects that a result names; the others are counted.
_TAG = 40  # Characters of a tag.
LONGEST = 400  # Characters of a text; other programs' messages may be long.
LATE = timedelta(seconds=60)  # The Lease is renewed every 2 s; clocks differ.


class Verdict(StrEnum):
    """What a check found; `check --help` says what each means."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of `check`; its JSON names are a contract.

    ``do`` says what to do, if anything, and ``run`` is the command for that, to be pasted. A result
    that is not ok has the ``code`` of a finding; ``see`` is the page about it.
    """

    check: str
    result: Verdict
    what: str
    do: str = ""
    code: str = ""
    see: str = ""
    run: Command = NO_COMMAND


CHECKS = {
    **dict.fromkeys(("versions", "kubernetes", "kubelets", "rights"), "the cluster"),
    **dict.fromkeys(("injectors", "injector", "native sidecars", "ambient"), "Istio"),
    **dict.fromkeys(("installation", "webhook", "webhook order", "network", "lease"), "istio-aux"),
    **dict.fromkeys(("namespaces", "pods"), "namespaces and pods"),
}
"""The checks as they are shown, each with its group."""


def group(check: str) -> str:
    """The group of a check."""
    return "by namespace" if check.startswith("namespace ") else CHECKS.get(check, "others")


def works(results: Iterable[CheckResult]) -> bool:
    """Whether istio-aux would work: nothing is a problem, and everything is known."""
    return {result.result for result in results} <= {Verdict.OK, Verdict.NOTE}


def _ok(check: str, what: str) -> CheckResult:
    return CheckResult(check, Verdict.OK, what)


def note(
    check: str,
    code: Code,
    what: str,
    do: str = "",
    run: Command = NO_COMMAND,
) -> CheckResult:
    """A result with which istio-aux works, but not all of it, or not everywhere."""
    return CheckResult(check, Verdict.NOTE, what, do, code, run=run)


def problem(check: str, code: Code, what: str, do: str, run: Command = NO_COMMAND) -> CheckResult:
    """The result of a check that found what keeps pods, or istio-aux, from working."""
    return CheckResult(check, Verdict.PROBLEM, what, do, code, run=run)


def unknown(check: str, why: str, do: str = "", code: Code = Code.UNKNOWN) -> CheckResult:
    """The result of a check whose facts could not be read, with the reason."""
    return CheckResult(check, Verdict.UNKNOWN, f"not known: {why}", do, code)


def combined(results: Sequence[CheckResult]) -> list[CheckResult]:
    """Put all that the account may not see into one result."""
    hidden = [each for each in results if each.result is Verdict.UNKNOWN and MAY_NOT in each.what]
    found = [each for each in results if each not in hidden]
    if hidden:
        lacking = dict.fromkeys(each.what.partition(MAY_NOT)[2] for each in hidden)
        what = ", ".join(dict.fromkeys(each.check for each in hidden))
        found.append(
            unknown(
                "rights",
                f"{MAY_NOT}{', '.join(lacking)}, so it cannot see: {what}",
                "ask an admin to run istio-aux check; for your own pods: audit -n NS, quit",
                Code.RIGHTS,
            )
        )
    return found


def images(server: str, istio: Counter[str] | None, ours: Counter[str] | None) -> CheckResult:
    """Say which versions there are, by the tags of images and how many pods have them.

    None: they are not known, and another result says why.
    """
    of_pods = [
        f"{name} {_tagged(each)}"
        for name, each in (("Istio", istio), ("istio-aux", ours))
        if each is not None
    ]
    what = "; ".join((f"Kubernetes {server or 'not known'}", *of_pods))
    if server:
        return _ok("versions", what)
    return CheckResult("versions", Verdict.UNKNOWN, what, code=Code.UNKNOWN)


def _tagged(tags: Counter[str]) -> str:
    counted = [f"{shortened(tag, _TAG) or 'no tag'} ({number})" for tag, number in tags.items()]
    return listed(counted, most=NAMED) or "none"


def versions(
    server: str,
    kubelets: Mapping[str, str],
    kinds: Container[str],
) -> Iterator[CheckResult]:
    """Judge the API server's version, kubelets' versions by node, and the served admission kinds.

    The kinds decide, not the version: a vendor may serve them earlier, or not at all.
    """
    if "ValidatingAdmissionPolicy" in kinds:
        yield _ok("kubernetes", f"API server {server}")
    else:
        yield note(
            "kubernetes",
            Code.OLD_SERVER,
            f"API server {server}: no ValidatingAdmissionPolicy, so only RBAC limits the workload:"
            " it may execute any command in any pod, and cannot try injection by dry runs",
            "upgrade to Kubernetes 1.30, or accept that",
        )
    if (oldest := of_kubelets(kubelets)) is None:
        yield _ok("kubelets", "all of them run native sidecars")
    elif oldest.capability is Capability.UNKNOWN:
        yield unknown("kubelets", "there is no node")
    else:
        yield note(
            "kubelets",
            Code.OLD_KUBELETS,
            f"{oldest.why}; until then payloads are held",
            "upgrade the node",
        )


def rights(account: str, refused: Sequence[Right]) -> CheckResult:
    """Report the rights that ``account`` lacks."""
    if not refused:
        return _ok("rights", f"{account} has all of them")
    lacking = listed([f"{right} ({right.purpose})" for right in refused], most=NAMED)
    return problem(
        "rights",
        Code.RIGHTS,
        f"{account} may not {lacking}",
        "grant them; the charm grants its workload's once it has `juju trust --scope=cluster`",
    )


def installations(names: Sequence[str], problems: Iterable[str]) -> Iterator[CheckResult]:
    """Name the installation whose settings the checks use; say why other settings are unknown."""
    for problem in problems:
        yield unknown(
            "installation",
            problem,
            "ask an admin, or choose its settings file with --config",
            Code.SETTINGS,
        )
    if len(names) > 1:
        yield note(
            "installation",
            Code.SEVERAL,
            f"{listed(names, most=NAMED)}; judged by the settings of the first",
            "choose another one's settings file with --config",
        )
    elif names:
        yield _ok("installation", names[0])


def overlapping(shared: Mapping[tuple[str, ...], Sequence[str]]) -> Iterator[CheckResult]:
    """Report namespaces that several installations select; the keys are names of installations."""
    for names, where in shared.items():
        yield problem(
            "installation",
            Code.OVERLAP,
            f"{listed(names, ' and ')} select the same namespaces: {listed(where, most=NAMED)}",
            "remove one of them, or set namespace-selectors so that each selects others",
        )


def unready(configuration: str, service: Service) -> CheckResult:
    """Say that no pod is ready behind the webhook of an installation."""
    return problem(
        "installation",
        Code.NOT_READY,
        f"{configuration}: no pod of Service {service} is ready: new pods are not changed",
        "look at its pods; if istio-aux was removed there, delete what it left",
        command("kubectl get pods -n {}", service.namespace),
    )


def webhook(name: str | None, configurations: Mapping[str, Configuration]) -> Iterator[CheckResult]:
    """Judge our webhook configuration of this name, and its place before Istio's."""
    if name is None:
        yield note("webhook", Code.NOT_INSTALLED, "istio-aux is not installed: no webhook of it")
        return
    if name not in configurations:
        yield problem(
            "webhook",
            Code.NO_WEBHOOK,
            f"configuration {name} does not exist: no new pod is changed",
            "the charm creates it when every ready unit answers: see `juju status`",
        )
    else:
        policy = next((each.failure_policy for each in configurations[name].webhooks or ()), None)
        yield _ok("webhook", f"configuration {name}, failurePolicy {policy}")
    if before := sorted_before(name, configurations.values()):
        yield note(
            "webhook order",
            Code.CALLED_LATE,
            f"called before {name}: {listed(before, most=NAMED)}; these injectors do not see"
            " what is added, so their pods are held, not native",
            "install Istio under names that sort after istio-aux-",
        )
    else:
        yield _ok(
            "webhook order",
            f"{name} {'is called' if name in configurations else 'sorts'} before Istio's",
        )


_NOT_LIVE = {
    Liveness.ABSENT: (
        Code.NO_INJECTOR,
        "install Istio, or relate istio-aux to the Istio that is there",
    ),
    Liveness.DEACTIVATED: (
        Code.NO_INJECTOR,
        "activate a revision: `istioctl tag set default --revision ...`",
    ),
    Liveness.NO_CA_BUNDLE: (
        Code.NO_CA,
        "start istiod; it writes its CA into the configuration",
    ),
    Liveness.UNREADABLE: (
        Code.NO_CA,
        "restart istiod; it writes its CA into the configuration",
    ),
    Liveness.NO_SERVICE: (
        Code.NO_ISTIOD,
        "install or start the istiod that the configuration names, or delete it",
    ),
    Liveness.NO_ENDPOINT: (Code.NO_ISTIOD, "start istiod"),
    Liveness.REFUSED: (
        Code.INJECTOR_FAILS,
        "see the log of istiod, and what is between the API server and its port 15017",
    ),
    Liveness.NOT_PROBED: (
        Code.NOT_PROBED,
        "let the workload create pods as dry runs in a namespace that is injected",
    ),
}
"""For each state of an injector that is not live: the finding, and what to do."""


def injectors(
    mesh: ControlPlanes,
    configurations: Mapping[str, Configuration],
    *,
    native: bool = False,
) -> Iterator[CheckResult]:
    """Judge Istio's injectors: whether they are live, and whether sidecars can be native.

    ``native``: whether the cluster is to go native.
    """
    for injector in mesh.injectors:
        name = injector.configuration or "Istio"
        configuration = configurations.get(injector.configuration)
        hooks = [
            hook for hook in (configuration and configuration.webhooks) or () if hook.is_istios
        ]
        policies = " and ".join(sorted({str(hook.failure_policy) for hook in hooks}))
        policy = f", failurePolicy {policies}" if hooks else ""
        if injector.live:
            yield _ok("injector", f"{name} is live{policy}")
            check, how = "native sidecars", f"{name}: {injector.native_why or 'not checked'}"
            if injector.native.can:
                yield _ok(check, how)
            elif native:
                do = "see istiod's ENABLE_NATIVE_SIDECARS and template; before Istio 1.24, upgrade"
                yield problem(check, Code.NOT_NATIVE, how, do)
            else:
                do = "nothing: payloads are held until the proxy is ready"
                yield note(check, Code.NOT_NATIVE, how, do)
            continue
        code, do = _NOT_LIVE[injector.state]
        what = f"{name} is not live: {injector.why}{policy}."
        # The API server calls such a webhook, and every call fails.
        if code in {Code.NO_CA, Code.NO_ISTIOD} and "Fail" in policies:
            what += " New pods that it selects are refused."
        yield CheckResult(
            "injector",
            Verdict.UNKNOWN if code is Code.NOT_PROBED else Verdict.PROBLEM,
            what,
            do,
            code,
        )


def untried(mesh: ControlPlanes, missing: Iterable[str]) -> Iterator[CheckResult]:
    """Report that no probe of the injectors has answered yet, unless something it needs is missing.

    Another result says why that is missing.
    """
    if not mesh.known and not {"injectors", "namespaces"} & {*missing}:
        yield unknown("injector", "its probe has no answer yet", "check again")


def namespaces(
    selectors: str,
    selected: Mapping[str, Mapping[str, str]],
    mesh: ControlPlanes,
) -> Iterator[CheckResult]:
    """Judge the selected namespaces; ``selected`` has their labels by name."""
    check = "namespaces"
    if not selected:
        yield note(
            check,
            Code.NONE_SELECTED,
            f"no namespace has the labels {selectors}",
            "label a namespace so that one matches, or set namespace-selectors",
        )
        return
    yield _ok(check, f"{len(selected)} selected: {listed(sorted(selected), most=NAMED)}")
    if not mesh.known:
        return
    ambient, asking, others = list[str](), list[tuple[str, str]](), list[str]()
    for name, labels in sorted(selected.items()):
        answer = mesh.expected(InjectionRequest(namespace=name, namespace_labels=labels))
        if answer.expected:
            continue
        if ambient_by({}, labels):
            ambient.append(name)
        elif injection_label.get(labels) == "enabled" or revision_label.on(labels):
            asking.append((name, answer.reason))
        else:
            others.append(name)
    if ambient:
        yield note(
            check,
            Code.AMBIENT,
            "labelled for an ambient mesh: only pods that ask for a sidecar have one to wait for:"
            f" {listed(ambient, most=NAMED)}",
        )
    what = "selected, but Istio injects no pod there by itself"
    for name, why in asking[:NAMED]:
        yield note(
            check,
            Code.LABEL_NO_INJECTOR,
            f"{name}: {what}, although its label asks for that: {why}",
            "see which istiod the label names, and its injection policy",
        )
    if others:
        # kubectl refuses to replace a label, and an admin wrote the one that is there.
        bare = [name for name in others if not injection_label.on(selected[name])][:NAMED]
        yield note(
            check,
            Code.NOT_INJECTED,
            f"{what}: {listed(others, most=NAMED)}",
            "label them istio.io/rev or istio-injection, if their pods are meant to be in the mesh",
            command("kubectl label namespace {} istio-injection=enabled", bare)
            if bare
            else NO_COMMAND,
        )


def hangs_alone(pod: Pod, expectation: Expectation) -> bool:
    """Whether the pod is Job-like and has a classic sidecar, or is to get one."""
    meshed = pod.has_proxy or bool(expectation.expected)
    return meshed and pod.restart_policy != "Always" and not pod.has_native_proxy


def node_agents(
    agents: Mapping[str, Sequence[Agent]], nodes: Collection[str], harm: str
) -> Iterator[CheckResult]:
    """Judge whether the pods of these DaemonSets are ready on each node; else there is ``harm``."""
    lacking = dict[str, list[str]]()
    for node in sorted(nodes):
        for name in not_ready(agents, node):
            lacking.setdefault(name, []).append(node)
    for name, where in lacking.items():
        yield problem(
            "nodes",
            Code.NO_AGENT,
            f"{name} is not ready on {len(where)} nodes: {listed(where, most=NAMED)}; {harm}",
            "look at its pods there",
            command("kubectl get pods -A -l {} -o wide", AGENTS[name]),
        )
    if not nodes:
        yield unknown("nodes", "there is no node")
    elif not lacking:
        yield _ok("nodes", f"ready on each node: {' and '.join(agents)}")


def excluded(agents: NodeAgents, ambient: Iterable[str]) -> Iterator[CheckResult]:
    """Name the ``ambient`` namespaces that the settings of Istio's CNI exclude."""
    for where, config in sorted(agents.configs.items()):
        names = [
            name for name in ambient if isinstance(config, CniConfig) and name in config.excluded
        ]
        if names:
            yield note(
                "namespaces",
                Code.AMBIENT,
                f"labelled for an ambient mesh, and excluded from it: {listed(names, most=NAMED)}",
                f"see EXCLUDE_NAMESPACES in ConfigMap {where}/{CONFIG_MAP}",
            )


def unselected(namespaces: Mapping[str, tuple[str, Command, int]]) -> Iterator[CheckResult]:
    """Report namespaces that are injected and not selected.

    ``namespaces`` has for each what to do, the command for that, and how many Job-like pods it has.
    """
    for name, (do, change, number) in [*sorted(namespaces.items())][:NAMED]:
        yield note(
            "namespaces",
            Code.NOT_SELECTED,
            f"{name} is injected and not selected; Job-like pods there, whose proxies do not end:"
            f" {number}",
            do,
            change,
        )
    if (more := len(namespaces) - NAMED) > 0:
        yield note(
            "namespaces",
            Code.NOT_SELECTED,
            f"and {more} more such namespaces",
            "see all of them",
            command("istio-aux audit"),
        )


def change(
    pod: Pod,
    decision: Action,
    meshed: repair.RepairAction,
    expectation: Expectation,
    how: StartPolicy,
) -> str | None:
    """Say what istio-aux would do about an existing pod; None: nothing.

    Its arguments are judged as in `audit`. How a pod starts changes only when its controller
    creates the next one.
    """
    if pod.status.phase == "Running" and isinstance(decision, Quit):
        return "are finished, and their sidecars would be told to exit now"
    match meshed:
        case repair.ReportUnmeshed(unmeshed=True):
            return "are outside their mesh, which race-policy decides about"
        case _ if expectation.ambient or not expectation.expected:
            return None
        case _:
            planned = plan(before_injection(pod), how, excluded=lambda _: "")
            what = _STARTED.get(planned.started_with or "")
            kind, _, _ = planned.writes.get(NOT_NATIVE, "").partition(":")
            return f"{what}, not native: {kind}" if what and kind else what


_STARTED = {
    "native": "would start behind a native sidecar when they are created again",
    "hold": "would be held until their proxy is ready when they are created again",
}


def pod_changes(seen: int, changes: Mapping[str, Sequence[str]]) -> Iterator[CheckResult]:
    """Say what would change about ``seen`` selected pods, and how many need no change.

    ``changes`` has the names of pods, by what `change` answered about them.
    """
    rest = seen - sum(map(len, changes.values()))
    for what, names in changes.items():
        yield _ok("pods", f"{len(names)} {what}: {listed(names, most=NAMED)}")
    yield _ok("pods", f"{rest} of {seen} need no change" if seen else "there are none")


def counting(jobs: Sequence[str]) -> Iterator[CheckResult]:
    """Name the Jobs whose podFailurePolicy counts exit codes of native sidecars."""
    if jobs:
        yield note(
            "pods",
            Code.COUNTED,
            f"{len(jobs)} Jobs count the exit codes of native sidecars, such as 143 and 137:"
            f" {listed(jobs, most=NAMED)}",
            "name a container in each onExitCodes of their podFailurePolicy",
        )


def failures(pods: Mapping[Code, Sequence[str]]) -> Iterator[CheckResult]:
    """Name the pods that failed lately because of their mesh, by the code."""
    for code, names in sorted(pods.items()):
        yield note(
            "pods",
            code,
            f"{len(names)} pods: {code.what}: {listed(names, most=NAMED)}",
            "see what helps",
            command("istio-aux audit"),
        )


def cut_off(pods: Counter[str], templates: Counter[str]) -> Iterator[CheckResult]:
    """Report, by workload, pods and templates that lose the network when they end by force."""
    if whose := sorted({*pods, *templates}):
        yield note(
            "pods",
            Code.CUT_OFF,
            f"{pods.total()} pods and {templates.total()} templates beside a classic sidecar have"
            f" over {LONG} s of grace, and lose the network {DRAIN:g} s after SIGTERM:"
            f" {listed(whose, most=NAMED)}",
            f"write {START}: native into the templates, or terminationDrainDuration into their"
            f" {PROXY_CONFIG}",
        )


def network(namespace: str, answer: bytes, seconds: float) -> CheckResult:
    """Judge the answer to the dry run of a pod that the webhook changes.

    Raises:
        msgspec.DecodeError: the answer is no pod.
    """
    if start_order.on(decode(answer).metadata):
        return _ok(
            "network",
            f"the API server reaches the webhook: it changed a pod in namespace {namespace}",
        )
    how = (
        f"no answer within {seconds:.1f} s: a firewall or a NetworkPolicy may drop the connection"
        if seconds >= 2
        else "refused at once: no ready endpoint, or another certificate"
    )
    return problem(
        "network",
        Code.UNREACHED,
        f"the webhook did not change a pod in namespace {namespace}: {how}",
        "let the API server reach port 8443 of the units; where the model is in a mesh with STRICT"
        " mTLS, see `juju status` for the PeerAuthentication",
    )


def lease(name: str, record: LeaseRecord | None, now: datetime) -> CheckResult:
    """Judge the Lease that elects the leader."""
    holder = (record and record.holder_identity) or ""
    if record is None or not holder:
        return problem(
            "lease",
            Code.NO_LEADER,
            f"Lease {name}: no process holds it, so no proxy is told to quit",
            "see the log of the workload",
        )
    try:
        renewed = datetime.fromisoformat(record.renew_time or "")
    except ValueError:
        return unknown("lease", f"Lease {name}: renewTime {record.renew_time!r}")
    if now - renewed > timedelta(seconds=record.lease_duration_seconds or 15) + LATE:
        return problem(
            "lease",
            Code.NO_LEADER,
            f"Lease {name}: {holder} has not renewed it since {renewed:%Y-%m-%d %H:%M:%S}Z",
            "see the log of the workload",
        )
    return _ok("lease", f"{holder} leads")


def bounded(result: CheckResult) -> CheckResult:
    """Bound the length of a result's texts, which have names and errors of others; add its page."""
    return msgspec.structs.replace(
        result,
        what=one_line(result.what, LONGEST - 1),
        do=one_line(result.do, LONGEST - 1),
        see=Code(result.code).page if result.code else "",
    )
