"""Whether a pod should have a sidecar, whether its injector is live, and what is done about it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from istio_aux.injector.capture import NodeAgent, read_config
from istio_aux.injector.injection import (
    Expectation,
    Hook,
    InjectionPolicy,
    Policies,
    hooks_of,
    read_policy,
)
from istio_aux.injector.probe_rules import (
    Question,
    created,
    kubelets_assured,
    of_kubelets,
    questions,
)
from istio_aux.injector.rules import ControlPlanes, Facts, Injector, NativeCheck, Probe, evaluate
from istio_aux.model.annotations import DATAPLANE
from istio_aux.model.answers import Liveness
from istio_aux.model.applications import Applications, PodOptions
from istio_aux.model.findings import Code
from istio_aux.model.names import IGNORED
from istio_aux.model.pod import Pod, convert
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.policy import Capability, RepairPolicy, StartPolicy
from istio_aux.model.selectors import parse, parse_namespaces
from istio_aux.model.text import with_article
from istio_aux.model.webhooks import (
    ClientConfig,
    Configuration,
    EndpointSlice,
    Service,
    Webhook,
    sorted_before,
)
from istio_aux.repair.rules import (
    AwaitCapture,
    Candidate,
    Captured,
    NotKnown,
    RepairAction,
    ReportUnmeshed,
    Restart,
    Skip,
    as_admitted,
)
from msgspec import structs
from sizes import ROOT
from unit.rules.pods import (
    AMBIENT,
    CNI,
    CNI_READY,
    DEFAULT,
    ENABLED,
    FALSE,
    GONE,
    HOOKS,
    IN_AMBIENT,
    INJECT,
    JOB,
    NAME,
    NO,
    NONE,
    ORIGINAL,
    OURS,
    OURSELVES,
    POLICIES,
    READY,
    REPORT,
    RESTART,
    REVISED,
    REVISION,
    RUNNING,
    STATEFUL,
    THEIRS,
    TRUE,
    UNKNOWN,
    YES,
    Row,
    ambient,
    decide_repair,
    decode,
    each_webhook,
    edited,
    expected,
    pod,
    raw,
    recorded,
    renamed,
    row,
    table,
    target,
    unmeshed,
    unmeshed_job,
)

# Whether a pod should have a sidecar: by the webhooks that are called, and what istiod decides.
#
# Then what is read of webhook configurations and EndpointSlices, and which webhooks precede ours.
#
# The configurations are recordings of Istio 1.28.10 after `istioctl install`, and of a revision
# installed beside it; both istiods inject by default.

REV = "istio.io/rev"
INJECTION = "istio-injection"
OTHER_TAG = {REV: "other"}


class Asked(NamedTuple):
    """A sentence, the namespace's labels, the pod, and which webhook of which configuration."""

    sentence: str
    namespace: dict[str, str]
    pod: Pod
    webhook: str = ""
    configuration: str = ""
    because: str = ""


NOBODY = "no webhook of Istio's injector selects it"


@pytest.mark.parametrize(
    "row",
    [
        Asked("nobody asks for a sidecar", {}, pod(), because=NOBODY),
        # namespace.
        Asked("a labelled namespace asks for all its pods", ENABLED, pod(), "namespace", DEFAULT),
        Asked(
            "one that opts out by label", ENABLED, pod(FALSE), because=f'label {INJECT}: "false"'
        ),
        Asked("one that opts out by annotation", ENABLED, pod({}, FALSE), because="annotation"),
        Asked(
            "the label beats the annotation: in", ENABLED, pod(TRUE, FALSE), "namespace", DEFAULT
        ),
        Asked("the label beats the annotation: out", ENABLED, pod(FALSE, TRUE), because="label"),
        Asked(
            "no other word asks for a sidecar",
            ENABLED,
            pod({INJECT: "no"}),
            "namespace",
            DEFAULT,
            "policy",
        ),
        Asked(
            "a namespace's no beats the pod's yes",
            {INJECTION: "disabled"},
            pod(TRUE),
            because=NOBODY,
        ),
        Asked(
            "any other value is a no",
            {INJECTION: "true", REV: REVISION},
            pod({REV: REVISION}),
            because='; namespace label istio-injection: "true"',
        ),
        # rev.namespace.
        Asked(
            "a namespace asks for the default", {REV: "default"}, pod(), "rev.namespace", DEFAULT
        ),
        Asked("a namespace asks for a revision", {REV: REVISION}, pod(), "rev.namespace", REVISED),
        Asked("a namespace asks for what is not there", {REV: "gone"}, pod(TRUE), because=NOBODY),
        # rev.object.
        Asked("a pod asks for a revision", {}, pod({REV: REVISION}), "rev.object", REVISED),
        # object.
        Asked("a pod asks by label", {}, pod(TRUE), "object", DEFAULT),
        Asked("a pod cannot ask by annotation", {}, pod({}, TRUE), because=NOBODY),
        Asked("another word selects nothing", {}, pod({INJECT: "yes"}), because=NOBODY),
        # What istiod never injects.
        Asked("host network", ENABLED, pod(TRUE, hostNetwork=True), because="hostNetwork"),
        # Another data plane.
        Asked(
            "injection beats an ambient namespace",
            ENABLED | IN_AMBIENT,
            pod(),
            "namespace",
            DEFAULT,
        ),
        Asked(
            "an ambient namespace alone",
            IN_AMBIENT,
            pod(),
            because="; namespace label istio.io/dataplane",
        ),
        Asked(
            "an ambient pod alone",
            {},
            pod(IN_AMBIENT),
            because='; label istio.io/dataplane-mode: "amb',
        ),
    ],
    ids=lambda row: row.sentence,
)
def test_a_pod_has_a_sidecar_to_expect(row: Asked) -> None:
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
JOBS, ANY = parse("kind=job"), parse("")
KIND = {"kind": "job"}


