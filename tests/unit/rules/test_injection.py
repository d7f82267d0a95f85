"""Whether a pod should have a sidecar: by the webhooks that are called, and what istiod decides.

Then what is read of webhook configurations and EndpointSlices, and which webhooks precede ours.

The configurations are recordings of Istio 1.28.10 after `istioctl install`, and of a revision
installed beside it; both istiods inject by default.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

import msgspec
import pytest
from istio_aux.injector.injection import Hook, InjectionPolicy, Policies, hooks_of, read_policy
from istio_aux.model.names import IGNORED
from istio_aux.model.pod import Pod
from istio_aux.model.selectors import parse
from istio_aux.model.webhooks import (
    ClientConfig,
    Configuration,
    EndpointSlice,
    Service,
    Webhook,
    sorted_before,
)
from unit.rules.pods import (
    DEFAULT,
    ENABLED,
    FALSE,
    GONE,
    HOOKS,
    INJECT,
    ORIGINAL,
    OURS,
    POLICIES,
    READY,
    REVISED,
    REVISION,
    THEIRS,
    TRUE,
    decode,
    each_webhook,
    expected,
    pod,
    recorded,
    renamed,
    row,
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


@pytest.mark.parametrize(
    "row",
    [
        Row("nobody asks for a sidecar", {}, pod(), because=NONE),
        # namespace.
        Row("a labelled namespace asks for all its pods", ENABLED, pod(), "namespace", DEFAULT),
        Row("one that opts out by label", ENABLED, pod(FALSE), because=f'label {INJECT}: "false"'),
        Row("one that opts out by annotation", ENABLED, pod({}, FALSE), because="annotation"),
        Row("the label beats the annotation: in", ENABLED, pod(TRUE, FALSE), "namespace", DEFAULT),
        Row("the label beats the annotation: out", ENABLED, pod(FALSE, TRUE), because="label"),
        Row(
            "no other word asks for a sidecar",
            ENABLED,
            pod({INJECT: "no"}),
            "namespace",
            DEFAULT,
            "policy",
        ),
        Row(
            "a namespace's no beats the pod's yes", {INJECTION: "disabled"}, pod(TRUE), because=NONE
        ),
        Row(
            "any other value is a no",
            {INJECTION: "true", REV: REVISION},
            pod({REV: REVISION}),
            because='; namespace label istio-injection: "true"',
        ),
        # rev.namespace.
        Row("a namespace asks for the default", {REV: "default"}, pod(), "rev.namespace", DEFAULT),
        Row("a namespace asks for a revision", {REV: REVISION}, pod(), "rev.namespace", REVISED),
        Row("a namespace asks for what is not there", {REV: "gone"}, pod(TRUE), because=NONE),
        # rev.object.
        Row("a pod asks for a revision", {}, pod({REV: REVISION}), "rev.object", REVISED),
        # object.
        Row("a pod asks by label", {}, pod(TRUE), "object", DEFAULT),
        Row("a pod cannot ask by annotation", {}, pod({}, TRUE), because=NONE),
        Row("another word selects nothing", {}, pod({INJECT: "yes"}), because=NONE),
        # What istiod never injects.
        Row("host network", ENABLED, pod(TRUE, hostNetwork=True), because="hostNetwork"),
        # Another data plane.
        Row("injection beats an ambient namespace", ENABLED | AMBIENT, pod(), "namespace", DEFAULT),
        Row(
            "an ambient namespace alone",
            AMBIENT,
            pod(),
            because="; namespace label istio.io/dataplane",
        ),
        Row(
            "an ambient pod alone",
            {},
            pod(AMBIENT),
            because='; label istio.io/dataplane-mode: "amb',
        ),
    ],
    ids=lambda row: row.sentence,
)
def test_a_pod_has_a_sidecar_to_expect(row: Row) -> None:
    """community-distribution#2040, and all that namespaces and pods can ask for."""
    answer = expected(row.pod, row.namespace, HOOKS, POLICIES)

    assert answer.expected is bool(row.webhook), answer.reason
    assert answer.configuration == row.configuration
    if row.webhook:
        assert answer.reason.startswith(f"{row.webhook}.sidecar-injector.istio.io of ")
    assert answer.control_plane.revision == {DEFAULT: "default", REVISED: REVISION}.get(
        row.configuration, ""
    )
    assert row.because in answer.reason
    assert row.configuration in answer.reason


@pytest.mark.parametrize("namespace", sorted(IGNORED))
def test_system_namespaces_are_left_alone_whatever_they_ask_for(namespace: str) -> None:
    answer = expected(pod(TRUE, namespace=namespace), ENABLED, HOOKS, POLICIES)

    assert answer.expected is False
    assert answer.reason == f"namespace {namespace}: Istio gives its pods no sidecar"


