"""A real Prometheus that scrapes the workload, from Debian's package `prometheus`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

import lab
from lab import debian, ports

# Seconds. Ready in 1 s on 2 idle cores.
READY = 60.0


def required() -> None:
    """Have `prometheus` and `promtool` installed, else skip the test with one line; in CI fail."""
    try:
        debian.ensure(["prometheus"])
    except debian.PackageError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI is true, and there is no Prometheus: {error}", pytrace=False)
        pytest.skip(str(error))


class Prometheus:
    """A server that scrapes one target each second and gives its series these labels."""

    def __init__(
        self, cluster: lab.Cluster, folder: Path, target: str, labels: Mapping[str, str]
    ) -> None:
        self.url = f"http://{cluster.host}:{(port := ports.reserve())}"
        scrape = {
            "job_name": "istio-aux",
            "scrape_interval": "1s",
            "static_configs": [{"targets": [target], "labels": dict(labels)}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}))
        self.process = cluster.spawn(
            "prometheus",
            [
                "/usr/bin/prometheus",
                f"--config.file={folder}/prometheus.yaml",
                f"--storage.tsdb.path={folder}/series",
                f"--web.listen-address={cluster.host}:{port}",
            ],
        )
        ports.await_listener(self.process, cluster.host, port, timeout=READY)

    def history(self, query: str, *, start: float, end: float) -> list[dict[str, Any]]:
        """Return the series that a query had, second by second."""
        asked: dict[str, Any] = {"query": query, "start": start, "end": end, "step": 1}
        answer = httpx2.get(f"{self.url}/api/v1/query_range", params=asked, timeout=READY)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]["result"]
