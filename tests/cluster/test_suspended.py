"""What the charm does about suspended Jobs when the last unit goes, at a real API server.

Which Jobs it finds, in which order, and what it does when that fails is in the unit tests.
"""

from __future__ import annotations

from typing import Any

import lab
import lightkube
import pytest
from lab import meshed
from lab.fixtures import await_account
from lightkube.codecs import from_dict
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

import manifests
import suspended
from suspended import Patience

MARK = {manifests.SUSPENDED: "sidecar"}
PATIENCE = Patience(settle=0.1, longest=30.0, pause=0.1)
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
    await_account(client, namespace)
    create(client, namespace, {})
    (before,) = lab.until(
        lambda: list(client.list(Pod, namespace=namespace)), timeout=SOON, what="the Job's pod"
    )
    patch = {"metadata": {"labels": MARK, "annotations": MARK}, "spec": {"suspend": True}}
    client.patch(Job, "job", patch, namespace=namespace)

    suspended.resume(client, PATIENCE)

    assert look(client, namespace) == (False, False)
    (after,) = lab.until(
        lambda: list(client.list(Pod, namespace=namespace)), timeout=SOON, what="its new pod"
    )
    assert before.metadata
    assert after.metadata
    assert before.metadata.uid != after.metadata.uid