@pytest.mark.parametrize(
    ("namespace", "labels", "injects", "webhook"),
    [(OTHER_TAG, {}, False, "rev.namespace"), ({}, OTHER_TAG | TRUE, True, "rev.object")],
    ids=["asked for by a namespace", "asked for by a pod"],
)
def test_another_tag_leads_to_the_revision_behind_it(
    namespace: dict[str, str], labels: dict[str, str], injects: bool, webhook: str
) -> None:
    """The tag is what is asked for; who answers is the revision that it points to."""
    tag = renamed(REVISED, "istio-revision-tag-other", replace=(REVISION, "other"))
    hooks = hooks_of([recorded(DEFAULT), recorded(REVISED), tag])
    policies = POLICIES | {THEIRS: InjectionPolicy(policy="disabled")}

    answer = expected(pod(labels), namespace, hooks, policies)

    assert answer.expected is injects
    assert answer.reason.startswith(f"{webhook}.sidecar-injector.istio.io of ")
    assert (answer.configuration, answer.control_plane) == ("istio-revision-tag-other", THEIRS)


TEXT = """\
# defaultTemplates defines the default template to use for pods.
defaultTemplates: [sidecar]
policy: enabled
alwaysInjectSelector:
  - matchLabels: {team: mesh}
neverInjectSelector:
  - matchExpressions:
    - {key: openshift.io/build.name, operator: Exists}
  - matchExpressions: [{key: ci, operator: Exists, values: null}]
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
    """Without one of its selectors, pods that istiod never injects would be restarted for it."""
    assert read_policy(TEXT) == InjectionPolicy(
        policy="enabled",
        never_inject=(
            parse("openshift.io/build.name"),
            parse("ci"),
            parse("kind in (job,pod),kind!=pod"),
        ),
        always_inject=(parse("team=mesh"),),
    )


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("policy: disabled", "disabled"),
        ("policy: null\nneverInjectSelector: null", ""),
        ("", ""),
    ],
)
def test_a_missing_policy_is_not_enabled(text: str, policy: str) -> None:
    assert read_policy(text) == InjectionPolicy(policy=policy)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("policy: [", "not YAML: "),
        ("- policy", "Expected `object`, got `array`"),
        ("policy: off", "Expected `str | null`, got `bool` - at `$.policy`"),
        ("neverInjectSelector: [{matchLabels: {a: true}}]", "at `$.neverInjectSelector[0]"),
        (
            "neverInjectSelector: [{matchExpressions: [{key: a, operator: In, values: [true]}]}]",
            "Expected `str`, got `bool`",
        ),
    ],
)
def test_a_policy_that_istiod_cannot_read_gives_one_clear_line(text: str, why: str) -> None:
    """It goes on with what it had before, which nobody knows."""
    with pytest.raises(ValueError, match=r"YAML|Expected") as caught:
        read_policy(text)

    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


ON, OFF = InjectionPolicy(policy="enabled"), InjectionPolicy(policy="disabled")
JOBS, ALL = parse("kind=job"), parse("")
JOB = {"kind": "job"}


@pytest.mark.parametrize(
    ("policy", "labels", "annotations", "verdict"),
    [
        row("enabled injects", ON, {}, {}, True),
        row("disabled does not", OFF, {}, {}, False),
        row("unknown is unknown", None, {}, {}, None),
        row("a label beats disabled", OFF, TRUE, {}, True),
        row("a label needs no policy to be known", None, TRUE, {}, True),
        row("another word asks for nothing: unknown", None, {INJECT: "maybe"}, {}, None),
        row("never", InjectionPolicy(never_inject=(JOBS,)), JOB, {}, False),
        row("a label beats never", InjectionPolicy(never_inject=(JOBS,)), JOB | TRUE, {}, True),
        row("never beats always", InjectionPolicy("enabled", (JOBS,), (parse("kind"),)), JOB, {},
            False),
        row("always beats disabled", InjectionPolicy("disabled", (), (JOBS,)), JOB, {}, True),
        row("always, but not this one", InjectionPolicy("disabled", (), (JOBS,)), {}, {}, False),
        row("annotation beats always", InjectionPolicy("enabled", (), (JOBS,)), JOB, FALSE, False),
        row("an empty never matches none", InjectionPolicy(never_inject=(ALL,)), JOB, {}, True),
        row("nor does an empty always", InjectionPolicy("disabled", (), (ALL,)), JOB, {}, False),
        row("another policy injects nothing", InjectionPolicy(policy="off"), {}, {}, False),
    ],
)  # fmt: skip
def test_istiod_decides_by_its_policy_where_the_pod_does_not_say(
    policy: InjectionPolicy | None,
    labels: dict[str, str],
    annotations: dict[str, str],
    verdict: bool | None,
) -> None:
    policies = {OURS: policy} if policy else {}
    answer = expected(pod(labels, annotations), ENABLED, HOOKS, policies)

    assert answer.expected is verdict, answer.reason


def test_configurations_are_called_in_the_order_of_their_names_and_webhooks_as_listed() -> None:
    found = [recorded(REVISED), recorded(ORIGINAL), recorded(DEFAULT)]

    hooks = hooks_of(found)

    assert hooks == hooks_of(found[::-1])
    assert [hook.configuration for hook in hooks] == [DEFAULT] * 4 + [ORIGINAL] * 4 + [REVISED] * 2
    assert [hook.webhook.partition(".sidecar")[0] for hook in hooks[:4]] == [
        "rev.namespace",
        "rev.object",
        "namespace",
        "object",
    ]


@pytest.mark.parametrize(
    ("policies", "verdict", "revision"),
    [
        row("the first one injects", {OURS: ON, THEIRS: OFF}, True, "default"),
        row("the second one injects what the first left", {OURS: OFF, THEIRS: ON}, True, REVISION),
        row("the second one injects, whatever the first does", {THEIRS: ON}, True, REVISION),
        row("the first one did, whatever the second does", {OURS: ON}, True, "default"),
        row("neither of them", {OURS: OFF, THEIRS: OFF}, False, "default"),
        row("the second one may", {OURS: OFF}, None, REVISION),
        row("the first one may", {THEIRS: OFF}, None, "default"),
        row("either may", {}, None, "default"),
    ],
)
def test_of_two_control_planes_that_select_a_pod_the_first_that_injects_counts(
    policies: Policies, verdict: bool | None, revision: str
) -> None:
    """The API server calls both."""
    both = [
        Hook("a", "sidecar-injector.istio.io", OURS, parse("istio-injection=enabled")),
        Hook("b", "sidecar-injector.istio.io", THEIRS),
    ]

    answer = expected(pod(), ENABLED, both, policies)

    assert (answer.expected, answer.control_plane.revision) == (verdict, revision)


def test_without_istio_no_sidecar_is_expected() -> None:
    answer = expected(pod(TRUE), ENABLED, hooks_of([]), POLICIES)

    assert (answer.expected, answer.reason) == (False, "there is no webhook of Istio's injector")


def test_without_the_labels_of_the_namespace_nothing_is_known() -> None:
    """Not even for a pod that asks; but a pod that Istio never injects needs no namespace."""
    answer = expected(pod(TRUE), None, HOOKS, POLICIES)

    assert (answer.expected, answer.configuration) == (None, "")
    assert answer.reason == "the labels of namespace training are not known"
    assert expected(pod(FALSE), None, HOOKS, POLICIES).expected is False


# With enableNamespacesByDefault (istio mutatingwebhook.yaml) there is a fifth webhook.
@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        row("another name than Istio's", {"name": "validation.istio.io"}, False),
        row("other operations", {"rules": [{"operations": ["UPDATE"]}]}, False),
        row("a condition that only the API server evaluates", {"matchConditions": [{}]}, None),
        row("no conditions", {"matchConditions": None}, True),
        row(
            "a selector that cannot be read",
            {"objectSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}},
            None,
        ),
    ],
)
def test_a_webhook_that_may_not_be_called_is_not_counted_on(
    fields: dict[str, Any], verdict: bool | None
) -> None:
    answer = expected(pod(), ENABLED, hooks_of([each_webhook(DEFAULT, **fields)]), POLICIES)

    assert answer.expected is verdict, answer.reason


EVERY_POD: dict[str, Any] = {
    "operations": ["CREATE"],
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
    "scope": "*",
}


@pytest.mark.parametrize("labels", [None, {}, {"istio.io/rev": ""}])
def test_a_configuration_that_names_no_revision_is_the_defaults(
    labels: dict[str, str] | None,
) -> None:
    assert decode({"metadata": {"name": "a", "labels": labels}}).revision == "default"


@pytest.mark.parametrize(
    ("fields", "covers"),
    [
        row("Istio's own", {}, True),
        row("every operation", {"operations": ["*"]}, True),
        row("another operation", {"operations": ["UPDATE"]}, False),
        row("another group", {"apiGroups": ["apps"]}, False),
        row("another version", {"apiVersions": ["v2"]}, False),
        row("every resource and its parts", {"resources": ["*/*"]}, True),
        row("pods and their parts", {"resources": ["pods/*"]}, True),
        row("only parts of pods", {"resources": ["pods/status", "*/scale"]}, False),
        row("no scope", {"scope": None}, True),
        row("objects of the cluster", {"scope": "Cluster"}, False),
        row("nulls", dict.fromkeys(EVERY_POD), False),
    ],
)
def test_a_rule_covers_the_creation_of_a_pod(fields: dict[str, Any], covers: bool) -> None:
    assert msgspec.convert({"rules": [EVERY_POD | fields]}, Webhook).creates_pods is covers


@pytest.mark.parametrize(
    ("fields", "ready"),
    [
        row("a ready one", {}, True),
        row("one of several", {"endpoints": [GONE, READY]}, True),
        row("only one that is not ready", {"endpoints": [GONE]}, False),
        row("none", {"endpoints": []}, False),
        row("readiness that is not told", {"endpoints": [{"addresses": ["10.1.0.7"]}]}, True),
        row("no address", {"endpoints": [READY | {"addresses": []}]}, False),
        row("a port without name and number", {"ports": [{}]}, True),
        row("no ports", {"ports": []}, False),
    ],
)
def test_an_endpoint_counts_when_it_may_be_connected_to(
    fields: dict[str, Any], ready: bool
) -> None:
    """A port without a number is every port (discovery/v1 types.go)."""
    port = {"name": "https-webhook", "port": 15017, "protocol": "TCP"}
    body = {"endpoints": [READY], "ports": [port], **fields}
    assert msgspec.convert(body, EndpointSlice).ready is ready


@pytest.mark.parametrize(
    ("labels", "service"),
    [
        ({"kubernetes.io/service-name": "istiod"}, Service("istio-system", "istiod")),
        ({"kubernetes.io/service-name": ""}, None),
        ({"other": "istiod"}, None),
        (None, None),
    ],
    ids=str,
)
def test_a_slice_says_whose_endpoints_it_lists(
    labels: dict[str, str] | None, service: Service | None
) -> None:
    metadata = {"name": "x", "namespace": "istio-system", "labels": labels}
    assert msgspec.convert({"metadata": metadata}, EndpointSlice).service == service


OUR_CONFIGURATION = "istio-aux-kubeflow.istio-aux"
INJECTOR = "namespace.sidecar-injector.istio.io"
NEVER = {"matchLabels": {"istio.io/deactivated": "never-match"}}


def configuration(name: str, webhooks: list[dict[str, Any]] | None) -> Configuration:
    """As the API server sends it: null is an empty list."""
    return msgspec.convert({"metadata": {"name": name}, "webhooks": webhooks}, Configuration)


@pytest.mark.parametrize(
    ("ours", "before", "after"),
    [
        (
            OUR_CONFIGURATION,
            ("asm-sidecar-injector", "istio", "istio-aux", "istio-aux-kubeflow-istio-au"),
            (
                OUR_CONFIGURATION, f"{OUR_CONFIGURATION}2", "istio-revision-tag-default",
                "istio-sidecar-injector", "vendor",
            ),
        ),
        ("ours.c", ("ours-b", "ours.b"), ("ours1", "oursa")),
        ("oursb", ("ours-b", "ours.b", "ours1", "oursa"), ()),
    ],
)  # fmt: skip
def test_names_are_compared_as_the_api_server_sorts_them(
    ours: str, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """istio#43074: a dash comes before a dot, both before digits, and those before letters."""
    names = *after, *reversed(before)
    assert sorted_before(ours, [configuration(it, [{"name": INJECTOR}]) for it in names]) == before


