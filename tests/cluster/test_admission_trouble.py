"""T37: a webhook in trouble blocks no pod; the pod is created as its author wrote it.

What is slow is slow at the same time: one pod for each trouble, created when the first test begins.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator, Mapping

import lab
import lightkube
import pytest
from lab import broken_hook, creation, meshed
from lab.broken_hook import INAPPLICABLE, LABEL, WAYS
from lab.creation import Creation
from lab.fixtures import await_account
from lab.meshed import annotations_of
from lab.scene import Scene
from lab.served import Programs, Stages
from lab.workload import Workload
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

STOPPED = "stopped"


@pytest.fixture(scope="module")
def mortal(programs: Programs) -> Workload:
    """A workload of this file's own, with its webhook in force."""
    return programs("mortal", publish=True)


@pytest.fixture(scope="module")
def its_scene(mortal: Workload, stages: Stages) -> Scene:
    """A namespace whose pods that webhook changes, while it can."""
    scene = stages(mortal)
    mortal.await_admission(scene.namespace)
    return scene


@pytest.fixture(scope="module")
def creations(
    cluster: lab.Cluster, client: lightkube.Client, mortal: Workload, its_scene: Scene
) -> Iterator[Mapping[str, Creation]]:
    """How the creation of a pod went, by what was the matter with its webhook."""
    namespaces = {way: f"{way}-{secrets.token_hex(3)}" for way in WAYS}
    for way, name in namespaces.items():
        client.create(Namespace(metadata=ObjectMeta(name=name, labels={LABEL: way})))
        await_account(client, name)
    with broken_hook.broken_hooks(cluster):
        last = meshed.nameless(namespaces[WAYS[-1]], sidecar=None)
        lab.until(
            lambda: creation.create(cluster, last, dry_run=True)[0].status != 201,
            timeout=30,
            what="the broken webhooks to be called",
        )
        mortal.process.kill(signal.SIGSTOP)
        pods = [
            meshed.nameless(namespace, sidecar=None)
            for namespace in (*namespaces.values(), its_scene.namespace)
        ]
        made = creation.create(cluster, *pods)
        mortal.process.kill(signal.SIGCONT)
        yield dict(zip((*WAYS, STOPPED), made, strict=True))
    for name in namespaces.values():
        client.delete(Namespace, name)


@pytest.mark.parametrize("trouble", [*(way for way in WAYS if way != INAPPLICABLE), STOPPED])
def test_a_webhook_in_trouble_blocks_no_pod(
    cluster: lab.Cluster, creations: Mapping[str, Creation], trouble: str
):
    """T37: failurePolicy Ignore; the pod comes without hold, and the audit log says so."""
    made = creations[trouble]

    assert annotations_of(made.pod) == {}
    assert failed_open(cluster, made)


def failed_open(cluster: lab.Cluster, creation: Creation) -> bool:
    """Whether the API server gave a webhook up and went on without it."""
    return any(key.startswith("failed-open.") for key in creation.audit(cluster))


def test_a_patch_that_cannot_be_applied_blocks_the_pod_whatever_the_policy(
    creations: Mapping[str, Creation],
):
    """The API server's rule, for which no patch of ours may ever fail to apply."""
    with pytest.raises(ValueError, match="remove operation does not apply"):
        _ = creations[INAPPLICABLE].pod


def test_a_webhook_that_was_killed_blocks_no_pod_and_is_used_once_it_is_back(
    cluster: lab.Cluster, mortal: Workload, its_scene: Scene, creations: Mapping[str, Creation]
):
    """T37: nobody listens; nothing has to be repaired by hand."""
    mortal.process.kill()
    mortal.process.wait(30)

    [made] = creation.create(cluster, meshed.nameless(its_scene.namespace, sidecar=None))

    assert annotations_of(made.pod) == {}
    assert failed_open(cluster, made)
    mortal.start()
    mortal.await_admission(its_scene.namespace)