@pytest.mark.parametrize(
    ("policy", "labels", "annotations", "verdict"),
    [
        row("enabled injects", ON, {}, {}, True),
        row("disabled does not", OFF, {}, {}, False),
        row("unknown is unknown", None, {}, {}, None),
        row("a label beats disabled", OFF, TRUE, {}, True),
        row("a label needs no policy to be known", None, TRUE, {}, True),
        row("another word asks for nothing: unknown", None, {INJECT: "maybe"}, {}, None),
        row("never", InjectionPolicy(never_inject=(JOBS,)), KIND, {}, False),
        row("a label beats never", InjectionPolicy(never_inject=(JOBS,)), KIND | TRUE, {}, True),
        row("never beats always", InjectionPolicy("enabled", (JOBS,), (parse("kind"),)), KIND, {},
            False),
        row("always beats disabled", InjectionPolicy("disabled", (), (JOBS,)), KIND, {}, True),
        row("always, but not this one", InjectionPolicy("disabled", (), (JOBS,)), {}, {}, False),
        row("annotation beats always", InjectionPolicy("enabled", (), (JOBS,)), KIND, FALSE, False),
        row("an empty never matches none", InjectionPolicy(never_inject=(ANY,)), KIND, {}, True),
        row("nor does an empty always", InjectionPolicy("disabled", (), (ANY,)), KIND, {}, False),
        row("another policy injects nothing", InjectionPolicy(policy="off"), {}, {}, False),
    ],
)  # fmt: skip
def test_istiod_decides_by_its_policy_where_the_pod_does_not_say(
    policy: InjectionPolicy | None,
    labels: dict[str, str],
    annotations: dict[str, str],
    verdict: bool | None,
) -> None:
    answer = expected(pod(labels, annotations), ENABLED, HOOKS, {OURS: policy} if policy else {})

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


BUNDLES = b"""# istiod
garbage
-----BEGIN CERTIFICATE-----
Zmlyc3Q=
-----END CERTIFICATE-----"""


def test_a_certificate_of_a_bundle_is_found_and_everything_else_is_passed_over() -> None:
    assert ClientConfig(ca_bundle=base64.b64encode(BUNDLES).decode()).has_certificate


@pytest.mark.parametrize(
    "text", [None, "", "Z2FyYmFnZQ==", "no base64!", "\u00fcmlaut", "LS0tLS1CRUdJTg=="]
)
def test_a_bundle_that_cannot_be_read_holds_nothing(text: str | None) -> None:
    assert not ClientConfig(ca_bundle=text).has_certificate


# Whether an injector is live, which ones are probed, and what several control planes come to.
#
# Then which pod an injector is asked about, what its answers show, and what of native sidecars.

INJECTS = Probe(
    injected=True, native=NativeCheck(Capability.NATIVE, "sidecars are native on request")
)


def endpoints(service: str = "istiod", *found: dict[str, Any], **fields: Any) -> EndpointSlice:
    """A slice as it comes over the wire."""
    body = {
        "metadata": {
            "name": f"{service}-x7k2p",
            "namespace": "istio-system",
            "labels": {"kubernetes.io/service-name": service},
        },
        "endpoints": list(found),
        "ports": [{"name": "https-webhook", "port": 15017, "protocol": "TCP"}],
        **fields,
    }
    return msgspec.json.decode(json.dumps(body), type=EndpointSlice)


ACTIVE = recorded(DEFAULT)
OTHER = recorded(REVISED)
BUNDLE = target(ACTIVE).ca_bundle or ""
LIVE = Facts(
    slices=(endpoints("istiod", READY), endpoints("istiod-1-30-3", READY)),
    probes={target(ACTIVE): INJECTS, target(OTHER): INJECTS},
)


UNSEEN = frozenset({Service("istio-system", "istiod")})


def but(**facts: Any) -> Facts:
    """What makes an injector live, with something else."""
    return msgspec.structs.replace(LIVE, **facts)


def one(configuration: Configuration, facts: Facts = LIVE) -> Injector:
    [found] = evaluate(hooks_of([configuration]), facts)
    return found


def test_a_configuration_without_webhooks_is_no_injector() -> None:
    """An admin may apply one; `webhooks` is optional in the API."""
    empty = edited(DEFAULT, lambda body: body.update(webhooks=None))
    assert hooks_of([empty, ACTIVE]) == hooks_of([ACTIVE])


def with_bundle(value: str | None) -> Configuration:
    service = {"namespace": "istio-system", "name": "istiod", "path": "/inject", "port": 443}
    return each_webhook(DEFAULT, clientConfig={"service": service, "caBundle": value})


