"""The annotations by which the author of a pod overrides how its proxy ends.

Nothing here raises. A value that cannot be used becomes a `Problem`, and the proxy of that pod is
left alone.
"""

from __future__ import annotations

import re
from typing import TypeVar

from istio_aux.core.keys import MOST_NAMES, NAMES, Annotation, BadValueError, names
from istio_aux.core.pod import PROXY, Pod, Struct
from istio_aux.core.text import listed, quoted

QUIT = "istio-aux.io/quit"  # "false" opts the pod out.
IGNORE_CONTAINERS = "istio-aux.io/ignore-containers"  # They do not keep the proxy running.
QUIT_AFTER = "istio-aux.io/quit-after"  # The only containers that keep it running.
QUIT_GRACE = "istio-aux.io/quit-grace"  # Seconds after the payload: `30`, `2.5s` or `1m`.

LONGEST_GRACE = 86400.0  # Seconds: a longer one is a mistake, or cannot be added to a date.

_GRACE = re.compile(r"([0-9]++\.?+[0-9]*+|\.[0-9]++)(s|m)?")
_SECONDS = {None: 1, "s": 1, "m": 60}

T = TypeVar("T")


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
    problems = list[Problem]()

    def value(key: Annotation[T]) -> T | None:
        try:
            return key.of(pod.metadata)
        except BadValueError as error:
            problems.append(Problem(annotation=key.name, why=str(error)))
            return None

    after = value(_after) or frozenset()
    possible = {container.name for container in pod.containers} - {PROXY}
    if unknown := after - possible:
        why = f"annotation {QUIT_AFTER}: {quoted(', '.join(sorted(unknown)))}: expected"
        why = f"{why} containers of the pod: {listed(sorted(possible))}"
        problems.append(Problem(annotation=QUIT_AFTER, why=why))
    return Overrides(
        opt_out=_opt_out(pod),
        ignored=value(_ignored) or frozenset(),
        after=after,
        grace=value(_grace),
        problems=tuple(problems),
    )


def _opt_out(pod: Pod) -> str | None:
    try:
        return _quit.shown(pod.metadata) if _quit.of(pod.metadata) is False else None
    except BadValueError as error:
        # Any other value means "keep away": a misspelt "false" must not cost a proxy.
        return str(error)


def _seconds(text: str) -> float | None:
    if not text:
        return None
    match = _GRACE.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else LONGEST_GRACE + 1
    if seconds > LONGEST_GRACE:
        raise ValueError
    return seconds


_containers = f"container names separated by commas, at most {MOST_NAMES}"
_quit = Annotation(QUIT, {"true": True, "false": False}.__getitem__, "true or false", longest=5)
_ignored = Annotation(IGNORE_CONTAINERS, names, _containers, longest=NAMES)
_after = Annotation(QUIT_AFTER, names, _containers, longest=NAMES)
_grace = Annotation(QUIT_GRACE, _seconds, "seconds, at most a day, like 30, 2.5s or 1m", longest=32)
