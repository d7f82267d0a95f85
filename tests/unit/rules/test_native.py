"""What versions and dry runs show of native sidecars."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from istio_aux.injector import probe_rules
from istio_aux.model.policy import Capability

N, C, U = Capability.NATIVE, Capability.CLASSIC, Capability.UNKNOWN
PROXY = {"name": "istio-proxy"}
ALWAYS = {**PROXY, "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("version", "assured"),
    [
        ("v1.28.15", False),
        ("v1.31.9", False),
        ("v1.32.0", True),
        ("v1.32.3-gke.1440000", True),
        ("v1.33.1+k3s1", True),
        ("v1.36.0-alpha.1", True),
        ("v2.0.0", True),
        ("1.30.1", False),
        ("", False),
        ("master", False),
        ("v1.99999999999999999999", False),
    ],
)
def test_only_a_new_api_server_has_no_old_kubelets(version: str, assured: bool) -> None:
    assert probe_rules.kubelets_assured(version) is assured


@pytest.mark.parametrize(
    ("kubelets", "ruled_out", "why"),
    [
        ({"a": "v1.29.0", "b": "v1.31.2-eks-1"}, None, ""),
        ({"a": "v1.31.0", "b": "v1.28.9"}, C, 'node b: kubelet "v1.28.9" runs no native sidecars'),
        ({"a": "v1.19.10-vk-azure"}, C, "node a: "),
        ({"a": ""}, C, 'node a: kubelet "" runs no'),
        ({}, U, "there is no node"),
    ],
)
def test_every_kubelet_has_to_run_native_sidecars(
    kubelets: Mapping[str, str], ruled_out: Capability | None, why: str
) -> None:
    found = probe_rules.of_kubelets(kubelets)

    assert (found.capability if found else None) is ruled_out
    assert found is None or why in found.why


@pytest.mark.parametrize(
    ("spec", "capability", "why"),
    [
        ({"initContainers": [{"name": "istio-init"}, ALWAYS]}, N, "native on request"),
        ({"initContainers": [PROXY]}, C, "removes restartPolicy"),
        ({"initContainers": [{**PROXY, "restartPolicy": "Never"}]}, C, "removes restartPolicy"),
        ({"containers": [{"name": "main"}, PROXY]}, C, "no native sidecars, not even on request"),
        ({"containers": [{"name": "main"}]}, U, "a dry run shows no sidecar"),
    ],
)
def test_a_dry_run_shows_what_a_pod_gets(
    spec: dict[str, Any], capability: Capability, why: str
) -> None:
    found = probe_rules.of_dry_run(json.dumps({"spec": spec}).encode())

    assert found.capability is capability
    assert why in found.why


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b'{"spec": 3}', b"\xff"])
def test_an_answer_that_is_no_pod_shows_nothing(body: bytes) -> None:
    assert probe_rules.of_dry_run(body).capability is U


def test_a_reason_is_one_line_of_bounded_length() -> None:
    found = probe_rules.classic("a\nb " + "x" * 10_000)

    assert found.why.startswith("a b x")
    assert len(found.why) <= 300 + len("…")
