"""What `bug-report` keeps of an object: what its type declares, and no secret.

The program of a container, its arguments and its variables are left out; of these stay only words
of ours that decide, such as ``quitquitquit``. With ``--anonymous`` `Names` replaces names.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from istio_aux import settings
from istio_aux.model import annotations as keys
from istio_aux.model import ending, selectors, sidecars
from istio_aux.model.applications import LABEL
from istio_aux.model.names import IGNORED, JUJU_PODS, NAMESPACE_NAME, SETTINGS
from istio_aux.model.owners import KINDS
from istio_aux.model.pod import PROXY, Container, EnvVar, Pod
from istio_aux.model.scripts import ENDINGS, said, without_others
from istio_aux.model.text import one_line
from istio_aux.model.webhooks import REVISION, SERVICE, ClientConfig
from istio_aux.quit.pairs import KATIB_MARK
from istio_aux.start import proxy_config

_READ = keys.WISHES | {
    keys.STATUS_PORT, keys.INCLUDED, keys.EXCLUDED, keys.STARTED_WITH, keys.NOT_NATIVE,
    keys.REDIRECTION,
}  # fmt: skip
_MARKS = {keys.INJECTED, keys.MIRROR, keys.WORKFLOW_NODE, keys.SIGNALLED_WITH}
_PATHS = [row.path for row in sidecars.KNOWN if row.path]
_WORDS = (KATIB_MARK, *ENDINGS, *_PATHS, "pilot-agent", "envoy", "kill")
_WAITS = ("-w", "false")  # How Katib's collectors are told not to wait for all processes.

# What the API server, or a webhook, quotes of a refused object comes after these words.
_QUOTES = re.compile(
    r'(?:Invalid|Unsupported|Duplicate) value|Not found(?=: ")|denied (?:the )?request|: Forbidden'
)
_HOOK = re.compile(
    r'(?:failed calling )?webhook "([^"]{1,253})"'
    r"|is forbidden: (?:exceeded quota|violates PodSecurity|error looking up service account)"
)
_PUBLIC_HOOKS = (".istio.io", ".istio-aux.io")
# Also without the end of a text of JSON that has it.
_SECRET = re.compile(
    r"eyJ[-\w]{8,}(?:\.[-\w]*)*"
    r'|(?i:(?:bearer|basic) |(?:password|passwd|token|secret|key)=)[^\s"\\]+'
    r'|(?<=://)[^\s/@"\\]+(?=@)'
)

# Every cluster has these names and values, or they mean something to Kubernetes and Istio.
_PUBLIC = frozenset(
    {*IGNORED, "default", "istio-system", "enabled", "disabled", "true", "false",
     "istio-cni-node", "ztunnel", *(api.manager for api in KINDS.values()),
     *(value for _, value in JUJU_PODS if value)}
)  # fmt: skip
# Labels whose values decide, and those that stay although no selector mentions them.
_PLAIN = {
    keys.INJECTION, keys.INJECT, keys.DATAPLANE, REVISION, "istio.io/deactivated",
    "io.datastrophic/istio-aux",
}  # fmt: skip
_STAY = {
    *_PLAIN, NAMESPACE_NAME, SERVICE, LABEL, selectors.TOO_MANY_LABELS, "k8s-app", "app",
    *(key for key, _ in JUJU_PODS),
}  # fmt: skip
_NAMES = {
    "namespace",
    "generateName",
    "nodeName",
    "uid",
    "holderIdentity",
    "url",
    "managedBy",
}  # Fields.
_NAMED = {"metadata", "ownerReferences", "involvedObject", "service"}  # In these also ``name``.


class Names:
    """Another name for each name: the same one for the same name, in one report alone.

    If it is not ``anonymous``, each keeps its own. New names of ``first`` sort before others.
    """

    def __init__(self, *, anonymous: bool, first: Collection[str] = ()) -> None:
        self.anonymous, self._salt, self._first = anonymous, secrets.token_bytes(32), {*first}
        self.stay = {*_STAY}  # Labels, also those that a selector mentions.
        self.spaces = set[str]()  # Of the Services behind webhooks.

    def __call__(self, name: str) -> str:
        """Its new name."""
        if not self.anonymous or not name or name in _PUBLIC:
            return name
        digest = hashlib.blake2b(name.encode(), key=self._salt, digest_size=6).hexdigest()
        return f"{'a' if name in self._first else 'n'}{digest}"

    def value(self, key: str, value: str) -> str:
        """The value of a label."""
        return value if key in _PLAIN else self(value)

    def text(self, text: str) -> str:
        """What another program says: without what it quotes of an object, and without names."""
        if self.anonymous:
            found = _HOOK.search(text)
            name = (found and found[1]) or ""
            new = name if name.endswith(_PUBLIC_HOOKS) else self(name)
            return found[0].replace(f'"{name}"', f'"{new}"') if found else "…"
        cut = _QUOTES.search(text)
        return one_line(without_secrets(text[: cut.end()] if cut else text), 300)

    def settings(self, text: str) -> str:
        """The settings in force, as our webhook configuration has them."""
        if not self.anonymous:
            return text
        try:
            settings.read_published(text)
        except settings.SettingsError:
            return "{}"

        def selector(text: str) -> str:
            terms = selectors.parse(text).requirements
            self.stay |= {it.key for it in terms}
            changed = (
                replace(it, values=tuple(self.value(it.key, each) for each in it.values))
                for it in terms
            )
            return str(selectors.Selector(tuple(changed)))

        def parts(text: str) -> str:
            words = text.partition("#")[0].strip().split("/")
            return "/".join(it if "*" in it else self(it) for it in words)

        change: dict[str, Callable[[str], str]] = {
            "namespace-selectors": lambda text: "; ".join(map(selector, text.split(";"))),
            "pod-selector": selector, "inject-selector": selector, "root-namespace": self,
            "applications": lambda text: "\n".join(map(parts, text.splitlines())),
            "application": parts, "lease": parts, "webhook-configuration": self.configuration,
        }  # fmt: skip
        found = msgspec.json.decode(text, type=dict[str, Any])
        changed = {key: change[key](it) if key in change else it for key, it in found.items()}
        return msgspec.json.encode(changed).decode()

    def configuration(self, name: str) -> str:
        """The name of a webhook configuration, in which that of its namespace may be."""
        for each in sorted(self.spaces, key=len, reverse=True):  # One may begin as another does.
            name = name.replace(each, self(each))
        return name


def without_secrets(text: str) -> str:
    """A text without what looks like a token."""
    return _SECRET.sub("(left out)", text)


def pod(found: Pod, names: Names) -> Pod:
    """A pod of which the texts of its author are left out."""
    drain = f"{ending.drain(found):g}s"
    config = {"statusPort": keys.status_port(found), "terminationDrainDuration": drain}
    proxy = EnvVar(name="PROXY_CONFIG", value=msgspec.json.encode(config).decode())
    texts = dict(found.metadata.annotations or {})
    if keys.PROXY_CONFIG in texts:  # A tenant's YAML may have the proxy's variables.
        merge = proxy_config.read(found)
        held = "" if merge.text else f"{keys.HOLD}: {str(merge.holds).lower()}\n"
        texts[keys.PROXY_CONFIG] = f"{held}terminationDrainDuration: {drain}"

    def trimmed(it: Container) -> Container:
        known = sidecars.known(it)
        image = names(it.image) if known is None else known.images.split()[0]
        new = replace(it, command=None, args=None, env=None)
        if names.anonymous:
            new = replace(new, image=image)
        if it.name == PROXY:
            return replace(new, env=(proxy,))
        text = without_others(said(replace(it, name="")))
        waits = _WAITS if _WAITS in pairwise(it.args or ()) else ()
        return replace(new, args=(*(word for word in _WORDS if word in text), *waits) or None)

    init, main = (tuple(map(trimmed, it)) for it in (found.init_containers, found.containers))
    return replace(
        found, metadata=replace(found.metadata, annotations=texts),
        spec=replace(found.spec, containers=main or None, init_containers=init or None),
        status=replace(found.status, pod_ip=found.status.pod_ip and "192.0.2.1"),  # RFC 5737.
    )  # fmt: skip


def trimmed(value: Any, names: Names, key: str = "", parent: str = "") -> Any:
    """What stays of a value of JSON, which is that of ``key`` in an object below ``parent``."""
    if isinstance(value, list):
        return [trimmed(each, names, key, parent) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return _object(cast("dict[str, Any]", value), names, key)
    if not isinstance(value, str):
        return value
    if key == "caBundle":  # Its hash, in the form that it has.
        digest = hashlib.sha256(value.encode()).hexdigest()
        pem = f"-----BEGIN CERTIFICATE-----{digest}-----END CERTIFICATE-----"
        good = ClientConfig(ca_bundle=value).has_certificate
        return b64encode((pem if good else digest).encode()).decode()
    named = key in _NAMES or (key == "name" and parent in _NAMED)
    named |= (key, parent) == ("path", "service")  # Istio's has the names of cluster and network.
    return names(value) if named else names.text(value) if key == "message" else value


def _object(found: dict[str, Any], names: Names, key: str) -> dict[str, Any]:
    if key == "annotations":
        texts = {it: text[: 8 << 10] for it, text in found.items() if it in _READ}
        texts |= {SETTINGS: names.settings(found[SETTINGS])} if SETTINGS in found else {}
        return {**texts, **dict.fromkeys(_MARKS & found.keys(), "")}
    if key == "matchLabels":
        names.stay |= found.keys()
    if key in {"labels", "matchLabels"}:
        stay = names.stay if names.anonymous else found
        return {it: names.value(it, text) for it, text in found.items() if it in stay}
    if key == "matchExpressions":
        label = found.get("key", "")  # Of a policy that no API server has looked at.
        names.stay.add(label)
        values = [names.value(label, it) for it in found.get("values") or ()]
        return {**found, "values": values}
    if key == "resources":
        found = {it: found[it] for it in ("requests", "limits") if it in found}
    return {it: trimmed(each, names, it, key) for it, each in found.items()}
