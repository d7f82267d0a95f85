"""The programs that the lab builds from pinned Go modules, and where each of them is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tools import golang
from tools.golang import BuildError, Mend, Program

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[1] / "benchmarks"
ORACLE = HERE.parent / "oracle/kubelet"

USUAL = "1.36"
MINOR = os.environ.get("LAB_KUBERNETES") or USUAL
"""The Kubernetes of the lab's clusters, as major.minor: one of the folders in `tools`."""


def _pinned(folder: Path) -> re.Match[str]:
    """The version that a folder pins, as `v1.36.3`, and its major and minor."""
    try:
        pins = (folder / "go.mod").read_text()
    except FileNotFoundError:
        there = ", ".join(
            sorted(found.name.rpartition("-")[2] for found in (HERE / "tools").glob("kubernetes-*"))
        )
        raise BuildError(f"LAB_KUBERNETES={MINOR}: expected one of {there}") from None
    pinned = re.search(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)", pins)
    assert pinned
    return pinned


_MONTH = os.environ.get("LAB_ISTIO", "")
ISTIO = HERE / f"tools/istio{_MONTH and f'-{_MONTH}'}"
ISTIO_VERSION = f"1.31-alpha.{_MONTH}" if _MONTH else "1.31.0"
"""Only development versions are to be had as modules: the usual one, or that of LAB_ISTIO=2026-04,
with which the work on 1.31 began."""
USUAL_KUBERNETES = HERE / f"tools/kubernetes-{USUAL}"
KUBERNETES = HERE / f"tools/kubernetes-{MINOR}"
VERSION = _pinned(KUBERNETES)[1]
"""The version of API server and kubelet, such as `v1.36.3`."""


def before(minor: int) -> bool:
    return int(_pinned(KUBERNETES)[3]) < minor


def _kubernetes(name: str, seconds: int, folder: Path = KUBERNETES) -> Program:
    # Istio and kubectl read the version of API server and kubelet; a release build sets it so.
    values = zip(("Version", "Major", "Minor"), _pinned(folder).groups(), strict=True)
    sets = " ".join(f"-X k8s.io/component-base/version.git{k}={value}" for k, value in values)
    return Program(name, folder, f"k8s.io/kubernetes/cmd/{name}", seconds, f"-s -w {sets}")


def _istio(name: str, package: str, seconds: int) -> Program:
    """A program of Istio, which says which version it is, as a release does."""
    sets = f"-X istio.io/istio/pkg/version.buildVersion={ISTIO_VERSION}"
    return Program(name, ISTIO, package, seconds, f"-s -w {sets}")


def _on_node(name: str, package: str, seconds: int) -> Program:
    """A program of Istio's CNI agent, which needs no C library."""
    return Program(name, HERE / "tools/istio", package, seconds, on_demand=True)


ARGO = "github.com/argoproj/argo-workflows/v3"
# Both programs are compiled from the copy: they share packages.
_ARGO_LINK = Mend(ARGO, "workflow/executor/osspecific/signal_linux.go", "signal_darwin.go")

_ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint"
_TRAINING = "github.com/kubeflow/training-operator/cmd/training-operator.v1"
# Its client-go is that of Kubernetes 1.36, which is compiled already. Its controller-runtime is
# older, and lacks a method of an interface there; only caches of chosen namespaces would call it.
_CACHE = Mend(
    "sigs.k8s.io/controller-runtime",
    "pkg/cache/multi_namespace_cache.go",
    more='func (handlerRegistration) HasSyncedChecker() toolscache.DoneChecker { panic("unused") }',
)
_TRAINER = "github.com/kubeflow/trainer/v2"
_MPI = "github.com/kubeflow/mpi-operator"


def _pinned_program(name: str, group: str, package: str, seconds: int) -> Program:
    """A program that is built on first use, mostly of other people."""
    mend = _ARGO_LINK if group == "argo" else None
    return Program(name, HERE / "tools" / group, package, seconds, on_demand=True, mend=mend)


