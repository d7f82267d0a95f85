"""The tests on the versions of Kubernetes and Python that people run, and a table of how that went.

    python tests/matrix.py [--page | ROW[=REPORT] ...]

What goes in: rows such as `1.32/cluster`, `istio-2026-04/node` or `python3.13/unit`; without any,
all of them; with `--page` none. A row with a report does not run: `1.36/node=FILE` takes what
`make test` wrote to `test-results/node.xml`. What comes out: `tests/matrix.json`, where rows that
do not run now stay as they were, and the table in `tests/README.md`, made from it. Exits with 1 if
a test failed.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import summary

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = ROOT / "tests/matrix.json"
TABLE = ROOT / "tests/README.md"
BEGIN, END = "<!-- made by `make matrix` -->", "<!-- end -->"
RUNS = """| Kubernetes | ends | Python | tier | beside | passed | failed | left out |
|---|---|---|---|---|--:|--:|--:|"""
DIFFERENCES = """| why tests were left out | how many |
|---|---|"""
USUAL = "1.36"
"""The Kubernetes of `make test`."""
# The last day of each minor version (https://kubernetes.io/releases/1.37/, likewise the others).
ENDS = {
    "1.32": "2026-02-28",
    "1.33": "2026-06-28",
    "1.34": "2026-10-27",
    "1.35": "2027-02-28",
    "1.36": "2027-06-28",
    "1.37": "2027-10-28",
}
TOOLS = ROOT / "tests/lab/tools"
EARLIER = "istio-2026-04"
"""The folder of another Istio than the usual one."""
# What other projects' programs a tier is about: the folder that pins each, and its module.
BESIDE = {
    "node": {"training-operator": ("training-operator", "github.com/kubeflow/training-operator")},
    "workloads": {
        "Trainer": ("trainer", "github.com/kubeflow/trainer/v2"),
        "JobSet": ("trainer", "sigs.k8s.io/jobset"),
        "MPI operator": ("trainer", "github.com/kubeflow/mpi-operator"),
        "Kueue": ("kueue", "sigs.k8s.io/kueue"),
        "Argo Workflows": ("argo", "github.com/argoproj/argo-workflows/v3"),
    },
    "chart": {
        "Helm": ("helm", "helm.sh/helm/v4"),
        "cert-manager": ("cert-manager", "github.com/cert-manager/cert-manager"),
    },
}
ROWS = (
    *(f"{minor}/cluster" for minor in ENDS),
    *(f"{minor}/node" for minor in ("1.32", USUAL, "1.37")),
    *(f"{EARLIER}/{tier}" for tier in ("cluster", "node")),
    *(f"{USUAL}/{tier}" for tier in ("workloads", "chart")),
    "python3.11/unit",
    *(f"python3.{minor}/{tier}" for minor in (12, 13) for tier in ("unit", "cluster")),
)


@dataclass(frozen=True)
class Result:
    """How the tests of a row went, with the versions of Kubernetes and Python."""

    kubernetes: str
    python: str
    beside: str  # As "Helm 4.3.2, cert-manager 1.21.2".
    day: str  # As 2026-11-23.
    passed: int
    failed: int
    seconds: int
    lacking: Mapping[str, int]  # How many tests were left out, by the reason.


def main(rows: list[str]) -> int:
    """Run rows, keep their numbers, write the table; returns the exit status."""
    rows = [] if rows == ["--page"] else rows or [*ROWS]
    wanted = {row: report for row, _, report in (each.partition("=") for each in rows)}
    if unknown := wanted.keys() - set(ROWS):
        print(f"{min(unknown)}: no such row; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    known = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    failed = 0
    for row, report in wanted.items():
        result = counted(row, Path(report)) if report else run(row)
        failed += result.failed
        known[row] = asdict(result)
        known = {each: known[each] for each in ROWS if each in known}
        NUMBERS.write_text(json.dumps(known, indent=2) + "\n")
        TABLE.write_text(written(TABLE.read_text(), known))  # The next row tests it.
        print(f"{row}: {result.passed} passed, {result.failed} failed in {result.seconds} s")
    TABLE.write_text(written(TABLE.read_text(), known))
    return 1 if failed else 0


def run(row: str) -> Result:
    """Run the tests of a row in an environment of tox of its own."""
    version, tier = row.split("/")
    python, kubernetes = _versions(row)
    report = ROOT / "test-results/matrix" / f"{row.replace('/', '-')}.xml"
    report.unlink(missing_ok=True)
    tox = [str(ROOT / ".venv/bin/tox"), "run", "--quiet", "-e", tier]
    if version == python:
        tox += ["--workdir", str(ROOT / ".tox" / python), "-x", f"testenv.base_python={python}"]
    subprocess.run(
        [*tox, "--", f"--junit-xml={report}"],
        env={
            **os.environ,
            "LAB_KUBERNETES": kubernetes,
            "LAB_ISTIO": EARLIER.removeprefix("istio-") if version == EARLIER else "",
        },
        cwd=ROOT,
        check=False,
    )
    if not report.exists():
        raise SystemExit(f"{row}: no test ran")
    return counted(row, report)


def counted(row: str, report: Path) -> Result:
    python, kubernetes = _versions(row)
    counts, seconds = summary.count(report)
    skips = [each.get("message", "") for each in ET.parse(report).getroot().iter("skipped")]
    version, tier = row.split("/")
    beside = [f"{name} {pinned(*place)}" for name, place in BESIDE.get(tier, {}).items()]
    if tier != "unit":
        beside.insert(0, istio(version if version == EARLIER else "istio"))
    return Result(
        kubernetes=pinned(f"kubernetes-{kubernetes}", "k8s.io/kubernetes"),
        python=python,
        beside=", ".join(beside),
        day=datetime.date.today().isoformat(),
        passed=counts.passed,
        failed=counts.failed,
        seconds=round(seconds),
        lacking=dict(Counter(re.sub(r"^v[\d.]+: ", "", skip) for skip in skips)),
    )


def _versions(row: str) -> tuple[str, str]:
    """Of Python and Kubernetes; the row names one of them, or another Istio."""
    version = row.partition("/")[0]
    own = f"python3.{sys.version_info.minor}"
    if version == EARLIER:
        return own, USUAL
    return (version, USUAL) if version.startswith("python") else (own, version)


def written(document: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    """The document with the tables of these rows in their place."""
    runs = [
        f"| {one['kubernetes']} | {ENDS[one['kubernetes'].rpartition('.')[0]]} "
        f"| {one['python'].removeprefix('python')} | {row.split('/')[1]} "
        f"| {_unusual(one['beside'])} | {one['passed']} | {one['failed']} "
        f"| {sum(one['lacking'].values())} |"
        for row, one in known.items()
    ]
    reasons: dict[str, dict[str, int]] = {}
    for row, one in known.items():
        version, tier = row.split("/")
        # Rows of several Pythons have the same Kubernetes.
        place = f"{one['kubernetes'] if version[0].isdigit() else version} {tier}"
        for reason, number in one["lacking"].items():
            reasons.setdefault(re.sub(r" \([^()]*\)$", "", reason), {})[place] = number
    differences = [
        f"| {reason} | {', '.join(f'{where}: {number}' for where, number in rows.items())} |"
        for reason, rows in reasons.items()
    ]
    above = f"Beside {istio('istio')}, unless the row names another one."
    tables = "\n".join([above, "", RUNS, *runs, "", DIFFERENCES, *differences])
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def _unusual(beside: str) -> str:
    """What a row was beside, without the Istio that the page names above the table."""
    return beside.removeprefix(istio("istio")).removeprefix(", ")


def pinned(folder: str, module: str) -> str:
    """The version of a module that the lab builds programs of."""
    found = re.search(rf"{re.escape(module)} v(\S+)", (TOOLS / folder / "go.mod").read_text())
    assert found, f"{folder}: {module}"
    return found[1]


def istio(folder: str) -> str:
    """The day of the Istio in a folder: its development versions have no other name."""
    found = re.search(r"-(\d{4})(\d\d)(\d\d)", pinned(folder, "istio.io/istio"))
    assert found
    return f"Istio 1.31 of {'-'.join(found.groups())}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
