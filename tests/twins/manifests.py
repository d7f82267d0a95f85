"""The Job of a pair, and what there is in its namespace, made of the pair's values. Pure.

Each value is drawn from a seed; some pairs are written by hand. Every container calls the service
in the mesh by a path of its own, so that the service knows whom it has served. In all texts `PAIR`
stands for the pair's name; `NAMESPACE` and `SERVER` are what the player knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from lab.images import BUSYBOX

Values = Mapping[str, str]

# Weights in percent. The usual value comes first: with two or three unusual ones in a pod it is
# still plain which of them matters. What fails without istio-aux and with it says little.
GRAMMAR: Mapping[str, Mapping[str, int]] = {
    "restart": {"Never": 50, "OnFailure": 50},
    "backoff": {"3": 75, "0": 25},
    "failure policy": {"none": 82, "exit codes": 9, "exit codes of main": 9},
    "init": {
        "none": 33, "true": 10, "fetches at once": 9, "fetches for 20 s": 13,
        "fetches if it can": 13, "fails": 5, "several": 9, "is the work": 8,
    },
    "resources": {
        "none": 66, "init above main": 12, "main above init": 8, "only limits": 8, "of the pod": 6,
    },
    "grace": {"30": 62, "2": 20, "0": 18},
    "ends the proxy": {
        "nobody": 68, "arguments": 8, "ConfigMap": 8, "wrapper": 8, "kill": 8,
    },
    "other sidecar": {"none": 76, "known": 9, "unknown": 6, "native": 9},
    "payload": {
        "short": 38, "20 s": 20, "fails first": 14, "serves a peer": 14, "ignores SIGTERM": 14,
    },
    "probe": {"none": 79, "readiness": 7, "liveness": 7, "startup": 7},
    "templates": {"sidecar": 91, "custom": 9},
    "proxy config": {"none": 76, "drain": 8, "hold": 8, "no hold": 8},
    "annotation": {
        "none": 65, "quit: false": 7, "quit-after: main": 7, "start: none": 7, "start: hold": 7,
        "start: native": 7,
    },
    "quota": {"none": 86, "roomy": 7, "tight": 7},
    "limit range": {"none": 86, "defaults": 7, "of pods": 7},
    "pod security": {"none": 94, "baseline": 6},
    "peers": {"PERMISSIVE": 80, "STRICT": 20},
    "egress": {"any": 84, "REGISTRY_ONLY": 16},
}  # fmt: skip
"""Each dimension of a pair, with its values and how often each of them comes."""


@dataclass(frozen=True)
class Moment:
    """What all pairs of a batch have in common."""

    quit: str = "enabled"  # The option.
    istiod: int = 0  # Seconds for which istiod is away while the pods start.
    workload: str = "stays"  # Or `killed`, and started again later.

    @property
    def values(self) -> dict[str, str]:
        return {
            "option quit": self.quit,
            "istiod is away": f"{self.istiod} s",
            "the workload": self.workload,
        }


USUAL = Moment()
MOMENTS = (
    USUAL,
    Moment(istiod=100),
    Moment(quit="dry-run"),
    Moment(workload="killed"),
    Moment(istiod=40),
    Moment(quit="disabled"),
    USUAL,
    Moment(istiod=40, workload="killed"),
)
"""The batches of a run have them in turn; the seed says which comes first."""

WORLDS = ("unasked", "on-request", "never", "revision")
"""When Istio makes sidecars native; `revision` is one that does so unasked, selected by its tag,
beside another one that never does."""


def draw(seed: int, world: str, number: int) -> dict[str, str]:
    """Draw the values of a pair: always the same for the same arguments."""
    dice = Random(f"{seed}:{world}:{number}")
    values = {
        dimension: dice.choices([*weights], [*weights.values()])[0]
        for dimension, weights in GRAMMAR.items()
    }
    if values["failure policy"] != "none":
        values["restart"] = "Never"  # The API server wants it so.
    return values


def moment(seed: int, world: str, batch: int) -> Moment:
    """Return what the batch of this number has in common."""
    # A run of 400 pairs has three batches in each world.
    return MOMENTS[(seed + 3 * WORLDS.index(world) + batch) % len(MOMENTS)]


Document = dict[str, Any]

PORT = 8000
"""Of the service."""
SERVED = 9000
"""Where a payload serves its peer."""
NAME = "PAIR"
LABEL, JOB = "lab.test/twins", "lab.test/job"
KNOWN = "istio-aux.lab/cloud-sql-proxy:stand-in"
KNOWN_WORDS = ("0", "9091", "/quitquitquit")  # Of its stand-in (`lab.images.stand_in`).
# As `lab.istio.install` gets it: a node of two cores has no room for 80 of Istio's own.
PROXY_RESOURCES = {
    "requests": {"cpu": "10m", "memory": "40Mi"},
    "limits": {"cpu": "2", "memory": "1Gi"},
}

QUIT = "wget -q -O- --post-data= http://127.0.0.1:15020/quitquitquit || true; sleep 4"
KILL = "kill -TERM $(pidof pilot-agent) || true; sleep 4"
FOREVER = "trap 'exit 0' TERM; while :; do sleep 1; done"
# redboxllc/scuttle main.go: it waits for Envoy, runs the payload, and ends the agent.
SCUTTLE = """\
for each in $(seq 60); do wget -q -O- http://127.0.0.1:15021/healthz/ready && break; sleep 1; done
"$@"
code=$?
wget -q -O- --post-data= $ISTIO_QUIT_API/quitquitquit
exit $code
"""
# Debian's nc serves one connection; a client that comes meanwhile tries again.
SERVE = f"""\
cat >/tmp/answer <<'END'
#!/bin/sh
read -r line
case $line in "GET /"*) : >/tmp/served ;; esac
printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n'
END
chmod +x /tmp/answer
timeout 60 sh -c 'until [ -e /tmp/served ]; do nc -l -p {SERVED} -e /tmp/answer; done' || exit 1"""


@dataclass(frozen=True)
class Pair:
    """A Job that is played with istio-aux and without."""

    name: str
    job: Document
    values: Values = field(default_factory=dict[str, str])
    around: tuple[Document, ...] = ()  # Objects that its namespace has.
    labels: Mapping[str, str] = field(default_factory=dict[str, str])  # Of its namespace.
    ends: str = ""  # How it ends with istio-aux where it can; empty if that is not said.

    def copy(self, name: str) -> Pair:
        """The same pair under another name."""
        return replace(self, name=name)

    @property
    def text(self) -> str:
        """The manifests, as JSON: one object a line."""
        return "\n".join(json.dumps(each) for each in (self.job, *self.around))


def pair(name: str, values: Values) -> Pair:
    """Make the pair of this name that has these values."""
    security = values["pod security"]
    labels = {"pod-security.kubernetes.io/enforce": security} if security != "none" else {}
    return Pair(name, job(values), values, tuple(around(values)), labels)


def call(container: str) -> str:
    """A line of shell that fetches from the service and prints how often it has done so."""
    return f'timeout 10 wget -q -O- "http://SERVER:{PORT}/cgi-bin/call?NAMESPACE/PAIR/{container}"'


def retried(container: str) -> str:
    """The same, tried again for 20 s."""
    tries = f"{call(container)} && break; [ $n -lt 10 ] || exit 1; sleep 2"
    return f"for n in $(seq 10); do {tries}; done"


def script(container: str, kind: str) -> str:
    """The work of a payload container."""
    once = f"{call(container)} || exit 1"
    match kind:
        case "short":
            return once
        case "20 s":
            return f"{retried(container)}; sleep 15; {once}"
        case "fails first":
            return f'tries=$({call(container)}) || exit 1; [ "$tries" -gt 1 ] || exit 42'
        case "serves a peer":
            # The service calls back the pod (`worlds.ANSWER`).
            asks = call(f"{container}-asks&back=$(hostname -i)")
            return f"{asks} || exit 1\n{SERVE}\n{once}"
        case "ignores SIGTERM":
            return f"trap '' TERM; {retried(container)}; sleep 8; {once}"
        case _:
            raise ValueError(kind)


def job(values: Values) -> Document:
    """The Job of a pair."""
    inits = [*_inits(values["init"])]
    work = "true" if values["init"] == "is the work" else script("main", values["payload"])
    main, around_main = _main(values, work)
    containers, volumes = [main], [*around_main]
    match values["other sidecar"]:
        case "known":
            containers.append({"name": "cloud-sql-proxy", "image": KNOWN})
        case "unknown":
            containers.append(container("helper", FOREVER))
        case "native":
            helper = f"until {call('helper')}; do sleep 2; done; {FOREVER}"
            inits.insert(0, container("helper", helper, restartPolicy="Always"))
    _request(values["resources"], main, inits)
    spec: Document = {
        "restartPolicy": values["restart"],
        "terminationGracePeriodSeconds": int(values["grace"]),
        "containers": containers,
    }
    if values["init"] == "is the work":
        inits.append(container("work", script("work", values["payload"])))
    if inits:
        spec["initContainers"] = inits
    if volumes:
        spec["volumes"] = volumes
    if values["resources"] == "of the pod":
        # A proxy's own limit of two CPUs is more than that.
        spec["resources"] = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "1"}}
    if values["ends the proxy"] == "kill":
        spec["shareProcessNamespace"] = True
    about = {"labels": {JOB: NAME}, "annotations": _annotations(values)}
    of_job: Document = {
        "backoffLimit": int(values["backoff"]),
        "template": {"metadata": about, "spec": spec},
    }
    if values["failure policy"] != "none":
        rule: Document = {"operator": "In", "values": [1, 137, 143]}
        if values["failure policy"] == "exit codes of main":
            rule["containerName"] = "main"
        of_job["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": rule}]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": NAME}, "spec": of_job}


def around(values: Values) -> list[Document]:
    """What there is in the namespace of a pair beside its Job."""
    made: list[Document] = []
    if values["ends the proxy"] in {"ConfigMap", "wrapper"}:
        texts = {"run.sh": _ended(script("main", values["payload"]), QUIT), "scuttle": SCUTTLE}
        made.append(_object("v1", "ConfigMap", NAME, data=texts))
    if values["payload"] == "serves a peer":
        ports = [{"name": "tcp", "port": SERVED}]
        service = {
            "clusterIP": "None", "publishNotReadyAddresses": True, "ports": ports,
            "selector": {JOB: NAME},
        }  # fmt: skip
        made.append(_object("v1", "Service", NAME, spec=service))
    if values["quota"] != "none":
        # Enough for main and a proxy, or an init container; not for that and a proxy.
        hard = {"requests.memory": {"roomy": "1Gi", "tight": "96Mi"}[values["quota"]]}
        made.append(_object("v1", "ResourceQuota", "quota", spec={"hard": hard}))
    if values["quota"] != "none" or values["limit range"] != "none":
        limits: list[Document] = [
            {
                "type": "Container",
                "default": {"memory": "100Mi", "cpu": "1"},
                "defaultRequest": {"memory": "8Mi", "cpu": "1m"},
            }
        ]
        if values["limit range"] == "of pods":
            limits.append({"type": "Pod", "max": {"memory": "1200Mi"}})
        made.append(_object("v1", "LimitRange", "limits", spec={"limits": limits}))
    if values["peers"] == "STRICT":
        strict = {"mtls": {"mode": "STRICT"}}
        made.append(_object("security.istio.io/v1", "PeerAuthentication", "strict", spec=strict))
    if values["egress"] == "REGISTRY_ONLY":
        only = {"outboundTrafficPolicy": {"mode": "REGISTRY_ONLY"}}
        made.append(_object("networking.istio.io/v1", "Sidecar", "egress", spec=only))
    return made


def container(name: str, text: str, **more: Any) -> Document:
    """A container that runs a text of shell."""
    return {"name": name, "image": BUSYBOX, "command": ["sh", "-c", text], **more}


def _inits(kind: str) -> list[Document]:
    once = container("fetch", f"{call('fetch')} || exit 1")
    patient = container("fetch", retried("fetch"))
    careless = container("fetch", f"{call('fetch')} || true")
    return {
        "none": [],
        "true": [container("setup", "true")],
        "fetches at once": [once],
        "fetches for 20 s": [patient],
        "fetches if it can": [careless],
        "fails": [container("setup", "exit 3")],
        "several": [container("setup", "sleep 1"), careless],
        "is the work": [],
    }[kind]


def _main(values: Values, work: str) -> tuple[Document, list[Document]]:
    """The container `main`, and the volumes that it needs."""
    env: list[Document] = []
    if values["probe"] in {"liveness", "startup"}:
        work = f"httpd -p 8080 -h /tmp\n{work}"
    match values["ends the proxy"]:
        case "arguments":
            command = ["sh", "-c", _ended(work, QUIT)]
        case "kill":
            command = ["sh", "-c", _ended(work, KILL)]
        case "ConfigMap":
            command = ["sh", "/scripts/run.sh"]
        case "wrapper":
            command = ["sh", "/scripts/scuttle", "sh", "-c", work]
            env += [
                {"name": "ENVOY_ADMIN_API", "value": "http://127.0.0.1:15000"},
                {"name": "ISTIO_QUIT_API", "value": "http://127.0.0.1:15020"},
            ]
        case _:
            command = ["sh", "-c", work]
    main: Document = {"name": "main", "image": BUSYBOX, "command": command}
    if env:
        main["env"] = env
    if values["payload"] == "serves a peer":
        main["ports"] = [{"containerPort": SERVED}]
    often = {"periodSeconds": 2, "failureThreshold": 10}
    match values["probe"]:
        case "readiness":
            main["readinessProbe"] = {"exec": {"command": ["true"]}, **often}
        case "liveness" | "startup" as kind:
            main[f"{kind}Probe"] = {"httpGet": {"port": 8080, "path": "/"}, **often}
    if values["ends the proxy"] not in {"ConfigMap", "wrapper"}:
        return main, []
    main["volumeMounts"] = [{"name": "scripts", "mountPath": "/scripts"}]
    return main, [{"name": "scripts", "configMap": {"name": NAME}}]


def _ended(work: str, end: str) -> str:
    """The work, the end of the proxy, and the code of the work."""
    return f"(\n{work}\n)\ncode=$?\n{end}\nexit $code"


def _request(kind: str, main: Document, inits: list[Document]) -> None:
    """Let main, or the author's init containers, request more than the other."""
    own = [each for each in inits if "restartPolicy" not in each]
    much, little = {"requests": {"memory": "64Mi"}}, {"requests": {"memory": "16Mi"}}
    match kind:
        case "init above main":
            main["resources"] = little
            for each in own:
                each["resources"] = {**much, "limits": {"memory": "256Mi"}}
        case "main above init":
            main["resources"] = much
            for each in own:
                each["resources"] = little
        case "only limits":
            # A limit is requested, too: pods that wait for a node of two CPUs would wait by chance.
            main["resources"] = {"limits": {"memory": "64Mi", "cpu": "100m"}}


