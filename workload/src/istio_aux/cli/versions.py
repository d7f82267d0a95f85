"""`version` of the program, the installation, Istio and the proxies, by the tags of images."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import version

import msgspec

from istio_aux import revision
from istio_aux.cli import cluster, report, workloads
from istio_aux.cli.output import Output
from istio_aux.cli.terminal import Cell, Terminal
from istio_aux.cli.workloads import ClusterRequest
from istio_aux.injector.probe import read_version
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import KubeError
from istio_aux.model.pod import PROXY, Pod
from istio_aux.model.text import listed, shortened

_OURS, _ISTIOD = "istio-aux", "discovery"  # Containers, in chart and charm, and in Istio's chart.
_NAMED, _LONGEST = 4, 40  # Tags that are named, and characters of one: tenants choose images.


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `version`; its JSON names are a contract. What is not known says so."""

    program: str
    kubernetes: str = "not known"
    installation: str = "not known"
    istio: str = "not known"
    proxies: str = "not known"


async def versions(client: Client, request: ClusterRequest) -> int:
    """Print one line within ``patience``; return `FAILED` if something is not known."""
    known, why = dict[str, str](), ""
    try:
        async with asyncio.timeout(request.patience):
            known["kubernetes"] = await read_version(client) or "not known"
            found = await cluster.find(client, request.config)
            names = listed(found.names) or "none"
            why, known["installation"] = found.gap, "not known" if found.gap else names
            homes = {each.settings.lease[0] for each in found.found if each.settings.lease}
            tags, where = defaultdict[str, Counter[str]](Counter), request.namespace or ""
            async for pod in workloads.list_pods(client, where, actions.NOT_TERMINAL):
                for name, tag in _tags(pod, homes) if isinstance(pod, Pod) else ():
                    tags[name][tag] += 1
            if ours := _counted(tags[_OURS]):
                known["installation"] += f" {ours}"
            known["istio"] = _counted(tags[_ISTIOD]) or "no istiod"
            known["proxies"] = _counted(tags[PROXY]) or "none"
    except TimeoutError:
        why = f"no answer within {request.patience:g} s"
    except KubeError as error:
        why = str(error)
    if why:
        report.complain(f"not all versions are known: {why}")
    show(request.output, known)
    return cluster.FAILED if why else 0


def show(output: Output, known: Mapping[str, str]) -> None:
    """Print what is known beside the program's own version."""
    program = f"{version('istio-aux')}, revision {revision()}"
    report.show(output, [Versions(program=program, **known)], versions_text)


def versions_text(found: Sequence[Versions], terminal: Terminal) -> str:
    """A line for each."""
    lines = (
        f"istio-aux {each.program}; Kubernetes: {each.kubernetes}; installation: "
        f"{each.installation}; Istio: {each.istio}; proxies: {each.proxies}"
        for each in found
    )
    return "\n".join(terminal.paint(Cell(line)) for line in lines)


def _tags(pod: Pod, homes: Collection[str]) -> Iterator[tuple[str, str]]:
    """The tags of the images of istiod's, the proxy's and our containers in a pod."""
    ours = pod.metadata.namespace in homes
    for each in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        image, _, tag = each.image.partition("@")[0].rpartition("/")[2].partition(":")
        wanted = {PROXY: True, _ISTIOD: image == "pilot", _OURS: ours}.get(each.name)
        if wanted:
            yield each.name, shortened(tag, _LONGEST) or "of an untagged image"


def _counted(tags: Counter[str]) -> str:
    return listed([f"{tag} ({number})" for tag, number in tags.most_common()], most=_NAMED)