# In the order of building: what the api level needs comes first, and the programs of a group share
# most of their packages, so the seconds of the later ones hold only after the earlier ones.
PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", USUAL_KUBERNETES, "go.etcd.io/etcd/server/v3", 45),
        _kubernetes("kube-apiserver", 180),
        _kubernetes("kube-controller-manager", 50),
        _kubernetes("kube-scheduler", 5),
        _kubernetes("kubelet", 20),
        _kubernetes("kubectl", 20, USUAL_KUBERNETES),
        Program("oracle-1.36", ORACLE / "1.36", ".", 15),
        Program("oracle-1.34", ORACLE / "1.34", ".", 240, on_demand=True),
        Program("oracle-1.32", ORACLE / "1.32", ".", 240, on_demand=True),
        _pinned_program("helm", "helm", "helm.sh/helm/v4/cmd/helm", 130),
        _pinned_program("tofu", "opentofu", "github.com/opentofu/opentofu/cmd/tofu", 430),
        _pinned_program("tflint", "tflint", "github.com/terraform-linters/tflint", 180),
        _pinned_program("actionlint", "actionlint", _ACTIONLINT, 15),
        _pinned_program("cert-manager", "cert-manager", ".", 100),
        Program("terraform-provider-juju", HERE / "juju_provider", ".", 20, on_demand=True),
        golang.PEBBLE,
        _pinned_program("pebble-1.19", "pebble-1.19", "github.com/canonical/pebble/cmd/pebble", 10),
        Program("kubelet-spdy", HERE / "kubelet/spdy", ".", 20, on_demand=True),
        _istio("pilot-agent", "istio.io/istio/pilot/cmd/pilot-agent", 140),
        _istio("pilot-discovery", "istio.io/istio/pilot/cmd/pilot-discovery", 209),
        _istio("istio-charts", ".", 11),
        _on_node("install-cni", "istio.io/istio/cni/cmd/install-cni", 60),
        _on_node("istio-cni", "istio.io/istio/cni/cmd/istio-cni", 10),
        _on_node("ztunnel", "./ztunnel", 5),
        Program("bench-kubelet", BENCHMARKS / "kubelet", ".", 5, on_demand=True),
        Program("bench-quitter", BENCHMARKS / "quitter", ".", 70, on_demand=True),
        Program("coredns", HERE / "tools/coredns", ".", 8),
        Program("training-operator", HERE / "tools/training-operator", _TRAINING, 20, mend=_CACHE),
        _pinned_program("trainer", "trainer", f"{_TRAINER}/cmd/trainer-controller-manager", 60),
        _pinned_program("jobset", "trainer", "sigs.k8s.io/jobset", 15),
        _pinned_program("mpi-operator", "trainer", f"{_MPI}/cmd/mpi-operator", 25),
        _pinned_program("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue", 130),
        _pinned_program("workflow-controller", "argo", f"{ARGO}/cmd/workflow-controller", 170),
        _pinned_program("argoexec", "argo", f"{ARGO}/cmd/argoexec", 30),
    )
}


def path(name: str) -> Path:
    """The program `name`, built if the cache does not have it. Raises BuildError."""
    return ensure([name])[name]


def ensure(names: Iterable[str]) -> dict[str, Path]:
    """The programs `names` by name; builds the missing ones in order, saying how long it takes."""
    wanted = set(names)
    if unknown := wanted - PROGRAMS.keys():
        raise BuildError(f"{min(unknown)}: no such program; there are {', '.join(PROGRAMS)}")
    return golang.ensure(program for program in PROGRAMS.values() if program.name in wanted)


def missing() -> list[str]:
    """The programs that `build` would build."""
    return [name for name in usual() if not golang.place(PROGRAMS[name]).exists()]


def usual() -> list[str]:
    return [p.name for p in PROGRAMS.values() if not p.on_demand]
