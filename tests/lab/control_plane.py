"""The command lines of etcd, API server, controller manager and scheduler; nothing runs here.

They know each other by the certificates of one authority, valid for as long as the cluster lives,
and by kubeconfig files. With those here is the smallest client, for what must work before anything
else does.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes as PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from lightkube import Client
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ServiceAccountToken

from lab.processes import reserve_port

# A cluster left running by hand may see a weekend; none sees a month.
LIFETIME = datetime.timedelta(days=30)


@dataclass(frozen=True)
class KeyPair:
    """A PEM certificate and its private key, as files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority whose files live in one folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        """Make the authority and write `<name>.crt` and `<name>.key` to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = named(f"lab {name}")
        certificate = (
            self._builder(self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pair = _write(folder, name, certificate, self._key)

    def issue(
        self,
        name: str,
        common_name: str,
        *,
        organizations: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> KeyPair:
        """Write `<name>.crt` and `<name>.key`, good for a client and for a server at `hosts`.

        Kubernetes takes `common_name` for the user and `organizations` for the groups.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organizations]
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            self._builder(x509.Name(attributes), key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([general_name(host) for host in hosts]), critical=False
            )
        return _write(self._folder, name, builder.sign(self._key, hashes.SHA256()), key)

    def _builder(self, subject: x509.Name, public_key: PublicKey) -> x509.CertificateBuilder:
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
        # Python 3.13 verifies strictly: RFC 5280 wants both key identifiers.
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            begun(subject, self._subject, public_key, begin, LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(authority, critical=False)
        )


def begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: PublicKey,
    begin: datetime.datetime,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    """A certificate that has no extension yet."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + life)
    )


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> KeyPair:
    path = folder / f"{name}.crt"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return KeyPair(path, _write_key(folder / f"{name}.key", key))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            # SEC 1: the API server finds the public key in it as well.
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path


def write_kubeconfig(
    path: Path, server: str, ca: Path, *, user: str, has: KeyPair | str, namespace: str = "default"
) -> Path:
    """Write a kubeconfig whose user has a certificate or a bearer token; returns its path."""
    if isinstance(has, str):
        credentials = {"token": has}
    else:
        files = {"client-certificate-data": has.certificate, "client-key-data": has.key}
        credentials = {key: _data(file) for key, file in files.items()}
    # JSON is YAML: every reader of kubeconfigs takes it.
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "lab",
                "cluster": {"server": server, "certificate-authority-data": _data(ca)},
            }
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [
            {"name": "lab", "context": {"cluster": "lab", "user": user, "namespace": namespace}}
        ],
        "current-context": "lab",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=2) + "\n")
    return path


def request_token(client: Client, namespace: str, account: str, *, seconds: int = 3600) -> str:
    """A token of the ServiceAccount."""
    # lightkube reads the metadata, though none are sent.
    request = ServiceAccountToken(
        metadata=ObjectMeta(), spec=TokenRequestSpec(audiences=[], expirationSeconds=seconds)
    )
    answer = client.create(request, account, namespace=namespace)
    assert answer.status
    assert answer.status.token
    return answer.status.token


def get_status(server: str, ca: Path, pair: KeyPair, path: str, *, patience: float = 10) -> int:
    """The status of an HTTPS GET with a client certificate. Raises httpx2.HTTPError."""
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(pair.certificate, pair.key)
    with httpx2.Client(verify=context, trust_env=False, timeout=patience) as client:
        return client.get(f"{server}{path}").status_code


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


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
        service_accounts=_write_key(
            folder / "service-accounts.key", ec.generate_private_key(ec.SECP256R1())
        ),
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
    return write_kubeconfig(
        files.folder / f"{name}.kubeconfig", endpoints.server, ca, user=f"system:{name}", has=pair
    )
