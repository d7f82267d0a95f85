"""The lab's promises at the api level."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import lab
import pytest
from lab import creation, meshed, ports


def test_the_time_of_a_creation_is_without_its_wait_for_a_turn(
    cluster: lab.Cluster, namespace: str
):
    pods = [meshed.nameless(namespace)] * 5

    made = creation.create(cluster, *pods, at_once=1)

    for one, other in itertools.pairwise(sorted(made, key=lambda each: each.began)):
        assert other.began >= one.began + one.seconds


def test_a_program_that_ends_before_it_listens_is_named_with_its_last_words(cluster: lab.Cluster):
    program = cluster.spawn("short", [sys.executable, "-c", "print('no configuration')"])

    with pytest.raises(ChildProcessError, match=r"short ended: no configuration \(.*short\.log"):
        ports.await_listener(program, cluster.host, ports.reserve(), timeout=30)


def test_an_image_for_a_cluster_without_pods_is_refused(cluster: lab.Cluster, tmp_path: Path):
    with pytest.raises(ValueError, match=r"image\.tar: images are for level node"):
        cluster.load(tmp_path / "image.tar")
