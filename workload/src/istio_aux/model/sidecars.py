"""Sidecars other than Istio's proxy that exit only on request, and how each is told to exit.

The option `quit-sidecars` names the rules that apply. By default none does: most of these programs
listen only if their own switch is on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import cast

import msgspec

from istio_aux.model.pod import PROXY


class SidecarRule(msgspec.Struct, frozen=True):
    """How a container is told to exit.

    By ``POST http://localhost:<port><path>`` in the pod's network; without a port by ``command`` in
    the container. ``switch`` names the setting of the sidecar that enables this; empty if there is
    none, or none is known.
    """

    container: str
    port: int = 0
    path: str = ""
    switch: str = ""
    command: tuple[str, ...] = ()


class AttemptResult(msgspec.Struct, frozen=True):
    """The answer to an attempt. It proves nothing; only the status of the container does.

    ``well``: it sounds like a success. ``sent``: the attempt may have had an effect. ``text``: one
    line for a person, such as ``exit code 255: connection refused``.
    """

    well: bool
    sent: bool
    text: str


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

EXPECTED = (
    f"names of {', '.join(SHIPPED)}, or NAME=PORT/PATH or NAME=COMMAND for another container,"
    " each once, separated by commas"
)
# A word has no space and no comma, and no shell reads it. A command does not begin with a digit.
RULE = re.compile(
    r"(?P<name>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)=(?:"
    r"(?P<port>[1-9][0-9]{0,4})(?P<path>/[!-+\--~]{0,200})"
    r"|(?P<command>[A-Za-z/][!-+\--~]{0,199}(?: [!-+\--~]{1,200}){0,9}))"
)


def parse(items: Iterable[object]) -> tuple[SidecarRule, ...]:
    """Return the rules that these items name: a shipped rule's container, or a rule as text.

    Raises:
        ValueError: the message has the item and what is allowed.
    """
    rules: dict[str, SidecarRule] = {}
    for item in items:
        rule = _rule(item) if isinstance(item, str) else None
        if rule is None or rule.container == PROXY or rule.container in rules:
            raise ValueError(f"{msgspec.json.encode(item).decode()}: expected {EXPECTED}")
        rules[rule.container] = rule
    return tuple(rules.values())


def read(value: object) -> tuple[SidecarRule, ...]:
    """Read the option: a list of items, or text with commas between them.

    Raises:
        ValueError: see `parse`.
    """
    if isinstance(value, str):
        return parse(part.strip() for part in value.split(",")) if value.strip() else ()
    if isinstance(value, list):
        return parse(cast("list[object]", value))
    raise ValueError(f"{msgspec.json.encode(value, enc_hook=str).decode()}: expected {EXPECTED}")


def _rule(item: str) -> SidecarRule | None:
    if item in SHIPPED:
        return SHIPPED[item]
    match = RULE.fullmatch(item)
    if match is None or int(match["port"] or 0) > 65535:
        return None
    if match["command"]:
        return SidecarRule(match["name"], command=tuple(match["command"].split(" ")))
    return SidecarRule(match["name"], int(match["port"]), match["path"])
