"""What a quit costs the API server: a short relative of `tox -e bench -- scale`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import lab
import lightkube
from lab import creation
from lab.fixtures import make_namespace
from lab.versions import WEBSOCKETS
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace, Node

from benchmarks import driver

NAME = "counted"
PODS, QUITS, RATE = 2000, 100, 50.0
USUAL = 4
"""Requests for a quit: the pod is read, the command is sent, the pod is read again, and an Event is
posted."""


@WEBSOCKETS.needed
def test_a_quit_among_two_thousand_pods_takes_less_than_a_third_more_requests_than_it_did(
    cluster: lab.Cluster, client: lightkube.Client, tmp_path: Path
):
    workload = Workload(cluster, tmp_path, name=NAME, model=NAME, selector=f"lab.test/{NAME}=yes")
    workload.deploy()
    namespace = f"{NAME}-pods"
    make_namespace(client, namespace, {f"lab.test/{NAME}": "yes"})
    try:
        with driver.running(cluster, namespace, NAME, 0.05) as node:
            node.copy("watched", PODS - QUITS, "running")
            node.copy("ends", QUITS, "running")
            workload.start()
            watched = "all pods to be watched"
            lab.until(lambda: workload.status().get("watched-pods") == PODS, what=watched)
            node.patch("ends", QUITS, "finish", rate=RATE)
            node.await_exits("ends", QUITS, 300)
            assert node.execs == QUITS
            all_told = "all quits to be told"
            lab.until(lambda: sent(cluster)["create events/"] >= QUITS, what=all_told)
            workload.stop()
    finally:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        creation.send(cluster, "DELETE", pods, b'{"gracePeriodSeconds": 0}')
        client.delete(Node, NAME)
        client.delete(Namespace, namespace)
    found = sent(cluster)
    assert QUITS <= found.total() < QUITS * USUAL * 4 / 3, found


def sent(cluster: lab.Cluster) -> Counter[str]:
    """How many requests the workload has sent that were no watch and no list."""
    user = f"system:serviceaccount:{NAME}:"
    found = Counter[str]()
    for event in creation.audited(cluster, about=user):
        what = event.get("objectRef", {})
        if what.get("resource") in {"pods", "events"} and event["verb"] not in {"watch", "list"}:
            found[f"{event['verb']} {what['resource']}/{what.get('subresource', '')}"] += 1
    return found
