"""Both forms of admission do the same to pods, at a real API server: one table for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import lab
import lab.istio
import lightkube
import pytest
from istio_aux.model.annotations import START, STARTED_WITH
from istio_aux.model.policy import Capability, Start
from istio_aux.start.proxy_config import ANNOTATION as CONFIG
from lab import creation, meshed, start_cases
from lab.creation import Creation
from lab.fixtures import await_account
from lab.start_cases import Case, Outcome, outcome
from lab.versions import POLICY
from lab.workload import Workload, renamed
from lightkube.codecs import AnyResource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

import config
import manifests
import rules

FORM: Final = "lab.test/form"
# `unseen`: both, of which the API server has not seen the policy yet.
FORMS = ("webhook", "policy", "both", "unseen") if POLICY.there else ("webhook", "unseen")
BY_POLICY, BOTH = (pytest.param(form, marks=POLICY.needed) for form in ("policy", "both"))
# Those last that are awaited: the API server learns of objects in the order in which they are made.
# To a policy it is the same whether native cannot be had or is not known (`test_manifests.py`).
CASES = [case for case in start_cases.CASES if case.capability is not Capability.CLASSIC]
SETTINGS = tuple(dict.fromkeys(case.setting for case in CASES))
PAIRS = tuple(itertools.product(reversed(FORMS), SETTINGS))
# Namespaces of the Istio that a workload looks at, by what can be had; one of them has none.
ROOTS = {Capability.NATIVE: "start-istio", Capability.UNKNOWN: "start-nowhere"}


def called(setting: Start) -> str:
    """The name of the workload with that setting; the API server chooses pods for it."""
    asking = "-asking" if setting.inject else ""
    return f"start-{setting.mode}-{setting.capability}-{setting.peers}{asking}"


def name(form: str, setting: Start) -> str:
    """The namespace in which a form is in force with that setting."""
    chosen = "-chosen" if setting.pods.requirements else ""
    return f"{called(setting)}{chosen}-by-{form}"


def objects(workload: Workload, form: str, setting: Start) -> list[AnyResource]:
    """What the charm makes for a form, under a name of its own."""
    values = manifests.Values(
        workload.name,
        workload.model,
        # Two select each namespace: what a second webhook and a second binding do must not show.
        namespace_selectors=[
            {"matchLabels": {FORM: name(form, setting)}},
            {"matchLabels": {"kubernetes.io/metadata.name": name(form, setting)}},
        ],
        pod_selector=config.parse_selector(str(setting.pods)),
        inject_selector=config.parse_selector(str(setting.inject or "")),
        ca_bundle=workload.authority.certificate,
        start_mode=setting.mode.value,
        capability=setting.capability.value,
        peers=setting.peers.value,
        admission="webhook" if form == "webhook" else "policy",
    )
    policy = [] if form == "unseen" else manifests.render_start_policy(values)
    webhook = [] if form == "policy" else manifests.render_webhook(values)
    return renamed(policy + webhook, values, name(form, setting))


def create(cluster: lab.Cluster, *what: tuple[Case, str], dry_run: bool = True) -> list[Creation]:
    pods = [meshed.written(case.pod, name(form, case.setting)) for case, form in what]
    return creation.create(cluster, *pods, dry_run=dry_run)


def became(made: Creation) -> Outcome:
    pod = made.pod.to_dict()
    return outcome(pod["metadata"].get("annotations", {}), pod["spec"]["containers"])


class Table:
    """How the creations of all cases went, by the form and the case's name."""

    def __init__(self, cluster: lab.Cluster) -> None:
        what = [(case, form) for case in CASES for form in FORMS]
        self._made = list(zip(what, create(cluster, *what), strict=True))
        self._called = _called(cluster, {made.audit_id for _, made in self._made})

    def outcomes(self, form: str) -> dict[str, Outcome]:
        """What the pods became."""
        return {case.name: became(made) for case, made in self._of(form)}

    def labels(self, form: str) -> dict[str, dict[str, str]]:
        """The labels of the pods."""
        return {
            case.name: made.pod.to_dict()["metadata"].get("labels", {})
            for case, made in self._of(form)
        }

    def warnings(self, form: str) -> dict[str, str]:
        """What the authors of pods were told by us."""
        return {
            case.name: " ".join(text for text in made.warnings if "istio-aux: " in text)
            for case, made in self._of(form)
        }

    def called(self, form: str) -> set[str]:
        """The cases in which a webhook was called."""
        return {case.name for case, made in self._of(form) if made.audit_id in self._called}

    def _of(self, form: str) -> Iterator[tuple[Case, Creation]]:
        return ((case, made) for (case, by), made in self._made if by == form)


def _called(cluster: lab.Cluster, requests: set[str]) -> set[str]:
    """Those requests, by their audit IDs, for which a webhook was called."""

    def find() -> dict[str, dict[str, Any]] | None:
        events = creation.audited(cluster)
        found = {event["auditID"]: event.get("annotations", {}) for event in events}
        return found if requests <= found.keys() else None

    found = lab.until(find, what=f"{len(requests)} requests in {cluster.audit}")
    return {
        request
        for request in requests
        if any(key.startswith("mutation.webhook.admission.k8s.io/") for key in found[request])
    }


