"""Show generated pods to three kubelets and to `istio-aux explain`; exit 1 where they disagree.

Kubelets of all versions of Kubernetes judge a pod. The kubelet is right. The workload may be more
cautious, for the reasons in `CAUTIONS`, and never less: a container that the kubelet may start
again is not finished, and no proxy is told to exit while there is one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from lab import tools
from lab.nightly import NIGHT

from oracle.pods import pod

_COMMAND = "from istio_aux.cli import main; raise SystemExit(main())"
_EXPLAIN = (sys.executable, "-c", _COMMAND, "explain", "-f", "-", "-o", "json")


class Verdict(msgspec.Struct, frozen=True):
    """What API server and kubelet make of a pod; `kubelet/main.go` says how they find it out."""

    done: dict[str, bool] | None  # By container, whether it is terminated and never started again.
    restarting: bool  # All containers are about to start again.
    phase: str  # What the kubelet reports beside these container statuses.
    # The pod completes when the running proxy exits with 0, and nothing else happens.
    completes: bool
    refused: str = ""  # Why the API server stores no such pod; the rest is empty then.
    pod: msgspec.Raw = msgspec.Raw(b"null")  # As it is stored.


class Judged(msgspec.Struct, frozen=True):
    role: str
    finished: bool
    why: str


class Explained(msgspec.Struct, frozen=True):
    uid: str
    action: str
    reason: str
    containers: dict[str, Judged]


@dataclass(frozen=True)
class Kubelet:
    """A version of Kubernetes, with the feature gates that are not at their default."""

    version: str
    gates: str = ""

    @property
    def title(self) -> str:
        return f"{self.version} {self.gates}".strip()

    @property
    def restarts_all(self) -> bool:
        """Whether a container can have all others restarted (KEP-5532, on from 1.36)."""
        return self._minor == "1.36" and self.gates != WITHOUT_RESTARTING_ALL

    @property
    def program(self) -> Path:
        """Its rules as a program, built when the cache does not have it."""
        return tools.path(f"oracle-{self._minor}")

    @property
    def _minor(self) -> str:
        return self.version.rpartition(".")[0]

    def judge(self, pods: Iterable[bytes]) -> list[Verdict]:
        """Judge pods, each a JSON document of one line."""
        argv = [str(self.program), *([self.gates] if self.gates else [])]
        env = {**os.environ, "GOGC": "400"}
        done = subprocess.run(
            argv, input=b"\n".join(pods), env=env, capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{self.title}: {done.stderr.decode().strip()}")
        return msgspec.json.Decoder(Verdict).decode_lines(done.stdout)


WITHOUT_RESTARTING_ALL = "RestartAllContainersOnContainerExits=false"
# Three have the rules of another (kubelet_pods.go getPhase, helpers.go, kube_features.go): 1.33
# those of 1.34, 1.35 those of 1.36 without a gate that is on since then, and 1.37 those of 1.36.
KUBELETS = (
    Kubelet("1.32.2"),
    Kubelet("1.34.4"),
    Kubelet("1.34.4", "ContainerRestartRules=true"),
    Kubelet("1.36.3", WITHOUT_RESTARTING_ALL),
    Kubelet("1.36.3"),
)


def explain(pods: Iterable[bytes | msgspec.Raw]) -> tuple[list[Explained], str]:
    """What `istio-aux explain` answers to these pods, and what it complains of."""
    body = b"\n".join(bytes(pod) for pod in pods)
    if not body:
        return [], ""
    done = subprocess.run(_EXPLAIN, input=body, capture_output=True, check=False)
    return msgspec.json.Decoder(Explained).decode_lines(done.stdout), done.stderr.decode()


PROXY = "istio-proxy"
_RESTARTING_ALL = "RestartingAllContainers"


@dataclass(frozen=True)
class Case:
    """A pod as the API server stores it, and the kubelet of its node."""

    kubelet: Kubelet
    pod: Mapping[str, Any]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.pod["metadata"]

    @property
    def phase(self) -> str:
        return self.pod["status"].get("phase", "")

    @property
    def payload(self) -> list[str]:
        """The containers after whose end the proxy may exit, by the pod's annotations."""
        names = [container["name"] for container in self.pod["spec"]["containers"]]
        after, entries = self.names("quit-after"), self.names("sidecars")
        ignored = {entry.removesuffix("=ignore") for entry in entries if entry.endswith("=ignore")}
        if after and after <= {*names} - {PROXY}:
            return [name for name in names if name in after]
        return [name for name in names if name != PROXY and name not in ignored]

    def annotation(self, name: str, default: str = "") -> str:
        return self.metadata.get("annotations", {}).get(f"istio-aux.io/{name}", default)

    def names(self, annotation: str) -> set[str]:
        return {name.strip() for name in self.annotation(annotation).split(",")} - {""}

    def statuses(self, name: str | None = None) -> list[Mapping[str, Any]]:
        status = self.pod["status"]
        both = (status.get("containerStatuses"), status.get("initContainerStatuses"))
        return [each for listed in both for each in listed or () if name in {each["name"], None}]

    def state(self, name: str) -> Mapping[str, Any]:
        return next((each.get("state") or {} for each in self.statuses(name)), {})

    def contradicts(self, name: str) -> bool:
        """Whether several different statuses of a container are reported."""
        reported = self.statuses(name)
        return any(status != reported[0] for status in reported[1:])


