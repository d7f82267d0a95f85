"""Notes the CPU that a process spends on imports, and the modules that it has at its end."""

import atexit
import json
import os
import sys
import time

_importlib = sys.modules["_frozen_importlib"]
# Called for each module that is not imported yet, also by the import statement.
_find_and_load = _importlib._find_and_load  # noqa: SLF001  no public hook sees each import
_spent, _busy = 0.0, False


def _timed(name, import_):
    global _spent, _busy
    if _busy:
        return _find_and_load(name, import_)
    _busy, began = True, time.thread_time()
    try:
        return _find_and_load(name, import_)
    finally:
        _busy, _spent = False, _spent + time.thread_time() - began


def _note():
    # Without pathlib: this file must not import what the charm may not.
    with open(f"{os.environ['JUJU_CONTEXT_ID']}/imports.json", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump({"imports": _spent, "modules": sorted(sys.modules)}, file)


if "JUJU_DISPATCH_PATH" in os.environ and "JUJU_CONTEXT_ID" in os.environ:
    setattr(_importlib, "_find_and_load", _timed)  # noqa: B010  no attribute of modules' type
    atexit.register(_note)
