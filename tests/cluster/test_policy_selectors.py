"""A selector means in CEL, on a real API server, what it means to the workload.

A policy warns about pods that a selector does not match: pods may have any labels, or none.
"""

from __future__ import annotations

from collections.abc import Iterator

import lab
import lightkube
import pytest
from istio_aux.model import selectors
from lab import creation, meshed
from lab.fixtures import make_namespace
from lightkube import codecs
from lightkube.resources.admissionregistration_v1 import (
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
)
from lightkube.resources.core_v1 import Namespace

import config
import manifests

NAME = "told-of-selectors"

SELECTORS = [
    "",
    "a",
    "!a",
    "a=x",
    "a!=x",
    "a=",
    "a!=",
    "a in (x,y)",
    "a notin (x,y)",
    "a in (x),b notin (y)",
    "a=x,a!=x",
    "!a,b",
    "io.example/a=x",
]
# Stands for what no pod matches.
NEVER = "never"
LABELS: list[dict[str, str]] = [
    {},
    {"a": ""},
    {"a": "x"},
    {"a": "y"},
    {"a": "z", "b": "x"},
    {"b": "y"},
    {"a": "x", "b": "y"},
    {"io.example/a": "x"},
]


@pytest.fixture(scope="module")
def namespace(client: lightkube.Client) -> Iterator[str]:
    """The namespace about whose pods the policy warns."""
    make_namespace(client, NAME)
    validations = [
        {
            "expression": manifests.selector_expression(
                config.parse_selector(text), "variables.labels"
            ),
            "message": f"<{text}>",
        }
        for text in SELECTORS
    ]
    labels = "has(object.metadata.labels) ? object.metadata.labels : {}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    mine = {"matchLabels": {"kubernetes.io/metadata.name": NAME}}
    policy = {
        "kind": "ValidatingAdmissionPolicy",
        "spec": {
            "matchConstraints": {
                "namespaceSelector": mine,
                "resourceRules": [{**rule, "operations": ["CREATE"]}],
            },
            "variables": [{"name": "labels", "expression": labels}],
            "validations": [*validations, {"expression": "false", "message": f"<{NEVER}>"}],
        },
    }
    binding = {
        "kind": "ValidatingAdmissionPolicyBinding",
        "spec": {"policyName": NAME, "validationActions": ["Warn"]},
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": NAME}}
    for document in (policy, binding):
        client.create(codecs.from_dict({**head, **document}))
    yield NAME
    client.delete(ValidatingAdmissionPolicyBinding, NAME)
    client.delete(ValidatingAdmissionPolicy, NAME)
    client.delete(Namespace, NAME)


def test_the_policy_and_the_workload_select_the_same(cluster: lab.Cluster, namespace: str) -> None:
    pods = [meshed.nameless(namespace, sidecar=None, labels=labels) for labels in LABELS]

    def warned() -> list[set[str]]:
        """The selectors of which each pod's author is warned, and NEVER once it is in force."""
        made = creation.create(cluster, *pods, dry_run=True)
        every = [*SELECTORS, NEVER]
        return [{t for t in every if any(f"<{t}>" in w for w in each.warnings)} for each in made]

    lab.until(lambda: all(warned()), what="the policy to be in force")

    assert warned() == [
        {NEVER, *(text for text in SELECTORS if not selectors.parse(text).matches(labels))}
        for labels in LABELS
    ]


def test_the_api_server_takes_as_many_and_as_long_selectors_as_are_allowed(
    client: lightkube.Client,
) -> None:
    values = ",".join(f"{number:0>63}" for number in range(31))
    texts = [f"k{number:02} in ({values})" for number in range(selectors.MOST_SELECTORS)]
    assert selectors.LONGEST_SELECTOR - 64 < len(texts[0]) <= selectors.LONGEST_SELECTOR
    wanted = manifests.Values(
        "longest",
        "longest",
        namespace_selectors=config.parse_namespaces_selected(";".join(texts)),
    )

    admission = [each for each in manifests.render(wanted) if "Admission" in type(each).__name__]
    for resource in [*admission, *manifests.render_webhook(wanted)]:
        assert client.create(resource, dry_run=True)
    assert len(admission) == 4