@dataclass(frozen=True)
class Caution:
    """Where the workload takes a container, or a pod, for unfinished although a kubelet is done."""

    what: str
    reason: str
    container: Callable[[Case, str], bool] = lambda _case, _name: False
    pod: Callable[[Case], bool] = lambda _case: False


CAUTIONS = (
    Caution(
        "the pod is being deleted",
        "the kubelet ends all of it, with or without a verdict",
        container=lambda case, _name: "deletionTimestamp" in case.metadata,
        pod=lambda case: "deletionTimestamp" in case.metadata,
    ),
    Caution(
        "the statuses of a container contradict each other",
        "no kubelet reports two; nobody knows which one is true",
        container=lambda case, name: case.contradicts(name),
        pod=lambda case: any(case.contradicts(status["name"]) for status in case.statuses()),
    ),
    Caution(
        "a container waits after its last exit",
        "a kubelet reports it as waiting because it will start it; its phase rule does not ask why",
        container=lambda case, name: {"waiting"} == {*case.state(name)},
    ),
    Caution(
        "all containers restart, by a kubelet that cannot do that",
        "reason and condition are those of a newer kubelet, which may have been there before",
        container=lambda case, name: not case.kubelet.restarts_all and _lost(case.statuses(name)),
        pod=lambda case: (
            not case.kubelet.restarts_all and (_condition(case) or _lost(case.statuses()))
        ),
    ),
    Caution(
        "an init container or a sidecar was lost while all containers restarted",
        "the kubelet's phase rule asks the others; they are restarted with it",
        pod=lambda case: _lost(case.statuses()),
    ),
    Caution(
        "the pod opted out",
        "annotation istio-aux.io/quit",
        pod=lambda case: case.annotation("quit", "true") not in {"true", ""},
    ),
    Caution(
        "an annotation cannot be understood",
        "its author wants something else than the default",
        pod=lambda case: (
            case.annotation("quit-grace") == "soon"
            or any(map(_is_bad_entry, case.names("sidecars")))
            or not case.names("quit-after") <= {*case.payload}
        ),
    ),
    Caution(
        "the pod has no payload",
        "a gateway has only its proxy",
        pod=lambda case: not case.payload,
    ),
    Caution(
        "restartPolicy Always, with other policies for its containers",
        "who writes Always wants a pod that stays; injectors give the proxy no policy of its own",
        pod=lambda case: case.pod["spec"].get("restartPolicy", "Always") == "Always",
    ),
    Caution(
        "the reported phase is not Running",
        "the node does not report, or a container never started: more than the statuses say",
        pod=lambda case: case.phase not in {"Running", ""},
    ),
)


@dataclass(frozen=True)
class Comparison:
    """Where the two disagree, in words, and where the workload is more cautious."""

    disagreements: tuple[str, ...]
    cautions: frozenset[str]


