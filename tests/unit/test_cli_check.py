"""`istio-aux check`: what an account that may read a part of the cluster is told."""

from __future__ import annotations

import pytest
from unit.apiserver import ApiServer
from unit.screens import Ask, objects


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ("/namespaces", "not known: it is tried in a namespace, and which there are is not known"),
        ("/mutatingwebhookconfigurations",
         "not known: this account may not list mutatingwebhookconfigurations"),
    ],
)  # fmt: skip
async def test_an_account_that_may_not_list_all_is_told_what_is_not_known_of_istio(
    refused: str, why: str, ask: Ask
) -> None:
    async with ApiServer() as api:
        api.refuse(refused, 403, "Forbidden", "forbidden")
        shown = await ask(api, "check", "-o", "json", "--timeout", "20")
    told = [each for each in objects(shown) if each["check"] in {"injector", "injectors"}]
    assert [(each["result"], each["what"]) for each in told] == [("unknown", why)]
    assert "grant the account the right" in told[0]["do"]
