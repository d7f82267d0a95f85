"""The stand-in for Juju plays what real Juju does to a charm, here to the packed charm itself.

Other scenes are in `test_charm_lifecycle.py` (removal by force), `test_high_availability.py`
(hooks at the same time) and `test_outages.py` (a pod that is replaced).
"""

from __future__ import annotations

import lab
import lab.juju
from lab.deployed import has_webhook
from lightkube import Client
from lightkube.resources.rbac_authorization_v1 import ClusterRole

CONTAINER = "istio-aux"
# The charm looks again within a minute.
SOON = 600


def test_trust_that_comes_after_its_event_is_found_by_the_charm_itself(
    client: Client, istio_aux: lab.juju.App
) -> None:
    """juju#12883. While the rights were gone, the workload went on."""
    pid = istio_aux.leader.containers[CONTAINER].service_pid(CONTAINER)
    istio_aux.trust(granted=False)
    istio_aux.settle()
    status, message = istio_aux.status()
    assert (status, "juju trust" in message) == ("blocked", True), message
    assert has_webhook(client, istio_aux)
    assert istio_aux.leader.containers[CONTAINER].service_pid(CONTAINER) == pid

    istio_aux.trust(late=True)

    assert istio_aux.leader.history[-1].event == "config-changed"
    lab.until(
        lambda: istio_aux.status()[0] == "active", timeout=SOON, what="the charm to look again"
    )


def test_what_the_charm_makes_gets_the_labels_of_juju(
    client: Client, istio_aux: lab.juju.App
) -> None:
    """juju#21312: also the label that says who manages it."""
    with istio_aux.model.force_labels():
        istio_aux.run("config-changed")
        role = client.get(ClusterRole, f"{istio_aux.model.name}-{istio_aux.name}-workload").metadata
        istio_aux.settle()
    assert role
    assert role.labels
    assert role.labels["app.kubernetes.io/managed-by"] == "juju"
    assert role.labels["app.juju.is/created-by"] == istio_aux.name
