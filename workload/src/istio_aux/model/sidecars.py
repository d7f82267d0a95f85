"""Sidecars other than Istio's proxy, which never end by themselves, and what is done about each.

The option `sidecars` has rules for all pods, the annotation of that name for one pod; `combined`
merges them. For other containers `known_sidecars` has rules, which `OFF` switches off.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

import msgspec

from istio_aux.model.known_sidecars import KNOWN, Known
from istio_aux.model.pod import PROXY, Container
from istio_aux.model.text import UNDECODABLE, quoted

REMEDY = (
    "end that container or delete the Job; in the next one, say NAME=native in"
    " istio-aux.io/sidecars, or an admin says NAME=PORT/PATH in the option sidecars"
)
"""What helps a pod that another container keeps after its payload. `NAME=ignore` does not: it ends
only the proxy, and the container keeps the pod without network."""


class How(StrEnum):
    """What is done about a sidecar."""

    NATIVE = "native"  # It becomes a native sidecar when its pod is created.
    IGNORE = "ignore"  # It does not keep the proxy running.
    QUIT = "quit"  # It is told to exit before the proxy.
    NONE = "none"  # Nothing.


class SidecarRule(msgspec.Struct, frozen=True):
    """What is done about the containers of a name.

    A container that is told to exit gets ``POST http://localhost:<port><path>`` in the pod's
    network. Its setting ``switch`` enables that, if one is known.
    """

    container: str
    port: int = 0
    path: str = ""
    switch: str = ""
    how: How = How.QUIT


class AttemptResult(msgspec.Struct, frozen=True):
    """The answer to an attempt. It proves nothing; only the status of the container does."""

    well: bool  # The answer looks like a success.
    sent: bool  # The attempt may have had an effect.
    text: str  # One line for a person, such as ``exit code 255: connection refused``.


def _classic(row: Known, container: str) -> SidecarRule:
    """The rule for a known program that is no native sidecar."""
    how = How.QUIT if row.port else How.IGNORE if row.ends_last else How.NONE
    return SidecarRule(container, row.port, row.path, row.switch, how)


# The rules that `NAME=quit` stands for, whatever the image.
SHIPPED: Mapping[str, SidecarRule] = {
    name: _classic(row, name) for row in KNOWN if row.port for name in row.names.split()[:1]
}
ENDS_LAST = frozenset(name for row in KNOWN if row.ends_last for name in row.names.split())
_BY_NAME: Mapping[str, Sequence[Known]] = {
    name: [row for row in KNOWN if name in row.names.split()]
    for each in KNOWN
    for name in each.names.split()
}


def known(container: Container) -> Known | None:
    """The program in a container, by name and image; None if it is none of `KNOWN`."""
    rows = _BY_NAME.get(container.name, ())
    folder, _, last = container.image.partition("@")[0].rpartition("/")
    repository = f"/{folder}/{last.partition(':')[0]}"
    return next(
        (
            row
            for row in rows
            if any(repository.endswith(f"/{image}") for image in row.images.split())
        ),
        None,
    )


def is_off(container: Container) -> bool:
    """Whether a container shows that its known program would not exit when it is told to.

    False if something that is not read may turn its switch on: an object, a file, another image.
    """
    row = known(container)
    if row is None or row.off is None or container.env_from:
        return False
    image = container.image.partition("@")[0]
    lines = [image, *(container.command or ("",)), *(container.args or ())]
    for each in container.env or ():
        value = each.value or "?"  # A value from another object is not known.
        if each.name == "VAULT_CONFIG":
            with suppress(*UNDECODABLE):
                value = b64decode(value).decode()
        lines.append(f"{each.name}={value}")
    said = "\n".join(lines)
    # No more than these characters are searched.
    off = row.off.search(said) if len(said) <= 128 << 10 else None
    return bool(off) and not (row.on and row.on.search(said))


OFF = SidecarRule("", how=How.NONE)  # No container has that name.
EXPECTED = "NAME=HOW separated by commas, or none"
RULE = re.compile(
    r"none|(?P<name>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)=(?:(?P<how>native|ignore|quit)"
    r"|(?P<port>[1-9][0-9]{0,4})(?P<path>/[!-+\--~]{0,200}))"
)


def parse(text: str) -> tuple[SidecarRule, ...]:
    """Return the rules of a text such as ``vault-agent=native,helper=9000/stop``; `OFF` for none.

    ValueError: the message has the entry, which part of it is wrong, and what is allowed there.
    """
    rules: dict[str, SidecarRule] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        rule = _rule(entry)
        if rule is None or rule.container == PROXY or rule.container in rules:
            raise ValueError(f"{quoted(entry)}: expected {_wanted(entry, rules)}")
        rules[rule.container] = rule
    return tuple(rules.values())


def combined(
    option: Iterable[SidecarRule],
    own: Iterable[SidecarRule],
    shipped: Iterable[SidecarRule],
    *,
    stays: bool = False,
) -> dict[str, SidecarRule]:
    """Return the rules for one pod, by container: its ``own`` rules override those of the option.

    ``shipped`` rules count for all other names, unless a rule is `OFF`. If ``stays``, no container
    becomes native: one with that rule is told to exit, if ``shipped`` says how.
    """
    rules = dict[str, SidecarRule]()
    given = (*option, *own)
    for rule in given if OFF in given else (*shipped, *given):
        before = rules.get(rule.container)
        if not (stays and rule.how is How.NATIVE and before and before.how is How.QUIT):
            rules[rule.container] = rule
    return rules


def classic(containers: Iterable[Container]) -> Iterator[SidecarRule]:
    """The rules for known programs that are no native sidecars, for `combined`."""
    found = ((known(container), container.name) for container in containers)
    return (_classic(row, name) for row, name in found if row)


def _wanted(entry: str, others: Collection[str]) -> str:
    """Return what is allowed instead of the part of an entry that is wrong."""
    name, _, how = entry.partition("=")
    if name == PROXY or name in others:
        return f"each container once, and not {PROXY}"
    if not how or not RULE.fullmatch(f"{name}=native"):
        return EXPECTED
    more = f"; quit is for {', '.join(SHIPPED)}" if how == How.QUIT else ""
    return f"native, ignore, quit or PORT/PATH after ={more}"


def _rule(entry: str) -> SidecarRule | None:
    match = RULE.fullmatch(entry)
    if match is None or int(match["port"] or 0) > 65535:
        return None
    name = match["name"]
    how = match["how"]
    if name is None:
        return OFF
    if how == How.QUIT:
        return SHIPPED.get(name)
    if how:
        return SidecarRule(name, how=How(how))
    return SidecarRule(name, int(match["port"]), match["path"])
