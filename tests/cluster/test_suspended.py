"""What the charm does about suspended Jobs when the last unit goes, at a real API server.

Which Jobs it finds, in which order, and what it does when that fails is in the unit tests.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import lab
import lightkube
import pytest
from lab import meshed
from lab.fixtures import await_account
from lab.kubelet import ScriptedKubelet
from lightkube.codecs import from_dict
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

import manifests
import suspended
from suspended import Patience

MARK = {manifests.SUSPENDED: "sidecar"}
PATIENCE = Patience(settle=0.1, longest=30.0, pause=0.1)
# Shorter than the grace period of the pods, 5 s.
HASTY = dataclasses.replace(PATIENCE, longest=1.0)
SOON = 60.0


def create(client: lightkube.Client, namespace: str, marks: dict[str, str], **spec: Any) -> None:
    """A Job that we suspended, or not."""
    template = {"spec": meshed.pod(namespace, "job", sidecar=None).to_dict()["spec"]}
    metadata = {"name": "job", "namespace": namespace, "labels": marks, "annotations": marks}
    kind = {"apiVersion": "batch/v1", "kind": "Job"}
    job = {**kind, "metadata": metadata, "spec": {"template": template, **spec}}
    client.create(from_dict(job))


def look(client: lightkube.Client, namespace: str) -> tuple[bool, bool]:
    """Whether the Job is suspended, and whether it has our mark, as a label or an annotation."""
    job = client.get(Job, "job", namespace=namespace)
    assert job.metadata
    assert job.spec
    marks = {**(job.metadata.labels or {}), **(job.metadata.annotations or {})}
    return bool(job.spec.suspend), manifests.SUSPENDED in marks


def begin(client: lightkube.Client, namespace: str) -> Pod:
    """Create a Job, and return its pod."""
    await_account(client, namespace)
    create(client, namespace, {})
    (pod,) = lab.until(
        lambda: list(client.list(Pod, namespace=namespace)), timeout=SOON, what="the Job's pod"
    )
    return pod


def suspend(client: lightkube.Client, namespace: str) -> None:
    """Suspend the Job as the workload does."""
    patch = {"metadata": {"labels": MARK, "annotations": MARK}, "spec": {"suspend": True}}
    client.patch(Job, "job", patch, namespace=namespace)


@pytest.mark.parametrize(("marks", "after"), [(MARK, (False, False)), ({}, (True, False))])
def test_a_job_that_we_suspended_is_resumed_and_no_other(
    client: lightkube.Client, namespace: str, marks: dict[str, str], after: tuple[bool, bool]
):
    """There is no training operator here: its kinds are not served."""
    create(client, namespace, marks, suspend=True)

    suspended.resume(client, PATIENCE)

    assert look(client, namespace) == after


def test_a_job_is_resumed_once_its_pods_are_gone(client: lightkube.Client, namespace: str):
    """Its controller has deleted them, and makes new ones."""
    before = begin(client, namespace)
    suspend(client, namespace)

    suspended.resume(client, PATIENCE)

    assert look(client, namespace) == (False, False)
    (after,) = lab.until(
        lambda: list(client.list(Pod, namespace=namespace)), timeout=SOON, what="its new pod"
    )
    assert before.metadata
    assert after.metadata
    assert before.metadata.uid != after.metadata.uid


def test_a_job_stays_suspended_while_its_pods_end_within_their_grace_period(
    client: lightkube.Client,
    kubelet: ScriptedKubelet,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
):
    """Longer than the charm waits for a pod that nobody deletes; it names the Job meanwhile."""
    pod = begin(client, namespace)
    kubelet.run(pod)
    kubelet.linger(pod)
    suspend(client, namespace)
    told: list[list[str]] = []
    end = threading.Timer(3 * HASTY.longest, kubelet.release, [pod])
    end.start()

    suspended.resume(client, HASTY, told.append)

    end.join()
    assert told == [[f"Job {namespace}/job"]]
    assert "although" not in caplog.text
    assert look(client, namespace) == (False, False)
