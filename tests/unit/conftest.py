"""Settings of every unit test, which may be a coroutine; Hypothesis runs the same examples."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from istio_aux.kube.client import Client
from lab.nightly import NIGHTLY
from unit.apiserver import ApiServer
from unit.hooked import Hook, serving
from unit.screens import ask, run

__all__ = ["ask", "run"]

settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    max_examples=1000 if NIGHTLY else 100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")


LEVEL = logging.getLogger().level
ENTERED = ("api", "client", "hook", "istio", "owned", "recorder", "world")
"""Fixtures that are asynchronous context managers."""


@pytest.fixture(autouse=True)
def root_level() -> Iterator[None]:
    """Restore the root logger's level: ops sets it to debug, which breaks tests of the log."""
    yield
    logging.getLogger().setLevel(LEVEL)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "options(name=value): what `options` is in this test")


@pytest.fixture
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the mark of that name says."""
    mark = request.node.get_closest_marker("options")
    return dict(mark.kwargs) if mark else {}


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


@pytest.fixture
def client(api: ApiServer) -> AbstractAsyncContextManager[Client]:
    """A client of the API server `api`."""
    return connected(api)


@asynccontextmanager
async def connected(api: ApiServer) -> AsyncGenerator[Client]:
    async with Client(api.access()) as client:
        yield client


@pytest.fixture
def hook() -> AbstractAsyncContextManager[Hook]:
    return serving()


@pytest.fixture(scope="module")
def only_new() -> None:
    """For tests that collect garbage again and again: what other tests have left is not looked at.

    Looking at all of it takes a second, in which the event loop stands still.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own, as `serve` has it.

    Fixtures of `ENTERED` are entered in that loop before the test.
    """
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments: dict[str, Any] = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters
    }

    async def bounded() -> None:
        async with asyncio.timeout(200), AsyncExitStack() as stack:
            for name in ENTERED:
                if isinstance(made := arguments.get(name), AbstractAsyncContextManager):
                    arguments[name] = await stack.enter_async_context(made)
            await test(**arguments)

    asyncio.run(bounded())
    return True
