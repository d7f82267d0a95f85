"""What runs beside tests: the lab, the tiers, the demo, benchmarks, the oracle, and the release.

A cluster can be left running, and nothing of it is left once it is ended. Most people who try the
project first are not root, and pods cannot run. No number of a benchmark is judged here. The
workflow that releases is played as far as it goes without its accounts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import lab
import lightkube
import pytest
import yaml
from istio_aux.model import names
from lab import clusters, processes, tools
from lab.__main__ import main
from lab.nightly import NIGHT, sampled
from lab.workloads import WEBSOCKETS
from lightkube import KubeConfig
from lightkube.resources.core_v1 import Namespace
from oracle.play import KUBELETS, play

from benchmarks import attack, quit as quitting, scale, scale_rows, tables
from tools import address, cache, packages, program, publish, toolchain
from tools.publish import ReleaseError

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
        with lightkube.Client(KubeConfig.from_file(Path(found[1])), trust_env=False) as client:
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


@pytest.mark.nightly("node/test_started_by_hand.py, and that the tier is skipped")
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

    assert [one.name for one in programs] == ["controller-runtime", "istio-aux before", "istio-aux"]
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
    found = [
        each for tally in play(KUBELETS, NIGHT, 100_000).values() for each in tally.disagreements
    ]
    assert sampled(f"tox -e oracle -- --pods 100000 --seed {NIGHT}", found) == []


RELEASE = pytest.mark.nightly("test_packages.py, unit/test_repository.py")
WORKFLOW: dict[str, Any] = yaml.safe_load(
    (packages.ROOT / ".github/workflows/release.yaml").read_text()
)
VERSION = packages.version()
# Programs that need an account, or install others; each notes how it is called.
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$NOTED"
case "$(basename "$0") $1 $2" in
"charmcraft upload-resource "*) echo '{"revision": 7}' ;;
"docker buildx imagetools"*) echo sha256:0 ;;
esac
"""
ENDS = ("", ".tar.gz", ".cdx.json")
ACCOUNTS = ("charmcraft", "docker", "gh", "helm", "oras", "rockcraft.skopeo", "sudo")


class Played(NamedTuple):
    """The checkout after the steps, and which programs they called."""

    dist: Path
    calls: list[str]
    outputs: dict[str, str]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git tracks, with the files that the jobs before hand over."""
    root = tmp_path_factory.mktemp("released")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=packages.ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, tracked):
        if (packages.ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(packages.ROOT / name, root / name)
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@example.com")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
        subprocess.run([*git, *words], cwd=root, check=True)
    (root / ".venv").symlink_to(packages.ROOT / ".venv")
    (root / "dist").mkdir()
    for arch in ("amd64", "arm64"):
        shutil.copy(program.program(), root / f"dist/istio-aux-linux-{arch}")
        (root / f"dist/istio-aux-linux-{arch}.cdx.json").write_text(program.bill())
    for place in ("workload/istio-aux_{}_amd64", "dist/istio-aux_{}_arm64"):
        (root / f"{place.format(VERSION)}.rock").write_text("rock")
    (root / "istio-aux_amd64.charm").write_text("charm")
    return root


def played(checkout: Path, folder: Path, ref: str) -> Played:
    """Run the steps of the job `publish` that a push of this reference runs."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name in ACCOUNTS:
        (bin_folder / name).write_text(STAND_IN)
        (bin_folder / name).chmod(0o755)
    for name in ("noted", "output"):
        (folder / name).touch()
    kind = "tag" if ref.startswith("v") else "branch"
    repository = address.slug(names.REPOSITORY)
    server = names.REPOSITORY.removesuffix(f"/{repository}")
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("TOX", "PYTHON", "VIRTUAL"))},
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "NOTED": str(folder / "noted"), "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_REF_NAME": ref, "GITHUB_ACTOR": "actor", "GITHUB_SERVER_URL": server,
        "GITHUB_REPOSITORY": repository,
    }  # fmt: skip
    outputs: dict[str, str] = {}
    for step in WORKFLOW["jobs"]["publish"]["steps"]:
        if "run" not in step or (step.get("if") == "github.ref_type == 'tag'" and kind != "tag"):
            continue
        given = {name: _value(str(value), outputs) for name, value in step.get("env", {}).items()}
        subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step["run"]],
            cwd=checkout, env={**environment, **given}, check=True, timeout=500,
        )  # fmt: skip
        outputs = dict(line.split("=", 1) for line in (folder / "output").read_text().splitlines())
    return Played(checkout / "dist", (folder / "noted").read_text().splitlines(), outputs)


def _value(text: str, outputs: dict[str, str]) -> str:
    text = re.sub(r"\$\{\{ steps\.\w+\.outputs\.(\w+) \}\}", lambda m: outputs[m[1]], text)
    return re.sub(r"\$\{\{ secrets\.(\w+) \}\}", r"secret-\1", text)


