"""A relation across two models: each sees, in place of the other's, a remote application.

The consumer sees the offered application under its own name, the offering one sees `remote-` and
32 digits, as Juju names them. Databags of applications are mirrored; units are not, each side sees
one. There is no offer to make first, nor anything to accept.
"""

from __future__ import annotations

import contextlib
import functools
import uuid

from .app import App
from .relation import Relation


def consume(consumer: App, endpoint: str, offering: App, offered: str) -> tuple[Relation, Relation]:
    """Relate an endpoint to one that another model offers; return both ends, the consumer's first.

    `settle` each model in turn: what one writes is an event in the other.

    Raises:
        KeyError: a charm has no such endpoint.
        ValueError: the interfaces differ.
    """
    wanted, found = consumer.interfaces[endpoint], offering.interfaces[offered]
    if wanted != found:
        raise ValueError(f"{offering.name}:{offered}: {found}: expected the interface {wanted}")
    with consumer.model.agent.lock, offering.model.agent.lock:
        here = consumer.integrate(endpoint, offering.name)
        there = offering.integrate(offered, f"remote-{uuid.uuid4().hex}")
        for near, far in ((here, there), (there, here)):
            with near.app.model.agent.edit() as state:
                model = far.app.model.store.read()["model"]["uuid"]
                state["relations"][str(near.number)]["remote-model"] = model
            near.app.model.agent.after_hooks.append(functools.partial(_mirror, near, far))
    return here, there


def _mirror(near: Relation, far: Relation) -> None:
    """Show the other model what our application has written."""
    # Each model has a thread of its own: either end may be removed at any moment, and is gone then.
    with contextlib.suppress(KeyError):
        shown, written = far.data(far.remote), near.data()
        if shown != written:
            far.update({**dict.fromkeys(shown, ""), **written})