FOREIGN = base64.b64encode(base64.b64decode(BUNDLE) + b"\n").decode()


@pytest.mark.parametrize(
    ("state", "configuration", "facts", "why"),
    [
        (Liveness.LIVE, ACTIVE, LIVE, "it injects"),
        (Liveness.DEACTIVATED, recorded(ORIGINAL), LIVE, "none of its webhooks is called for new"),
        (Liveness.NO_CA_BUNDLE, with_bundle(None), LIVE, "no caBundle: its istiod has never"),
        (Liveness.UNREADABLE, with_bundle("Z2FyYmFnZQ=="), LIVE, "no certificate that can be"),
        (Liveness.NO_SERVICE, ACTIVE, but(slices=()), "Service istio-system/istiod has no End"),
        (Liveness.NO_SERVICE, ACTIVE, but(slices=LIVE.slices[1:]), "istiod has no"),
        (Liveness.NO_ENDPOINT, ACTIVE, but(slices=[endpoints("istiod", GONE)]), "no ready"),
        (Liveness.NOT_PROBED, ACTIVE, but(probes={}), "it has not been probed yet"),
        (Liveness.NOT_PROBED, with_bundle(FOREIGN), LIVE, "it has not been probed yet"),
        (Liveness.REFUSED, ACTIVE,
         but(probes={target(ACTIVE): Probe(injected=False, why="connection refused")}),
         "connection refused"),
        (Liveness.NOT_PROBED, ACTIVE,
         but(probes={target(ACTIVE): Probe(injected=False, why="no connection", reached=False)}),
         "no connection"),
        (Liveness.NO_SERVICE, each_webhook(DEFAULT, clientConfig={"caBundle": BUNDLE}), LIVE,
         "it names neither Service nor URL"),
        (Liveness.LIVE, ACTIVE, but(slices=[endpoints("istiod", GONE), *LIVE.slices]), "injects"),
        (Liveness.LIVE, ACTIVE, but(slices=(), unseen=UNSEEN), "it injects"),
        (Liveness.NOT_PROBED, ACTIVE, but(slices=(), unseen=UNSEEN, probes={}), "not been probed"),
    ],
)  # fmt: skip
def test_the_first_check_that_fails_is_the_state(
    state: Liveness, configuration: Configuration, facts: Facts, why: str
) -> None:
    """A ready istiod is not yet live. A probe that reached no injector shows nothing.

    istio#3716.
    """
    found = one(configuration, facts)

    assert (found.state, found.live) == (state, state is Liveness.LIVE)
    assert why in found.why
    assert found.native is (Capability.NATIVE if found.live else Capability.UNKNOWN)
    assert found.configuration == configuration.metadata.name
    assert found.revision == "default"


@pytest.mark.parametrize(
    "found", [[], [each_webhook(DEFAULT, name="webhook.cert-manager.io")]], ids=["none", "others"]
)
def test_without_any_configuration_the_injector_is_absent(found: list[Configuration]) -> None:
    """istio#3716: also where there are configurations of others, and none that is Istio's."""
    [injector] = evaluate(hooks_of(found), LIVE)
    assert (injector.state, injector.live) == (Liveness.ABSENT, False)
    assert injector.why == "no webhook configuration of Istio's injector"
    assert (injector.configuration, injector.revision) == ("", "")


@pytest.mark.parametrize("more", [{"caBundle": BUNDLE}, {}], ids=["its own", "the system's"])
def test_an_injector_behind_a_url_is_live_by_its_probe_alone(more: dict[str, str]) -> None:
    """There is no Service. A vendor that runs istiod for its users needs no caBundle."""
    url = "https://istiod.example.com:15017/inject"
    configuration = each_webhook(DEFAULT, clientConfig={"url": url, **more})
    probed = {target(configuration): INJECTS}

    assert one(configuration, but(slices=())).state is Liveness.NOT_PROBED
    assert one(configuration, but(slices=(), probes=probed)).live


def test_control_planes_are_judged_one_by_one() -> None:
    slices = [endpoints("istiod", READY), endpoints("istiod-1-30-3", GONE)]

    found = evaluate(hooks_of([OTHER, recorded(ORIGINAL), ACTIVE]), but(slices=slices))

    assert [(each.configuration, each.revision, each.state) for each in found] == [
        (DEFAULT, "default", Liveness.LIVE),
        (REVISED, REVISION, Liveness.NO_ENDPOINT),
    ]


def test_only_the_control_plane_in_the_root_namespace_counts_where_one_is_given() -> None:
    [elsewhere] = evaluate(hooks_of([ACTIVE, OTHER]), LIVE, root="kubeflow")

    by_url = each_webhook(REVISED, clientConfig={"url": "https://istiod", "caBundle": BUNDLE})

    assert len(evaluate(hooks_of([ACTIVE, OTHER]), LIVE, root="istio-system")) == 2
    assert len(evaluate(hooks_of([ACTIVE, by_url]), LIVE, root="istio-system")) == 1
    assert elsewhere.state is Liveness.ABSENT
    assert elsewhere.why.endswith("injector for a control plane in namespace kubeflow")


