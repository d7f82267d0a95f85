"""Whether a pod should have a sidecar: every webhook of Istio's, and what istiod makes of it.

The configurations are recordings of Istio 1.28.10 after `istioctl install`, and of a revision
installed beside it; both istiods inject by default.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from istio_aux.injector.injection import InjectionPolicy, expected, hooks_of, read_policy
from istio_aux.model.names import IGNORED
from istio_aux.model.pod import Pod
from istio_aux.model.selectors import parse
from unit.rules.mesh import (
    DEFAULT,
    ENABLED,
    FALSE,
    HOOKS,
    INJECT,
    POLICIES,
    REVISED,
    REVISION,
    THEIRS,
    TRUE,
    pod,
    recorded,
    renamed,
)

REV = "istio.io/rev"
INJECTION = "istio-injection"
AMBIENT = {"istio.io/dataplane-mode": "ambient"}
OTHER_TAG = {REV: "other"}


class Row(NamedTuple):
    """A sentence, the namespace's labels, the pod, and which webhook of which configuration."""

    sentence: str
    namespace: dict[str, str]
    pod: Pod
    webhook: str = ""
    configuration: str = ""
    because: str = ""


NONE = "no webhook of Istio's injector selects it"
ROWS = [
    Row("nobody asks for a sidecar", {}, pod(), because=NONE),
    # namespace.
    Row("a labelled namespace asks for all its pods", ENABLED, pod(), "namespace", DEFAULT),
    Row("one that asks for itself as well", ENABLED, pod(TRUE), "namespace", DEFAULT, "label"),
    Row("one that opts out by label", ENABLED, pod(FALSE), because=f'label {INJECT}: "false"'),
    Row("one that opts out by annotation", ENABLED, pod({}, FALSE), because="annotation"),
    Row("the label beats the annotation: in", ENABLED, pod(TRUE, FALSE), "namespace", DEFAULT),
    Row("the label beats the annotation: out", ENABLED, pod(FALSE, TRUE), because="label"),
    Row("the wish is case-sensitive", ENABLED, pod({INJECT: "False"}), "namespace", DEFAULT),
    Row("no other word is a wish", ENABLED, pod({INJECT: "no"}), "namespace", DEFAULT, "policy"),
    Row(
        "a label that says nothing beats the annotation too",
        ENABLED,
        pod({INJECT: ""}, FALSE),
        "namespace",
        DEFAULT,
        "policy",
    ),
    Row(
        "the namespace's label beats a revision, its own or the pod's",
        ENABLED | {REV: REVISION},
        pod({REV: REVISION}),
        "namespace",
        DEFAULT,
    ),
    Row("a namespace's no beats the pod's yes", {INJECTION: "disabled"}, pod(TRUE), because=NONE),
    Row(
        "a namespace's no beats a revision",
        {INJECTION: "disabled", REV: REVISION},
        pod({REV: REVISION}),
        because='; namespace label istio-injection: "disabled"',
    ),
    Row("any other value is a no", {INJECTION: "true", REV: REVISION}, pod(TRUE), because='"true"'),
    Row("an empty value is a no", {INJECTION: ""}, pod(TRUE), because='istio-injection: ""'),
    # rev.namespace.
    Row("a namespace asks for the default", {REV: "default"}, pod(), "rev.namespace", DEFAULT),
    Row("a namespace asks for a revision", {REV: REVISION}, pod(), "rev.namespace", REVISED),
    Row("a namespace asks for what is not there", {REV: "gone"}, pod(TRUE), because=NONE),
    Row("a pod opts out of a revision", {REV: REVISION}, pod(FALSE), because="label"),
    Row("by annotation", {REV: REVISION}, pod({}, FALSE), because="annotation"),
    Row(
        "a pod's revision does not count where the namespace has one",
        {REV: REVISION},
        pod({REV: "default"} | TRUE),
        "rev.namespace",
        REVISED,
    ),
    # rev.object.
    Row("a pod asks for a revision", {}, pod({REV: REVISION}), "rev.object", REVISED),
    Row("a pod asks for the default", {}, pod({REV: "default"}), "rev.object", DEFAULT),
    Row("a pod asks twice", {}, pod({REV: REVISION} | TRUE), "rev.object", REVISED),
    Row("a pod asks for what is not there", {}, pod({REV: "gone"} | TRUE), because=NONE),
    Row("a pod asks for one and opts out", {}, pod({REV: REVISION} | FALSE), because="label"),
    Row("and by annotation", {}, pod({REV: REVISION}, FALSE), because="annotation"),
    # object.
    Row("a pod asks by label", {}, pod(TRUE), "object", DEFAULT),
    Row("a pod cannot ask by annotation", {}, pod({}, TRUE), because=NONE),
    Row("the label is what is selected by", {}, pod(TRUE, FALSE), "object", DEFAULT),
    Row("another word selects nothing", {}, pod({INJECT: "yes"}), because=NONE),
    # What istiod never injects.
    Row("host network", ENABLED, pod(TRUE, hostNetwork=True), because="hostNetwork"),
    Row("no host network", ENABLED, pod(hostNetwork=False), "namespace", DEFAULT),
    # Another data plane.
    Row("an ambient namespace", ENABLED | AMBIENT, pod(TRUE), because="namespace label istio.io/d"),
    Row("an ambient pod", ENABLED, pod(AMBIENT), because='label istio.io/dataplane-mode: "ambient'),
    Row(
        "another data plane mode",
        ENABLED | {"istio.io/dataplane-mode": "none"},
        pod(),
        "namespace",
        DEFAULT,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
def test_a_pod_has_a_sidecar_to_expect(row: Row) -> None:
    """T34 and T35, and all that namespaces and pods can ask for."""
    answer = expected(row.pod, row.namespace, HOOKS, POLICIES)

    assert answer.expected is bool(row.webhook), answer.reason
    assert answer.configuration == row.configuration
    assert answer.webhook == (row.webhook and f"{row.webhook}.sidecar-injector.istio.io")
    assert answer.revision == {DEFAULT: "default", REVISED: REVISION}.get(row.configuration, "")
    assert row.because in answer.reason
    assert row.configuration in answer.reason


@pytest.mark.parametrize("namespace", sorted(IGNORED))
def test_system_namespaces_are_left_alone_whatever_they_ask_for(namespace: str) -> None:
    answer = expected(pod(TRUE, namespace=namespace), ENABLED, HOOKS, POLICIES)

    assert answer.expected is False
    assert answer.reason == f"namespace {namespace}: Istio gives its pods no sidecar"


def test_the_list_of_ignored_namespaces_is_istios() -> None:
    assert {"kube-system", "kube-public", "kube-node-lease", "local-path-storage"} == {*IGNORED}


def test_another_tag_leads_to_the_revision_behind_it() -> None:
    """The tag is what is asked for; who answers is the revision that it points to."""
    tag = renamed(REVISED, "istio-revision-tag-other", replace=(REVISION, "other"))
    hooks = hooks_of([recorded(DEFAULT), recorded(REVISED), tag])
    policies = POLICIES | {THEIRS: InjectionPolicy(policy="disabled")}

    by_namespace = expected(pod(), OTHER_TAG, hooks, policies)
    by_pod = expected(pod(OTHER_TAG | TRUE), {}, hooks, policies)

    assert (by_namespace.expected, by_pod.expected) == (False, True)
    assert by_namespace.webhook == "rev.namespace.sidecar-injector.istio.io"
    assert by_pod.webhook == "rev.object.sidecar-injector.istio.io"
    for answer in (by_namespace, by_pod):
        assert answer.configuration == "istio-revision-tag-other"
        assert answer.revision == REVISION


def test_a_tag_that_moved_away_leaves_its_old_revision() -> None:
    """T40: a pod that was made before expects the sidecar of the new one now."""
    before = hooks_of([renamed(DEFAULT, "istio-revision-tag-other", replace=("default", "other"))])
    after = hooks_of([renamed(REVISED, "istio-revision-tag-other", replace=(REVISION, "other"))])

    assert expected(pod(), OTHER_TAG, before, POLICIES).revision == "default"
    assert expected(pod(), OTHER_TAG, after, POLICIES).revision == REVISION


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


def test_istiods_policy_is_read_from_among_the_templates() -> None:
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
def test_a_missing_policy_is_not_enabled(text: str, policy: str) -> None:
    """Istiod then injects nothing."""
    assert read_policy(text) == InjectionPolicy(policy=policy)


def test_an_invalid_selector_hides_no_other() -> None:
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
def test_a_policy_that_istiod_cannot_read_gives_one_clear_line(text: str, why: str) -> None:
    """It goes on with what it had before, which nobody knows."""
    with pytest.raises(ValueError, match=r"YAML|Expected") as caught:
        read_policy(text)

    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
