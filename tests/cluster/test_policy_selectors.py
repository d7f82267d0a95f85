"""A namespace selector means in CEL, on a real API server, what it means to the workload."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import httpx2
import lab
import lightkube
import pytest
from istio_aux.model import selectors
from lightkube import codecs
from lightkube.resources.admissionregistration_v1 import (
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
)

import config
import rules

NAME = "told-of-selectors"
# Measured on 2 busy cores: a policy is in force 0.4 s after it was made.
IN_FORCE = 30.0

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
# Stands for what no namespace matches.
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


class ApiServer:
    """Says of a new namespace, which is not made, which of SELECTORS do not match it."""

    def __init__(self, cluster: lab.Cluster) -> None:
        tls = ssl.create_default_context(cafile=str(cluster.ca))
        pair = cluster.issue(NAME, NAME, organizations=["system:masters"])
        tls.load_cert_chain(pair.certificate, pair.key)
        self.http = httpx2.Client(base_url=cluster.server, verify=tls, timeout=30, trust_env=False)

    def not_matched(self, labels: dict[str, str]) -> set[str]:
        """The selectors, and NEVER; nothing while the policy is not in force."""
        namespace = {"metadata": {"name": NAME, "labels": labels}}
        answer = self.http.post(
            "/api/v1/namespaces", params={"dryRun": "All"}, json=namespace
        ).raise_for_status()
        warnings = answer.headers.get_list("warning")
        return {text for text in [*SELECTORS, NEVER] if any(f"<{text}>" in w for w in warnings)}


@pytest.fixture(scope="module")
def api(cluster: lab.Cluster, client: lightkube.Client) -> Iterator[ApiServer]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["namespaces"]}
    validations = [
        {
            "expression": rules.selector_expression(
                config.parse_selector(text), "object.metadata.labels"
            ),
            "message": f"<{text}>",
        }
        for text in SELECTORS
    ]
    policy = {
        "kind": "ValidatingAdmissionPolicy",
        "spec": {
            "matchConstraints": {"resourceRules": [{**rule, "operations": ["CREATE"]}]},
            "matchConditions": [
                {"name": "mine", "expression": f"object.metadata.name == '{NAME}'"}
            ],
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
    api = ApiServer(cluster)
    lab.until(lambda: api.not_matched({}), timeout=IN_FORCE, what="the policy to be in force")
    yield api
    api.http.close()
    client.delete(ValidatingAdmissionPolicyBinding, NAME)
    client.delete(ValidatingAdmissionPolicy, NAME)


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_the_policy_and_the_workload_select_the_same_namespaces(
    api: ApiServer, labels: dict[str, str]
):
    not_selected = {text for text in SELECTORS if not selectors.parse(text).matches(labels)}

    assert api.not_matched(labels) == {*not_selected, NEVER}
