"""The annotations by which the author of a pod overrides how its proxy ends.

Nothing here raises. A value that cannot be used becomes a `Problem`, and the proxy of that pod is
left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from istio_aux.core.pod import PROXY, Pod, Struct

QUIT = "istio-aux.io/quit"  # "false" opts the pod out.
IGNORE_CONTAINERS = "istio-aux.io/ignore-containers"  # They do not keep the proxy running.
QUIT_AFTER = "istio-aux.io/quit-after"  # The only containers that keep it running.
QUIT_GRACE = "istio-aux.io/quit-grace"  # Seconds after the payload: `30`, `2.5s` or `1m`.

LONGEST_GRACE = 86400.0  # Seconds: a longer one is a mistake, or cannot be added to a date.

_GRACE = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(s|m)?")
_SECONDS = {None: 1, "s": 1, "m": 60}
_SHOWN = 60  # Characters of a bad value; an annotation may have 256 KiB.


class Problem(Struct, frozen=True):
    """An annotation, by its key, whose value cannot be used, and why, in one line."""

    annotation: str
    why: str


class Overrides(Struct, frozen=True):
    """The annotations of a pod."""

    opt_out: str | None = None  # Why istio-aux leaves the pod alone.
    ignored: frozenset[str] = frozenset()  # Containers that do not keep the proxy running.
    after: frozenset[str] = frozenset()  # The only containers that do; empty: all.
    grace: float | None = None  # Seconds from the end of the payload to the quit.
    problems: tuple[Problem, ...] = ()


def read_overrides(pod: Pod) -> Overrides:
    """Read the annotations of a pod; an empty value counts as absent."""
    return Overrides(
        opt_out=_opt_out(pod),
        ignored=_names(pod, IGNORE_CONTAINERS),
        after=_names(pod, QUIT_AFTER),
        grace=_seconds(pod.annotations.get(QUIT_GRACE, "")),
        problems=tuple(_problems(pod)),
    )


def quoted(value: str) -> str:
    """Quote, escape and shorten a value for a line of text."""
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
    return msgspec.json.encode(shown).decode()


def _opt_out(pod: Pod) -> str | None:
    value = pod.annotations.get(QUIT, "true")
    if value == "true":
        return None
    # Any other value means "keep away": a misspelt "false" must not cost a proxy.
    allowed = "" if value == "false" else ' (neither "true" nor "false")'
    return f"annotation {QUIT}: {quoted(value)}{allowed}"


def _problems(pod: Pod) -> Iterator[Problem]:
    possible = [container.name for container in pod.containers if container.name != PROXY]
    unknown = _names(pod, QUIT_AFTER).difference(possible)
    if unknown:
        named = quoted(", ".join(sorted(unknown)))
        why = f"annotation {QUIT_AFTER}: {named}: expected containers of the pod: "
        yield Problem(annotation=QUIT_AFTER, why=why + ", ".join(sorted(possible)))
    grace = pod.annotations.get(QUIT_GRACE, "")
    if grace and _seconds(grace) is None:
        why = f"annotation {QUIT_GRACE}: {quoted(grace)}: expected seconds, at most a day, like "
        yield Problem(annotation=QUIT_GRACE, why=f"{why}30, 2.5s or 1m")


def _names(pod: Pod, annotation: str) -> frozenset[str]:
    named = pod.annotations.get(annotation, "").split(",")
    return frozenset(name.strip() for name in named if name.strip())


def _seconds(value: str) -> float | None:
    match = _GRACE.fullmatch(value.strip())
    if match is None:
        return None
    seconds = float(match[1]) * _SECONDS[match[2]]
    return seconds if seconds <= LONGEST_GRACE else None