@pytest.mark.parametrize("reverse", [False, True])
def test_of_the_webhooks_of_one_configuration_the_worst_counts(reverse: bool) -> None:
    """A vendor's may lead to different Services, one of which is not there."""

    def edit(body: dict[str, Any]) -> None:
        body["webhooks"][1]["clientConfig"]["service"]["name"] = "gone"
        if reverse:
            body["webhooks"].reverse()

    found = one(edited(DEFAULT, edit))

    assert (found.state, found.native) == (Liveness.NO_SERVICE, Capability.UNKNOWN)
    assert "istio-system/gone" in found.why


N, C, U = Capability.NATIVE, Capability.CLASSIC, Capability.UNKNOWN
PENDING = (U, "")
"""It has not been found out yet, which is why there is no reason."""


@pytest.mark.parametrize(
    ("natives", "live", "answer"),
    [
        row("nobody injects", (), (), PENDING),
        row("one that does", ((N, "so"),), (True,), (N, "0: so")),
        row("one of them does not", ((N, "so"), (C, "no")), (True, True), (C, "1: no")),
        row("one of them cannot say", ((N, "so"), (U, "403")), (True, True), (U, "1: 403")),
        row("one of them does not say yet", ((N, "so"), PENDING), (True, True), PENDING),
        row("who may say yet is waited for", ((U, "403"), PENDING), (True, True), PENDING),
        row("a no is surer than silence", (PENDING, (C, "no")), (True, True), (C, "1: no")),
        row("what is not live makes none", ((N, "so"), (C, "no")), (True, False), (N, "0: so")),
    ],
)
def test_a_new_pods_sidecar_is_native_when_every_live_injector_makes_native_ones(
    natives: tuple[tuple[Capability, str], ...],
    live: tuple[bool, ...],
    answer: tuple[Capability, str],
) -> None:
    found = tuple(
        Injector(
            state=Liveness.LIVE if up else Liveness.REFUSED,
            why="",
            configuration=str(number),
            native=native,
            native_why=why,
        )
        for number, ((native, why), up) in enumerate(zip(natives, live, strict=True))
    )

    check = ControlPlanes(injectors=found).native
    assert (check.capability, check.why) == answer
    assert ControlPlanes(injectors=found[::-1]).native.capability is answer[0]


UP = Injector(state=Liveness.LIVE, why="it injects", configuration="new", native=Capability.NATIVE)
FAR = Injector(state=Liveness.NOT_PROBED, why="no connection", configuration="far")
DOWN = Injector(state=Liveness.REFUSED, why="it is no istiod", configuration="old")


@pytest.mark.parametrize(
    ("known", "live"), [(True, [True, False, None, False]), (False, [True, None, None, None])]
)
def test_an_injector_is_live_not_live_or_not_known(known: bool, live: list[bool | None]) -> None:
    planes = ControlPlanes(injectors=(UP, DOWN, FAR), known=known)
    assert [planes.live(name) for name in ("new", "old", "far", "gone")] == live


@pytest.mark.parametrize(
    ("planes", "live"),
    [
        row("one of several", ControlPlanes(injectors=(DOWN, FAR, UP)), True),
        row("one may be", ControlPlanes(injectors=(DOWN, FAR), known=True), None),
        row("none", ControlPlanes(injectors=(DOWN,), known=True), False),
        row("none that is known yet", ControlPlanes(injectors=(DOWN,)), None),
        row("nothing is known at first", ControlPlanes(), None),
    ],
)
def test_one_live_injector_is_enough_for_a_mesh(planes: ControlPlanes, live: bool | None) -> None:
    assert planes.any_live is live


@pytest.mark.parametrize(
    ("labels", "capability", "proxy"),
    [
        (ENABLED, Capability.UNASKED, {"limits.cpu": 1}),
        ({"istio.io/rev": REVISION}, Capability.NATIVE, {"limits.cpu": 2}),
        # Its label is still to be added: so what both can do counts.
        ({}, Capability.NATIVE, None),
    ],
)
def test_a_new_pod_starts_by_what_its_own_injector_makes(
    labels: dict[str, str], capability: Capability, proxy: dict[str, int] | None
) -> None:
    """A revision beside another one is the usual way of an upgrade."""
    hooks = hooks_of([ACTIVE, OTHER])
    unasked = Probe(injected=True, native=NativeCheck(Capability.UNASKED, "unasked"))
    probes = {target(ACTIVE): unasked, target(OTHER): INJECTS}
    planes = ControlPlanes(
        injectors=evaluate(hooks, but(probes=probes)),
        hooks=hooks,
        proxies={ACTIVE.metadata.name: {"limits.cpu": 1}, OTHER.metadata.name: {"limits.cpu": 2}},
        known=True,
    )

    how = planes.start(StartPolicy(), InjectionRequest(namespace="team", namespace_labels=labels))

    assert (how.capability, how.proxy) == (capability, proxy)


ALL = [recorded(DEFAULT), recorded(ORIGINAL), recorded(REVISED)]
Namespaces = Mapping[str, Mapping[str, str]]
PLAIN = {"kubernetes.io/metadata.name": "plain"}
ALL_KINDS = {"meshed": ENABLED, "plain": PLAIN, "revised": {"istio.io/rev": REVISION}}
ISTIOD = target(recorded(DEFAULT))


