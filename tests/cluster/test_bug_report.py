"""`bug-report` of a real API server: nothing secret is in it, and commands answer from it alike."""

from __future__ import annotations

import json
import re
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import lab
import lab.istio
import lightkube
import pytest
from lab.fixtures import make_namespace
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.workload import Workload, ask
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod, Secret

PASSWORD = f"p{secrets.token_hex(12)}"
AGO = re.compile("[0-9]+ s ago")
FACTS = ("state", "since", "action", "reason", "containers", "by", "requests")


@pytest.fixture(scope="module")
def scene(
    client: lightkube.Client,
    kubelet: ScriptedKubelet,
    istio: lab.istio.Istio,
    webhook: Workload,
) -> Iterator[Scene]:
    """A namespace with pods of each kind, and a secret in each place where tenants keep one."""
    name = f"reported-{secrets.token_hex(3)}"
    make_namespace(client, name, {"istio-injection": "enabled"})
    scene = Scene(client, kubelet, name, name)
    kubelet.finish(scene.start("stuck"), "main")
    kubelet.finish(scene.start("blocked", payload=("main", "vault-agent")), "main")
    kubelet.finish(scene.start("lost"), "istio-proxy", exit_code=255)
    about = ObjectMeta(name="password", namespace=name)
    client.create(Secret(metadata=about, stringData={"password": PASSWORD}))
    client.create(ConfigMap(metadata=about, data={"password": PASSWORD}))
    main = {
        "name": "main", "image": f"registry.test/{PASSWORD}:1", "command": ["run", PASSWORD],
        "args": [f"--password={PASSWORD}"], "env": [{"name": "PASSWORD", "value": PASSWORD}],
    }  # fmt: skip
    meta = {"name": "hidden", "namespace": name, "annotations": {"test/password": PASSWORD}}
    made = {"metadata": meta, "spec": {"containers": [main]}}
    client.create(cast("Pod", Pod.from_dict(made)))
    yield scene
    client.delete(Namespace, name)


def members(file: Path) -> dict[str, str]:
    with tarfile.open(file) as tar:
        files = [(each.name.partition("/")[2], tar.extractfile(each)) for each in tar]
        return {name: content.read().decode() for name, content in files if content}


def findings(kubeconfig: Path, *argv: str) -> list[dict[str, Any]]:
    done = ask(kubeconfig, "audit", "-o", "json", *argv)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nothing_secret_is_in_an_archive_and_commands_answer_alike(
    cluster: lab.Cluster, client: lightkube.Client, scene: Scene, tmp_path: Path
):
    """Every Secret's data, and what a pod says to its program; the names, too, if that is asked."""
    file, anonymous = tmp_path / "report.tar.gz", tmp_path / "anonymous.tar.gz"
    made = ask(cluster.kubeconfig, "bug-report", str(file))
    hidden = ask(cluster.kubeconfig, "bug-report", "--anonymous", str(anonymous))
    assert (made.returncode, hidden.returncode) == (0, 0), made.stderr + hidden.stderr

    data = [each.data or {} for each in client.list(Secret, namespace="*")]
    values = {PASSWORD, *(text for each in data for text in each.values() if len(text) > 8)}
    pods = [each.metadata for each in client.list(Pod, namespace=scene.namespace)]
    names = {scene.namespace, *(each.name for each in pods if each), "registry.test"}
    texts, nameless = members(file), members(anonymous)
    plain = {**texts, "api/v1/pods.json": texts["api/v1/pods.json"].replace(f"/{PASSWORD}:1", "")}
    assert [(name, it) for name, text in plain.items() for it in values if it in text] == []
    found = [(name, it) for name, text in nameless.items() for it in values | names if it in text]
    assert [
        (name, it) for name, it in found if it not in {"main", "lost", "stuck", "blocked", "hidden"}
    ] == []

    there = findings(cluster.kubeconfig)
    assert {"stuck", "blocked", "lost"} <= {each["state"] for each in there}
    assert findings(cluster.kubeconfig, "-f", str(file)) == there
    shown = findings(cluster.kubeconfig, "-f", str(anonymous))
    for part in FACTS:
        assert sorted(str(each[part]) for each in shown) == sorted(str(it[part]) for it in there)


def test_check_and_explain_answer_from_an_archive(
    cluster: lab.Cluster, scene: Scene, tmp_path: Path
):
    file = tmp_path / "report.tar.gz"
    ask(cluster.kubeconfig, "bug-report", str(file))
    pod = f"{scene.namespace}/stuck"
    for argv in (["check"], ["explain", pod, "-o", "json"]):
        there = ask(cluster.kubeconfig, *argv)
        here = ask(cluster.kubeconfig, *argv, "-f", str(file))
        assert (here.returncode, here.stderr) == (there.returncode, there.stderr)
        assert AGO.sub("", here.stdout) == AGO.sub("", there.stdout)
