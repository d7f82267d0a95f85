"""What a quit costs the API server: a short relative of `tox -e bench -- scale`."""

from __future__ import annotations

import base64
from collections import Counter

import httpx2
import lab
import lightkube
from lab import creation
from lab.fixtures import make_namespace
from lab.served import Programs
from lab.versions import WEBSOCKETS
from lightkube.resources.core_v1 import Event, Namespace, Node

from benchmarks import driver

NAME = "counted"
PODS, QUITS, RATE = 2000, 100, 50.0
USUAL = 4
"""Requests for a quit: the pod is read, the command is sent, the pod is read again, and an Event is
posted."""


@WEBSOCKETS.needed
def test_a_quit_among_two_thousand_pods_takes_less_than_a_third_more_requests_than_it_did(
    cluster: lab.Cluster, client: lightkube.Client, programs: Programs
):
    workload = programs(NAME, start=False)
    namespace = f"{NAME}-pods"
    make_namespace(client, namespace, {f"lab.test/{NAME}": "yes"})
    try:
        with driver.running(cluster, namespace, NAME, 0.05) as node:
            node.create("watched", PODS - QUITS, "running")
            node.create("ends", QUITS, "running")
            workload.start()
            watched = "all pods to be watched"  # Other files may have left more.
            lab.until(lambda: workload.status().get("watched-pods", 0) >= PODS, what=watched)
            node.patch("ends", QUITS, "finish", rate=RATE)
            node.await_exits("ends", QUITS, 300)
            assert node.execs == QUITS
            told = "all quits to be told"
            lab.until(lambda: len([*client.list(Event, namespace=namespace)]) >= QUITS, what=told)
    finally:
        remove_pods(cluster, namespace)
        client.delete(Node, NAME)
        client.delete(Namespace, namespace)
    found = sent(cluster)
    assert QUITS <= found.total() < QUITS * USUAL * 4 / 3, found


def remove_pods(cluster: lab.Cluster, namespace: str) -> None:
    """Remove them from etcd: the API server takes 20 ms for each."""
    ends = {"key": f"/registry/pods/{namespace}/", "range_end": f"/registry/pods/{namespace}0"}
    body = {name: base64.b64encode(key.encode()).decode() for name, key in ends.items()}
    answer = httpx2.post(f"{cluster.etcd}/v3/kv/deleterange", json=body, timeout=60)
    answer.raise_for_status()


def sent(cluster: lab.Cluster) -> Counter[str]:
    """How many requests the workload has sent that were no watch and no list."""
    user = f"system:serviceaccount:{NAME}:"
    found = Counter[str]()
    for event in creation.audited(cluster, about=user):
        what = event.get("objectRef", {})
        if what.get("resource") in {"pods", "events"} and event["verb"] not in {"watch", "list"}:
            found[f"{event['verb']} {what['resource']}/{what.get('subresource', '')}"] += 1
    return found
