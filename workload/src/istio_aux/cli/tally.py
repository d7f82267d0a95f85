"""What `audit` has found so far among the pods that it judges one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from istio_aux.cli import report
from istio_aux.judge.installation import Installations
from istio_aux.model.findings import Code, Remark
from istio_aux.model.found import Found
from istio_aux.model.text import listed

UNREADABLE_SHOWN = 3  # Unreadable pods that are named; the others are counted.


class Tally:
    """Counts pods, keeps their findings, and why some could not be judged."""

    def __init__(self) -> None:
        self.findings = list[Found]()
        self.pods = 0  # That have not ended.
        self._unknown = Counter[str]()  # Pods that may lack their sidecar, by the reason.
        self._unsure = Counter[str]()  # Pods that may hang, by the reason.
        self._unreadable = list[str]()

    @property
    def said(self) -> Iterable[str]:
        """The reasons, already in the findings, why no installation looks after a pod."""
        return (each.left_out for each in self.findings)

    def unreadable(self, what: str) -> None:
        """Count a pod that cannot be read."""
        self._unreadable.append(f"cannot read pod {what}")

    def unsure(self, why: str) -> None:
        """Count a pod that may hang."""
        self._unsure[why] += 1

    def add(self, found: Iterable[Found]) -> None:
        """Keep the findings of `judge` about a pod that have a state; count those in doubt."""
        for each in found:
            if each.state:
                self.findings.append(each)
            elif each.in_doubt:
                self._unknown[each.reason] += 1

    def audit(
        self,
        found: Installations,
        *,
        among: str,
        narrowed: bool,
        ignore: Iterable[str],
        unread: Iterable[str] = (),
        remarks: Iterable[Remark] = (),
        notes: Sequence[str] = (),
    ) -> report.Audit:
        """Return all findings, except those with codes to ``ignore``.

        ``unread`` names reads that failed, for each of which some pods may lack their sidecar.
        """
        ignored, remarks = {*ignore}, [*remarks]
        number = self._unknown.total() + len(self._unreadable)
        if number:
            reasons = [*self._unknown, *(unread if self._unknown else ())]
            if self._unreadable:
                reasons.insert(0, listed(self._unreadable, "; ", most=UNREADABLE_SHOWN))
            why = f"pods that may lack their sidecar: {number}: {listed(reasons, '; ')}"
            remarks.append(Remark(Code.MESH_UNKNOWN, why))
        unsure = self._unsure.total()
        if unsure:
            why = f"pods that may hang: {unsure}: {'; '.join(self._unsure)}"
            remarks.append(Remark(Code.UNKNOWN, why))
        unknown = 0 if Code.MESH_UNKNOWN in ignored else number
        unknown += 0 if Code.UNKNOWN in ignored else unsure
        return report.Audit(
            sorted(
                (finding for finding in self.findings if finding.code not in ignored),
                key=lambda finding: (finding.namespace, finding.name),
            ),
            self.pods,
            unknown,
            installations=found,
            among=among,
            narrowed=narrowed,
            ignored=[it.code for it in (*self.findings, *remarks) if it.code in ignored],
            notes=(*notes, *(str(each) for each in remarks if each.code not in ignored)),
        )