def _annotations(values: Values) -> dict[str, str]:
    made: dict[str, str] = {}
    if values["templates"] == "custom":
        made["inject.istio.io/templates"] = "sidecar,custom"
    if (config := values["proxy config"]) != "none":
        made["proxy.istio.io/config"] = {
            "drain": "terminationDrainDuration: 3s",
            "hold": "holdApplicationUntilProxyStarts: true",
            "no hold": "holdApplicationUntilProxyStarts: false",
        }[config]
    if values["annotation"] != "none":
        key, _, value = values["annotation"].partition(": ")
        made[f"istio-aux.io/{key}"] = value
    return made


def _object(version: str, kind: str, name: str, **more: Any) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}


FETCH = retried("fetch")
SLEEP = "sleep 2"
NO_QUIT = {"istio-aux.io/quit": "false"}
ENDS_IT = f"{SLEEP}; {QUIT}"
SHORT: Mapping[str, Any] = {"terminationGracePeriodSeconds": 0}
MUCH: Mapping[str, Any] = {"resources": {"requests": {"memory": "64Mi"}}}
LITTLE: Mapping[str, Any] = {"resources": {"requests": {"memory": "16Mi"}}}
KILLED = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137, 143]}}]}
COUNTED = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [3]}}]}
UNTIL_TOLD = "trap 'exit 143' TERM; for i in 1 2 3 4 5 6; do sleep 1; done"
# The quota counts only pods that have one.
DEADLINE: Mapping[str, Any] = {"activeDeadlineSeconds": 600}


