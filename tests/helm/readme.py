"""The page of the chart's values.

What an option of the charm does is said on the page of options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from lab.workload import OPTIONS


def text(chart: Mapping[str, Any], values: str) -> str:
    """The page, from what Chart.yaml says and from the text of values.yaml."""
    parsed = yaml.safe_load(values)
    rows = []
    for path, meaning in comments(values).items():
        section, _, option = path.partition(".")
        if section == "settings" and option in OPTIONS:
            continue
        default = json.dumps(at(parsed, path), separators=(",", ":"), ensure_ascii=False)
        cells = (path, f"`{default}`", meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return f"""# {chart["name"]}

{chart["description"]}

Version {chart["version"]}, for Kubernetes `{chart["kubeVersion"]}`.
[How to install it](../docs/how-to/helm.md). `settings` has the workload's settings under their own
names: [the options](../docs/reference/options.md) say what each does. Selectors are the API's.

## Values

| value | default | what it is |
|---|---|---|
""" + "".join(f"{row}\n" for row in rows)


def comments(values: str) -> dict[str, str]:
    """The comment above each value that has one, by the value's path."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in values.splitlines():
        if marked := re.match(r" *# (-- )?(.*)", line):
            comment = [*([] if marked[1] else comment), marked[2]]
        elif key := re.match(r"( *)([\w-]+):", line):
            indent = len(key[1])
            path = [*(each for each in path if each[0] < indent), (indent, key[2])]
            if comment:
                found[".".join(name for _, name in path)] = " ".join(comment)
            comment = []
        else:
            comment = []
    return found


def leaves(values: Mapping[str, Any], documented: Mapping[str, str], *path: str) -> Iterator[str]:
    """The paths of all values: of what has a comment, or of what has no parts."""
    for name, value in values.items():
        own = ".".join((*path, name))
        if own in documented or not (isinstance(value, dict) and value):
            yield own
        else:
            yield from leaves(value, documented, *path, name)


def at(values: Mapping[str, Any], path: str) -> Any:
    """The value of a path."""
    found: Any = values
    for name in path.split("."):
        found = found[name]
    return found
