"""Renders the chart, and says which objects the charm would make with the same options."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from istio_aux.model.applications import ALL_PODS, EVERY
from istio_aux.model.names import SETTINGS
from istio_aux.model.selectors import NamespaceSelectors
from istio_aux.settings import read_published
from lab.release import CHART, given, run
from lightkube import codecs
from msgspec.structs import replace

import manifests

APP, MODEL = "istio-aux", "mesh-jobs"
IMAGE: Final = {"image.repository": "registry.test/istio-aux"}
Document = dict[str, Any]


def render(home: Path, values: dict[str, Any] | None = None, *more: str) -> list[Document]:
    """The objects of the chart, with `more` arguments of `helm template`."""
    place = f"--namespace={MODEL}"
    text = run(
        "template",
        APP,
        str(CHART),
        place,
        *given(IMAGE | (values or {})),
        *more,
        home=home,
    )
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def by_name(documents: Sequence[Document]) -> dict[tuple[str, str], Document]:
    """The objects by kind and name, as the charm's client would send them, without labels.

    Of the settings in an annotation it has what they mean.
    """
    found: dict[tuple[str, str], Document] = {}
    for document in documents:
        name = document["kind"], document["metadata"]["name"]
        assert name not in found, name
        sent = codecs.from_dict(document).to_dict()
        sent["metadata"].pop("labels", None)
        if SETTINGS in (notes := sent["metadata"].get("annotations", {})):
            told, asked = read_published(notes[SETTINGS])
            # Their order decides nothing.
            some = sorted(told.namespace_selectors.alternatives, key=str)
            told = replace(told, namespace_selectors=NamespaceSelectors(tuple(some)))
            # The charm leaves out what another entry includes.
            models = {each.namespace for each in asked.named if each.name == EVERY}
            wild = {EVERY, ALL_PODS}
            named = [it for it in asked.named if it.name in wild or it.namespace not in models]
            notes[SETTINGS] = told, frozenset(named)
        found[name] = sent
    return found


def trusting(values: manifests.Values, webhook: Document) -> manifests.Values:
    """The same, with the caBundle of a webhook configuration of the chart."""
    bundle = webhook["webhooks"][0]["clientConfig"]["caBundle"]
    return dataclasses.replace(values, ca_bundle=base64.b64decode(bundle).decode())