@pytest.mark.parametrize(
    ("webhooks", "counts"),
    [
        row("a name without a prefix", [{"name": "sidecar-injector.istio.io"}], True),
        row(
            "a deactivated webhook beside an active one",
            [{"name": INJECTOR, "objectSelector": NEVER}, {"name": INJECTOR}],
            True,
        ),
        row(
            "deactivated as istioctl does",
            [{"name": INJECTOR, "namespaceSelector": NEVER, "objectSelector": NEVER}],
            False,
        ),
        row("no pod matches", [{"name": INJECTOR, "objectSelector": NEVER}], False),
        row("Istio's, but it makes no sidecars", [{"name": "validation.istio.io"}], False),
        row("no webhook", [], False),
    ],
)
def test_only_webhooks_that_make_sidecars_count(
    webhooks: list[dict[str, Any]] | None, counts: bool
) -> None:
    """istio#43074."""
    before = sorted_before(OUR_CONFIGURATION, [configuration("aaa", webhooks)])
    assert before == (("aaa",) if counts else ())


BUNDLE = b"""# istiod
garbage
-----BEGIN CERTIFICATE-----
Zmlyc3Q=
-----END CERTIFICATE-----"""


def test_a_certificate_of_a_bundle_is_found_and_everything_else_is_passed_over() -> None:
    assert ClientConfig(ca_bundle=base64.b64encode(BUNDLE).decode()).has_certificate


@pytest.mark.parametrize(
    "text", [None, "", "Z2FyYmFnZQ==", "no base64!", "\u00fcmlaut", "LS0tLS1CRUdJTg=="]
)
def test_a_bundle_that_cannot_be_read_holds_nothing(text: str | None) -> None:
    assert not ClientConfig(ca_bundle=text).has_certificate
