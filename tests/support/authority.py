"""A time-stamping authority on a socket: openssl's, with certificates made for the test."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)
CONFIG = """
[tsa]
serial = {folder}/serial
default_policy = 1.2.3.4
digests = sha256, sha384, sha512
signer_digest = sha256
ess_cert_id_alg = sha256
accuracy = secs:1
"""


@dataclass(frozen=True)
class Authority:
    """An authority's own files, and the root that is told to those who check."""

    folder: Path
    root: Path

    def reply(self, request: bytes) -> bytes:
        """What openssl answers to a request."""
        (self.folder / "query").write_bytes(request)
        command = ["openssl", "ts", "-reply", "-queryfile", "query", "-section", "tsa"]
        command += ["-config", "config", "-signer", "own.pem", "-inkey", "own.key"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def accepts(self, text: Path, reply: Path) -> bool:
        """Whether openssl, too, accepts a time stamp."""
        files = ["-data", str(text), "-in", str(reply), "-CAfile", str(self.root)]
        command = ["openssl", "ts", "-verify", *files]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def authority(folder: Path, name: str, expired: bool = False) -> Authority:
    """Make an authority. `expired`: its own certificate is."""
    folder.mkdir()
    now = datetime.now(UTC)
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root_name, own_name = _name(f"{name} root"), _name(name)
    start = x509.CertificateBuilder().not_valid_before(now - 9 * DAY)
    root = (
        start.subject_name(root_name)
        .issuer_name(root_name)
        .public_key(root_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    own = (
        start.subject_name(own_name)
        .issuer_name(root_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_after(now - DAY if expired else now + DAY)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    (folder / "root.pem").write_bytes(root.public_bytes(Encoding.PEM))
    (folder / "own.pem").write_bytes(own.public_bytes(Encoding.PEM))
    (folder / "own.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    (folder / "config").write_text(CONFIG.format(folder=folder))
    (folder / "serial").write_text("01\n")
    return Authority(folder, folder / "root.pem")


@contextmanager
def answering(reply: bytes | Authority, kind: str = "application/timestamp-reply") -> Iterator[str]:
    """Serve an authority, or always the same bytes; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/timestamp-query"
            request = self.rfile.read(int(self.headers["Content-Length"]))
            answer = reply if isinstance(reply, bytes) else reply.reply(request)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/tsr"
    finally:
        server.shutdown()
        server.server_close()


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
