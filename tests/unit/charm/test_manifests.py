"""The rendered objects; `tests/cluster/test_webhooks.py` shows what API servers do with them.

SECURITY.md tells of every right of the workload, and of every rule that narrows one.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from istio_aux import rights, settings
from istio_aux.model.annotations import STATUS_PORT
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import DeadProxy, QuitMode, QuitPolicy, RacePolicy
from istio_aux.model.sidecars import SHIPPED
from istio_aux.quit.attempt import Send
from istio_aux.quit.rules import Quit, Way
from lab.workload import configured, rendered_from
from unit.rules.pods import RUNNING, decide, exited, job

import manifests
import workload
from config import Applications, parse_namespaces_selected
from manifests import Values

from .conftest import ROOT, Unit
from .test_reconcile import BEFORE_1_30
from .test_workload import NAMES

PODS = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}
# As `istioctl install` and Charmed Kubeflow name Istio's (reference: istio-discovery chart).
ISTIO = [
    "istio-revision-tag-default",
    "istio-revision-tag-default-kubeflow",
    "istio-sidecar-injector",
    "istio-sidecar-injector-1-28",
    "istio-sidecar-injector-kubeflow",
]


def webhooks(**values: Any) -> list[dict[str, Any]]:
    """The webhooks of an application with these values."""
    (configuration,) = manifests.render_webhook(Values("istio-aux", "kubeflow", **values))
    return configuration.to_dict()["webhooks"]


@pytest.mark.parametrize(("app", "model"), [("istio-aux", "kubeflow"), ("z" * 63, "z" * 63)])
def test_our_configuration_sorts_before_all_of_istio(app: str, model: str) -> None:
    ours = manifests.webhook_configuration(app, model)

    assert min(*ISTIO, ours, key=str.encode) == ours


def test_every_webhook_takes_three_seconds_at_most_and_sees_only_new_pods() -> None:
    inject = (Applications("kubeflow", ("*",)), Applications("team", ("a", "b")))

    found = webhooks(inject=inject, inject_namespaces=("meshed",))

    assert [webhook["name"] for webhook in found] == [
        "start.istio-aux.io",
        "injected.start.istio-aux.io",
        "kubeflow.inject.istio-aux.io",
        "team.inject.istio-aux.io",
    ]
    for webhook in found:
        (rule,) = webhook["rules"]
        assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
        assert webhook["timeoutSeconds"] == 3
        assert webhook["failurePolicy"] == "Ignore"
        assert webhook["reinvocationPolicy"] == "IfNeeded"
        assert webhook["sideEffects"] == "None"
        assert webhook["matchConditions"]


@pytest.mark.parametrize("odd", ['quote"', "{{ braces }}", "null"])
def test_the_namespace_selector_is_as_written_but_for_kube_system(odd: str) -> None:
    own = {"key": "team", "operator": "Exists"}
    given = {"matchLabels": {"key": odd}, "matchExpressions": [own]}

    selector = webhooks(namespace_selectors=[given])[0]["namespaceSelector"]

    never = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
    assert selector["matchLabels"] == {"key": odd}
    assert [each for each in (own, never) if each not in selector["matchExpressions"]] == []


def test_istiod_and_istioctl_do_not_take_it_for_an_injector() -> None:
    values = Values("a", "m", inject=(Applications("sidecar-injector", ("*",)),))
    configuration = manifests.render_webhook(values)[0].to_dict()

    assert "istio.io/rev" not in configuration["metadata"]["labels"]
    assert configuration["metadata"]["labels"].get("app") != "sidecar-injector"
    theirs = (".istio.io", "/istio.io", "sidecar-injector.istio.io")
    assert not [hook["name"] for hook in configuration["webhooks"] if hook["name"].endswith(theirs)]


def test_the_account_is_narrowed_before_it_gets_its_roles() -> None:
    kinds = [each.kind for each in manifests.render_access(Values("a", "m", repairs=True))]

    assert kinds.count("ValidatingAdmissionPolicyBinding") == 2
    narrowed = len(kinds) - kinds[::-1].index("ValidatingAdmissionPolicyBinding")
    assert narrowed < min(kinds.index("ClusterRoleBinding"), kinds.index("RoleBinding"))


def test_the_policy_for_the_account_knows_both_selectors() -> None:
    selector = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}
    values = Values("a", "m", namespace_selectors=[selector, {}], pod_selector=PODS)

    policy, _ = [
        found.to_dict()
        for found in manifests.render_access(values)
        if found.kind == "ValidatingAdmissionPolicy"
    ]

    told = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    never = (
        '!("kubernetes.io/metadata.name" in variables.labels'
        ' && variables.labels["kubernetes.io/metadata.name"] in ["kube-system"])'
    )
    assert told["selected"] == f'("team" in variables.labels && {never}) || ({never})'
    assert told["chosen"] == (
        '"team" in variables.podLabels && variables.podLabels["team"] in ["a", "b"]'
    )


def test_the_order_of_namespace_selectors_changes_nothing() -> None:
    read = parse_namespaces_selected

    assert read("b;a;c") == read("c; a;b;a")


def test_the_pod_selector_does_not_narrow_the_webhooks_of_named_applications_and_namespaces() -> (
    None
):
    inject = (Applications("shop", ("*",)),)

    found = webhooks(pod_selector=PODS, inject=inject, inject_namespaces=("bank",))

    (chosen,) = PODS["matchExpressions"]
    selectors = {hook["name"]: hook["objectSelector"]["matchExpressions"] for hook in found}
    assert len(selectors) == 3
    assert {name for name, found in selectors.items() if chosen in found} == {"start.istio-aux.io"}


@pytest.mark.parametrize(
    ("inject", "chosen"),
    [
        pytest.param(
            (
                Applications("kubeflow", ("istio-aux", "web")),
                Applications("team", ("istio-aux",)),
            ),
            [["web"], ["istio-aux"]],
            id="in our own model only",
        ),
        # The API server refuses an `In` without values.
        pytest.param(
            (Applications("kubeflow", ("istio-aux",)),), [], id="and is not there for us alone"
        ),
    ],
)
def test_a_webhook_for_named_applications_leaves_us_out(
    inject: tuple[Applications, ...], chosen: list[list[str]]
) -> None:
    start, *more = webhooks(inject=inject)

    assert start["name"] == "start.istio-aux.io"
    assert [
        expression["values"]
        for webhook in more
        for expression in webhook["objectSelector"]["matchExpressions"]
        if expression["key"] == "app.kubernetes.io/name"
    ] == chosen


def test_each_selector_has_a_webhook_that_goes_with_it(unit: Unit) -> None:
    def made() -> dict[str, str]:
        """The label that each of them looks at first."""
        return {
            each["name"]: each["namespaceSelector"]["matchExpressions"][0]["key"]
            for each in unit.api.webhooks
        }

    profile, ours = "app.kubernetes.io/part-of", "io.datastrophic/istio-aux"
    assert made() == {"start.istio-aux.io": profile, "2.start.istio-aux.io": ours}

    unit.configure(namespace_selectors="team")

    assert made() == {"start.istio-aux.io": "team"}


TEXT = (ROOT / "SECURITY.md").read_text()
CHOICES: dict[str, tuple[str, ...]] = {
    "quit": tuple(map(str, QuitMode)),
    "dead-proxy": tuple(map(str, DeadProxy)),
    "race-policy": tuple(map(str, RacePolicy)),
}

COMBINATIONS = [
    dict(zip(CHOICES, chosen, strict=True)) for chosen in itertools.product(*CHOICES.values())
]
# `check` cannot ask whether these are there: names that depend on what Istio and the charm chose.
UNASKED = {("ClusterRole", "configmaps", "get")}

Right = tuple[str, str, str]
"""Kind of role, resource and verb."""


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    what: str
    rights: frozenset[Right]
    when: Mapping[str, tuple[str, ...]]  # Options, and the values that each may have.
    narrowed: tuple[str, ...]  # What the policies say.

    def holds(self, options: Mapping[str, Any]) -> bool:
        return all(str(options[name]).lower() in values for name, values in self.when.items())


def table() -> list[Row]:
    """The rows of the table of rights."""
    lines = TEXT.partition("| what | rights,")[2].split("\n\n")[0].splitlines()[2:]
    return [row(*(cell.strip() for cell in line.strip("| ").split(" | "))) for line in lines]


def row(what: str, rights: str, where: str, when: str, policies: str) -> Row:
    kind = "Role" if where == "its own model" else "ClusterRole"
    return Row(
        what,
        frozenset(
            (kind, resource, verb.strip())
            for part in rights.split(";")
            for resource in re.findall(r"`([^`]+)`", part.partition(":")[0])
            for verb in part.partition(":")[2].split(",")
        ),
        # `name` `value` or `value`, joined by `and`.
        {
            name: tuple(values.replace("`", "").split(" or "))
            for name, values in re.findall(r"`([^`]+)` (`[^`]+`(?: or `[^`]+`)*)", when)
        },
        () if policies == "all" else tuple(policies.split("; ")),
    )


def rendered(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the charm creates with these options."""
    values = rendered_from("istio-aux", "kubeflow", options)
    return [each.to_dict() for each in manifests.render_access(values)]


