"""Whether a pod should have Istio's sidecar: what the API server and istiod would do with it.

The API server calls the webhooks whose rules and selectors match, sorted by the name of their
configuration and then as listed (`hooks_of`, apiserver mutating_webhook_manager.go). Istiod decides
by the pod and by its injection policy (istio pkg/kube/inject/inject.go injectRequired). The answer
is exact as long as labels and policies have not changed since the pod was created.

The injection policy is in a ConfigMap of istiod's (`ControlPlane.config_map`), beside the templates
of the sidecar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from istio_aux.model import documents, kept
from istio_aux.model.annotations import INJECTION, text_label
from istio_aux.model.pod import Struct
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.selectors import TOO_MANY_LABELS, LabelSelector, Selector, convert
from istio_aux.model.webhooks import ClientConfig, Configuration, ControlPlane, Webhook

injection_label = text_label(INJECTION)
"""Label of a namespace; with another value than ``enabled`` no webhook of Istio selects it."""


POLICY_KEY = "config"  # Key of the injection policy in its ConfigMap.


class InjectionPolicy(msgspec.Struct, frozen=True):
    """The policy for pods that do not ask for a sidecar themselves; `read_policy` reads it."""

    # ``enabled`` or ``disabled``: what happens to a pod that nothing else decides about; with any
    # other value istiod injects nothing at all.
    policy: str = "enabled"
    # Selectors of pods that get no sidecar unless they ask for one.
    never_inject: tuple[Selector, ...] = ()
    # Selectors of pods that get one unless they, or ``never_inject``, say otherwise.
    always_inject: tuple[Selector, ...] = ()


Policies = Mapping[ControlPlane, InjectionPolicy]
"""The policies of the istiods. A missing policy is unknown, not ``enabled``."""


class Expectation(Struct, frozen=True):
    """Whether a pod should have a sidecar (None: not known), and why, in one line."""

    expected: bool | None
    reason: str
    # Where the webhook that decides is configured, and its istiod; empty if none selects the pod.
    configuration: str = ""
    control_plane: ControlPlane = ControlPlane("", "")
    # Whether Istio's CNI should take the pod into an ambient mesh, instead of a sidecar.
    ambient: bool = False


class Hook(msgspec.Struct, frozen=True):
    """One webhook of Istio's that may be called when a pod is created."""

    configuration: str
    webhook: str
    control_plane: ControlPlane
    namespaces: Selector = Selector()
    pods: Selector = Selector()
    unclear: str = ""  # Why it may not be called for a pod that both selectors match.
    target: ClientConfig = ClientConfig()  # Whom the API server calls.
    active: bool = True  # If not, its selectors match nothing: see `Webhook.injects`.

    def selects(self, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Whether its selectors match a pod with ``labels``."""
        known = TOO_MANY_LABELS not in namespace_labels
        return known and self.namespaces.matches(namespace_labels) and self.pods.matches(labels)


def read_policy(text: str) -> InjectionPolicy:
    """Read an injection policy as istiod does (istio inject.go UnmarshalConfig, injectRequired).

    `ValueError`: it is too much, or cannot be read; then istiod keeps its last policy.
    """
    config = msgspec.json.decode(documents.first(text, "not YAML"), type=PolicyDocument)
    if kept.size(config) > kept.MOST_OF_ISTIO:
        raise ValueError("too much to judge")
    return InjectionPolicy(
        policy=config.policy or "",
        never_inject=tuple(_readable(config.never_inject_selector or ())),
        always_inject=tuple(_readable(config.always_inject_selector or ())),
    )


def hooks_of(configurations: Iterable[Configuration]) -> tuple[Hook, ...]:
    """Return Istio's webhooks for new pods, in the order in which they are called."""
    return tuple(
        _hook(configuration, webhook)
        for configuration in sorted(configurations, key=lambda each: each.metadata.name)
        for webhook in configuration.webhooks or ()
        if webhook.is_istios and webhook.creates_pods
    )


def expected(injection: InjectionRequest, hooks: Sequence[Hook], policies: Policies) -> Expectation:
    """Decide whether the pod would get a sidecar if it were created now.

    The first webhook that injects the pod decides: an istiod that leaves a pod alone does not keep
    others from injecting it.
    """
    if reason := next(injection.refusals(), None):
        return Expectation(expected=False, reason=reason)
    if not hooks:
        return Expectation(expected=False, reason="there is no webhook of Istio's injector")
    if injection.namespace_labels is None or TOO_MANY_LABELS in injection.namespace_labels:
        reason = f"the labels of namespace {injection.namespace} are not known"
        if injection.namespace_labels:
            reason += f": more than {kept.MOST} bytes are too much to judge"
        return Expectation(expected=None, reason=reason)
    answers = [
        _answer(injection, hook, policies.get(hook.control_plane))
        for hook in hooks
        if hook.selects(injection.namespace_labels, injection.labels)
    ]
    order = (True, None, False)
    first = min(answers, key=lambda each: order.index(each.expected), default=None)
    return first or _unselected(injection, injection.namespace_labels)


def _answer(injection: InjectionRequest, hook: Hook, policy: InjectionPolicy | None) -> Expectation:
    """Judge a pod that ``hook`` selects."""
    injects, why = _injects(injection, hook, policy)
    return Expectation(
        expected=injects,
        reason=f"{hook.webhook} of {hook.configuration} selects it; {why}",
        configuration=hook.configuration,
        control_plane=hook.control_plane,
    )


def _injects(
    injection: InjectionRequest, hook: Hook, policy: InjectionPolicy | None
) -> tuple[bool | None, str]:
    """Decide about a pod without `InjectionRequest.refusals`, as istiod does; and say why."""
    if hook.unclear:
        return None, hook.unclear
    if policy and policy.policy not in {"enabled", "disabled"}:
        return False, f'injection policy "{policy.policy}": Istio injects nothing'
    if injection.asks:
        return True, injection.said
    if policy is None:
        return None, "istiod's injection policy is not known"
    for verdict, selectors, name in (
        (False, policy.never_inject, "neverInjectSelector"),
        (True, policy.always_inject, "alwaysInjectSelector"),
    ):
        for selector in selectors:
            # An empty selector, which matches everything elsewhere, matches nothing here.
            if selector.requirements and selector.matches(injection.labels):
                return verdict, f"{name} {selector} matches it"
    return policy.policy == "enabled", f"injection policy: {policy.policy}"


def _unselected(injection: InjectionRequest, namespace_labels: Mapping[str, str]) -> Expectation:
    reason = "no webhook of Istio's injector selects it"
    if ambient := injection.ambient:
        reason += f"; {ambient}"
    if injection_label.on(namespace_labels) and injection_label.get(namespace_labels) != "enabled":
        reason += f"; namespace {injection_label.shown(namespace_labels)}"
    return Expectation(expected=False, reason=reason)


def _hook(configuration: Configuration, webhook: Webhook) -> Hook:
    unclear = "its matchConditions are not evaluated here" if webhook.match_conditions else ""
    if webhook == kept.UNCLEAR:
        unclear = "its configuration is too much to judge"
    try:
        namespaces, pods = (
            convert(each) if each else Selector()
            for each in (webhook.namespace_selector, webhook.object_selector)
        )
    except ValueError as error:
        # The API server should not accept such a configuration; the others still count.
        namespaces = pods = Selector()
        unclear = f"its selectors cannot be read: {error}"
    return Hook(
        configuration=configuration.metadata.name,
        webhook=webhook.name,
        control_plane=configuration.control_plane(webhook),
        namespaces=namespaces,
        pods=pods,
        unclear=unclear,
        target=webhook.client_config,
        active=webhook.injects,
    )


class PolicyDocument(Struct, frozen=True):
    """All that is read of an injection policy, as istiod's ConfigMap has it."""

    policy: str | None = None
    never_inject_selector: tuple[LabelSelector, ...] | None = None
    always_inject_selector: tuple[LabelSelector, ...] | None = None


def _readable(selectors: tuple[LabelSelector, ...]) -> Iterator[Selector]:
    for selector in selectors:
        with suppress(ValueError):  # Istiod logs a warning and ignores it.
            yield convert(selector)
