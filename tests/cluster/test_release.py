"""The workflow that releases, played as far as it goes without its accounts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from istio_aux.model import names

from tools import address, packages, program, publish
from tools.publish import ReleaseError

pytestmark = pytest.mark.nightly("test_packages.py, unit/test_repository.py")
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
        lines = (folder / "output").read_text().splitlines()
        outputs = dict(line.split("=", 1) for line in lines)
    return Played(checkout / "dist", (folder / "noted").read_text().splitlines(), outputs)


def _value(text: str, outputs: dict[str, str]) -> str:
    text = re.sub(r"\$\{\{ steps\.\w+\.outputs\.(\w+) \}\}", lambda m: outputs[m[1]], text)
    return re.sub(r"\$\{\{ secrets\.(\w+) \}\}", r"secret-\1", text)


@pytest.fixture(scope="module")
def release(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(checkout, tmp_path_factory.mktemp("tag"), f"v{VERSION}")


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


def test_the_notes_are_what_the_changelog_says_of_the_version(release: Played) -> None:
    text = (release.dist.parent / "notes.md").read_text()
    assert text.startswith("The first release: ")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    with pytest.raises(ReleaseError, match=r"write `## 9.9.9`"):
        publish.notes("# Changelog\n\n## 0.1.0\n\nIt is.\n", "9.9.9")


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


def test_nothing_is_released_from_a_repository_that_the_pages_do_not_name(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"run `python -m tools.address https://github.com/a/b`"):
        publish.publish(tmp_path, "https://github.com/a/b")
    with pytest.raises(ReleaseError, match="run `make program`"):
        publish.publish(tmp_path, names.REPOSITORY)


def test_every_file_and_the_image_are_attested() -> None:
    attested = [
        step["with"]
        for step in WORKFLOW["jobs"]["publish"]["steps"]
        if step.get("uses", "").startswith("actions/attest@")
    ]
    assert [sorted(each) for each in attested] == [
        ["subject-digest", "subject-name"], ["subject-checksums"],
    ]  # fmt: skip
