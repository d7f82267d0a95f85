"""Certificates for tests: self-signed, and valid for an hour unless told otherwise."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from lab.control_plane import begun, general_name, named


def certificate(
    folder: Path,
    name: str = "127.0.0.1",
    stem: str = "tls",
    *,
    hours: float = 1,
    password: str = "",
) -> tuple[Path, Path]:
    """Write a self-signed certificate for an address or a name and its key; returns the paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = named("unit test")
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    built = (
        begun(subject, subject, key.public_key(), begin, datetime.timedelta(days=1, hours=hours))
        .add_extension(x509.SubjectAlternativeName([general_name(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{stem}.crt", folder / f"{stem}.key"
    paths[0].write_bytes(built.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption(),
        )
    )
    return paths
