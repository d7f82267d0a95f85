"""The program's README names all that an admin can ask and count."""

from __future__ import annotations

from pathlib import Path

import msgspec
from istio_aux.status import ProcessStatus
from istio_aux.telemetry import Telemetry

README = (Path(__file__).parents[2] / "workload" / "README.md").read_text()


def test_every_key_of_the_status_is_in_the_readme() -> None:
    keys = [field.encode_name for field in msgspec.structs.fields(ProcessStatus)]
    assert [name for name in keys if f"`{name}`" not in README] == []


def test_every_metric_is_in_the_readme() -> None:
    lines = Telemetry().render().decode().splitlines()
    metrics = {line.split()[2] for line in lines if line.startswith("# TYPE istio_aux_")}
    metrics = {name for name in metrics if not name.endswith("_created")}
    assert "istio_aux_quits_total" in metrics
    assert [name for name in sorted(metrics) if f"`{name}" not in README] == []