def may_ask(
    whom: ClientConfig, namespaces: Namespaces, configurations: list[Configuration] = ALL
) -> list[Question]:
    return [*questions(whom, hooks_of(configurations), namespaces)]


def asked(
    whom: ClientConfig, namespaces: Namespaces, configurations: list[Configuration] = ALL
) -> Question:
    return may_ask(whom, namespaces, configurations)[0]


@pytest.mark.parametrize(
    ("whom", "namespaces"),
    [
        (DEFAULT, {"meshed": ENABLED}),
        (DEFAULT, {"plain": PLAIN}),
        (DEFAULT, ALL_KINDS),
        (REVISED, {"plain": PLAIN}),
        (REVISED, ALL_KINDS),
    ],
)
def test_the_pod_is_one_that_the_api_server_would_ask_the_injector_about(
    whom: str, namespaces: Namespaces
) -> None:
    found, hooks = asked(target(recorded(whom)), namespaces), hooks_of(ALL)

    policies = {hook.control_plane: InjectionPolicy(policy="disabled") for hook in hooks}
    pod = convert(json.loads(found.body(native=True)))
    verdict = expected(pod, namespaces[found.namespace], hooks, policies)
    assert (verdict.expected, verdict.configuration) == (True, whom)


@pytest.mark.parametrize(
    ("whom", "namespaces"),
    [
        (DEFAULT, {}),
        (DEFAULT, {"kube-system": ENABLED}),
        (DEFAULT, {"off": {"istio-injection": "disabled"}}),
        (REVISED, {"meshed": ENABLED}),
    ],
)
def test_where_no_pod_would_be_it_is_not_asked(whom: str, namespaces: Namespaces) -> None:
    assert not may_ask(target(recorded(whom)), namespaces)


def test_a_namespace_that_another_injector_is_called_for_as_well_shows_nothing() -> None:
    """Were that one dead, its error would be taken for this one's."""
    both = each_webhook(
        DEFAULT, namespaceSelector={}, objectSelector={}, name="x.sidecar-injector.istio.io"
    )
    rival = each_webhook(
        REVISED,
        clientConfig={"service": {"namespace": "kubeflow", "name": "istiod"}},
        namespaceSelector={"matchLabels": {"rival": "yes"}},
        objectSelector={},
    )
    rivals = {"a": {"rival": "yes"}}

    assert not may_ask(ISTIOD, rivals, [both, rival])
    assert asked(ISTIOD, {**rivals, "b": {}}, [both, rival]).namespace == "b"


def test_namespaces_that_may_refuse_the_sidecar_itself_come_last() -> None:
    restricted = {**ENABLED, "pod-security.kubernetes.io/enforce": "restricted"}

    assert asked(ISTIOD, {"a": restricted, "b": ENABLED}).namespace == "b"
    assert asked(ISTIOD, {"a": restricted}).namespace == "a"


def test_native_sidecars_are_tried_first_where_they_will_be_asked_for() -> None:
    """A webhook after Istio's may be called in some namespaces only."""
    namespaces = {"a": ENABLED, "b": {**ENABLED, "team": "x"}, "c": {}}
    found = questions(ISTIOD, hooks_of(ALL), namespaces, parse_namespaces("team=x"))
    first, *others = [question.namespace for question in found]

    assert (first, {*others}) == ("b", {"a", "c"})
    assert asked(ISTIOD, namespaces).namespace != "b"


def test_namespaces_that_go_take_no_pods_and_may_be_gone_in_the_middle() -> None:
    namespaces = {"a": ENABLED, "b": ENABLED, "c": ENABLED, "d": ENABLED, "e": ENABLED | {"x": ""}}
    found = questions(ISTIOD, hooks_of(ALL), namespaces, parse_namespaces("!x"), terminating={"a"})

    assert next(found).namespace == "b"
    del namespaces["c"], namespaces["e"]
    assert [each.namespace for each in found] == ["d"]
    assert not [*questions(ISTIOD, hooks_of(ALL), {"a": ENABLED}, terminating={"a"})]


PROXY = {"name": "istio-proxy"}


@pytest.mark.parametrize(
    ("versions", "assured"),
    [
        (("v1.32.0", "v1.33.1+k3s1", "v1.36.0-alpha.1", "v2.0.0"), True),
        (("v1.31.9", "1.30.1", "", "v1.99999999999999999999"), False),
    ],
)
def test_only_a_new_api_server_has_no_old_kubelets(
    versions: tuple[str, ...], assured: bool
) -> None:
    assert {*map(kubelets_assured, versions)} == {assured}


@pytest.mark.parametrize(
    ("kubelets", "ruled_out", "why"),
    [
        ({"a": "v1.29.0", "b": "v1.31.2-eks-1"}, None, ""),
        ({"a": "v1.31.0", "b": "v1.28.9"}, C, 'node b: kubelet "v1.28.9" runs no native sidecars'),
        ({"a": "v1.19.10-vk-azure"}, C, "node a: "),
        ({}, U, "there is no node"),
    ],
)
def test_every_kubelet_has_to_run_native_sidecars(
    kubelets: Mapping[str, str], ruled_out: Capability | None, why: str
) -> None:
    found = of_kubelets(kubelets)

    assert (found.capability if found else None) is ruled_out
    assert found is None or why in found.why


