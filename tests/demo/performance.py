"""The result of a run of the demo: the stories, and how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from demo.promise import Check
from demo.story import JobStory


@dataclass(frozen=True, slots=True)
class Performance:
    """The job without and with istio-aux, a status to show, and what to say of the making.

    `native` is the job once Istio makes sidecars native on request.
    `worlds` has one row for each kind of Istio: how a pod of the second namespace is started there.
    """

    without: JobStory
    helped: JobStory
    native: JobStory
    status: str
    made: Mapping[str, str]
    notes: tuple[str, ...] = ()
    worlds: tuple[Check, ...] = ()

    @property
    def jobs(self) -> tuple[JobStory, JobStory, JobStory]:
        """The jobs, in the order in which they were played."""
        return self.without, self.helped, self.native
