"""Where the program that is one file begins: with an environment like that of any other program."""

import os
import sys
from pathlib import Path

# Where systems keep the authorities that they trust (go crypto/x509 root_linux.go certFiles). The
# OpenSSL that is packed looks where that of the machine does on which it was packed.
AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

# PyInstaller's bootloader put the packed libraries first, for this process. A credential plugin of
# a kubeconfig needs its own (PyInstaller manual, "LD_LIBRARY_PATH / LIBPATH considerations").
before = os.environ.pop("LD_LIBRARY_PATH_ORIG", "")
os.environ.pop("LD_LIBRARY_PATH", None)
if before:
    os.environ["LD_LIBRARY_PATH"] = before
if found := [each for each in AUTHORITIES if Path(each).is_file()]:
    os.environ.setdefault("SSL_CERT_FILE", found[0])

if __name__ == "__main__":
    from istio_aux.cli import main

    sys.exit(main())
