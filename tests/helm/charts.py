"""Runs `helm` on the chart, and says which objects the charm would make with the same options."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from lab import tools
from lightkube import codecs

import certificates
import config
import manifests
from certificates import Leaf
from helm.generate import CHART, ROOT
from inputs import Inputs
from issuers import Issuers

APP, MODEL = "istio-aux", "mesh-jobs"
Document = dict[str, Any]


class HelmError(Exception):
    """Helm failed; the message is what it said."""


def run(*arguments: str, home: Path, kubeconfig: Path | None = None) -> str:
    """Run `helm` with folders of its own, and return what it says.

    Raises:
        HelmError: it fails.
    """
    folders = {f"HELM_{kind}_HOME": str(home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    # Without a cluster it must find none.
    folders["KUBECONFIG"] = str(kubeconfig or home / "none")
    argv = [str(tools.path("helm")), *arguments]
    done = subprocess.run(
        argv, env={**os.environ, **folders}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise HelmError(done.stderr.strip())
    return done.stdout


def given(values: Mapping[str, Any]) -> list[str]:
    """Values as arguments of `helm`."""
    return [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]


def render(home: Path, values: Mapping[str, Any] | None = None, *more: str) -> list[Document]:
    """The objects of the chart for a Kubernetes 1.36, with `more` arguments of `helm template`."""
    mutates = "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
    place = f"--namespace={MODEL}"
    text = run("template", APP, str(CHART), place, mutates, *given(values or {}), *more, home=home)
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def by_name(documents: Sequence[Document]) -> dict[tuple[str, str], Document]:
    """The objects by kind and name, as the charm's client would send them, without labels."""
    found: dict[tuple[str, str], Document] = {}
    for document in documents:
        name = document["kind"], document["metadata"]["name"]
        assert name not in found, name
        sent = codecs.from_dict(document).to_dict()
        sent["metadata"].pop("labels", None)
        found[name] = sent
    return found


def of_the_charm(options: Mapping[str, Any], admission: str) -> manifests.Values:
    """What the charm's objects depend on, with these options; its own code decides.

    Helm knows that sidecars can be native only where the option says so.
    """
    described = yaml.safe_load((ROOT / "config.yaml").read_text())["options"]
    chosen = {name: option["default"] for name, option in described.items()} | dict(options)
    authority = certificates.make_authority(APP, MODEL)
    issuers = Issuers("istio-aux/0", {}, True, None, authority, Leaf("", ""), "")
    inputs = Inputs(
        app=APP,
        model=MODEL,
        leader=True,
        now=datetime.now(UTC),
        config=config.load(chosen, MODEL),
        invalid="",
        container_ready=True,
        authority=authority,
        issuers=issuers,
        offer=None,
        admission="policy" if admission == "policy" else "webhook",
        capability="native" if chosen["start-mode"] == "native" else "unknown",
    )
    values = inputs.values()
    assert values
    return values


def trusting(values: manifests.Values, webhook: Document) -> manifests.Values:
    """The same, with what the API server trusts in a webhook configuration of the chart."""
    bundle = webhook["webhooks"][0]["clientConfig"]["caBundle"]
    return dataclasses.replace(values, ca_bundle=base64.b64decode(bundle).decode())
