"""The reviews that load webhooks, after what an API server once sent for workers of TFJobs.

The recordings (Kubernetes 1.36, a pod made as the training-operator makes it, the review posted to
a webhook that kept it byte for byte) differ from each other as pods do: one container that trains,
or three with some sixty variables and a fetch before them. What is put in here are the marks that
`bench-load` replaces, and an annotation. Data only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).parent / "data"
UID, NUMBER = "@UID@", "@NUMBER@"
SIZES = {"6 KB": "review-6k.json", "25 KB": "review-25k.json"}

CONFIG = "proxy.istio.io/config"
TEXT = "concurrency: 2 # two\nproxyMetadata:\n  ISTIO_META_DNS_CAPTURE: 'true'\n  JOB: {job}\n"
"""An annotation as people write it; ``job`` tells those of different Jobs apart."""


def body(size: str, job: str | None = None) -> str:
    """A review of that size, whose pod has a configuration of its own if ``job`` is given."""
    text = (RECORDINGS / SIZES[size]).read_text()
    text = text.replace(json.loads(text)["request"]["uid"], UID)
    if job is None:
        return text
    # As the API server writes it, so the rest stays byte for byte.
    entry = f'"annotations":{{{json.dumps(CONFIG)}:{json.dumps(TEXT.format(job=job))},'
    assert text.count('"annotations":{') == 1
    return text.replace('"annotations":{', entry)


def pod(size: str, name: str, namespace: str) -> dict[str, Any]:
    """The pod of that review as its author would send it: without what the API server sets."""
    recorded = json.loads((RECORDINGS / SIZES[size]).read_text())["request"]["object"]
    metadata = recorded["metadata"]
    kept = {key: metadata[key] for key in ("labels", "annotations", "ownerReferences")}
    recorded["metadata"] = {**kept, "name": name, "namespace": namespace}
    recorded.pop("status")
    return recorded