@pytest.mark.parametrize(
    ("spec", "capability", "why"),
    [
        (
            {"initContainers": [{"name": "istio-init"}, PROXY | {"restartPolicy": "Always"}]},
            N,
            "native on request",
        ),
        ({"initContainers": [PROXY]}, C, "removes restartPolicy"),
        ({"containers": [{"name": "main"}, PROXY]}, C, "no native sidecars, not even on request"),
        ({"containers": [{"name": "main"}]}, None, "no sidecar to a pod that asks for one"),
    ],
)
def test_a_dry_run_shows_what_a_pod_gets(
    spec: dict[str, Any], capability: Capability | None, why: str
) -> None:
    found = created(json.dumps({"spec": spec}).encode())

    assert found.injected is (capability is not None)
    assert capability is None or found.native.capability is capability
    assert why in found.why + found.native.why


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b'{"spec": 3}', b"\xff"])
def test_an_answer_that_is_no_pod_shows_no_sidecar(body: bytes) -> None:
    assert "a dry run is not a pod" in created(body).why


# What is done about a pod without a sidecar: the decision table, in English.

INJECTED = {"sidecar.istio.io/status": "{}"}
LONG = {f"a{number}": "" for number in range(1_001)}
JOB_KINDS = [
    JOB,
    ("kubeflow.org/v2beta1", "MPIJob"),
    *(
        ("kubeflow.org/v1", kind)
        for kind in ("JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob")
    ),
]


@table(
    Row("a Deployment's pod", unmeshed()),
    *(
        Row(f"a {owner[1]}'s pod", unmeshed(owner=owner, name="charm-a-0"))
        for owner in (STATEFUL, ("apps/v1", "DaemonSet"), ("v1", "ReplicationController"))
    ),
    Row(
        "a pod that asks for a sidecar by its label",
        unmeshed(labels={INJECT: "true"}, annotations={INJECT: "false"}),
    ),
    Row(
        "a charm's pod, in a model beside that of istio-aux",
        unmeshed(labels={NAME: OURSELVES.name, "operator.juju.is/name": "charm-a"}),
    ),
    Row("an ambient pod that Istio injects", unmeshed(labels={DATAPLANE: "ambient"})),
)
def test_restarted(row: Row) -> None:
    """istio#15873: a pod whose controller makes a new one is evicted under `restart`."""
    assert decide_repair(row.pod) == Restart(
        reason=f"the pod has no sidecar and should have one: {YES.reason}",
    )


@table(
    Row(
        "a pod with a classic sidecar",
        unmeshed({"main": RUNNING, "istio-proxy": RUNNING}),
        "the pod has a container istio-proxy",
    ),
    Row(
        "a pod on its node's network",
        unmeshed(spec={"hostNetwork": True}),
        "hostNetwork",
    ),
    Row(
        "the image of a static pod",
        unmeshed(annotations={"kubernetes.io/config.mirror": "8f2e"}),
        "mirrors a static pod",
    ),
    Row(
        "a pod that succeeded",
        unmeshed_job(phase="Succeeded"),
        "the pod is finished: phase Succeeded",
    ),
    Row("a pod that is being deleted", unmeshed(deleting=True), "the pod is being deleted"),
    Row(
        "a pod that its label keeps out of the mesh",
        unmeshed(labels={INJECT: "false"}, annotations={INJECT: "true"}),
        f'label {INJECT}: "false"',
    ),
    *(
        Row(f"a pod of {name}", unmeshed(namespace=name), name)
        for name in ("kube-system", "kube-public", "kube-node-lease", "local-path-storage")
    ),
    *(
        Row(
            f"a pod of Juju itself: {key}",
            unmeshed(labels={key: value}),
            f"Juju needs the pod: label {key}",
        )
        for key, value in (
            ("operator.juju.is/name", "modeloperator"),
            ("juju-modeloperator", "modeloperator"),
            ("model.juju.is/disable-webhook", "true"),
        )
    ),
    Row(
        "a unit of istio-aux",
        unmeshed(owner=STATEFUL, namespace=OURSELVES.namespace, labels={NAME: OURSELVES.name}),
        "the pod is one of istio-aux itself",
    ),
)
@pytest.mark.parametrize("expectation", [YES, UNKNOWN])
def test_ignored(row: Row, expectation: Expectation) -> None:
    """Nobody touches, or even mentions, a pod that is to have no sidecar, or has one.

    istio#15873.
    """
    decision = decide_repair(row.pod, RESTART, expectation)
    assert type(decision) is Skip, decision
    assert row.because in decision.reason


