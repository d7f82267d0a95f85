"""The pods of a controller, right before one of them is restarted, beside those that are stored."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.kube.client import Client
from istio_aux.kube.errors import LateError
from istio_aux.kube.events import Events
from istio_aux.model import pod as pods
from istio_aux.repair import controller
from istio_aux.repair.controller import RepairController
from istio_aux.repair.store import NotRestartedError
from istio_aux.telemetry import Telemetry
from unit.apiserver import ApiServer
from unit.asynchronous import driven
from unit.rules.unmeshed import RESTART, STATEFUL, raw

LABELS = {"app": "web"}
USUAL: dict[str, Any] = {"owner": STATEFUL, "labels": LABELS}


async def compared(**changes: dict[str, Any] | None) -> str:
    """Why the pods of a StatefulSet are not those that are stored: web-0 and web-1.

    Meanwhile pods became like ``changes``; None: they are gone.
    """
    stored = {f"web_{n}": {**USUAL, "uid": f"old-web-{n}"} for n in (0, 1)}
    async with ApiServer() as api, Client(api.access()) as client:
        repair = RepairController(client, {}, Telemetry(), Events(client, "me"), policy=RESTART)
        for name, fields in stored.items():
            repair.apply(pods.convert(raw(name=name.replace("_", "-"), **fields)))
        for name, fields in (stored | changes).items():
            if fields is not None:
                usual = stored.get(name, {**USUAL, "uid": name})
                body = raw(name=name.replace("_", "-"), **{**usual, **fields})
                del body["metadata"]["resourceVersion"]
                await api.put("pods", body)
        (owner,) = repair._store.owners.values()
        why = ""
        try:
            await repair._compare(owner, {**LABELS, "controller-revision-hash": "1"})
        except NotRestartedError as error:
            why = f"{error}; changed: {error.changed}"
        return why.removesuffix("; changed: True")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"another": {"owner_uid": "another"}}, ""),
        ({"web_1": {"labels": {"another": "label"}}}, ""),
        ({"web_1": {"labels": LABELS | {"controller-revision-hash": "2"}}}, ""),
        ({"web_1": {"deleting": True}}, "web-1 of its controller is being deleted"),
        ({"web_2": {}}, "its controller has made web-2"),
        ({"web_1": {"uid": "new"}}, "its controller has made web-1"),
        ({"web_1": None}, "web-1 of its controller is gone"),
    ],
    ids=str,
)
@driven
async def test_what_the_watch_has_not_shown_yet_holds_a_restart(
    changes: dict[str, Any], why: str
) -> None:
    assert await compared(**changes) == why


@driven
async def test_no_restart_rests_on_an_answer_that_came_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "FRESH", 0.0)
    with pytest.raises(LateError):
        await compared()
