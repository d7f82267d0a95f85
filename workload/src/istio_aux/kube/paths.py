"""Where the API server has what: the one place in which names become part of a request.

Names of owners, and of what a webhook refers to, are data that nobody has validated. What is no
name of an object is refused here, before anything is sent.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from istio_aux.kube.errors import InvalidNameError

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
# apimachinery pkg/util/validation: IsDNS1123Label, IsDNS1123Subdomain.
_NAMESPACE = re.compile(_LABEL)
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_API = re.compile(r"(?:[a-z0-9][-.a-z0-9]*/)?v[1-9][a-z0-9]*")
_SHOWN = 60


def collection(api: str, resource: str, namespace: str = "") -> str:
    """The path of a collection.

    Args:
        api: group and version, such as ``batch/v1``, or ``v1``.
        resource: plural name, such as ``pods``.
        namespace: whose objects; empty: those of all, or of none if the resource has none.

    Raises:
        InvalidNameError: an object of that kind cannot be.
    """
    if not _API.fullmatch(api):
        raise InvalidNameError(
            f'apiVersion "{_shown(api)}": the API server serves none of that name'
        )
    root = "apis" if "/" in api else "api"
    middle = f"/namespaces/{quote(namespace_name(namespace), safe='')}" if namespace else ""
    return f"/{root}/{api}{middle}/{quote(resource, safe='')}"


def named(api: str, resource: str, namespace: str, name: str, subresource: str = "") -> str:
    """The path of one object in a namespace, or of a part of it; see `collection`.

    Raises:
        InvalidNameError: an object of that name cannot be.
    """
    namespace_name(namespace)
    path = f"{collection(api, resource, namespace)}/{quote(object_name(name), safe='')}"
    return f"{path}/{subresource}" if subresource else path


def pod(namespace: str, name: str, subresource: str = "") -> str:
    """The path of a pod, or of a part of it such as ``exec``; see `named`."""
    return named("v1", "pods", namespace, name, subresource)


def object_name(name: str) -> str:
    """Return ``name``; `InvalidNameError` if no object with a DNS name can have it."""
    return _checked(name, _NAME, 253, "name")


def namespace_name(name: str) -> str:
    """Return ``name``; `InvalidNameError` if no namespace can have it."""
    return _checked(name, _NAMESPACE, 63, "namespace")


def _checked(name: str, form: re.Pattern[str], longest: int, what: str) -> str:
    if len(name) > longest or not form.fullmatch(name):
        raise InvalidNameError(f'{what} "{_shown(name)}": no object can have it (RFC 1123)')
    return name


def _shown(name: str) -> str:
    shown = "".join(char if char.isprintable() else "?" for char in name[:_SHOWN])
    return shown if len(name) <= _SHOWN else f"{shown}..."
