"""Those who judge a pod: kubelets of all versions of Kubernetes, and `istio-aux explain`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from lab import tools

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
