"""A certificate for the ledger's server, and the authority that signed it, so that its clients know whom they speak to.

    python certificates.py KEYS TRUST HOST

writes server.key and server.crt into the folder KEYS, for the server alone, and ca.crt into the folder TRUST, for its clients.
The authority's own key is thrown away: it signs nothing else. Where there is a certificate already, nothing is written. If your
organisation has an authority, use that instead.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 3650


def main(keys: Path, trust: Path, host: str) -> None:
    if (keys / "server.crt").exists():
        return
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ours = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {host}")])
    theirs = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    of_authority = (
        _for(ours, authority, ours)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
    )
    of_server = (
        _for(theirs, server, ours)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    pem = serialization.Encoding.PEM
    private = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(trust / "ca.crt", of_authority.sign(authority, hashes.SHA256()).public_bytes(pem), 0o644)
    _write(keys / "server.key", private, 0o600)
    _write(keys / "server.crt", of_server.sign(authority, hashes.SHA256()).public_bytes(pem), 0o644)


def _for(subject: x509.Name, key: ec.EllipticCurvePrivateKey, issuer: x509.Name) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    days = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=DAYS))
    return days.serial_number(x509.random_serial_number())


def _write(path: Path, content: bytes, mode: int) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
