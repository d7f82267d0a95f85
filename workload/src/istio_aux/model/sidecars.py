"""Sidecars other than Istio's proxy, which never end by themselves, and what is done about each.

The option `sidecars` says that for all pods, and the annotation of that name for one: `combined`.
By default nothing is done: most of these programs listen only if their own switch is on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import msgspec

from istio_aux.model.pod import PROXY
from istio_aux.model.text import quoted


class How(StrEnum):
    """What is done about a sidecar."""

    NATIVE = "native"  # It becomes a native sidecar when its pod is created.
    IGNORE = "ignore"  # It does not keep the proxy running.
    QUIT = "quit"  # It is told to exit before the proxy.


class SidecarRule(msgspec.Struct, frozen=True):
    """What is done about the containers of a name.

    One that is told to exit gets ``POST http://localhost:<port><path>`` in the pod's network, which
    its setting ``switch`` enables, if one is known.
    """

    container: str
    port: int = 0
    path: str = ""
    switch: str = ""
    how: How = How.QUIT


class AttemptResult(msgspec.Struct, frozen=True):
    """The answer to an attempt. It proves nothing; only the status of the container does."""

    well: bool  # It sounds like a success.
    sent: bool  # The attempt may have had an effect.
    text: str  # One line for a person, such as ``exit code 255: connection refused``.


SHIPPED: Mapping[str, SidecarRule] = {
    rule.container: rule
    for rule in (
        # cloud-sql-proxy cmd/root.go: the admin server, on localhost.
        SidecarRule("cloud-sql-proxy", 9091, "/quitquitquit", "its flag --quitquitquit"),
        # vault command/agent.go; vault-k8s agent-inject annotations.go.
        SidecarRule(
            "vault-agent",
            8200,
            "/agent/v1/quit",
            "annotation vault.hashicorp.com/agent-enable-quit",
        ),
        # linkerd2-proxy app/admin: it takes the request from localhost only.
        SidecarRule("linkerd-proxy", 4191, "/shutdown", "Linkerd's proxy.enableShutdownEndpoint"),
        # dapr pkg/api/http; with an API token it refuses a request that has none.
        SidecarRule("daprd", 3500, "/v1.0/shutdown"),
        # The admin port of its Envoy, with which kuma-dp exits; newer ones may have a socket.
        SidecarRule(
            "kuma-sidecar", 9901, "/quitquitquit", "Kuma's experimental.envoyAdminUnixSocket off"
        ),
    )
}

EXPECTED = "NAME=HOW separated by commas"
RULE = re.compile(
    r"(?P<name>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)=(?:(?P<how>native|ignore|quit)"
    r"|(?P<port>[1-9][0-9]{0,4})(?P<path>/[!-+\--~]{0,200}))"
)


def parse(text: str) -> tuple[SidecarRule, ...]:
    """Return the rules of a text such as ``vault-agent=native,helper=9000/stop``.

    ValueError: the message has the entry, which part of it is wrong, and what is allowed there.
    """
    rules: dict[str, SidecarRule] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        rule = _rule(entry)
        if rule is None or rule.container == PROXY or rule.container in rules:
            raise ValueError(f"{quoted(entry)}: expected {_wanted(entry, rules)}")
        rules[rule.container] = rule
    return tuple(rules.values())


def combined(option: Iterable[SidecarRule], own: Iterable[SidecarRule]) -> dict[str, SidecarRule]:
    """Return the rules for one pod, by container: its ``own`` counts for the names that it has."""
    return {rule.container: rule for rule in (*option, *own)}


def _wanted(entry: str, others: Collection[str]) -> str:
    """Return what is allowed instead of the part of an entry that is wrong."""
    name, _, how = entry.partition("=")
    if name == PROXY or name in others:
        return f"each container once, and not {PROXY}"
    if not how or not RULE.fullmatch(f"{name}=native"):
        return EXPECTED
    more = f"; quit is for {', '.join(SHIPPED)}" if how == How.QUIT else ""
    if how.startswith("/"):  # Deleted with 1.0, as `settings.REPLACED`.
        more = "; commands are gone: use native for a sidecar that only a signal ends"
    return f"native, ignore, quit or PORT/PATH after ={more}"


def _rule(entry: str) -> SidecarRule | None:
    match = RULE.fullmatch(entry)
    if match is None or int(match["port"] or 0) > 65535:
        return None
    name, how = match["name"], match["how"]
    if how == How.QUIT:
        return SHIPPED.get(name)
    if how:
        return SidecarRule(name, how=How(how))
    return SidecarRule(name, int(match["port"]), match["path"])
