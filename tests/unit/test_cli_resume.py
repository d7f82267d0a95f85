"""`istio-aux resume-jobs`: which suspended Jobs it waits for, and how it ends."""

from __future__ import annotations

import asyncio

import pytest
from istio_aux.cli import once
from istio_aux.cli.once import resume_jobs
from istio_aux.cli.workloads import ClusterRequest
from unit.asynchronous import until
from unit.test_suspended_jobs import PATCH
from unit.training import FAST, kubeflow


async def test_the_command_says_what_it_waits_for_and_ends_when_no_job_is_suspended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with kubeflow() as world:
        await world.suspended()
        command = asyncio.create_task(resume_jobs(world.client, ClusterRequest(patience=600), FAST))
        said = await until(lambda: capsys.readouterr().out, "it says so")
        assert said == "waits for the pods of suspended Jobs: TFJob training/mnist\n"
        assert world.api.suspended
        world.api.end()
        assert await command == 0
        assert not world.api.suspended
        assert not world.api.marked


async def test_the_command_names_a_job_that_it_may_not_resume_and_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with kubeflow() as world:
        await world.suspended(ends=True)
        world.api.refuse(PATCH, 403, "Forbidden", "not you")
        assert await resume_jobs(world.client, ClusterRequest(patience=600), FAST) == 1
        said = capsys.readouterr().err
        assert said.startswith("TFJob training/mnist: it is still suspended: ")
        assert "not you" in said


@pytest.mark.parametrize("code", [401, 403], ids=["no account", "no rights"])
async def test_the_command_ends_and_says_so_where_it_may_not_look_for_suspended_jobs(
    code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The removal of the charm waits for it: an earlier hook, or unit, has deleted the account."""
    async with kubeflow() as world:
        await world.suspended(ends=True)
        world.api.refuse("/tfjobs", code, text="not you")
        async with asyncio.timeout(10):
            assert await resume_jobs(world.client, ClusterRequest(patience=600), FAST) == 1
        why = f"TFJobs: it is not known which are suspended: {code}: not you\n"
        assert capsys.readouterr().err == why


async def test_a_job_that_cannot_be_resumed_does_not_make_the_command_wait_for_lists_that_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(once, "UNREAD", 0.5)
    async with kubeflow() as world:
        await world.suspended(ends=True)
        world.api.refuse("/batch/v1/jobs", 503, text="down")
        world.api.refuse(PATCH, 403, "Forbidden", "not you")
        async with asyncio.timeout(20):
            assert await resume_jobs(world.client, ClusterRequest(patience=600), FAST) == 1
        said = capsys.readouterr().err
        assert "TFJob training/mnist: it is still suspended: " in said
        assert "Jobs: it is not known which are suspended: 503: down" in said