def compare(kubelet: Kubelet, verdict: Verdict, ours: Explained) -> Comparison:
    """Compare what both say about a pod that the API server stores."""
    case = Case(kubelet, msgspec.json.decode(verdict.pod))
    found = [*_containers(case, verdict, ours), *_decision(case, verdict, ours)]
    return Comparison(
        tuple(what for what in found if isinstance(what, str)),
        frozenset(what.what for what in found if isinstance(what, Caution)),
    )


def _containers(case: Case, verdict: Verdict, ours: Explained) -> Iterator[str | Caution]:
    done = verdict.done or {}  # Without init containers, which the kubelet asks in another place.
    containers = {name: each for name, each in ours.containers.items() if each.role != "init"}
    if unknown := {*done} ^ {*containers}:
        yield f"only one of them has a verdict on {', '.join(sorted(unknown))}"
        return
    for name, judged in containers.items():
        if judged.finished and not done[name]:
            yield f"{name}: finished ({judged.why}), but the kubelet may start it again"
        elif done[name] and not judged.finished:
            excused = (caution for caution in CAUTIONS if caution.container(case, name))
            # Without a caution that explains it, it is a disagreement.
            yield next(
                excused, f"{name}: not finished ({judged.why}), but the kubelet is done with it"
            )


def _decision(case: Case, verdict: Verdict, ours: Explained) -> Iterator[str | Caution]:
    done = verdict.done or {}
    again = sorted(name for name in case.payload if not done.get(name))
    match ours.action:
        case "quit":
            if again or verdict.restarting:
                yield f"quit, but the kubelet may start again {', '.join(again) or 'all of it'}"
            others = all(is_done for name, is_done in done.items() if _regular(case, name))
            if others and case.phase == verdict.phase and not verdict.completes:
                yield "quit, but the pod does not complete when only the proxy exits"
        case "report" if not done.get(PROXY) or verdict.restarting:
            yield "report, but the kubelet may start the proxy again"
        case _ if verdict.completes:
            regular = [each["name"] for each in case.pod["spec"]["containers"]]
            excused = (
                caution
                for caution in CAUTIONS
                if caution.pod(case) or any(caution.container(case, name) for name in regular)
            )
            what = f"{ours.action} ({ours.reason})"
            yield next(excused, f"{what}, but only the proxy keeps the pod from completing")
        case _:
            pass


def _is_bad_entry(entry: str) -> bool:
    name, _, how = entry.partition("=")
    return name == PROXY or how not in {"ignore", "native"}


def _regular(case: Case, name: str) -> bool:
    return name != PROXY and any(each["name"] == name for each in case.pod["spec"]["containers"])


