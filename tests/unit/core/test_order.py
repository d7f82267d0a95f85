"""Which of Istio's webhook configurations are called before ours (T33)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from istio_aux.core.order import sorted_before
from istio_aux.core.webhooks import Configuration

OURS = "istio-aux-kubeflow-istio-aux"
INJECTOR = "namespace.sidecar-injector.istio.io"
NEVER = {"matchLabels": {"istio.io/deactivated": "never-match"}}
ENABLED = {"matchLabels": {"istio-injection": "enabled"}}


def configuration(name: str, *webhooks: dict[str, Any]) -> Configuration:
    """As the API server sends it."""
    body = {"metadata": {"name": name}, "webhooks": list(webhooks)}
    return msgspec.convert(body, Configuration)


def istio(name: str, **webhook: Any) -> Configuration:
    return configuration(name, {"name": INJECTOR, **webhook})


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("aaa", True),
        ("asm-sidecar-injector", True),
        ("istio", True),
        ("istio-aux", True),
        ("istio-aux-kubeflow-istio-au", True),
        ("istio-aux-kubeflow-istio-aux", False),
        ("istio-aux-kubeflow-istio-aux2", False),
        ("istio-revision-tag-default", False),
        ("istio-sidecar-injector", False),
        ("istio-sidecar-injector-kubeflow", False),
        ("istiod-default-validator", False),
        ("vendor", False),
    ],
)
def test_names_are_compared_as_the_api_server_sorts_them(name: str, before: bool) -> None:
    """T33: Istio's own names come after ours, but a vendor's need not."""
    assert sorted_before(OURS, [istio(name)]) == ((name,) if before else ())


def test_digits_and_punctuation_have_their_places_in_ascii_and_no_others() -> None:
    """T33: a dash sorts before a dot, both before digits, and those before letters."""
    found = [istio(name) for name in ("ours.b", "ours1", "ours-b", "oursa")]

    assert sorted_before("ours.c", found) == ("ours-b", "ours.b")
    assert sorted_before("oursb", found) == ("ours-b", "ours.b", "ours1", "oursa")


@pytest.mark.parametrize(
    ("sentence", "webhooks", "counts"),
    [
        ("one that selects by namespace", [{"name": INJECTOR, "namespaceSelector": ENABLED}], True),
        ("a name without a prefix", [{"name": "sidecar-injector.istio.io"}], True),
        ("one webhook of several", [{"name": "other"}, {"name": INJECTOR}], True),
        ("selectors that are null", [{"name": INJECTOR, "objectSelector": None}], True),
        ("a selector of everything", [{"name": INJECTOR, "objectSelector": {}}], True),
        (
            "a deactivated webhook beside an active one",
            [{"name": INJECTOR, "objectSelector": NEVER}, {"name": INJECTOR}],
            True,
        ),
        (
            "another value of the deactivating label",
            [{"name": INJECTOR, "objectSelector": {"matchLabels": {"istio.io/deactivated": "no"}}}],
            True,
        ),
        (
            "deactivated as istioctl does",
            [{"name": INJECTOR, "namespaceSelector": NEVER, "objectSelector": NEVER}],
            False,
        ),
        ("no namespace matches", [{"name": INJECTOR, "namespaceSelector": NEVER}], False),
        ("no pod matches", [{"name": INJECTOR, "objectSelector": NEVER}], False),
        ("a webhook of Istio's that makes no sidecars", [{"name": "validation.istio.io"}], False),
        ("somebody else's", [{"name": "sidecar-injector.example.com"}], False),
        ("no webhook", [], False),
    ],
)
def test_only_webhooks_that_make_sidecars_count(
    sentence: str, webhooks: list[dict[str, Any]], counts: bool
) -> None:
    """T33."""
    found = configuration("aaa", *webhooks)

    assert sorted_before(OURS, [found]) == (("aaa",) if counts else ()), sentence


def test_a_configuration_without_a_list_of_webhooks_is_none_of_istios() -> None:
    """The API server sends null for an empty list."""
    body = {"metadata": {"name": "aaa"}, "webhooks": None}

    assert sorted_before(OURS, [msgspec.convert(body, Configuration)]) == ()


def test_the_names_are_sorted_whatever_order_they_were_found_in() -> None:
    found = [istio("istiod"), istio("b"), istio("a"), istio(OURS)]

    assert sorted_before(OURS, found) == ("a", "b")


def test_ours_need_not_be_there_yet() -> None:
    assert sorted_before(OURS, []) == ()
