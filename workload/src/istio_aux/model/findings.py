"""Every finding by its code, which people search, silence and link to: one list.

A code never gets another meaning. A code that is no longer raised is removed here, and stays in the
list that the tests keep. The page of its group in `docs/findings` says under the code what is so,
what that costs, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, Self

from istio_aux.model.names import REPOSITORY
from istio_aux.model.text import quoted

# The page of each group, by the beginning of its codes.
GROUPS = {
    "IA01": "pods",
    "IA02": "annotations",
    "IA03": "installation",
    "IA04": "istio",
    "IA05": "moving",
}


class Code(StrEnum):
    """The code of a finding; ``what`` says in a clause what is so."""

    what: str

    def __new__(cls, code: str, what: str) -> Self:
        """Make a member whose value is its code."""
        made = str.__new__(cls, code)
        made._value_ = code
        made.what = what
        return made

    @property
    def page(self) -> str:
        """The address of the code's section on the page of its group."""
        return f"{REPOSITORY}/blob/main/docs/findings/{GROUPS[self[:4]]}.md#{self.lower()}"

    RUNS_ON = "IA0101", "the proxy runs on after its payload"
    KEPT = "IA0102", "another container keeps a pod whose payload has finished"
    PROXY_LOST = "IA0103", "the proxy ended before its payload"
    NOT_STARTED = "IA0104", "a sidecar or an init container keeps the payload from starting"
    NO_SIDECAR = "IA0105", "a pod that should have a sidecar has none"
    OUTSIDE = "IA0106", "a pod is outside its ambient mesh"
    MESH_UNKNOWN = "IA0107", "it is not known whether a pod is in its mesh"
    CUT_OFF = "IA0108", "a pod that is ended loses the network before its payload is done"
    PROXY_KILLED = "IA0109", "a native proxy was killed"
    HELD = "IA0110", "a pod is held, because beside a native sidecar it could fail"
    KATIB = "IA0111", "Katib's metrics collector and the proxy wait for each other"
    GCSFUSE = "IA0112", "the mounter of GCS FUSE and the proxy wait for each other"
    FORGOTTEN = "IA0113", "the kubelet does not start a container again"
    REFUSED = "IA0114", "the API server refuses the pods of a workload"
    RESTART_NO_HELP = "IA0115", "a restart did not bring a pod into the mesh"
    COUNTED = "IA0118", "a Job counts what native sidecars exit with"
    HELD_BACK = "IA0119", "a payload is held for long, because its proxy is not ready"
    NOT_SET_UP = "IA0120", "a pod failed because its node had not set it up for the mesh"
    PROXY_FAILED = "IA0121", "the payload succeeded, and its proxy failed the pod"
    INIT_FAILED = "IA0122", "an init container failed before the proxy was there"
    PROXY_ENDED = "IA0123", "the payload ends its native proxy itself"
    TERMINATING = "IA0125", "a pod is Terminating long after its grace period"
    NO_NETWORK = "IA0126", "a pod has no network, because ztunnel has not taken it"

    UNREAD = "IA0201", "nothing reads an annotation or label"
    MISPLACED = "IA0203", "an annotation or label is where nothing reads it"
    BAD_VALUE = "IA0204", "an annotation has a value that cannot be used"

    UNKNOWN = "IA0301", "something could not be found out"
    OLD_SERVER = "IA0302", "the API server has no ValidatingAdmissionPolicy"
    OLD_KUBELETS = "IA0303", "a kubelet is too old for native sidecars"
    RIGHTS = "IA0304", "an account lacks rights"
    SETTINGS = "IA0305", "the settings of an installation are not known"
    SEVERAL = "IA0306", "there are several installations"
    NOT_INSTALLED = "IA0307", "istio-aux is not installed"
    NO_WEBHOOK = "IA0308", "the webhook configuration is missing"
    CALLED_LATE = "IA0309", "Istio's webhooks are called before that of istio-aux"
    UNREACHED = "IA0310", "the API server does not reach the webhook"
    NO_LEADER = "IA0311", "no process leads"
    NONE_SELECTED = "IA0312", "no namespace is selected"
    NOT_INJECTED = "IA0313", "Istio injects no pod of a selected namespace"
    LABEL_NO_INJECTOR = "IA0314", "a namespace asks for injection, and no injector answers"
    AMBIENT = "IA0315", "a selected namespace is in an ambient mesh"
    NOT_SELECTED = "IA0316", "a namespace with Job-like pods is injected and not selected"
    UNIT_DOWN = "IA0317", "a unit does not answer"
    NOT_READY = "IA0318", "a unit is not ready"
    TWO_LEADERS = "IA0319", "two processes lead"
    TOKEN = "IA0320", "the token of a unit expires"
    WATCHES = "IA0321", "watches fail again and again"
    BUG = "IA0322", "an exception was not handled"
    UNREADABLE = "IA0323", "objects cannot be read"
    REVIEWS_FAIL = "IA0324", "the webhook answers reviews with an error"
    REVIEWS_SLOW = "IA0325", "reviews take long"
    OVERLAP = "IA0326", "several installations select a namespace"
    BAD_OPTION = "IA0327", "an option of the charm has a value that cannot be used"
    TWO_PLANES = "IA0328", "the charm is related to two control planes"

    INJECTOR_FAILS = "IA0401", "an injector is not live"
    NO_INJECTOR = "IA0402", "there is no injector"
    NO_CA = "IA0403", "an injector's configuration has no CA that can be used"
    NO_ISTIOD = "IA0404", "an injector's istiod is not there"
    NOT_PROBED = "IA0405", "it is not known whether an injector is live"
    NOT_NATIVE = "IA0406", "sidecars are not native here"
    NO_AGENT = "IA0407", "a node cannot take pods into the mesh"

    HAVE_SIDECARS = "IA0501", "pods have a sidecar that the move replaces"
    REFUSE = "IA0502", "pods refuse a sidecar"
    INIT = "IA0503", "init containers will run inside the mesh"
    END_PROXY = "IA0504", "payloads end their proxy themselves"
    CLASSIC_BY_ANNOTATION = "IA0505", "pods stay classic by their own annotation"
    ASKS_FOR_SIDECAR = "IA0507", "pods ask for a sidecar, which wins over ambient"
    CLOSED_TO_AMBIENT = "IA0508", "a NetworkPolicy keeps an ambient mesh away"
    INJECTION_WINS = "IA0509", "labels for injection win over the one for ambient"
    MORE_REQUESTED = "IA0510", "beside a native sidecar pods need more than is allowed"
    UNTRIED = "IA0511", "pods have templates of a sidecar that were not tried"
    SHORT_GRACE = "IA0512", "the grace period of pods is too short for a native proxy"
    TOO_MUCH = "IA0513", "pods are too large to judge"
    NO_EFFECT = "IA0514", "annotations have no effect without a sidecar"


class Remark(NamedTuple):
    """A finding in a sentence about an object."""

    code: Code
    text: str

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.code}: {self.text}"


def parse(text: str) -> tuple[Code, ...]:
    """Read codes separated by commas.

    Raises:
        ValueError: there is no such code.
    """
    words = [word.strip() for word in text.split(",")]
    if unknown := [word for word in words if word not in _CODES]:
        raise ValueError(
            f"{quoted(unknown[0])}: expected codes of findings, such as {Code.RUNS_ON}"
        )
    return tuple(_CODES[word] for word in words)


_CODES = {str(code): code for code in Code}


def ignored(codes: Iterable[str]) -> str:
    """How many findings of which codes were ignored, for a summary; empty if none was."""
    found = [*codes]
    return f"ignored: {len(found)} ({', '.join(sorted({*found}))})" if found else ""