def allowed(**limits: str) -> dict[str, Any]:
    """What an init container may use: more than all that comes after it."""
    return {"resources": {"limits": limits, "requests": dict.fromkeys(limits, "0")}}


def fetching(
    name: str,
    main: str,
    *others: Document,
    of_main: Mapping[str, Any] | None = None,
    init: Mapping[str, Any] | None = None,
    restart: str = "OnFailure",
    backoff: int = 3,
    policy: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    limited: bool = False,
    first: str = FETCH,
    ends: str = "",
    **of_pod: Any,
) -> Pair:
    """A Job whose init container, with these further fields, fetches from the service, unless it
    is to do something else first."""
    spec: Document = {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 5,
        "initContainers": [container("fetch", first, **(init or {}))],
        "containers": [container("main", main, **(of_main or {})), *others],
        **of_pod,
    }
    template = {"metadata": {"annotations": dict(annotations or {})}, "spec": spec}
    of_job: Document = {"backoffLimit": backoff, "template": template}
    if policy:
        of_job["podFailurePolicy"] = policy
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": NAME}, "spec": of_job}
    return Pair(name, made, around=_LIMITS if limited else (), ends=ends)


# Enough for what the pods request and may use without a mesh, and beside a classic sidecar.
_LIMITS: tuple[Document, ...] = (
    {
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"},
        "spec": {
            "limits": [
                {"type": "Pod", "max": {"memory": "2Gi"}},
                {
                    "type": "Container",
                    "default": {"memory": "100Mi", "cpu": "100m"},
                    "defaultRequest": {"memory": "8Mi", "cpu": "1m"},
                },
            ]
        },
    },
    {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"},
        "spec": {"hard": {"limits.cpu": "10"}, "scopes": ["Terminating"]},
    },
)  # fmt: skip

