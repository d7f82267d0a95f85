"""The installations of istio-aux in a cluster, and what each of them does about a pod.

An installation writes its settings into an annotation of its webhook configuration. So a command
judges pods by the settings and the rules of `serve`. Pure: `cli.cluster` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import LiteralString, NamedTuple, Self

import msgspec

from istio_aux.model.annotations import Annotation, BadValueError
from istio_aux.model.applications import Applications, application_of
from istio_aux.model.kubelet import OBEYS, Kubelet
from istio_aux.model.moment import Moment
from istio_aux.model.names import LONGEST_SETTINGS, SETTINGS
from istio_aux.model.pod import Pod
from istio_aux.model.policy import QuitMode, QuitPolicy
from istio_aux.model.selectors import NamespaceSelectors
from istio_aux.model.sidecars import SidecarRule
from istio_aux.model.text import NO_COMMAND, Command, command, commands, listed
from istio_aux.model.webhooks import Configuration
from istio_aux.quit.attempt import QuitScope
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Action, decide_once, performed
from istio_aux.settings import DEFAULTS, Settings, SettingsError, overlapping, read_published

_published = Annotation(SETTINGS, str, "settings as JSON", longest=LONGEST_SETTINGS)

Labels = Mapping[str, str]


class LeftOut(NamedTuple):
    """Why a pod is not looked after (empty: it is), what to do about that, and the commands."""

    why: str = ""
    do: str = ""  # Of the installation to which the commands belong.
    change: Command = NO_COMMAND  # One a line.


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """An installation of istio-aux. ``source`` names the object or file with its settings."""

    source: str = ""
    settings: Settings = DEFAULTS
    applications: Applications = Applications()

    @property
    def name(self) -> str:
        """The name of its Lease as NAMESPACE/NAME, or its source."""
        return "/".join(self.settings.lease or ()) or self.source

    def policy(self, sidecars: tuple[SidecarRule, ...] | None) -> QuitPolicy:
        """How the installation treats proxies; ``sidecars``, if given, override its setting."""
        policy = self.settings.quit_policy
        return policy if sidecars is None else msgspec.structs.replace(policy, sidecars=sidecars)

    def left_out(self, pod: Pod, labels: Labels | None) -> LeftOut:
        """Why the installation ignores a pod, whatever its containers do, and what changes that.

        A namespace whose labels are None counts as selected.
        """
        options, namespace = self.settings.pod_options, pod.metadata.namespace
        scope = QuitScope(
            mode=self.settings.quit,
            options=options,
            applications=self.applications,
            namespaces={namespace}
            if labels is None or options.namespaces.matches(labels)
            else set(),
        )
        chosen = options.pods.matches(pod.labels)
        why = scope.left_out(namespace, application_of(pod.metadata), chosen=chosen)
        if not why:
            return LeftOut()
        remedies = [*self._remedies(pod, labels, chosen)]
        do = " and ".join(who for who, _ in remedies)
        return LeftOut(f"{why}: {do}", do, commands(*(run for _, run in remedies)))

    def _remedies(
        self, pod: Pod, labels: Labels | None, chosen: bool
    ) -> Iterator[tuple[str, Command]]:
        """Yield who must do what so that the pod is looked after, with the command, if any."""
        namespace, options = pod.metadata.namespace, self.settings.pod_options
        if labels is not None and not options.namespaces.matches(labels):
            run = _label("namespace {}", labels, options.namespaces.missing(labels), namespace)
            how = "labels the namespace" if run else "changes namespace-selectors"
            yield f"an admin {how}", run
        if not chosen:
            missing = options.pods.missing(pod.labels)
            run = _label("pod {} -n {}", pod.labels, missing, pod.metadata.name, namespace)
            yield "its author labels the pod" if run else "an admin changes pod-selector", run
        if self.settings.quit is QuitMode.DISABLED:
            yield "an admin sets quit: enabled", NO_COMMAND


class Judgement(NamedTuple):
    """What is done about a pod now, and why; ``action`` is ``unknown`` if that is not known.

    ``left_out`` says why no installation looks after the pod, or why that is not known. It is empty
    if one does, and if none would do anything about the pod.
    """

    installation: Installation
    facts: PodFacts
    decision: Action  # The decision by the pod alone.
    action: str
    reason: str
    left_out: str = ""
    change: Command = NO_COMMAND  # See `LeftOut`.


class Installations(msgspec.Struct, frozen=True):
    """The installations of a cluster. ``gap``: why they are unknown; then a default one is used."""

    found: tuple[Installation, ...] = ()
    problems: tuple[str, ...] = ()  # Why the settings of others are not known, a line each.
    gap: str = ""

    @property
    def first(self) -> Installation:
        """The installation whose settings count where no pod is judged, or the defaults."""
        return self.found[0] if self.found else Installation()

    def selecting(self, selectors: NamespaceSelectors | None) -> Self:
        """These; if ``selectors`` are given, only the first one, with them instead of its own."""
        if selectors is None:
            return self
        settings = msgspec.structs.replace(self.first.settings, namespace_selectors=selectors)
        first = msgspec.structs.replace(self.first, settings=settings)
        return msgspec.structs.replace(self, found=(first,))

    @property
    def names(self) -> list[str]:
        """The names of the installations, for people, with the option quit unless it is enabled."""
        modes = ((each.name, each.settings.quit) for each in self.found)
        return [
            name if mode is QuitMode.ENABLED else f"{name} (quit: {mode})" for name, mode in modes
        ]

    def selects(self, labels: Labels) -> bool:
        """Whether an installation selects a namespace with these labels."""
        return any(each.settings.namespace_selectors.matches(labels) for each in self.found)

    def shared(self, namespaces: Mapping[str, Labels]) -> dict[tuple[str, ...], list[str]]:
        """Return the namespaces that several installations select, by these installations.

        ``namespaces`` has the labels of each namespace. The result has the names of installations,
        and the namespaces that these select.
        """
        shared = dict[tuple[str, ...], list[str]]()
        for namespace, labels in sorted(namespaces.items()):
            if theirs := overlapping((it.settings for it in self.found), labels):
                names = tuple(it.name for it in self.found if it.settings in theirs)
                shared.setdefault(names, []).append(namespace)
        return shared

    def of(self, pod: Pod, labels: Labels | None) -> tuple[Installation, LeftOut]:
        """The installation that looks after a pod; or the first one, and why none does.

        What to do is that of the first installation with a command for it, if there is one.
        """
        reasons, told = dict[str, list[str]](), list[LeftOut]()
        for each in self.found:
            told.append(out := each.left_out(pod, labels))
            if not out.why:
                return each, out
            reasons.setdefault(out.why, []).append(each.name)
        if self.gap or not reasons:
            return self.first, LeftOut(self.gap or "istio-aux is not installed in this cluster")
        of_each = (f"{listed(names)}: {why}" for why, names in reasons.items())
        helps = next((out for out in told if out.change), told[0])
        return self.first, helps._replace(
            why="; ".join(of_each if len(self.found) > 1 else reasons)
        )

    def judge(
        self,
        pod: Pod,
        labels: Labels | None,
        now: Moment | None,
        sidecars: tuple[SidecarRule, ...] | None = None,
        *,
        kubelet: Kubelet = OBEYS,
        asks: bool = False,
    ) -> Judgement:
        """Judge a pod as the installation that looks after the pod does.

        Every grace period counts as over without ``now``. A namespace whose ``labels`` are None
        counts as selected. ``sidecars`` count instead of those of the settings. A hold counts only
        for a caller that ``asks`` the proxy then whether it is ready.
        """
        ours, (why, _, change) = self.of(pod, labels)
        facts = PodFacts(pod, ours.policy(sidecars), kubelet)
        decision = decide_once(facts, now, asks=asks)
        action, reason = performed(decision, ours.settings.quit)
        if not why or (action == "ignore" and not decision.blocked_by):
            return Judgement(ours, facts, decision, action, reason)
        if self.problems or self.gap:
            why = "; ".join(self.problems) or why
            return Judgement(ours, facts, decision, "unknown", decision.reason, why)
        return Judgement(ours, facts, decision, "ignore", decision.reason, why, change)


def installations(
    configurations: Iterable[Configuration],
    unreadable: Iterable[str] = (),
) -> Installations:
    """Read the installations from their webhook configurations, sorted by name.

    An ``unreadable`` configuration may be that of another installation.
    """
    found, problems = list[Installation](), list[str]()
    ours = (each for each in configurations if each.is_ours)
    for each in sorted(ours, key=lambda each: each.metadata.name):
        name = each.metadata.name
        try:
            if text := _published.of(each.metadata):
                options, asked = read_published(text)
                found.append(Installation(source=name, settings=options, applications=asked))
            else:
                problems.append(
                    f"configuration {name} has no settings in its annotation {SETTINGS}:"
                    " give --config"
                )
        except (BadValueError, SettingsError) as error:
            problems.append(f"configuration {name}: {error}")
    problems += [f"cannot read configuration {bad}" for bad in unreadable]
    return Installations(tuple(found), tuple(problems))


def _label(
    of: LiteralString,
    present: Labels,
    missing: Mapping[str, str | None] | None,
    *names: str,
) -> Command:
    """The command that sets the ``missing`` labels of an object; empty if no labels would do."""
    if missing is None:
        return NO_COMMAND
    words = [f"{key}-" if value is None else f"{key}={value}" for key, value in missing.items()]
    replaces = any(value is not None and key in present for key, value in missing.items())
    label = "kubectl label --overwrite " if replaces else "kubectl label "
    return command(label + of + " {}", *names, words)
