"""Pairs that are written by hand. The init container of most fetches from the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twins.manifests import NAME, QUIT, Document, Pair, call, container, retried

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
