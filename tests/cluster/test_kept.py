"""The memory of `serve` beside many objects of each kind that say as much as etcd stores.

It starts among them, because lists are what takes most. By day there are few, of one kind.
`NIGHTLY=1 .venv/bin/tox run -e cluster -- -n 0 -s tests/cluster/test_kept.py` prints how much it is
beside a thousand, or as many as leave the API server a few GiB: it needs 30 MB for 90,000 labels.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import lab
import pytest
from lab import creation, versions
from lab.nightly import NIGHTLY
from lab.served import Programs, end
from lab.workload import Workload

from benchmarks.processes import usage

MOST = 512 if NIGHTLY else 128
"""MiB: the chart's limit; by day what twenty pods of five megabytes would exceed."""
NAME, NAMESPACE = "kept", "kept-pods"
FIRST = "hostile-0000"
LABELS = {f"a{number}": "" for number in range(90_000)}
CODES = {"operator": "In", "values": [*range(1, 128)]}
RULES = [{"action": "Restart", "exitCodes": CODES}] * 20
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a" * 1_400_000, "uid": "u"}
DONE = {"exitCode": 0, "finishedAt": "2026-11-21T08:16:29Z"}
ENDED = [
    {"name": "main", "state": {"terminated": DONE}},
    {"name": "istio-proxy", "state": {"running": {"startedAt": "2026-11-21T08:16:26Z"}}},
]
SELECTOR = [{"key": f"a{number}", "operator": "Exists"} for number in range(60_000)]


def pod(*containers: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    made = [{"image": "a", **each} for each in containers or ({"name": "main"},)]
    spec = {"containers": made, "restartPolicy": "Never"}
    return {"metadata": {"name": FIRST, "namespace": NAMESPACE, **metadata}, "spec": spec}


HOOK = {
    "name": "namespace.sidecar-injector.istio.io",
    "clientConfig": {"url": "https://127.0.0.1:1/inject"},
    "rules": [{"operations": ["CREATE"], "apiGroups": ["none.test"], "apiVersions": ["v1"],
               "resources": ["none"]}],
    "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
    "namespaceSelector": {"matchExpressions": SELECTOR},
}  # fmt: skip
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
HOSTILE: dict[str, tuple[int, str, str, dict[str, Any]]] = {
    "restart rules of pods": (
        1000, PODS, f"pods/{NAMESPACE}", pod(
            *({"name": f"c{number}", "restartPolicy": "Never", "restartPolicyRules": RULES}
              for number in range(200)),
        ),
    ),
    "commands of pods that are quit": (
        1000, PODS, f"pods/{NAMESPACE}",
        pod({"name": "main", "command": ["<" * 1_400_000]}, {"name": "istio-proxy"}),
    ),
    "owners of pods": (
        1000, PODS, f"pods/{NAMESPACE}", pod(ownerReferences=[{**OWNER, "controller": True}])
    ),
    "labels of pods": (60, PODS, f"pods/{NAMESPACE}", pod(labels=LABELS)),
    "labels of namespaces": (
        60, "/api/v1/namespaces", "namespaces", {"metadata": {"name": FIRST, "labels": LABELS}}
    ),
    "selectors of webhooks": (
        60, WEBHOOKS, "mutatingwebhookconfigurations",
        {"metadata": {"name": FIRST}, "webhooks": [HOOK]},
    ),
}  # fmt: skip
"""How many, where one is created, where etcd keeps such objects, and the first one."""
BY_DAY = 20


class Etcd:
    """The store below the API server, which takes 1.4 MB a hundred times as fast."""

    def __init__(self, cluster: lab.Cluster) -> None:
        self._url = f"{cluster.etcd}/v3/kv"

    def ask(self, what: str, **fields: bytes) -> Any:
        body = {name: base64.b64encode(value).decode() for name, value in fields.items()}
        answer = httpx2.post(f"{self._url}/{what}", json=body, timeout=120)
        answer.raise_for_status()
        return answer.json()

    def copy(self, prefix: str, uid: str, count: int) -> None:
        """Make copies of the first object, with names and UIDs of their own."""
        key = f"/registry/{prefix}/{FIRST}".encode()
        (found,) = self.ask("range", key=key)["kvs"]
        value, end = base64.b64decode(found["value"]), f"{FIRST[:-4]}%04d"
        for number in range(1, count):
            name = (end % number).encode()
            text = value.replace(FIRST.encode(), name)
            text = text.replace(uid.encode(), f"{uid[:-4]}{number:04}".encode())
            self.ask("put", key=key.replace(FIRST.encode(), name), value=text)

    def remove(self, prefix: str) -> None:
        begin = f"/registry/{prefix}/{FIRST[:-4]}".encode()
        self.ask("deleterange", key=begin, range_end=begin[:-1] + b".")


@contextmanager
def many(cluster: lab.Cluster, kind: str, count: int) -> Iterator[None]:
    _, path, prefix, body = HOSTILE[kind]
    status, made = creation.send(cluster, "POST", path, json.dumps(body).encode())
    assert status == 201, made[:500]
    if "quit" in kind:
        ended = json.dumps({"status": {"phase": "Running", "containerStatuses": ENDED}}).encode()
        status, made = creation.send(cluster, "PATCH", f"{path}/{FIRST}/status", ended)
        assert status == 200, made[:500]
    # It would keep all of them, too: 8 GB.
    others = cluster.process("kube-controller-manager")
    others.kill()
    others.wait(30)
    etcd = Etcd(cluster)
    etcd.copy(prefix, json.loads(made)["metadata"]["uid"], count)
    try:
        yield
    finally:
        etcd.remove(prefix)
        cluster.process("kube-apiserver").restart()  # Else it keeps some GB.
        cluster.await_api()
        others.start()


@pytest.fixture(scope="module")
def workload(cluster: lab.Cluster, programs: Programs) -> Workload:
    """A workload that is not running, and a namespace that it serves."""
    made = programs(NAME, {"race-policy": "restart"}, start=False)
    creation.send(cluster, "POST", "/api/v1/namespaces", json.dumps(
        {"metadata": {"name": NAMESPACE, "labels": {f"lab.test/{NAME}": "yes"}}}
    ).encode())  # fmt: skip
    return made


@versions.CONTAINER_RESTARTS.needed
@pytest.mark.parametrize("kind", HOSTILE if NIGHTLY else [*HOSTILE][:1])
def test_objects_that_say_much_leave_room_below_the_charts_limit(
    cluster: lab.Cluster, workload: Workload, kind: str
) -> None:
    count = HOSTILE[kind][0] if NIGHTLY else BY_DAY
    with many(cluster, kind, count):
        began = time.monotonic()
        workload.start()
        workload.await_ready(timeout=900)
        took = time.monotonic() - began
        most = usage(workload.process.pid).peak >> 20
        end(workload)
    print(f"\n{kind:32} {count:5} {took:6.1f} s {most:5} MiB")
    assert most < MOST