@pytest.fixture(scope="module")
def release(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(checkout, tmp_path_factory.mktemp("tag"), f"v{VERSION}")


@RELEASE
def test_a_release_publishes_all_that_ships_under_the_addresses_of_the_pages(
    release: Played,
) -> None:
    image = f"{names.REGISTRY}/istio-aux:{VERSION}"
    calls = "\n".join(release.calls)
    for arch in ("amd64", "arm64"):
        rock = f"dist/istio-aux_{VERSION}_{arch}.rock"
        assert f"oci-archive:{rock} docker://{image}-{arch}" in calls
    assert f"docker buildx imagetools create --tag {image} {image}-amd64 {image}-arm64" in calls
    assert f"helm push dist/istio-aux-{VERSION}.tgz oci://{names.REGISTRY}/charts" in calls
    assert f"oras push {names.REGISTRY}/charts/istio-aux:artifacthub.io" in calls
    track = VERSION.rpartition(".")[0]
    assert f"--release {track}/candidate --resource istio-aux-image:7" in calls
    [published] = [call for call in release.calls if call.startswith("gh release create")]
    assert published.startswith(f"gh release create v{VERSION} ")
    assert {Path(word).name for word in published.split() if word.startswith("dist/")} == {
        "SHA256SUMS", "istio-aux.krew.yaml", "istio-aux.yaml", "istio-aux_amd64.charm",
        f"istio-aux-{VERSION}.tgz", f"istio_aux-{VERSION}-py3-none-any.whl",
        f"istio-aux-{VERSION}.cdx.json", f"istio-aux-charm-{VERSION}.cdx.json",
        *(f"istio-aux-linux-{arch}{end}" for arch in ("amd64", "arm64") for end in ENDS),
        *(f"istio-aux_{VERSION}_{arch}.rock" for arch in ("amd64", "arm64")),
    }  # fmt: skip


@RELEASE
def test_krew_installs_what_the_checksums_say(release: Played, tmp_path: Path) -> None:
    """The archive has a licence, and the program under the name that the manifest gives."""
    lines = (release.dist / "SHA256SUMS").read_text().splitlines()
    sums = {line.split()[1]: line.split()[0] for line in lines}
    spec = yaml.safe_load((release.dist / "istio-aux.krew.yaml").read_text())["spec"]
    assert spec["version"] == f"v{VERSION}"
    for platform in spec["platforms"]:
        place, _, name = platform["uri"].rpartition("/")
        assert place == f"{names.REPOSITORY}/releases/download/v{VERSION}"
        assert platform["sha256"] == sums[name]
        with tarfile.open(release.dist / name) as archive:
            assert archive.getnames() == ["LICENSE", platform["bin"]]
        subprocess.run(["tar", "-xf", release.dist / name, "-C", tmp_path], check=True)
    said = subprocess.run(
        [tmp_path / "istio-aux", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith(f"istio-aux {VERSION}, ")


@RELEASE
def test_the_notes_are_what_the_changelog_says_of_the_version(release: Played) -> None:
    text = (release.dist.parent / "notes.md").read_text()
    assert text.startswith("The first release: ")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    with pytest.raises(ReleaseError, match=r"write `## 9.9.9`"):
        publish.notes("# Changelog\n\n## 0.1.0\n\nIt is.\n", "9.9.9")


@RELEASE
@pytest.mark.parametrize(
    ("ref", "channel"), [("main", "latest/edge"), ("track/0.1", "0.1/edge"), ("v9.9.9", "")]
)
def test_a_commit_goes_to_edge_and_a_tag_must_be_the_version(
    ref: str, channel: str, checkout: Path, release: Played, tmp_path: Path
) -> None:
    """The step that names what follows, alone."""
    [step] = [each for each in WORKFLOW["jobs"]["publish"]["steps"] if each.get("id") == "names"]
    environment = {**os.environ, "GITHUB_REF_NAME": ref, "GITHUB_OUTPUT": str(tmp_path / "out")}
    command = ["bash", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=False)
    if not channel:
        assert done.returncode == 1
        assert done.stdout.decode() == f"v9.9.9: the version is {VERSION}\n"
        return
    said = (tmp_path / "out").read_text()
    assert f"channel={channel}\n" in said
    assert re.search(rf"^tag={VERSION}-\d{{8}}-[0-9a-f]{{8}}$", said, re.MULTILINE)


@RELEASE
def test_nothing_is_released_from_a_repository_that_the_pages_do_not_name(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"run `python -m tools.address https://github.com/a/b`"):
        publish.publish(tmp_path, "https://github.com/a/b")
    with pytest.raises(ReleaseError, match="run `make program`"):
        publish.publish(tmp_path, names.REPOSITORY)


@RELEASE
def test_every_file_and_the_image_are_attested() -> None:
    attested = [
        step["with"]
        for step in WORKFLOW["jobs"]["publish"]["steps"]
        if step.get("uses", "").startswith("actions/attest@")
    ]
    assert [sorted(each) for each in attested] == [
        ["subject-digest", "subject-name"], ["subject-checksums"],
    ]  # fmt: skip