@table(
    Row(
        "a pod with more labels than are looked at",
        unmeshed(labels=LONG),
        "bytes of names and labels, not at most 3072",
    ),
    Row(
        "a pod that says itself that Istio injected it",
        unmeshed(annotations=INJECTED),
        "annotation sidecar.istio.io/status without a container istio-proxy",
    ),
    *(
        Row(
            f"a pod with a container of its own, {where}, that has the name of the proxy",
            unmeshed(spec={where: [{"name": "istio-proxy"}]}),
            "container istio-proxy without annotation sidecar.istio.io/status",
        )
        for where in ("containers", "initContainers")
    ),
)
@pytest.mark.parametrize("expectation", [YES, UNKNOWN])
def test_what_a_pod_could_say_of_itself_does_not_show_that_it_is_in_its_mesh(
    row: Row, expectation: Expectation
) -> None:
    """The injector writes both (istio inject.go). No such pod is touched."""
    decision = decide_repair(row.pod, RESTART, expectation)
    assert type(decision) is NotKnown, decision
    assert row.because in decision.reason
    assert type(decide_repair(row.pod, RESTART, NO)) is Skip


@pytest.mark.parametrize("file", [*(ROOT / "tests/data").glob("*/pod-*.json")])
def test_what_istio_has_injected_is_believed(file: Path) -> None:
    found = json.loads(file.read_text())
    found["status"] = {"phase": "Running"}
    assert decide_repair(convert(found)) == Skip(reason="the pod has a container istio-proxy")


@table(
    Row("a bare pod", unmeshed(owner=None), "the pod has no controller that would make a new one"),
    # Owners may be named for garbage collection alone.
    Row("an owner that does not control", unmeshed(controls=False), "the pod has no controller"),
    Row(
        "a pod of a controller that nobody knows",
        unmeshed(owner=("argoproj.io/v1alpha1", "Workflow")),
        "its controller Workflow (argoproj.io/v1alpha1) is not known to make a new pod",
    ),
    *(
        Row(
            f"the pod of a {kind} of {api}",
            unmeshed_job(owner=(api, kind)),
            f"it is {'an' if kind in {'MPIJob', 'XGBoostJob'} else 'a'} {kind}'s: delete the {kind}"
            " and apply it again, as `kubectl replace --force",
        )
        for api, kind in JOB_KINDS
    ),
    Row("a pod whose node does not report", unmeshed(phase="Unknown"), "phase Unknown"),
    *(
        Row(f"a pod without a {name}", unmeshed(**{name: ""}), "without uid and resourceVersion")
        for name in ("uid", "version", "owner_uid")
    ),
)
def test_reported_under_restart(row: Row) -> None:
    """What cannot be restarted safely is reported, with why it is not restarted.

    istio#3716, istio#15873.
    """
    decision = decide_repair(row.pod)
    assert isinstance(decision, ReportUnmeshed), decision
    assert decision.unmeshed
    found = f"the pod has no sidecar and should have one: {YES.reason}; not restarted: "
    assert decision.reason.startswith(found + row.because)


@pytest.mark.parametrize(
    ("policy", "expectation", "action"),
    [
        *(
            (policy, *found)
            for policy in (REPORT, RESTART)
            for found in (
                (UNKNOWN, ReportUnmeshed(
                    f"not known whether the pod should have a sidecar: {UNKNOWN.reason}",
                    Code.MESH_UNKNOWN)),
                (NO, Skip(reason=NO.reason)),
            )
        ),
        (REPORT, YES, ReportUnmeshed(
            f"the pod has no sidecar and should have one: {YES.reason}", Code.NO_SIDECAR)),
        (NONE, YES, Skip(reason="race-policy: none")),
    ],
)  # fmt: skip
def test_a_pod_is_never_restarted_on_a_guess_or_without_need(
    policy: RepairPolicy, expectation: Expectation, action: RepairAction
) -> None:
    """Unknown is never healthy: it is reported, but not that the pod is unmeshed.

    istio#3716: under `report` an unmeshed pod is found, and not touched.
    """
    assert decide_repair(unmeshed(), policy, expectation) == action


@pytest.mark.parametrize(
    ("live", "because"), [(False, "is not live"), (None, "not known if the injector is live")]
)
def test_a_pod_is_only_reported_while_its_injector_is_not_live(
    live: bool | None, because: str
) -> None:
    """The API server might refuse the new pod."""
    away = decide_repair(unmeshed(), live=live)
    assert isinstance(away, ReportUnmeshed)
    assert (away.unmeshed, away.reason.endswith(because)) == (True, True)


# Pods of an ambient mesh.

MESHED = {DATAPLANE: "ambient"}
LEFT_OUT = "outside the mesh: it has no annotation ambient.istio.io/redirection; it should be in: "
OLD = "may be of an earlier network, whose rules istio-cni may not have renewed: "
AWAY = NodeAgent(config=CNI, lacks="istio-cni is not ready on node node-1")
# Agents of Istio 1.28, which write no rules again when they start: from before and after the
# second network of a pod.
BEFORE, AFTER = (
    structs.replace(CNI_READY, config=read_config({}), ready_since=at) for at in (1.0, 4e9)
)


def set_to(**settings: str) -> dict[str, NodeAgent]:
    return {"agent": structs.replace(CNI_READY, config=read_config(settings))}


