"""containerd and the kubelet run the image of the workload, which is made by hand."""

from __future__ import annotations

import istio_aux
import lab
from lab import packages, rock
from lightkube import Client
from lightkube.models.core_v1 import Container, PodSecurityContext, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

# What a pod shows of itself, one line each.
LOOK = """
id -un
istio-aux --version
pebble version --client
stat -c '%U %a' /etc/istio-aux /etc/istio-aux/tls
python3 -c 'import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 50)'
touch /var/lib/pebble/default/mine && echo written
"""


def test_containerd_runs_it_with_its_user_its_folders_and_its_programs(
    cluster: lab.Cluster, client: Client, namespace: str
):
    cluster.load(rock.image())
    version = packages.version()
    main = Container(name="main", image=f"{rock.NAME}:{version}", command=["sh", "-euc", LOOK])
    security = PodSecurityContext(runAsNonRoot=True)
    spec = PodSpec(containers=[main], restartPolicy="Never", securityContext=security)
    client.create(Pod(metadata=ObjectMeta(name="look", namespace=namespace), spec=spec))

    def ended() -> str | None:
        status = client.get(Pod, "look", namespace=namespace).status
        phase = status and status.phase
        return phase if phase in {"Succeeded", "Failed"} else None

    phase = lab.until(ended, what="the pod of the image to end")
    shown = "".join(client.log("look", namespace=namespace)).splitlines()
    assert (phase, shown) == (
        "Succeeded",
        [
            "_daemon_",
            f"istio-aux {version}, revision {istio_aux.revision()}",
            "v1.26.0",
            "_daemon_ 751",
            "_daemon_ 750",
            "True",
            "written",
        ],
    )