def granted(objects: list[dict[str, Any]]) -> set[Right]:
    return {
        (found["kind"], resource, verb)
        for found in objects
        if found["kind"] in {"Role", "ClusterRole"}
        for rule in found["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("mode", CHOICES["quit"])
def test_the_table_has_the_rights_of_every_combination_of_options_and_no_other(mode: str) -> None:
    for options in COMBINATIONS:
        if options["quit"] == mode:
            told = [row.rights for row in table() if row.holds(options)]
            assert granted(rendered(options)) == frozenset().union(*told), options


def test_every_row_of_the_table_is_about_rights_that_some_options_grant() -> None:
    every = [(options, granted(rendered(options))) for options in COMBINATIONS]
    for row in table():
        assert row.rights, row.what
        assert any(row.holds(options) and row.rights <= rights for options, rights in every), row
        assert set(row.when) <= set(CHOICES), row


def test_what_the_table_says_of_the_policies_is_what_they_say() -> None:
    said = {
        validation["message"]
        for found in rendered({"race-policy": "restart"})
        if found["kind"] == "ValidatingAdmissionPolicy"
        for validation in found["spec"]["validations"]
    }
    in_table = {message for row in table() for message in row.narrowed}

    assert in_table <= said
    assert sorted(each for each in said if each not in " ".join(TEXT.split())) == []


def test_what_no_policy_narrows_is_only_reading() -> None:
    free = {right for row in table() if not row.narrowed for right in row.rights}

    assert {verb for _, _, verb in free} == {"get", "list", "watch"}
    policies = [
        found
        for found in rendered({"race-policy": "restart"})
        if found["kind"] == "ValidatingAdmissionPolicy"
    ]
    guarded = {
        resource
        for policy in policies
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    narrowed = {resource for row in table() if row.narrowed for _, resource, _ in row.rights}
    assert narrowed <= guarded | {each for each in narrowed if each.startswith("pods/")}
    assert "pods/*" in guarded


def test_no_role_grants_what_no_policy_looks_at() -> None:
    for options in COMBINATIONS:
        objects = rendered(options)
        free = {
            resource
            for found in objects
            if found["kind"] == "ValidatingAdmissionPolicy"
            for rule in found["spec"]["matchConstraints"].get("excludeResourceRules", ())
            for resource in rule["resources"]
        }

        # A kubelet writes the status of each of its pods.
        assert free == {"pods/status"}
        assert not {right for right in granted(objects) if right[1] in {*free, "pods/*", "*"}}


def test_check_asks_for_the_rights_of_every_combination_of_options(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    paths = dict.fromkeys(("tls-certificate", "tls-key"), "/none")
    for options in COMBINATIONS:
        file.write_text(yaml.safe_dump({"lease": "kubeflow/istio-aux", **paths, **options}))

        asked = {
            ("Role" if right.namespace else "ClusterRole", right.resource, right.verb)
            for right in rights.needed(settings.load(file))
        }

        assert asked == granted(rendered(options)) - UNASKED, options


SIDECARS = ",".join([*(f"{name}=quit" for name in SHIPPED), "c=1/,e=native,f=ignore"])


def allowed(objects: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    """What roles and policy allow to execute in istio-proxy; in other containers it is nothing."""
    if ("ClusterRole", "pods/exec", "get") not in granted(objects):
        return set()
    rules = [rule for found in objects for rule in found.get("spec", {}).get("validations", ())]
    text = "\n".join(rule["expression"] for rule in rules)
    assert f"!variables.executes || variables.options.?container.orValue('') == \"{PROXY}\"" in text
    (commands,) = re.findall(r"command\.orValue\(\[\]\) in (\[.*\])", text)
    return set(map(tuple, json.loads(commands)))


def sent(policy: QuitPolicy) -> Iterator[tuple[str, ...]]:
    """What is executed in pods with these status ports, and with each sidecar."""
    done, proxy, ports = exited(0), {PROXY: RUNNING}, (0, 8080, *range(14_999, 15_023))
    pods = [job({"main": done, **proxy}, annotations={STATUS_PORT: f"{port}"}) for port in ports]
    pods += [job({"main": done, rule.container: RUNNING, **proxy}) for rule in policy.sidecars]
    decisions = (decide(pod, policy) for pod in pods)
    for decision in (each for each in decisions if isinstance(each, Quit)):
        for way in {*decision.ways} - {Way.PORT_FORWARD}:
            yield Send(way, decision.port, decision.rule).command


@pytest.mark.parametrize("mode", CHOICES["quit"])
def test_what_is_sent_is_allowed_and_nothing_else(mode: str, tmp_path: Path) -> None:
    options = {"quit": mode, "sidecars": SIDECARS}
    written = workload.settings(configured("m", options).settings | NAMES)
    (file := tmp_path / "config.yaml").write_text(yaml.safe_dump(written))
    executed = {*sent(settings.load(file).quit_policy)} if mode == "enabled" else set[Any]()
    assert executed == allowed(rendered(options))


def test_without_validating_policies_the_workload_may_dry_run_no_pods(new_unit: Unit) -> None:
    """Kubernetes before 1.30. Nothing there could restrict the workload to dry runs of pods."""
    new_unit.api.unknown = BEFORE_1_30

    new_unit.configure()

    assert ("ClusterRole", "pods", "create") not in granted([*new_unit.api.objects.values()])
    said = [log.message for log in new_unit.ctx.juju_log if "skipped" in log.message]
    assert [line.split(": ")[0] for line in said] == [
        "ValidatingAdmissionPolicy istio-aux-kubeflow.istio-aux",
        "ValidatingAdmissionPolicyBinding istio-aux-kubeflow.istio-aux",
        "ValidatingAdmissionPolicy istio-aux-kubeflow.istio-aux.records",
        "ValidatingAdmissionPolicyBinding istio-aux-kubeflow.istio-aux.records",
    ]
