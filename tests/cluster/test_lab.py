"""What developers run beside tests: the lab, the tiers, the demo, the benchmarks, the oracle.

A cluster can be left running, and nothing of it is left once it is ended. Most people who try the
project first are not root, and pods cannot run. No number of a benchmark is judged here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lab
import lightkube
import pytest
from lab import clusters, processes, tools
from lab.__main__ import main
from lab.nightly import NIGHT, sampled
from lab.workloads import WEBSOCKETS
from lightkube import KubeConfig
from lightkube.resources.core_v1 import Namespace
from oracle.play import KUBELETS, play

from benchmarks import attack, scale, scale_rows, tables
from benchmarks import quit as quitting
from tools import cache, toolchain

ROOT = Path(__file__).parents[2]


def by_hand(*argv: str) -> str:
    """What a command of the lab prints; it must succeed."""
    return subprocess.run(
        [sys.executable, "-m", "lab", *argv], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        check=True,
    ).stdout  # fmt: skip


def test_up_leaves_a_cluster_running_until_down():
    said = by_hand("up", "--level", "api")
    name = said.split()[0]
    try:
        found = re.search(r"export KUBECONFIG=(\S+)", said)
        assert found
        config = KubeConfig.from_file(Path(found[1]))
        with lightkube.Client(config, trust_env=False) as client:
            assert client.get(Namespace, "default")
        assert f"{name}: level api, left by `up`" in by_hand("status")
    finally:
        by_hand("down", name)
    assert processes.left_by(name) == []


def test_down_spares_the_cluster_of_a_test(cluster: lab.Cluster):
    assert main(["down", cluster.name]) == 2
    assert processes.pids_of(cluster.name)


# No account of a distribution has this id.
ID = "64123"
# Reads the checkout, its environment, the interpreter and the built programs. The interpreter also
# starts itself: `setpriv` starts one that the user may not.
READING = """
import subprocess, sys, demo, istio_aux
from lab import tools
tools.missing()
subprocess.run([sys.executable, "-c", ""], check=True)
"""


@dataclass(frozen=True)
class User:
    """Somebody who is not root; `home` is theirs alone."""

    home: Path  # The user's folder, beside which they may write nothing.
    # The prefix of a command that runs it as the user; empty if this is not root.
    becoming: Sequence[str]
    environment: Mapping[str, str]  # Of their programs.

    def python(self, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the running interpreter from the user's home; keywords extend the environment."""
        return subprocess.run(
            [*self.becoming, sys.executable, *argv],
            cwd=self.home,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def somebody() -> Iterator[User]:
    """A user without root, who finds what the api level needs built.

    This user reads the checkout and the lab's programs, and writes to neither. If checkout or
    interpreter lie in a folder of root's, that needs the capability to read every file. The test
    is skipped where root may not give it.
    """
    tools.ensure(clusters.CONTROL_PLANE)
    # Not in the caller's folder for temporary files, which others may not enter.
    with tempfile.TemporaryDirectory(prefix="lab-user-", dir="/tmp") as place:
        home = Path(place)
        made = User(home, (), _environment(home))
        if os.geteuid() == 0:
            for path in (home, *home.rglob("*")):
                os.chown(path, int(ID), int(ID), follow_symlinks=False)
            ids = ("setpriv", "--reuid", ID, "--regid", ID, "--clear-groups")
            right = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
            candidates = [replace(made, becoming=each) for each in (ids, (*ids, *right))]
            reading = [each for each in candidates if each.python("-c", READING).returncode == 0]
            if not reading:
                pytest.skip(f"user id {ID} may not read what the lab needs")
            made = reading[0]
        yield made


def _environment(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in {"PATH", "LANG", "TERM"} or k[:2] == "GO"}
    built = home / "cache/istio-aux/lab"
    for name in ("tools", "go"):
        (built / name).mkdir(parents=True)
        # One by one: beside what is built already lie the user's own locks.
        for entry in cache.folder(name).iterdir():
            if entry.is_dir():
                (built / name / entry.name).symlink_to(entry)
    return {
        **kept,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        # A go.mod may ask for a newer Go, which lies there.
        "GOMODCACHE": toolchain.module_cache(),
        "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


REASON = "pods need root: this is user id"


TIER = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]


@pytest.mark.parametrize(
    ("ci", "status", "ends"),
    [("", 0, "skipped"), ("true", 1, "error")],
    ids=["at home", "CI"],
)
def test_the_node_tier_is_skipped_with_its_reason_and_in_ci_it_fails(
    somebody: User, ci: str, status: int, ends: str
) -> None:
    """What nobody looks at must not be green because nothing was tested."""
    done = somebody.python("-m", "pytest", *TIER, str(ROOT / "tests/node/test_image.py"), CI=ci)

    assert done.returncode == status, done.stdout + done.stderr
    assert f"1 {ends}" in done.stdout
    assert REASON in done.stdout


@pytest.mark.nightly("node/test_demo.py, and that the tier is skipped")
def test_the_scripted_demo_keeps_the_promise_and_says_what_is_scripted(somebody: User) -> None:
    """As `make demo` runs it, from its first line to its exit status."""
    done = somebody.python("-m", "demo")

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith(f"cannot run pods: {REASON}")
    assert "a script plays their status" in done.stdout
    assert "the promise was kept" in done.stdout
    assert (somebody.home / "demo-report/timeline.svg").exists()


def test_a_playground_that_cannot_be_had_says_what_it_needs(somebody: User) -> None:
    done = somebody.python("-m", "demo", "--playground")

    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(rf"a playground needs Linux, root, \d+ GB of disk, .+: {REASON}", done.stderr)


BENCHMARK = pytest.mark.nightly("cluster/test_quit.py, cluster/test_admission.py")


@BENCHMARK
@WEBSOCKETS.needed
def test_the_quit_benchmark_measures_each_program(cluster: lab.Cluster):
    """With a few pods, also for another checkout: every proxy is told, once. Their node speaks no
    SPDY."""
    programs = quitting.measure(cluster, quitting.QUICK, alone=False, before=ROOT)

    names = [one.name for one in programs]
    assert names == ["controller-runtime", "istio-aux before", "istio-aux"]
    assert {one.numbers["execs"] for one in programs} == {quitting.QUICK.start}
    found = list(tables.verdicts(quitting.rows(quitting.QUICK), programs))
    assert found
    assert "-" not in {verdict.measured for verdict in found}


@BENCHMARK
@WEBSOCKETS.needed
def test_the_scale_benchmark_plays_every_scene_and_keeps_its_tables(tmp_path: Path):
    """With a hundred pods, on a cluster of its own: what it ends would be missed by others."""
    programs = scale.main(scale_rows.QUICK, tmp_path)

    assert [one.name for one in programs] == ["controller-runtime", "istio-aux"]
    assert [one.failed for one in programs] == [{}, {}]
    found = list(tables.verdicts(scale_rows.rows(scale_rows.QUICK), programs))
    assert "-" not in {verdict.measured for verdict in found}
    assert "kill -9 of the leader" in (tmp_path / "scale.md").read_text()


@BENCHMARK
def test_the_attack_benchmark_floods_and_keeps_its_table(tmp_path: Path):
    """A moment of each flood, on a cluster of its own."""
    lines = attack.main(tmp_path, None, quick=True)

    assert lines
    assert "0" not in {answered for *_, answered in lines}
    assert lines[0][0] in (tmp_path / "attack.md").read_text()


NEWEST = KUBELETS[-1]


def test_twenty_thousand_pods_are_judged_as_by_the_kubelet() -> None:
    """`tox -e oracle` shows a million to three versions (uds-core#687, uds-core#913, KEP-5307)."""
    tally = play([NEWEST], seed=17, pods=20_000)[NEWEST]
    assert tally.disagreements == []
    counts = tally.counts
    assert counts["agreed"] + counts["cautious"] + counts["refused"] == counts["pods"] == 20_000
    assert [name for name in ("quit", "wait", "report", "ignore") if counts[name] <= 500] == []


@pytest.mark.nightly("20,000 pods of one seed, by one kubelet")
def test_the_pods_of_this_night_are_judged_as_by_each_kubelet() -> None:
    tallies = play(KUBELETS, NIGHT, 100_000).values()
    found = [each for tally in tallies for each in tally.disagreements]
    assert sampled(f"tox -e oracle -- --pods 100000 --seed {NIGHT}", found) == []
