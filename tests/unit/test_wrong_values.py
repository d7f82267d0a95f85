"""Each field of a file that people write, with each kind of wrong value: one line, no trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from istio_aux import settings
from istio_aux.kube import access
from istio_aux.kube.errors import AccessError
from istio_aux.model.text import quoted
from istio_aux.settings import SettingsError
from unit.apiserver import certificate
from unit.rules.pods import RUNNING, document
from unit.screens import Run

DEEP: list[Any] = []
for _ in range(100):
    DEEP = [DEEP]
WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1 << 63, 1 << 70, 0.5, float("inf"), float("nan"),
    "", " ", "a", "A b", "-", "--all", "$(id)", "x;y", "a/b", "a\nb", "\0", "\ud7ff", "é" * 5_000,
    "https://[fd00::1:6443", "https://host:abc", "https://user:word@host", "http://", "://", "%zz",
    "socks5://p", "=", "a=b", "a=b,", "1/2", "1e999", [], [None], ["a", 7], [[]], {}, {"a": None},
    {"": ""}, {"a": {"b": ["c"]}}, DEEP,
)  # fmt: skip
KUBECONFIG: dict[str, Any] = {
    "current-context": "here",
    "clusters": [{"name": "c", "cluster": {
        "server": "https://host", "certificate-authority": "ca", "certificate-authority-data": "",
        "insecure-skip-tls-verify": False, "tls-server-name": "", "proxy-url": "http://p",
        "disable-compression": True, "extensions": [{"name": "client.authentication.k8s.io/exec"}],
    }}],
    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
    "users": [{"name": "u", "user": {
        "token": "t", "tokenFile": "", "client-certificate": "", "client-certificate-data": "",
        "client-key": "", "client-key-data": "", "exec": {
            "command": "sh", "apiVersion": "client.authentication.k8s.io/v1", "args": ["a"],
            "env": [{"name": "a", "value": "b"}], "installHint": "", "provideClusterInfo": True,
            "interactiveMode": "Never",
        },
    }}],
}  # fmt: skip
POD = document({"main": RUNNING, "istio-proxy": RUNNING}, annotations={"a": "b"}, labels={"c": "d"})
Place = tuple[str | int, ...]


def places(value: Any, above: Place = ()) -> list[Place]:
    """Where each value of a document is."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = list[Place]()
    for key, item in items:
        found.append((*above, key))
        if isinstance(item, (dict, list)):
            found += places(item, (*above, key))
    return found


def changed(value: Any, place: Place, wrong: Any) -> Any:
    copy = deepcopy(value)
    at = copy
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = wrong
    return copy


def named(place: Place) -> str:
    return ".".join(map(str, place))


def said(read: Callable[[Path], object], file: Path) -> str:
    """What a reader says of a file that it refuses; empty if it understands it."""
    try:
        read(file)
    except (AccessError, SettingsError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("place", places(KUBECONFIG), ids=named)
def test_a_kubeconfig_is_understood_or_refused_in_one_line(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "config"
    certificate(tmp_path)[0].rename(tmp_path / "ca")  # Without one, those of the system are read.
    for wrong in WRONG:
        file.write_text(json.dumps(changed(KUBECONFIG, place, wrong)))
        found = said(access.load, file)
        assert not found or str(tmp_path) in found, (wrong, found)
        assert "\n" not in found, (wrong, found)


@pytest.mark.parametrize("option", settings.OPTIONS)
def test_a_settings_file_is_understood_or_refused_in_one_line(option: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for wrong in WRONG:
        file.write_text(json.dumps({option: wrong}))
        found = said(partial(settings.load, required=()), file)
        assert not found or found.startswith("config.yaml: "), (wrong, found)
        assert not found or option in found or "not YAML" in found, (wrong, found)
        assert "\n" not in found, (wrong, found)


@pytest.mark.parametrize("command", ["explain", "mutate"])
def test_a_manifest_is_answered_or_refused_in_one_line(command: str, run: Run) -> None:
    for place in places(POD):
        lines = [json.dumps(changed(POD, place, wrong)) for wrong in WRONG]
        shown = run(command, "-f", "-", stdin="\n".join(lines), columns=None, errors=None)
        refused = [line for line in shown.err.splitlines() if "Traceback" in line]
        assert refused == [], (place, refused)
        assert all(line.startswith("stdin:") for line in shown.err.splitlines()), shown.err


OWNED = document({"main": RUNNING}, owner=("batch/v1", "Job"))
OWNED["metadata"]["ownerReferences"][0] |= {"name": "night"}
JOB = {
    "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "night", "namespace": "training"},
    "spec": {"template": {"spec": {"containers": [{"name": "main"}]}}},
}  # fmt: skip
SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}}
SUBDOMAIN = "a DNS subdomain of at most 253 characters (RFC 1123)"
LABEL = "a DNS label of at most 63 characters (RFC 1123)"


NO_NAMES = ("$(id)", "--all", "A b", "a\x1b[2J", "a\n", "a_b", "é" * 900)


@pytest.mark.parametrize(
    ("commands", "manifest", "place", "allowed"),
    [
        ("explain mutate audit", OWNED, ("metadata", "name"), SUBDOMAIN),
        ("explain mutate audit", OWNED, ("metadata", "namespace"), LABEL),
        ("explain mutate audit", OWNED, ("metadata", "ownerReferences", 0, "name"), SUBDOMAIN),
        ("explain mutate audit", OWNED, ("metadata", "ownerReferences", 0, "kind"),
         "letters, digits and '-'"),
        ("explain mutate", JOB, ("metadata", "name"), SUBDOMAIN),
        ("explain mutate", JOB, ("metadata", "namespace"), LABEL),
        ("audit", SPACE, ("metadata", "name"), LABEL),
    ],
    ids=lambda each: named(each) if isinstance(each, tuple) else None,
)  # fmt: skip
def test_a_name_that_no_object_can_have_is_refused_in_one_short_line(
    commands: str, manifest: Any, place: Place, allowed: str, run: Run
) -> None:
    """They are part of commands that people paste, also where the API server checks no owner."""
    bad = [changed(manifest, place, value) for value in NO_NAMES]
    field = named(place).replace(".0", "[0]")
    about = [f"{each['kind']} {quoted(each['metadata']['name'])}: {field}" for each in bad]
    said = [
        f"stdin:{line}: {about[line - 1]}: {quoted(value)}: expected {allowed}"
        for line, value in enumerate(NO_NAMES, start=1)
    ]
    for command in commands.split():
        stdin = "\n".join(map(json.dumps, bad))
        shown = run(command, "-f", "-", stdin=stdin, columns=None, errors=None)
        assert (shown.status, shown.err.splitlines()[: len(said)]) == (2, said)
