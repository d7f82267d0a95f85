"""Istiod's injection policy, read as istiod reads it."""

from __future__ import annotations

import pytest
from istio_aux.core.injection import InjectionPolicy, read_policy
from istio_aux.core.selectors import parse
from istio_aux.core.webhooks import ControlPlane

TEXT = """\
# defaultTemplates defines the default template to use for pods.
defaultTemplates: [sidecar]
policy: enabled
alwaysInjectSelector:
  - matchLabels: {team: mesh}
neverInjectSelector:
  - matchExpressions:
    - {key: openshift.io/build.name, operator: Exists}
  - matchExpressions:
    - {key: kind, operator: In, values: [job, pod]}
    - {key: kind, operator: NotIn, values: [pod]}
injectedAnnotations:
template: "{{ Template_Version_And_Istio_Version_Mismatched_Check_Installation }}"
templates:
  sidecar: |
    ---
    metadata:
      labels: {{ .Labels }}
    {{- if eq (index .Values "policy") "disabled" }}
    policy: disabled
    {{- end }}
"""


def test_a_policy_is_read_from_among_the_templates() -> None:
    assert read_policy(TEXT) == InjectionPolicy(
        policy="enabled",
        never=(parse("openshift.io/build.name"), parse("kind in (job,pod),kind!=pod")),
        always=(parse("team=mesh"),),
    )


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("policy: disabled", "disabled"),
        ("policy: sometimes", "sometimes"),
        ("templates: {}", ""),
        ("policy: null\nneverInjectSelector: null", ""),
        ("", ""),
    ],
)
def test_a_policy_that_is_not_given_is_not_enabled(text: str, policy: str) -> None:
    """Istiod then injects nothing."""
    assert read_policy(text) == InjectionPolicy(policy=policy)


def test_a_selector_that_istiod_passes_over_hides_no_other() -> None:
    text = """\
policy: enabled
neverInjectSelector:
- matchExpressions: [{key: a, operator: Like}]
- matchLabels: {b: c}
"""
    assert read_policy(text).never == (parse("b=c"),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("policy: [", "not YAML: "),
        ("- policy", "Expected `object`, got `array`"),
        ("policy: off", "Expected `str | null`, got `bool` - at `$.policy`"),
        ("neverInjectSelector: [{matchLabels: {a: true}}]", "at `$.neverInjectSelector[0]"),
    ],
)
def test_what_istiod_cannot_read_gives_one_clear_line(text: str, why: str) -> None:
    """It goes on with what it had before, which nobody knows."""
    with pytest.raises(ValueError, match=r"YAML|Expected") as caught:
        read_policy(text)

    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("plane", "name"),
    [
        (ControlPlane("istio-system", "default"), "istio-sidecar-injector"),
        (ControlPlane("kubeflow", "default"), "istio-sidecar-injector"),
        (ControlPlane("istio-system", "1-30-3"), "istio-sidecar-injector-1-30-3"),
    ],
)
def test_it_is_in_a_config_map_named_after_the_revision(plane: ControlPlane, name: str) -> None:
    assert plane.config_map == name
