"""A small OpenID Connect issuer on this machine, over real HTTP. It signs in whoever comes.

It signs with `cryptography` alone, so that what checks its tokens is not what made them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

CLIENT, SECRET = "terrine", "s:%&+/ secret"

Claims = dict[str, Any]


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, size: int | None = None) -> str:
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


class Signer:
    """A key of the issuer's: RSA (RS256) or of the curve P-256 (ES256)."""

    def __init__(self, kid: str | None, curve: bool = False, bits: int = 2048) -> None:
        self.kid, self.curve = kid, curve
        self._ec = ec.generate_private_key(ec.SECP256R1()) if curve else None
        self._rsa = None if curve else rsa.generate_private_key(65537, bits)

    @property
    def jwk(self) -> dict[str, Any]:
        named = {"kid": self.kid} if self.kid else {}
        if self._ec is not None:
            point = self._ec.public_key().public_numbers()
            at = {"x": number(point.x, 32), "y": number(point.y, 32)}
            return {"kty": "EC", "crv": "P-256", "use": "sig", **at, **named}
        assert self._rsa is not None
        public = self._rsa.public_key().public_numbers()
        return {"kty": "RSA", "use": "sig", "n": number(public.n), "e": number(public.e), **named}

    @property
    def pem(self) -> bytes:
        assert self._rsa is not None
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._rsa.public_key().public_bytes(serialization.Encoding.PEM, form)

    def token(self, claims: Claims) -> str:
        header = {"alg": "ES256" if self.curve else "RS256", "kid": self.kid}
        signed = unsigned({k: v for k, v in header.items() if v}, claims)
        if self._ec is not None:
            parts = decode_dss_signature(self._ec.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
            return f"{signed}.{b64(b''.join(part.to_bytes(32, 'big') for part in parts))}"
        assert self._rsa is not None
        made = self._rsa.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{b64(made)}"


def unsigned(header: Mapping[str, Any], claims: Claims) -> str:
    return ".".join(b64(json.dumps(part).encode()) for part in (header, claims))


def with_alg_none(claims: Claims) -> str:
    return f"{unsigned({'alg': 'none'}, claims)}."


def with_shared_secret(key: bytes) -> Callable[[Claims], str]:
    """How to sign HS256 with a public key, for whoever takes that for a secret."""

    def token(claims: Claims) -> str:
        signed = unsigned({"alg": "HS256"}, claims)
        return f"{signed}.{b64(hmac.digest(key, signed.encode(), 'sha256'))}"

    return token


class LocalIssuer:
    """Signs in one subject. A test may change who it is, and every part of what is said of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.subject, self.name = "248289761001", "Ada (L.)"
        self.groups: list[Any] | None = ["privacy-admins"]
        self.signer = Signer("first")
        self.changed: Claims = {}
        """Claims to replace; None leaves one out."""
        self.token: Callable[[Claims], str] | None = None
        """How tokens are made instead."""
        self.metadata: dict[str, Any] = {}
        self.extra = {"session_state": "a.b", "iss": url}
        """What comes with a code."""
        self.way_back: str | None = None
        """Where browsers are sent instead, for a server whose port is not known beforehand."""
        self.codes: dict[str, dict[str, str]] = {}
        self.made: list[str] = []
        """All codes and tokens, which nobody may write down."""
        self.asked: list[str] = []

    def document(self) -> dict[str, Any]:
        paths = {"authorization_endpoint": "authorize", "token_endpoint": "token"}
        found = {name: f"{self.url}/{path}" for name, path in paths.items()}
        found |= {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"}
        return {**found, "code_challenge_methods_supported": ["plain", "S256"], **self.metadata}

    def authorize(self, asked: dict[str, str]) -> str:
        """Sign in without a question; return where to go."""
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = token_hex(16)
        self.made.append(code)
        self.codes[code] = asked
        answer = {"code": code, "state": asked["state"], **self.extra}
        return f"{self.way_back or asked['redirect_uri']}?{urlencode(answer)}"

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Give an ID token for a code, once, to the client that proves who it is."""
        kind, _, given = authorization.partition(" ")
        client, _, secret = base64.b64decode(given).decode().partition(":")
        if (kind, unquote(client), unquote(secret)) != ("Basic", CLIENT, SECRET):
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form["code"], None)
        proof = b64(hashlib.sha256(form["code_verifier"].encode()).digest())
        if asked is None or proof != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        if form["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims: Claims = {
            "iss": self.url,
            "sub": self.subject,
            "aud": CLIENT,
            "nonce": asked["nonce"],
            "iat": now,
            "exp": now + 300,
            "name": self.name,
            "groups": self.groups,
        }
        said = {name: each for name, each in (claims | self.changed).items() if each is not None}
        token = (self.token or self.signer.token)(said)
        self.made.append(token)
        return 200, {"id_token": token, "access_token": token_hex(16), "token_type": "Bearer"}


@contextmanager
def local_issuer(host: str = "127.0.0.1") -> Iterator[LocalIssuer]:
    """An issuer that answers until the end of the block. `host`: its name for this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            issuer.asked.append(url.path)
            if url.path == "/authorize":
                asked = {name: value for name, (value,) in parse_qs(url.query).items()}
                self.send_response(302)
                self.send_header("Location", issuer.authorize(asked))
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif url.path == "/jwks":
                shared = {"kty": "oct", "k": b64(b"x" * 32), "kid": "shared"}
                self.say(200, {"keys": [shared, issuer.signer.jwk]})
            elif url.path == "/.well-known/openid-configuration":
                self.say(200, issuer.document())
            else:
                self.say(404, {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: value for name, (value,) in parse_qs(body).items()}
            self.say(*issuer.exchange(form, self.headers.get("Authorization", "")))

        def say(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer = LocalIssuer(f"http://{host}:{server.server_port}")
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
