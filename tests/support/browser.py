"""The pages as people meet them: a real browser, a visitor without one, and an issuer."""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx
import numpy as np
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from fastapi import FastAPI

from support.clients import npy
from support.data import DigitsEnsemble
from support.databases import SECRET_KEY
from support.servers import Owner, installed
from terrine_protocol import Role
from terrine_server.app import create_app
from terrine_server.ledger import Ledger

if TYPE_CHECKING:
    from playwright.sync_api import Browser


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Return the path of a browser of this machine, or None."""
    given = os.environ.get("TERRINE_TEST_BROWSER")
    return given or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Start the browser at `path`."""
    from playwright.sync_api import sync_playwright

    # Without a sandbox: it has none to offer in a container, and visits our own pages alone.
    options = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=options)
        yield started
        started.close()


def no_browser() -> str | None:
    """Return why no browser can be driven here, or None."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "NO PLAYWRIGHT: the pages are not looked at with a browser. pip install playwright"
    if chromium() is None:
        return (
            f"NO BROWSER ({', '.join(NAMES)}): the pages are not looked at with one here. "
            "apt-get install chromium, or name one in TERRINE_TEST_BROWSER."
        )
    return None


class InProcess:
    """Sends requests to applications, each with a token or none.

    One event loop serves them all, so that its threads serve one request after the other, as in a
    server: they end with the loop.
    """

    def __init__(self) -> None:
        self._running: AbstractContextManager[BlockingPortal] = start_blocking_portal()

    def __enter__(self) -> InProcess:
        self._portal = self._running.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running.__exit__(kind, error, traceback)

    def __call__(
        self, app: FastAPI, method: str, path: str, token: str = "", **request: Any
    ) -> httpx.Response:
        if token:
            given = request.pop("headers", {})
            request["headers"] = given | {"Authorization": f"Bearer {token}"}
        reply: httpx.Response = self._portal.call(_send, app, method, path, request)
        return reply


async def _send(app: FastAPI, method: str, path: str, request: dict[str, Any]) -> httpx.Response:
    # The reply to a defect is wanted, not the defect.
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://terrine") as http:
        return await http.request(method, path, **request)


Send = Callable[..., httpx.Response]
"""Like `InProcess.__call__`."""
KEY = re.compile(r'name="form_key" value="([0-9a-f]{64})"')
ONCE = re.compile(r'name="once" value="([0-9a-f]{32})"')
ORIGIN = "http://terrine"
SCREENS = (
    "",
    "/open",
    "/open?ensemble=digits&mechanism=immutable",
    "/projects/study",
    "/projects/study/close",
    "/tokens",
    "/ensembles",
    "/log",
    "/audit",
)
"""Paths of all screens, below /admin, where there is a study called study."""


class Visitor:
    """Visits the pages of an app. Sends back the cookies that it was given, and no script runs."""

    def __init__(self, app: FastAPI, send: Send, prefix: str = "") -> None:
        """`prefix`: what a proxy takes off the paths that are visited."""
        self.app, self._send, self._prefix = app, send, prefix
        self.cookies: dict[str, str] = {}
        self.last_key = self.last_once = ""

    def request(self, method: str, path: str, **request: Any) -> httpx.Response:
        headers = {"Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
        request["headers"] = headers | request.get("headers", {})
        assert path.startswith(self._prefix), f"{path} is another service's"
        reply = self._send(self.app, method, path.removeprefix(self._prefix), **request)
        for line in reply.headers.get_list("set-cookie"):
            for name, morsel in SimpleCookie(line).items():
                self.cookies[name] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[name]
        found = KEY.search(reply.text)
        self.last_key = found[1] if found else self.last_key
        found = ONCE.search(reply.text)
        self.last_once = found[1] if found else self.last_once
        return reply

    @property
    def actor(self) -> str:
        """Return the actor that the log knows this visitor by."""
        return f"token:{self.cookies['__Host-terrine-session'].split('.')[1]}"

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def post(self, path: str, *, key: str | None = None, **fields: str) -> httpx.Response:
        """Send a form as a page of ours would, with what the last page hides in it."""
        given = {"form_key": self.last_key if key is None else key, **fields}
        if path.endswith("/admin/tokens"):
            given = {"once": self.last_once, **given}
        return self.request("POST", path, data=given, headers={"Origin": ORIGIN})

    def sign_in(self, token: str) -> httpx.Response:
        self.get("/admin/sign-in")
        reply = self.post("/admin/sign-in", token=token)
        self.get("/admin")
        return reply


def text_of(reply: httpx.Response) -> str:
    """Return what a page says, without its markup."""
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", reply.text).split()))


CONFIDENT = {"name": "confident_gnmax", "threshold": 24, "sigma1": 12.0, "sigma2": 4.0}


@dataclass
class House(Owner):
    """A service in this process, and its owner."""

    app: FastAPI
    ledger: Ledger
    send: InProcess
    ensemble: DigitsEnsemble
    asked: int = field(default=0)

    def ask(self, token: str, count: int) -> None:
        """Ask new queries."""
        inputs = self.ensemble.public[self.asked : self.asked + count]
        self.asked += count
        headers = {"Content-Type": "application/x-npy"}
        reply = self.send(
            self.app, "POST", "/label", token, content=npy(np.asarray(inputs)), headers=headers
        )
        assert reply.status_code == 200, reply.text

    def visitor(self, role: str = "admin") -> Visitor:
        made = Visitor(self.app, self.send)
        assert made.sign_in(self.token(role)).status_code == 303
        return made

    @property
    def last_logged(self) -> tuple[str, str, str]:
        (entry,) = self.ledger.log.list(limit=1, newest=True)
        return entry.action, entry.subject, entry.actor


@pytest.fixture(scope="session")
def house(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[House]:
    """One service for all tests of a process; each opens studies of its own."""
    directory = tmp_path_factory.mktemp("house")
    url = f"sqlite:///{directory / 'terrine.sqlite'}"
    settings, engine = installed(
        directory / "data", url, digits_ensemble, requests_per_minute=100_000
    )
    with InProcess() as send:
        made = House(create_app(settings), Ledger(engine, SECRET_KEY), send, digits_ensemble)
        made.open_project("study", CONFIDENT, epsilon=20.0)
        made.ask(made.token(Role.STUDENT, "study"), 12)
        yield made
    engine.dispose()


@pytest.fixture(autouse=True)
def nobody_has_failed(house: House) -> None:
    """Tests share a service and an address, of which one test uses up the failed sign-ins."""
    house.app.state.services.failed_logins._buckets.clear()


@pytest.fixture
def admin(house: House) -> Visitor:
    return house.visitor()


@pytest.fixture
def auditor(house: House) -> Visitor:
    return house.visitor("auditor")


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
        self.replies = Event()
        """Unset: it takes what it is asked, and says nothing."""
        self.replies.set()

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
            issuer.replies.wait()
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
            issuer.asked.append(self.path)
            issuer.replies.wait()
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
            issuer.replies.set()
            server.shutdown()
            thread.join()
