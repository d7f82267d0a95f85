"""Stand-in for kube-proxy, for an API server that finds no Service by its EndpointSlices.

Up to Kubernetes 1.33 the API server reads Endpoints, which take neither a loopback address nor a
name. So it connects to a Service's own address, through this HTTP proxy (its egress selector), and
the proxy chooses one of the ready endpoints. It connects to any other address as it is.

    python -m lab.egress SOCKET SERVER CA CERTIFICATE KEY
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import random
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

from lab import control_plane
from lab.kubelet.api import Api, Object

SERVICES = ipaddress.ip_network(control_plane.SERVICES)
LABEL = "kubernetes.io/service-name"


def configuration(folder: Path, at: Path) -> Path:
    """The API server's file that sends connections into the cluster to the proxy's socket `at`."""
    path = folder / "egress.json"
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(at)}}}
    document = {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }
    path.write_text(json.dumps(document))
    return path


async def _serve(at: str, server: str, ca: str, certificate: str, key: str) -> None:
    tls = ssl.create_default_context(cafile=ca)
    tls.load_cert_chain(certificate, key)
    async with Api(server, tls) as api:

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await _connect(api, reader, writer)
            except (OSError, asyncio.IncompleteReadError):
                pass  # Either side broke the connection, which the other one sees now.
            finally:
                writer.transport.abort()

        proxy = await asyncio.start_unix_server(connected, at)
        await proxy.serve_forever()


async def _connect(api: Api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode()
    host, _, port = line.split()[1].rpartition(":")
    try:
        at = await _endpoint(api, host, int(port))
        theirs = await asyncio.open_connection(*at)
    except (OSError, LookupError) as error:
        writer.write(f"HTTP/1.1 502 {error}\r\n\r\n".encode())
        await writer.drain()
        return
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    copies = (_copy(reader, theirs[1]), _copy(theirs[0], writer))
    try:
        ends = [asyncio.ensure_future(copy) for copy in copies]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        await writer.drain()
    finally:
        theirs[1].transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def _endpoint(api: Api, host: str, port: int) -> tuple[str, int]:
    """Where to connect for this address. Raises LookupError: its Service has none ready."""
    if ipaddress.ip_address(host) not in SERVICES:
        return host, port
    listed = await api.request("GET", "/api/v1/services")
    for service in listed["items"]:
        if service["spec"].get("clusterIP") != host:
            continue
        names = [p.get("name", "") for p in service["spec"]["ports"] if p["port"] == port]
        metadata = service["metadata"]
        slices = await api.request(
            "GET",
            f"/apis/discovery.k8s.io/v1/namespaces/{metadata['namespace']}/endpointslices",
            params={"labelSelector": f"{LABEL}={metadata['name']}"},
        )
        ready = [at for found in slices["items"] for at in _ready(found, names)]
        if ready:
            return random.choice(ready)
        break
    raise LookupError(f"no endpoint for {host}:{port}")


def _ready(found: Object, names: list[str]) -> Iterator[tuple[str, int]]:
    for port in found.get("ports") or ():
        if port.get("name", "") not in names:
            continue
        for endpoint in found.get("endpoints") or ():
            if endpoint.get("conditions", {}).get("ready", True):
                yield from ((address, port["port"]) for address in endpoint["addresses"])


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
