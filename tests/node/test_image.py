"""containerd and the kubelet run the image of the workload, which is made by hand."""

from __future__ import annotations

import istio_aux
import lab
from lab.workloads import Workload, await_end, pod
from lightkube import Client

from tools import packages, rock

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
    main = {"name": "main", "image": f"{rock.NAME}:{version}", "command": ["sh", "-euc", LOOK]}
    look = Workload("look", pod(main, securityContext={"runAsNonRoot": True}))
    client.create(look.in_namespace(namespace))
    ended = await_end(client, look, namespace)
    shown = "".join(client.log("look", namespace=namespace)).splitlines()
    assert (ended.owner["status"]["phase"], shown) == (
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
