"""The parts of `istio-aux serve` that need no process; `cluster/test_serve.py` has the program."""

from __future__ import annotations

import asyncio

from istio_aux.kube.lease import identity
from istio_aux.serve import endless_task
from unit.asynchronous import background, driven, until


def test_a_process_has_the_same_identity_again_where_only_it_can_listen() -> None:
    assert identity(8443) == identity(8443)
    assert identity(8443) != identity(8444)
    assert identity(0) != identity(0)


@driven
async def test_a_task_that_must_not_end_survives_unhandled_exceptions() -> None:
    """Each is reported, and the task starts again, later each time."""
    reported: list[str] = []
    lives = 0

    async def work() -> None:
        nonlocal lives
        lives += 1
        if lives == 1:
            raise RecursionError("too deep")
        if lives > 2:
            await asyncio.sleep(60)

    def failed(name: str, error: BaseException | None) -> None:
        reported.append(f"{name}: {error!r}")

    async with background(endless_task("watch", work, failed, (0.02, 0.1))):
        await until(lambda: lives == 3, "it runs again")
    assert reported == ["watch: RecursionError('too deep')", "watch: None"]
