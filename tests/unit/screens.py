"""Pseudo-terminals and pipes to run the command line on, in this process, and what they got."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import termios
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from istio_aux.cli import cluster, main
from istio_aux.cli.commands import FAULT
from istio_aux.cli.report import Audit
from istio_aux.cli.workloads import ClusterRequest
from istio_aux.kube.client import Client
from istio_aux.model.names import SETTINGS, START_WEBHOOK
from unit.apiserver import ApiServer
from unit.rules.pods import State, document


class Shown(NamedTuple):
    """What a run leaves behind, with the line ends of a file."""

    status: int
    out: str
    err: str


class Screen:
    """Takes what is written to ``stream``: a pseudo-terminal, or a pipe when it has no columns."""

    def __init__(self, columns: int | None) -> None:
        read, write = os.pipe() if columns is None else os.openpty()
        if columns is not None:
            termios.tcsetwinsize(write, (24, columns))
        self.stream = os.fdopen(write, "w", encoding="utf-8")
        self._read, self._got = read, b""
        self._reader = Thread(target=self._collect)
        self._reader.start()

    def close(self) -> str:
        """All that was written."""
        self.stream.close()
        self._reader.join()
        os.close(self._read)
        return self._got.decode().replace("\r\n", "\n")

    def _collect(self) -> None:
        try:
            while chunk := os.read(self._read, 65536):
                self._got += chunk
        except OSError:  # Linux: EIO once the last writer of a pseudo-terminal is gone.
            return


Run = Callable[..., Shown]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line with stdout and stderr on screens of some columns; None is a pipe."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def run(
        *argv: str, columns: int | None = 100, errors: int | None = 100, stdin: str = ""
    ) -> Shown:
        out, err = Screen(columns), Screen(errors)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            patch.setattr(sys, "stdout", out.stream)
            patch.setattr(sys, "__stdout__", out.stream)  # Its size is asked for.
            patch.setattr(sys, "stderr", err.stream)
            try:
                status = main(argv)
            finally:
                written = out.close(), err.close()
        assert FAULT not in written[1], written[1]
        return Shown(status, *written)

    return run


Ask = Callable[..., Coroutine[Any, Any, Shown]]


@pytest.fixture
def ask(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run the command line on a thread of its own, beside an API server that listens meanwhile."""

    async def ask(api: ApiServer, *argv: str, **screens: int | None) -> Shown:
        async with api:
            monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))
            return await asyncio.to_thread(run, *argv, **screens)

    return ask


def objects(shown: Shown) -> list[dict[str, Any]]:
    """The objects of an answer in JSON."""
    return [json.loads(line) for line in shown.out.splitlines()]


def put_pod(
    api: ApiServer,
    name: str,
    states: Mapping[str, State],
    *,
    namespace: str = "training",
    about: Mapping[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Create or change a pod; ``about`` is more of its metadata."""
    body = document(states, **fields)
    body["metadata"] |= {"name": name, "namespace": namespace, "uid": f"u-{name}", **(about or {})}
    api.put("pods", body)
    return body


def install(api: ApiServer, settings: object, name: str = "istio-aux-here") -> None:
    """The webhook configuration of an installation with these settings."""
    text = settings if isinstance(settings, str) else json.dumps(settings)
    metadata = {"name": name, "annotations": {SETTINGS: text}}
    body = {"metadata": metadata, "webhooks": [{"name": START_WEBHOOK}]}
    api.put("mutatingwebhookconfigurations", body)


async def audited(api: ApiServer, **asked: Any) -> Audit:
    """What `audit` finds."""
    async with Client(api.access(), patient=True) as client:
        return await cluster.audit_pods(client, ClusterRequest(**asked))