def _lost(statuses: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of them was lost while all containers restarted."""
    states = (status.get("state") or {} for status in statuses)
    return any(each.get("terminated", {}).get("reason") == _RESTARTING_ALL for each in states)


def _condition(case: Case) -> bool:
    return any(
        each["type"] == "AllContainersRestarting" and each["status"] == "True"
        for each in case.pod["status"].get("conditions", ())
    )


BATCH = 5_000
SHOWN = 5
"""Disagreements that are kept of each kubelet."""
_COUNTED = ("pods", "refused", "agreed", "cautious", "disagreed")
_ACTIONS = ("quit", "wait", "report", "ignore")
_STEP = 100_000


@dataclass
class Tally:
    """The answers about the pods of one kubelet."""

    # How many pods there were, were refused by the API server, and are agreed, more cautious and
    # disagreed about; and how often there was each action and each caution.
    counts: Counter[str] = field(default_factory=Counter[str])
    # The first ones, with the pod, and with what both say.
    disagreements: list[str] = field(default_factory=list[str])

    def add(self, other: Tally) -> None:
        """Count what another one counted, too."""
        self.counts += other.counts
        self.disagreements = [*self.disagreements, *other.disagreements][:SHOWN]


def play(
    kubelets: Sequence[Kubelet],
    seed: int,
    pods: int,
    show: Callable[[int], None] = lambda _: None,
) -> dict[Kubelet, Tally]:
    """Compare so many pods of a seed; ``show`` gets how many are done."""
    for kubelet in kubelets:
        _ = kubelet.program  # Built now rather than by one of the threads below.
    total = {kubelet: Tally() for kubelet in kubelets}
    parts = [range(first, min(first + BATCH, pods)) for first in range(0, pods, BATCH)]
    # Kubelets and workload are processes of their own; the threads wait for them.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for tallies in threads.map(lambda numbers: _part(kubelets, seed, numbers), parts):
            for kubelet, tally in tallies.items():
                total[kubelet].add(tally)
            show(total[kubelets[0]].counts["pods"])
    return total


def _answers(
    kubelet: Kubelet, documents: Sequence[bytes]
) -> Iterator[tuple[Verdict, Explained | None, str]]:
    """What kubelet and workload say about each pod, and what the workload complains of."""
    verdicts = kubelet.judge(documents)
    explained, complaints = explain(verdict.pod for verdict in verdicts if not verdict.refused)
    answered = {each.uid: each for each in explained}
    for verdict, document in zip(verdicts, documents, strict=True):
        yield verdict, answered.get(msgspec.json.decode(document)["metadata"]["uid"]), complaints


def _part(kubelets: Sequence[Kubelet], seed: int, numbers: range) -> dict[Kubelet, Tally]:
    documents = [msgspec.json.encode(pod(seed, number)) for number in numbers]
    return {kubelet: _tally(kubelet, numbers, documents) for kubelet in kubelets}


def _tally(kubelet: Kubelet, numbers: range, documents: Sequence[bytes]) -> Tally:
    tally, said = Tally(), _answers(kubelet, documents)
    for number, (verdict, ours, complaints) in zip(numbers, said, strict=True):
        tally.counts["pods"] += 1
        if verdict.refused:
            tally.counts["refused"] += 1
            continue
        if ours is None:
            wrong = (f"explain: {complaints}",)
        else:
            found = compare(kubelet, verdict, ours)
            wrong = found.disagreements
            tally.counts.update((ours.action, *found.cautions))
            if not wrong:
                tally.counts["cautious" if found.cautions else "agreed"] += 1
        if wrong:
            tally.counts["disagreed"] += 1
            if len(tally.disagreements) < SHOWN:
                what = f"{kubelet.title}, pod {number}: {'; '.join(wrong)}"
                tally.disagreements.append(f"{what}\n{_told(verdict, ours)}")
    return tally


def _told(verdict: Verdict, ours: Explained | None) -> str:
    rest = msgspec.structs.replace(verdict, pod=msgspec.Raw(b"null"))
    said = (msgspec.json.encode(each).decode() for each in (verdict.pod, rest, ours))
    return "pod:     {}\nkubelet: {}\nexplain: {}".format(*said)


def main() -> int:
    parser = argparse.ArgumentParser("python -m oracle.play", description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000_000, help="for each kubelet")
    parser.add_argument("--seed", type=int, default=NIGHT)
    options = parser.parse_args()
    print(f"again: --pods {options.pods} --seed {options.seed}", flush=True)
    started = time.monotonic()

    def show(done: int) -> None:
        if done % _STEP == 0 or done == options.pods:
            print(f"{time.monotonic() - started:>6.0f} s {done:>9} pods", flush=True)

    tallies = play(KUBELETS, options.seed, options.pods, show)
    print("\n" + "  ".join(f"{kubelet.title:>34}" for kubelet in KUBELETS))
    reasons = {caution.what: f": {caution.reason}" for caution in CAUTIONS}
    for name in (*_COUNTED, *_ACTIONS, *reasons):
        counts = "  ".join(f"{tally.counts[name]:>34}" for tally in tallies.values())
        print(f"{counts}  {name}{reasons.get(name, '')}")
    for tally in tallies.values():
        for found in tally.disagreements:
            print(f"\n{found}")
    good = not any(tally.counts["disagreed"] for tally in tallies.values())
    print("\ngood" if good else "\nNOT GOOD")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
