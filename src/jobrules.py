"""Which Jobs the workload may suspend and resume, and the CEL that lets it change nothing else.

Pure. The workload's `repair/suspended_jobs.py` makes these two changes and no other.
"""

from __future__ import annotations

from typing import Final

# Those of the training operator's kinds that have `spec.runPolicy.suspend`, which is all of them.
TRAINING_KINDS: Final = ("JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob")
TRAINING_JOBS: Final = tuple(f"{kind.lower()}s" for kind in TRAINING_KINDS)
# Spelled as in the workload, which puts it on what it suspends: as a label, by which such Jobs are
# found, and as an annotation, which tells people.
SUSPENDED: Final = "istio-aux.io/suspended-for"


def variables() -> dict[str, str]:
    """Return the policy's `variables`; by the last two, an update is judged."""
    marked, was_marked = (
        f"'{SUSPENDED}' in variables.{labels}" for labels in ("labels", "oldLabels")
    )
    unchanged = (
        f"(variables.batch || {_same('spec', 'oldSpec', but='runPolicy')})",
        _same("run", "oldRun", but="suspend"),
        _same("labels", "oldLabels", but=SUSPENDED),
        _same("notes", "oldNotes", but=SUSPENDED),
        *(
            f"object.metadata.?{field} == oldObject.metadata.?{field}"
            for field in ("finalizers", "ownerReferences")
        ),
    )
    return {
        # A batch Job has `suspend` in its spec, a training job in `spec.runPolicy`.
        "batch": "request.resource.group == 'batch'",
        # Nothing is assumed of the rest, in which the kinds differ.
        "spec": "dyn(object.spec)",
        "oldSpec": "dyn(oldObject.spec)",
        "run": "variables.batch ? variables.spec : variables.spec.?runPolicy.orValue({})",
        "oldRun": "variables.batch ? variables.oldSpec : variables.oldSpec.?runPolicy.orValue({})",
        "labels": "object.metadata.?labels.orValue({})",
        "oldLabels": "oldObject.metadata.?labels.orValue({})",
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