IN_THE_MESH = (
    fetching("plain", SLEEP, ends="Complete"),
    fetching("asks-for-more", SLEEP, init=MUCH, of_main=LITTLE, ends="Complete"),
    fetching("grace-0", SLEEP, **SHORT, ends="Complete"),
    fetching("ends-its-proxy", ENDS_IT, restart="Never", backoff=2, ends="Complete"),
)
"""Where sidecars are native unasked, all of these complete without istio-aux."""


def _rows(suffix: str, first: str) -> tuple[Pair, ...]:
    """Jobs that a native sidecar breaks, or may break."""
    return (
        fetching(
            f"ends-its-proxy-on-failure{suffix}",
            f"sleep 3; {call('main')}; code=$?; {QUIT}; exit $code",
            backoff=0, ends="Complete", first=first,
        ),
        fetching(
            f"a-limit-range-allows-no-more{suffix}", call("main"), init=allowed(memory="2Gi"),
            limited=True, ends="Complete", first=first,
        ),
        fetching(
            f"a-quota-allows-no-more{suffix}", call("main"), init=allowed(cpu="10"), limited=True,
            of_main={"resources": {"limits": {"cpu": "100m"}, "requests": {"cpu": "1m"}}},
            ends="Complete", first=first, **DEADLINE,
        ),
        fetching(
            f"templates-of-its-own{suffix}", call("main"), ends="Complete", first=first,
            annotations={"inject.istio.io/templates": "sidecar,custom"},
        ),
        fetching(
            f"grace-0-is-counted{suffix}", f"{call('main')}; exit 1", restart="Never", backoff=0,
            annotations={"proxy.istio.io/config": "terminationDrainDuration: 5s"},  # The default.
            policy=KILLED, ends="Failed: BackoffLimitExceeded", first=first, **SHORT,
        ),
        fetching(
            f"exit-codes-of-sidecars-are-counted{suffix}", f"{call('main')}; sleep 2; exit 3",
            container("cloud-sql-proxy", UNTIL_TOLD), restart="Never", backoff=0, policy=COUNTED,
            annotations={"istio-aux.io/sidecars": "cloud-sql-proxy=native"},
            ends="Failed: BackoffLimitExceeded", first=first,
        ),
    )  # fmt: skip


NOT_NATIVE = _rows("", FETCH)
HELD = _rows("-held", "true")
"""The same with an init container that needs no network: they end well also where held."""
LEFT_RUNNING = (
    fetching("grace-0-dry-run", SLEEP, **SHORT, ends="Complete"),
    fetching("asks-for-more-dry-run", SLEEP, init=MUCH, of_main=LITTLE, ends="Complete"),
    fetching("ends-its-proxy-dry-run", ENDS_IT, restart="Never", backoff=2, ends="Complete"),
)
"""With `quit=dry-run` their proxies run on, unless they are native."""

OPTED_OUT = (
    fetching("grace-0-no-quit", SLEEP, annotations=NO_QUIT, ends="Complete", **SHORT),
    fetching(
        "asks-for-more-no-quit", SLEEP, init=MUCH, of_main=LITTLE, annotations=NO_QUIT,
        ends="Complete",
    ),
)  # fmt: skip
"""Their authors want no proxy to be told to exit."""
BY_HAND = (*IN_THE_MESH, *NOT_NATIVE, *HELD, *OPTED_OUT)
