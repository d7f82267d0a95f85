"""The reviews that load the webhooks, made from recorded reviews of workers of TFJobs.

The recordings (Kubernetes 1.36, a pod made as the training-operator makes it, the review posted to
a webhook that kept it byte for byte) differ from each other as pods do: one container that trains,
or three with some sixty variables and a fetch before them. What is put in here are the marks that
`bench-load` replaces, and an annotation. Data only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.admission_numbers import DISTINCT, LARGE, SAME, SMALL

RECORDINGS = Path(__file__).parent / "data"
UID, NUMBER = "@UID@", "@NUMBER@"
SIZES = {SMALL: "review-6k.json", LARGE: "review-25k.json"}

CONFIG = "proxy.istio.io/config"
TEXT = "concurrency: 2 # two\nproxyMetadata:\n  ISTIO_META_DNS_CAPTURE: 'true'\n  JOB: {job}\n"
"""An annotation as people write it; ``job`` tells those of different Jobs apart."""


def bodies() -> dict[str, str]:
    """A review of each kind, by the kind's name."""
    small, large = (_recorded(size) for size in SIZES)
    return {
        SMALL: _marked(small),
        LARGE: _marked(large),
        SAME: _configured(_marked(small), "mnist-00000000"),
        DISTINCT: _configured(_marked(small), f"mnist-{NUMBER}"),
    }


def pod(size: str, name: str, namespace: str) -> dict[str, Any]:
    """The pod of that review as its author would send it: without what the API server sets."""
    recorded = json.loads(_recorded(size))["request"]["object"]
    metadata = recorded["metadata"]
    kept = {key: metadata[key] for key in ("labels", "annotations", "ownerReferences")}
    recorded["metadata"] = {**kept, "name": name, "namespace": namespace}
    recorded.pop("status")
    return recorded


def _recorded(size: str) -> str:
    return (RECORDINGS / SIZES[size]).read_text()


def _marked(text: str) -> str:
    return text.replace(json.loads(text)["request"]["uid"], UID)


def _configured(text: str, job: str) -> str:
    """The review with one more annotation, written as the API server writes it."""
    entry = f"{json.dumps(CONFIG)}:{json.dumps(TEXT.format(job=job))}"
    head, key, rest = text.partition('"annotations":{')
    return f"{head}{key}{entry},{rest}"
