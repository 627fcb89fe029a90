"""Small servers of owners and aggregators, in processes of their own, and certificates for them."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import count
from pathlib import Path

import httpx
import processes
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from patience import PATIENCE_SECONDS

NUMBERS = count()
"""Of servers, each of which has a log of its own."""


def certified(directory: Path, name: str, days: float = 1) -> Path:
    """Make a certificate for 127.0.0.1, and its key beside it; it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (directory / f"{name}.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    path = directory / f"{name}.pem"
    path.write_bytes(made.public_bytes(pem))
    return path


@contextmanager
def small_server(certificate: Path, *arguments: object, **variables: object) -> Iterator[str]:
    """Run a `terrine` command that serves over TLS, with these settings; yield its URL."""
    given = {
        "PORT": 0,  # a free one
        "CERTIFICATE_FILE": certificate,
        "CERTIFICATE_KEY_FILE": certificate.with_suffix(".key"),
        **variables,
    }
    settings = {f"TERRINE_{name}": str(value) for name, value in given.items()}
    log = certificate.with_suffix(f".{next(NUMBERS)}.log")
    log.touch()
    command = tuple(map(str, arguments))
    server = processes.start(processes.command, command, os.environ | settings, str(log))
    try:
        trusted = ssl.create_default_context(cafile=certificate)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(r"on (https://127\.0\.0\.1:\d+)\.", log.read_text())) is None:
            assert time.monotonic() < deadline
            assert server.is_alive(), log.read_text()
            time.sleep(0.1)
        url = found[1]
        while True:
            try:
                httpx.get(f"{url}/", verify=trusted)
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                assert server.is_alive(), log.read_text()
                time.sleep(0.1)
        yield url
    finally:
        server.kill()
        server.join()
