"""Floods a webhook with reviews, in a process of its own; only Python's own modules are needed.

Each connection comes from an address of its own, as those of pods do, or all come from one. Each
asks again as soon as it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

KIND = {"group": "", "version": "v1", "kind": "Pod"}
MARK = "a-mark"


def bodies() -> dict[str, bytes]:
    """The slowest small reviews that there are, by what is special about them."""

    def review(metadata: dict[str, object]) -> str:
        pod = {"metadata": {"generateName": "a-", **metadata}, "spec": {"containers": []}}
        request = {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "kind": KIND, "namespace": "flood",
            "operation": "CREATE", "object": pod,
        }  # fmt: skip
        text = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
        return json.dumps(text, separators=(",", ":"))

    nested = '[{"a":' + '{"a":' * 9000 + "1" + "}" * 9000 + "}]"
    keys = "{" + ", ".join(f"k{n}: {'v' * 22}" for n in range(495)) + "}"
    maps = "{" + ", ".join(f"k{n}: {{a: b}}" for n in range(330)) + "}"
    return {
        "9,000 levels": review({"managedFields": MARK}).replace(f'"{MARK}"', nested).encode(),
        "495 keys": review({"annotations": {"proxy.istio.io/config": keys}}).encode(),
        "330 maps": review({"annotations": {"proxy.istio.io/config": maps}}).encode(),
    }


@contextmanager
def flooding(
    host: str,
    port: int,
    connections: int,
    body: bytes,
    rate: float = 0,
    *,
    addresses: int = 0,
    begun: bool = True,
) -> Generator[list[float]]:
    """Send reviews in the block; in the end the list has how many seconds each answer took.

    ``rate``: so many a second, on a schedule that slow answers do not shift: from when a review was
    due. 0: as fast as they are answered. ``addresses`` of the connections; 0: each has its own.
    ``begun``: the block begins with the first answer.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        attacker = subprocess.Popen(
            [
                *(sys.executable, __file__, host, str(port), str(connections)),
                *(file.name, str(rate), str(addresses or connections)),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        answered: list[float] = []
        with attacker:
            assert attacker.stdout
            if begun:
                attacker.stdout.readline()
            try:
                yield answered
            finally:
                answered += json.loads(attacker.communicate("")[0].splitlines()[-1])


async def _attack(
    host: str, body: bytes, port: int, connections: int, *, rate: float, addresses: int
) -> list[float]:
    """Send reviews until stdin ends; returns how long each answer took."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    head = f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    sent = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    took: list[float] = []
    start = time.monotonic()

    async def ask(number: int) -> None:
        high, low = divmod(number % addresses, 250)
        address, due = f"127.9.{high}.{low + 1}", start
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=tls, local_addr=(address, 0)
                )
                while True:
                    due = start + number / rate if rate else time.monotonic()
                    await asyncio.sleep(due - time.monotonic())
                    writer.write(sent)
                    answer = await reader.readuntil(b"\r\n\r\n")
                    length = answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
                    await reader.readexactly(int(length))
                    took.append(time.monotonic() - due)
                    number += connections
                    if len(took) == 1:
                        print("begun", flush=True)
            await asyncio.sleep(0.1)  # It was closed.

    tasks = [asyncio.create_task(ask(number)) for number in range(connections)]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return took


if __name__ == "__main__":
    _host, _port, _connections, _body, _rate, _addresses = sys.argv[1:]
    _, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_most, _most))
    _sent = Path(_body).read_bytes()
    _where = _host, _sent, int(_port), int(_connections)
    _took = asyncio.run(_attack(*_where, rate=float(_rate), addresses=int(_addresses)))
    print(json.dumps(_took))
