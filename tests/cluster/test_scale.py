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
REQUESTS = {"get pods": 2, "create pods/exec": 1, "create events": 1}
"""For a quit, as measured; a third more fails."""


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
            node.create("watched", PODS - QUITS, "running")
            node.create("ends", QUITS, "running")
            workload.start()
            watched = "all pods to be watched"
            lab.until(lambda: workload.status().get("watched-pods") == PODS, what=watched)
            node.patch("ends", QUITS, "finish", rate=RATE)
            node.await_exits("ends", QUITS, 300)
            assert node.execs == QUITS
            all_told = "all quits to be told"
            lab.until(lambda: sent(cluster)["create events"] >= QUITS, what=all_told)
            workload.stop()
    finally:
        client.delete(Node, NAME)
        client.delete(Namespace, namespace)
    found = {what: count / QUITS for what, count in sent(cluster).items()}
    print(found)
    assert 0


def sent(cluster: lab.Cluster) -> Counter[str]:
    """How many requests the workload has sent that were no watch and no list."""
    user = f"system:serviceaccount:{NAME}:"
    return Counter(
        f"{event['verb']} {place(event['objectRef'])}"
        for event in creation.audited(cluster, about=user)
        if event["user"]["username"].startswith(user)
    )


def place(reference: dict[str, str]) -> str:
    return "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
