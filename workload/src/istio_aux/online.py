"""Answer questions about a cluster, once, and change nothing: `audit`, and `explain` of its pods.

Only this may live here: credentials, requests, and errors as one line on stderr and an exit status.
`offline` is the same for documents.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from istio_aux import audit as auditing
from istio_aux import audit_table, explanation, terminal
from istio_aux.core.pod import Pod
from istio_aux.core.policy import Policy
from istio_aux.kube import access as accesses
from istio_aux.kube import actions
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.errors import (
    AccessError,
    ApiError,
    InvalidNameError,
    KubeError,
    UnreadableError,
)
from istio_aux.kube.reader import Reader

UNANSWERED = 1
"""Exit status when the API server refused or did not answer."""
UNUSABLE = 2
"""Exit status when the credentials cannot be used."""

_pod = Reader(Pod, "pod")


def audit(
    kubeconfig: Path | None,
    scope: auditing.Scope,
    policy: Policy,
    output: Literal["table", "json"],
) -> int:
    """Print the pods that wait for their proxy, lost it or lack it; returns the exit status.

    The status is 0 also when there are such pods; 2, with one line on stderr, if the credentials
    cannot be used; 1 if the API server refuses or does not answer, also where pods are printed
    while of others it could not be found out whether they lack their proxy.
    """

    async def work(access: Access) -> int:
        told = terminal.of(sys.stderr)
        with terminal.Progress(sys.stderr, told) as progress:
            found = await auditing.look(
                access, scope, policy, lambda count: progress.show(f"{count} pods read ...")
            )
        if output == "table":
            table = audit_table.as_table(found, terminal.of(sys.stdout))
            terminal.write(sys.stdout, table)
        elif found.findings:
            terminal.write_bytes(sys.stdout, audit_table.as_json(found))
        if not found.unknown:
            return 0
        _complain(f"pods that may lack their sidecar: {found.unknown}: {'; '.join(found.gaps)}")
        return UNANSWERED

    return _answer(kubeconfig, work)


def explain(
    kubeconfig: Path | None,
    namespace: str | None,
    names: Iterable[tuple[str | None, str]],
    policy: Policy,
    show: explanation.Show,
) -> int:
    """Explain pods of a cluster as they are now; returns the exit status.

    ``names`` are pairs of namespace and name; where a pair has no namespace, ``namespace`` counts,
    and without that the kubeconfig's. A pod that cannot be had gets a line on stderr, the others
    are answered, and the status is 1.
    """

    async def work(access: Access) -> int:
        status = 0
        async with Client(access, patient=True) as client:
            for own, name in names:
                where = own or namespace or access.namespace
                try:
                    pod = _pod.read(await client.get(actions.pod_path(where, name)))
                except (ApiError, InvalidNameError, UnreadableError) as error:
                    _complain(f"{where}/{name}: {error}")
                    status = UNANSWERED
                    continue
                show(explanation.of(pod, policy, datetime.now(UTC)))
        return status

    return _answer(kubeconfig, work)


def _answer(kubeconfig: Path | None, work: Callable[[Access], Coroutine[None, None, int]]) -> int:
    server = ""
    try:
        access = accesses.find(kubeconfig)
        server = access.server
        return asyncio.run(work(access))
    except AccessError as error:
        _complain(str(error))
        return UNUSABLE
    except KubeError as error:
        _complain(f"API server {server}: {error}")
        return UNANSWERED


def _complain(text: str) -> None:
    sys.stderr.write(f"{terminal.printable(' '.join(text.split()))}\n")
