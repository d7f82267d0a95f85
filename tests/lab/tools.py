"""The programs that the lab builds from pinned Go modules, and where each of them is.

A folder with a go.mod pins other projects' programs, or holds one of our own. A program is kept in
the cache under a key of all that goes into it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab import cache, toolchain
from lab.errors import LabError

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[1] / "benchmarks"
ORACLE = HERE.parent / "oracle/kubelet"
# -trimpath: the same program from every checkout. Without debug information, which the linker would
# drop, Pebble takes 34 s of CPU instead of 40 s.
FLAGS = ("-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false")


class BuildError(LabError):
    """A program could not be built; the message names it and the log."""


@dataclass(frozen=True)
class Mend:
    """What an archive of a module lacks at `path`: a symbolic link, which Go leaves out, or `more`.

    The program is compiled from a mended copy; go.mod and go.sum still say what is copied.
    """

    module: str
    path: str
    target: str = ""
    more: str = ""


@dataclass(frozen=True)
class Program:
    """A program, its go.mod's folder, its package, and its cold build's seconds on two cores."""

    name: str
    folder: Path
    package: str
    seconds: int
    ldflags: str = "-s -w"
    # Built on first use: neither `make demo` nor `make test` needs it.
    on_demand: bool = False
    mend: Mend | None = None


USUAL = "1.36"
MINOR = os.environ.get("LAB_KUBERNETES") or USUAL
"""The Kubernetes of the lab's clusters, as major.minor: one of the folders in `tools`."""


def _pinned(folder: Path) -> re.Match[str]:
    """The version that a folder pins, as `v1.36.3`, and its major and minor."""
    try:
        pins = (folder / "go.mod").read_text()
    except FileNotFoundError:
        folders = (HERE / "tools").glob("kubernetes-*")
        there = ", ".join(sorted(found.name.rpartition("-")[2] for found in folders))
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
    folder = HERE / "tools" / group
    return Program(name, folder, package, seconds, on_demand=True, mend=mend)


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
        Program("pebble", HERE / "tools/pebble", "github.com/canonical/pebble/cmd/pebble", 10),
        _pinned_program("pebble-1.19", "pebble-1.19", "github.com/canonical/pebble/cmd/pebble", 10),
        Program("kubelet-spdy", HERE / "kubelet/spdy", ".", 20, on_demand=True),
        _istio("pilot-agent", "istio.io/istio/pilot/cmd/pilot-agent", 140),
        _istio("pilot-discovery", "istio.io/istio/pilot/cmd/pilot-discovery", 209),
        _istio("istio-charts", ".", 11),
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
    places = {p.name: _place(p) for p in PROGRAMS.values() if p.name in wanted}
    if all(place.exists() for place in places.values()):
        return places
    lock = cache.folder("tools") / "lock"
    with cache.lock(lock, waiting="waiting for another process that builds the tools"):
        missing = [PROGRAMS[name] for name, place in places.items() if not place.exists()]
        for index, program in enumerate(missing):
            ahead = missing[index:]
            rest = _time(sum(p.seconds for p in ahead))
            names = ", ".join(p.name for p in ahead)
            cache.say(f"building {names}: about {rest} on two free cores, and the downloads")
            _build(program, places[program.name])
    return places


def missing() -> list[str]:
    """The programs that `build` would build."""
    return [p for p in usual() if not _place(PROGRAMS[p]).exists()]


def usual() -> list[str]:
    return [p.name for p in PROGRAMS.values() if not p.on_demand]


def _place(program: Program) -> Path:
    digest = hashlib.sha256()
    sources = [program.folder / "go.mod", program.folder / "go.sum", *program.folder.rglob("*.go")]
    for source in sorted(source for source in sources if source.exists()):
        digest.update(f"{source.relative_to(program.folder)}\0".encode() + source.read_bytes())
    for part in (program.package, program.ldflags, *FLAGS, toolchain.version(program.folder)):
        digest.update(f"\0{part}".encode())
    if program.mend:
        digest.update(f"\0{program.mend}".encode())
    return cache.root() / "tools" / digest.hexdigest()[:16] / program.name


def _build(program: Program, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    log = place.with_suffix(".log")
    # Built beside its place and renamed: nobody finds half a program.
    new = place.with_suffix(".new")
    argv = [str(toolchain.go()), "build", *FLAGS, "-ldflags", program.ldflags, "-o", str(new)]
    started = time.monotonic()
    with log.open("w") as output, contextlib.ExitStack() as stack:
        if program.mend:
            changed = stack.enter_context(_mended(program.folder, program.mend))
            argv.append(f"-modfile={changed}")
        built = subprocess.run(
            [*argv, program.package],
            cwd=program.folder,
            env=toolchain.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if built.returncode:
        last = (log.read_text().strip().splitlines() or ["no output"])[-1]
        raise BuildError(
            f"{program.name}: go build: exit status {built.returncode}: {last} (all of it in {log})"
        )
    new.rename(place)
    log.unlink()
    cache.say(f"built {program.name} in {time.monotonic() - started:.0f} s")


@contextlib.contextmanager
def _mended(folder: Path, mend: Mend) -> Iterator[Path]:
    """A go.mod like that of `folder`, in which the module is a copy with what it lacks."""
    source = toolchain.module(folder, mend.module)
    with tempfile.TemporaryDirectory(dir=cache.folder("tools")) as place:
        copy, changed = Path(place) / "module", Path(place) / "go.mod"
        # Go keeps its modules read-only; the copy is to be removed again.
        argv = ["cp", "-r", "--no-preserve=mode", source, copy]
        subprocess.run(argv, check=True)
        if mend.target:
            (copy / mend.path).symlink_to(mend.target)
        else:
            with (copy / mend.path).open("a") as file:
                file.write(mend.more)
        text = (folder / "go.mod").read_text()
        changed.write_text(f"{text}\nreplace {mend.module} => {copy}\n")
        shutil.copy(folder / "go.sum", place)
        yield changed


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
