"""What the workload may change in a training job, in CEL: it suspends it, and resumes it again.

Pure. The workload's `repair/suspension.py` makes these two changes and no other.
"""

from __future__ import annotations

from typing import Final

# Those of the training operator's kinds that have `spec.runPolicy.suspend`, which is all of them.
TRAINING_JOBS: Final = (
    "jaxjobs",
    "mpijobs",
    "paddlejobs",
    "pytorchjobs",
    "tfjobs",
    "xgboostjobs",
)
# Spelled as in the workload, which puts it on what it suspends.
SUSPENDED: Final = "istio-aux.io/suspended-for"


def variables() -> dict[str, str]:
    """Return the policy's `variables`; by the last two, an update is judged."""
    marked, was_marked = (f"'{SUSPENDED}' in variables.{notes}" for notes in ("notes", "oldNotes"))
    unchanged = (
        _same("spec", "oldSpec", but="runPolicy"),
        _same("run", "oldRun", but="suspend"),
        _same("notes", "oldNotes", but=SUSPENDED),
        *(
            f"object.metadata.?{field} == oldObject.metadata.?{field}"
            for field in ("labels", "finalizers", "ownerReferences")
        ),
    )
    return {
        # Nothing is assumed of the rest, in which the kinds differ.
        "spec": "dyn(object.spec)",
        "oldSpec": "dyn(oldObject.spec)",
        "run": "variables.spec.?runPolicy.orValue({})",
        "oldRun": "variables.oldSpec.?runPolicy.orValue({})",
        "notes": "object.metadata.?annotations.orValue({})",
        "oldNotes": "oldObject.metadata.?annotations.orValue({})",
        "unchanged": " && ".join(unchanged),
        "ours": (
            f"variables.run.?suspend.orValue(false) == ({marked}) && ({marked} || {was_marked})"
        ),
    }


def _same(new: str, old: str, but: str) -> str:
    """Two maps hold the same, but for what they have under the key `but`."""
    new, old = f"variables.{new}", f"variables.{old}"
    return (
        f"{new}.all(k, k == '{but}' || k in {old} && {new}[k] == {old}[k])"
        f" && {old}.all(k, k == '{but}' || k in {new})"
    )
