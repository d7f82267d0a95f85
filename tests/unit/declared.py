"""What the workload declares, found in its modules: a key that is added is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import istio_aux
from istio_aux.model.annotations import Annotation, Label

MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages([str(Path(istio_aux.__file__).parent)], "istio_aux.")
    if not found.name.endswith("__main__")
]


def _keys(module: ModuleType) -> Iterator[Annotation[Any] | Label[Any]]:
    for value in vars(module).values():
        several = value.values() if isinstance(value, dict) else value
        for each in several if isinstance(value, dict | tuple) else (value,):
            if isinstance(each, Annotation | Label):
                yield each


KEYS = [*{id(key): key for module in MODULES for key in _keys(module)}.values()]
"""Each declaration once."""
ANNOTATIONS = sorted(
    {key.name: key for key in KEYS if isinstance(key, Annotation)}.values(),
    key=lambda key: key.name,
)
"""By name."""