@pytest.fixture(scope="module")
def table(
    cluster: lab.Cluster, client: lightkube.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Table]:
    def served(setting: Start) -> Workload:
        name = called(setting)
        more = {
            "start-mode": setting.mode.value,
            "peers": setting.peers.value,
            "inject-selector": str(setting.inject or ""),
            "quit": "disabled",
            "root-namespace": ROOTS[setting.capability],
        }
        return Workload(cluster, tmp_path_factory.mktemp(name), name=name, model=name, more=more)

    workloads = {called(setting): served(setting) for setting in SETTINGS}

    def install() -> lab.istio.Istio:
        root = ROOTS[Capability.NATIVE]
        return lab.istio.install(cluster, root, revision=root, native="on request")

    def begin(workload: Workload) -> None:
        workload.deploy()
        workload.start()
        workload.enlist()

    with ThreadPoolExecutor() as pool:
        istio = pool.submit(install)
        begun = pool.map(begin, workloads.values())
        made = [each for form, by in PAIRS for each in objects(workloads[called(by)], form, by)]
        for form, by in PAIRS:
            label = {FORM: name(form, by)}
            client.create(Namespace(metadata=ObjectMeta(name=name(form, by), labels=label)))
        for resource in made:
            client.apply(resource, field_manager="lab")
        for form, by in PAIRS:
            await_account(client, name(form, by))
        list(begun)
    for setting, workload in ((setting, workloads[called(setting)]) for setting in SETTINGS):
        workload.await_ready()
        workload.await_capability(setting.capability)
    await_in_force(cluster)
    yield Table(cluster)
    for resource in made:
        assert resource.metadata
        client.delete(type(resource), str(resource.metadata.name))
    for form, by in PAIRS:
        client.delete(Namespace, name(form, by))
    for workload in workloads.values():
        workload.process.kill()
        workload.process.wait(30)
    istio.result().remove()


def await_in_force(cluster: lab.Cluster) -> None:
    """Return when the API server knows of all forms."""
    probe = Case(name="probe", labels={"team": "a"}, annotations={START: "hold"})
    probes = [
        (
            replace(
                probe, mode=by.mode, capability=by.capability, peers=by.peers,
                pods=str(by.pods), inject=str(by.inject or ""),
            ),
            form,
        )
        for form, by in PAIRS
        if form in {"policy", "webhook"}
    ]  # fmt: skip
    lab.until(
        lambda: all(STARTED_WITH in became(made)[0] for made in create(cluster, *probes)),
        what="both forms to be in force",
    )


@pytest.mark.parametrize("form", ["webhook", BY_POLICY, BOTH, "unseen"])
def test_pods_become_what_the_table_says(table: Table, form: str):
    """T32, T35. Where there is a policy only, it leaves alone what takes a webhook."""
    expected = {case.name: case.by_policy if form == "policy" else case.expected for case in CASES}

    assert table.outcomes(form) == expected


@pytest.mark.parametrize("form", ["webhook", BY_POLICY, BOTH, "unseen"])
def test_pods_that_need_the_policy_only_are_labelled_by_it(table: Table, form: str):
    """The webhook's selector leaves them out, so the API server need not evaluate conditions."""
    policy = form in {"policy", "both"}

    assert table.labels(form) == {
        case.name: {
            **case.labelled,
            **({rules.STARTED_BY: "policy"} if policy and case.done_by_policy else {}),
        }
        for case in CASES
    }


@pytest.mark.parametrize("form", ["webhook", BOTH, "unseen"])
def test_authors_are_told_what_the_table_says(table: Table, form: str):
    told = {case: text for case, text in table.warnings(form).items() if text}

    assert told.keys() == {case.name for case in CASES if case.warns}
    assert all(case.warns in told[case.name] for case in CASES if case.warns)


@POLICY.needed
def test_where_the_policy_is_enough_no_webhook_is_called(table: Table):
    assert table.called("both") == {
        case.name for case in CASES if case.left_to_webhook or case.warns
    }


@POLICY.needed
def test_who_copies_the_label_of_the_policy_gets_what_the_policy_alone_does(
    table: Table, cluster: lab.Cluster
):
    """The webhook is not asked about such a pod. It decides nothing else."""
    left = {CONFIG: "a: &x 1\nb: *x\n"}
    copied = Case(name="copied", labels={rules.STARTED_BY: "policy"}, annotations=left)

    [made] = create(cluster, (copied, "both"))

    assert became(made)[0] == left
    assert not any(key.startswith("mutation.webhook.") for key in made.audit(cluster))


def test_pods_that_are_made_are_as_those_that_are_tried(table: Table, cluster: lab.Cluster):
    """The table is run with dry runs."""
    cases = [case for case in CASES if case.name in {"hold holds", "a text: one line"}]
    assert len(cases) == 2
    tried = [table.outcomes(form)[case.name] for case in cases for form in FORMS]

    made = create(cluster, *[(case, form) for case in cases for form in FORMS], dry_run=False)

    assert [became(each) for each in made] == tried
