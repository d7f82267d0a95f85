"""Deal with a pod whose proxy is dead while its payload may still run: report it, or delete it.

A second look after a while confirms what the watch showed. A pod is deleted only if the decision
says so, and only as it was when it was looked at: UID and resourceVersion are preconditions.
"""

from __future__ import annotations

import asyncio

from istio_aux.core.pod import Pod
from istio_aux.core.policy import QuitMode
from istio_aux.core.quit import Report
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, KubeError
from istio_aux.quit.ledger import Ledger
from istio_aux.quit.limits import Limits
from istio_aux.quit.narrator import Narrator
from istio_aux.quit.reading import read
from istio_aux.quit.record import Record, Work

_OLDER = "the API server answered with an older state of the pod"


class DeadProxies:
    """The errand ``report``. A class because all pods share its places."""

    def __init__(self, client: Client, ledger: Ledger, narrator: Narrator, limits: Limits) -> None:
        """Prepare; see the module for what it does."""
        self._client, self._ledger = client, ledger
        self._narrator, self._limits = narrator, limits
        self._slots = asyncio.Semaphore(limits.reports_at_once)

    async def step(self, record: Record, work: Work) -> bool:
        """Look again, report, and delete if that is decided; returns whether that is done.

        Raises:
            KubeError: the pod could not be read or deleted.
        """
        if "ProxyLost" not in record.announced:
            await self._ledger.rest(record, work, self._limits.lost_after)
        async with self._slots:
            if self._ledger.due(record) != work.errand:
                return True
            pod = await read(self._client, record)
            if pod is None:
                return True
            decision = self._ledger.adopt(record, pod)
            if self._ledger.due(record) != work.errand:
                return True
            if not isinstance(decision, Report):
                work.failure = _OLDER
                return False
            self._narrator.lost(record)
            if not decision.delete or self._ledger.mode is not QuitMode.ON:
                record.settle(decision)
                work.failure = "" if record.settled else _OLDER
                return record.settled
            return await self._delete(record, work, pod, decision)

    async def drop(self, record: Record, work: Work) -> None:
        """Nothing is left to say: the pod is gone, or its proxy is not dead any more."""

    async def _delete(self, record: Record, work: Work, pod: Pod, decision: Report) -> bool:
        try:
            await actions.delete_pod(self._client, record.key, pod.metadata.resource_version)
        except ApiError as error:
            if error.code == 404:
                record.left = True
                return True
            outcome = "not known whether it was deleted" if error.unknown else "not deleted"
            work.failure = f"{outcome}: {error}"
            # 409: the pod is not what was decided on any more, so it is read and decided on again.
            if error.code != 409:
                self._narrator.not_deleted()
            if error.retry_after is not None:
                raise
            return False
        except KubeError:
            self._narrator.not_deleted()
            raise
        record.settle(decision)
        self._narrator.deleted(record)
        return True
