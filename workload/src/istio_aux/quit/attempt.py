"""One attempt to make a proxy exit, from reading the pod to judging by its container's status.

The pod is read again and decided on again right before anything is sent. What is heard of an
exec or a request proves nothing: only the status of the proxy's container does.
"""

from __future__ import annotations

from typing import NamedTuple

from istio_aux.core import quit as quitting
from istio_aux.core.pod import Pod
from istio_aux.core.policy import QuitMode
from istio_aux.core.quit import Rung, command
from istio_aux.kube import portforward, streams
from istio_aux.kube.client import Client
from istio_aux.kube.errors import KubeError
from istio_aux.quit.ledger import Ledger
from istio_aux.quit.limits import Limits
from istio_aux.quit.narrator import Narrator
from istio_aux.quit.places import Places
from istio_aux.quit.proof import Gone, Outcome, Superseded, proxy_exit
from istio_aux.quit.reading import read
from istio_aux.quit.record import Record, Work


class Heard(NamedTuple):
    """What was heard of one rung.

    Attributes:
        well: whether it sounds like a success.
        sent: whether it can have had an effect at all.
        text: for people.
    """

    well: bool
    sent: bool
    text: str


class Quitting:
    """The errand ``quit``. A class because all pods share its places."""

    def __init__(self, client: Client, ledger: Ledger, narrator: Narrator, limits: Limits) -> None:
        """Prepare; see the module for what it does."""
        self._client, self._ledger = client, ledger
        self._narrator, self._limits = narrator, limits
        self._first_attempts = Places(limits.at_once)
        self._retries = Places(limits.retries_at_once)

    async def step(self, record: Record, work: Work) -> bool:
        """Make one attempt; returns whether nothing is to be done about the pod any more.

        Raises:
            KubeError: the pod could not be read, or the API server turned the attempt away.
        """
        if outcome := await self._attempt(record, work):
            self._narrator.ended(record, work, outcome)
            return True
        # A dry run ends here, and so does a grace period that turned out to last longer.
        return record.settled or record.until is not None

    async def drop(self, record: Record, work: Work) -> None:
        """Say how it ended when not an attempt showed that there is no more to do."""
        if work.exit:
            self._narrator.ended(record, work, work.exit)
        elif work.attempts and not self._ledger.stopping:
            outcome = None
            try:
                if self._ledger.concerns(record):
                    outcome = await self._judge(record, work)
            except KubeError as error:
                outcome = Superseded(reason=f"not known: {error}")
            why_not = Superseded(reason=self._ledger.why_not(record))
            self._narrator.ended(record, work, outcome or why_not)

    async def _attempt(self, record: Record, work: Work) -> Outcome | None:
        """Read, decide, tell the proxy to exit, and look; None: the proxy still has to exit."""
        async with self._places(work).take(record.key.namespace, record.node):
            if self._ledger.due(record) != work.errand:
                return Superseded(reason=self._ledger.why_not(record))
            pod = await read(self._client, record)
            if pod is None:
                return Gone()
            decision = self._ledger.adopt(record, pod)
            if not isinstance(decision, quitting.Quit):
                return self._end(record, pod, decision, work)
            # From here to the sending nothing is awaited: what was just looked at still holds.
            if self._ledger.due(record) != work.errand:
                return Superseded(reason=self._ledger.why_not(record))
            if self._ledger.mode is QuitMode.DRY_RUN:
                self._narrator.rehearsed(record)
                record.settle(decision)
                return None
            before = work.rung
            work.rung = rung = decision.rungs[work.attempts % len(decision.rungs)]
            work.attempts += 1
            self._narrator.attempts(record, work, rung)
            try:
                heard = await self._send(record, decision, rung)
            except KubeError:
                # Nothing was sent: it was no attempt, and the same rung is next.
                work.attempts, work.rung = work.attempts - 1, before
                raise
        if heard.sent:
            seconds = self._limits.confirm if heard.well else self._limits.doubt
            await self._ledger.rest(record, work, seconds)
        outcome = work.exit or await self._judge(record, work)
        if outcome is None:
            runs = f", but {decision.proxy} still runs" if heard.well else ""
            work.hear(rung, heard.text + runs)
        return outcome

    def _places(self, work: Work) -> Places:
        """Retries have slots of their own."""
        return self._retries if work.failures else self._first_attempts

    async def _send(self, record: Record, decision: quitting.Quit, rung: Rung) -> Heard:
        """Tell the proxy to exit in one of the ways. Raises KubeError: nothing was sent."""
        pod, port = record.key[:2], decision.status_port
        if rung is Rung.PORT_FORWARD:
            answer = await portforward.request(
                self._client, pod, port, "POST /quitquitquit", self._limits.deadline
            )
            return Heard(answer.status == 200, not answer.unsent, str(answer))
        result = await streams.execute(
            self._client, pod, decision.proxy, command(rung, port), self._limits.deadline
        )
        return Heard(result.exit_code == 0, not result.unsent, str(result))

    async def _judge(self, record: Record, work: Work) -> Outcome | None:
        """Read the pod and say what became of it; None: its proxy still has to exit."""
        async with self._places(work).take(record.key.namespace, record.node):
            pod = await read(self._client, record)
        if pod is None:
            return Gone()
        decision = self._ledger.adopt(record, pod)
        if isinstance(decision, quitting.Quit):
            return None
        return self._end(record, pod, decision, work)

    def _end(
        self, record: Record, pod: Pod, decision: quitting.Action, work: Work
    ) -> Outcome | None:
        """How it ended for a pod that needs no quit: by the proxy's exit only if we asked for it.

        None if it has to exit all the same: later, or because something newer is known.
        """
        if self._ledger.due(record) == work.errand:
            work.failure = "the API server answered with an older state of the pod"
            return None
        return (proxy_exit(pod) if work.attempts else None) or Superseded(reason=decision.reason)
