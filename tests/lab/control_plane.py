"""The command lines of etcd, API server, controller manager and scheduler; nothing runs here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab import kubeconfig
from lab.certificates import Authority, KeyPair, signing_key
from lab.processes import reserve_port

SERVICES = "10.96.0.0/16"
# The first address of SERVICES is the one of the Service `kubernetes`.
KUBERNETES = "10.96.0.1"
DOMAIN = "cluster.local"


@dataclass(frozen=True)
class Endpoints:
    """Where the control plane listens, and what it is called from outside."""

    bind: str
    advertise: str
    public: str
    port: int
    etcd: int
    etcd_peer: int
    # The API server keeps the endpoints of the Service `kubernetes`, if they can be of use.
    endpoints: str

    @property
    def server(self) -> str:
        return f"https://{self.public}:{self.port}"


def on_loopback() -> Endpoints:
    """Endpoints on ports of 127.0.0.1, which no endpoint of a Service may have."""
    port, etcd, etcd_peer = (reserve_port() for _ in range(3))
    return Endpoints("127.0.0.1", "127.0.0.1", "127.0.0.1", port, etcd, etcd_peer, "none")


@dataclass(frozen=True)
class Credentials:
    """The files by which the components know each other."""

    folder: Path
    authority: Authority
    front_proxy: Authority
    server: KeyPair
    admin: KeyPair
    kubelet_client: KeyPair
    front_proxy_client: KeyPair
    service_accounts: Path


def credentials(folder: Path, endpoints: Endpoints) -> Credentials:
    """Make all certificates and keys of a cluster in `folder`."""
    authority, front_proxy = Authority(folder), Authority(folder, "front-proxy-ca")
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    names.append(f"kubernetes.default.svc.{DOMAIN}")
    addresses = {"127.0.0.1", KUBERNETES, endpoints.advertise, endpoints.public}
    masters = ["system:masters"]
    return Credentials(
        folder=folder,
        authority=authority,
        front_proxy=front_proxy,
        server=authority.issue("kube-apiserver", "kube-apiserver", hosts=[*names, *addresses]),
        admin=authority.issue("admin", "admin", organizations=masters),
        kubelet_client=authority.issue("kubelet-client", "kube-apiserver", organizations=masters),
        front_proxy_client=front_proxy.issue("front-proxy", "front-proxy"),
        service_accounts=signing_key(folder / "service-accounts.key"),
    )


def etcd(program: Path, state: Path, endpoints: Endpoints) -> list[str]:
    """The command line of etcd; data needs to survive a restart, never a power cut."""
    client = f"http://127.0.0.1:{endpoints.etcd}"
    peer = f"http://127.0.0.1:{endpoints.etcd_peer}"
    return [
        str(program),
        f"--data-dir={state / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--quota-backend-bytes=8589934592",  # 50,000 pods and their events have more than 2 GiB.
        "--log-level=warn",
    ]


def kube_apiserver(
    program: Path,
    endpoints: Endpoints,
    files: Credentials,
    audit: Path,
    egress: Path | None = None,
) -> list[str]:
    """The command line of the API server, which writes its audit log to `audit`.

    With the configuration `egress` it connects to the addresses of Services, not to endpoints.
    """
    # There is no kube-proxy.
    services = (
        f"--egress-selector-config-file={egress}" if egress else "--enable-aggregator-routing=true"
    )
    return [
        str(program),
        f"--etcd-servers=http://127.0.0.1:{endpoints.etcd}",
        f"--bind-address={endpoints.bind}",
        f"--advertise-address={endpoints.advertise}",
        f"--secure-port={endpoints.port}",
        f"--endpoint-reconciler-type={endpoints.endpoints}",
        f"--service-cluster-ip-range={SERVICES}",
        f"--tls-cert-file={files.server.certificate}",
        f"--tls-private-key-file={files.server.key}",
        f"--client-ca-file={files.authority.pair.certificate}",
        f"--kubelet-client-certificate={files.kubelet_client.certificate}",
        f"--kubelet-client-key={files.kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={files.front_proxy.pair.certificate}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={files.front_proxy_client.certificate}",
        f"--proxy-client-key-file={files.front_proxy_client.key}",
        f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
        f"--service-account-key-file={files.service_accounts}",
        f"--service-account-signing-key-file={files.service_accounts}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--anonymous-auth=false",
        "--allow-privileged=true",
        services,
        "--shutdown-delay-duration=0s",
        f"--audit-policy-file={Path(__file__).with_name('audit-policy.yaml')}",
        f"--audit-log-path={audit}",
    ]


def kube_controller_manager(program: Path, endpoints: Endpoints, files: Credentials) -> list[str]:
    """The command line of the controller manager, which has no port."""
    config = _component(endpoints, files, "kube-controller-manager")
    return [
        str(program),
        f"--kubeconfig={config}",
        f"--service-account-private-key-file={files.service_accounts}",
        f"--root-ca-file={files.authority.pair.certificate}",
        "--use-service-account-credentials=true",
        # Its controllers start one after another, each with requests that these limits would delay.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--leader-elect=false",
        "--secure-port=0",
    ]


def kube_scheduler(program: Path, endpoints: Endpoints, files: Credentials) -> list[str]:
    config = _component(endpoints, files, "kube-scheduler")
    return [str(program), f"--kubeconfig={config}", "--leader-elect=false", "--secure-port=0"]


def _component(endpoints: Endpoints, files: Credentials, name: str) -> Path:
    pair = files.authority.issue(name, f"system:{name}")
    ca = files.authority.pair.certificate
    path = files.folder / f"{name}.kubeconfig"
    return kubeconfig.write(path, endpoints.server, ca, user=f"system:{name}", has=pair)