@pytest.mark.parametrize(
    ("found", "facts", "kind", "because"),
    [
        (ambient(), {"agent": AWAY}, Captured, "the pod is in the ambient mesh"),
        (ambient(labels={INJECT: "false"}), {}, Captured, "the pod is in the ambient mesh"),
        (ambient(renewed=True), {}, Captured, "the pod is in the ambient mesh"),
        (ambient(renewed=True), {"agent": AWAY}, Captured, "the pod is in the ambient mesh"),
        (ambient(renewed=True), {"agent": BEFORE}, Captured, "the pod is in the ambient mesh"),
        (ambient(renewed=True), {"agent": AFTER}, ReportUnmeshed, OLD + "it came after that net"),
        (ambient(renewed=True), {"agent": NodeAgent()}, ReportUnmeshed, OLD + "istio-cni is not"),
        (ambient(""), {"settled": False}, AwaitCapture, "not captured yet: it has no annotation"),
        (ambient("", address=""), {}, AwaitCapture, "not captured yet: it has no address"),
        (ambient("pending", address="", owner=None), {"settled": False}, AwaitCapture, "not capt"),
        (ambient(""), {"agent": AWAY}, ReportUnmeshed, "redirection; istio-cni is not ready on"),
        (ambient(""), {"agent": NodeAgent()}, ReportUnmeshed, "; istio-cni is not known"),
        (ambient(""), {"agent": NodeAgent(ready_since=1.0, lacks="ConfigMap a/b: 403")},
         ReportUnmeshed, "captures: ConfigMap a/b: 403"),
        (ambient(""), {}, Restart, LEFT_OUT + AMBIENT.reason),
        (ambient("", labels={INJECT: "false"}), {"live": False}, Restart, LEFT_OUT),
        (ambient("pending"), {}, ReportUnmeshed, "not restarted: istio-cni tries again until ztun"),
        (ambient("pending", address=""), {"agent": AWAY}, ReportUnmeshed, "the pod has no network"),
        (ambient("x" * 99), {}, Restart, LEFT_OUT),
        (ambient(""), set_to(EXCLUDE_NAMESPACES="a, shop"), Skip, "EXCLUDE_NAMESPACES has shop"),
        (ambient("pending"), set_to(EXCLUDE_NAMESPACES="shop"), Skip, "does not capture it"),
        (ambient(""), set_to(AMBIENT_ENABLED="false"), Skip, "AMBIENT_ENABLED is false in Conf"),
        (ambient(""), set_to(AMBIENT_ENABLEMENT_SELECTOR="[]"), Skip, "SELECTOR does not match"),
        (ambient("", owner=JOB), {}, ReportUnmeshed, "not restarted: it is a Job's"),
        (ambient("", owner=None), {}, ReportUnmeshed, "not restarted: the pod has no controller"),
        (ambient("", annotations=INJECTED), {}, NotKnown, "without a container istio-proxy"),
        (ambient(labels=LONG), {}, Captured, "the pod is in the ambient mesh"),
        (ambient("", spec={"hostNetwork": True}), {}, Skip, "hostNetwork"),
        (ambient("", phase="Succeeded"), {}, Skip, "the pod is finished"),
    ],
)  # fmt: skip
def test_a_pod_that_istios_cni_did_not_capture_is_outside_the_mesh(
    found: dict[str, Any], facts: dict[str, Any], kind: type[RepairAction], because: str
) -> None:
    """istio#61182, istio#55968. Unknown is not outside, and "pending" is no network at all."""
    decision = decide_repair(convert(found), RESTART, AMBIENT, **{"settled": True, **facts})
    assert type(decision) is kind, decision
    assert because in decision.reason


@pytest.mark.parametrize(
    ("namespace", "labels", "istio", "captured"),
    [
        (MESHED, {}, NO, True),
        ({}, MESHED, NO, True),
        (MESHED, {DATAPLANE: "none"}, NO, False),
        ({DATAPLANE: "none"}, MESHED, NO, True),
        ({}, {}, NO, False),
        (MESHED, {}, YES, False),
        (MESHED, {}, UNKNOWN, False),
        (MESHED, {"chosen": "no"}, NO, False),
        ({**MESHED, "selected": "no"}, {}, NO, False),
        ({**MESHED, "going": "yes"}, {}, NO, False),
    ],
)  # fmt: skip
def test_istios_cni_captures_what_has_the_label_and_gets_no_sidecar(
    namespace: dict[str, str], labels: dict[str, str], istio: Expectation, captured: bool
) -> None:
    """istio cni/pkg/util/enablement_selector.go Matches; only pods that are looked after count."""
    options = PodOptions(namespaces=parse_namespaces("selected!=no"), pods=parse("chosen!=no"))
    pod = Candidate.of(convert(raw(labels=labels)))
    terminating = {"shop"} if "going" in namespace else ()
    _, found = as_admitted(
        pod, namespace, options, Applications(), lambda _injection: istio, terminating=terminating
    )
    assert found.ambient is captured


@pytest.mark.parametrize(
    "wanted",
    [
        *("a Job", "a TFJob", "a JAXJob", "a PyTorchJob", "a Node", "a ReplicaSet"),
        *("an MPIJob", "an XGBoostJob", "an APIService", "an HTTPRoute", "an IngressClass"),
    ],
)
def test_the_article_of_a_kind_is_that_which_is_spoken(wanted: str) -> None:
    assert with_article(wanted.split()[1]) == wanted
