"""How a quit can go wrong: the misbehaviours that a test can ask for, as data."""

from __future__ import annotations

import dataclasses
from typing import Literal

from lab.kubelet import agent
from lab.kubelet.agent import Answer

Misbehaviour = Literal[
    "hang",
    "refuse",
    "exit-137",
    "killed",
    "close-without-status",
    "reset",
    "lie",
    "not-found",
    "unavailable",
    "babble",
]


Via = Literal["exec", "port-forward"]


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """How the stream of an exec or a port-forward goes on, and how the proxy ends, if it does.

    ``stream``: ``answer`` completes it; ``hang`` opens it and says nothing; ``cut`` closes it
    without a status; ``reset`` drops the connection; ``refuse`` answers 503 before the upgrade;
    ``babble`` sends single bytes, as fast as they are taken, until the connection is closed.
    ``answer``: the answer to an exec; None: that of pilot-agent.
    ``response``: the same for a forwarded port, as HTTP; empty: nothing listens there.
    ``proxy_exit``: the exit code of istio-proxy; None: it keeps running.
    """

    stream: Literal["answer", "hang", "cut", "reset", "refuse", "babble"] = "answer"
    answer: Answer | None = None
    response: bytes | None = None
    proxy_exit: int | None = None


MISBEHAVIOURS: dict[Misbehaviour, Behaviour] = {
    "hang": Behaviour(stream="hang"),
    "refuse": Behaviour(
        answer=Answer(
            stderr="Error: dial tcp 127.0.0.1:15020: connection refused\n", exit_code=255
        ),
        response=b"",
    ),
    "exit-137": Behaviour(answer=Answer(exit_code=137), proxy_exit=0),
    "killed": Behaviour(answer=Answer(exit_code=137), proxy_exit=137),
    "close-without-status": Behaviour(stream="cut", proxy_exit=0),
    "reset": Behaviour(stream="reset", proxy_exit=0),
    "lie": Behaviour(answer=Answer(stdout="OK"), response=agent.OK),
    "not-found": Behaviour(answer=Answer(stdout="\n"), response=agent.NOT_FOUND),
    "unavailable": Behaviour(stream="refuse"),
    "babble": Behaviour(stream="babble"),
}
