"""Signing in through an OpenID Connect issuer: the authorization code flow with PKCE (S256).

Sources: OpenID Connect Core 1.0 (3.1) and Discovery 1.0, RFC 7636 (PKCE), RFC 9207 (`iss` in the
answer), RFC 9700 (what to check). `joserfc` verifies signatures; what is trusted is decided here.
Nothing that an issuer sends is logged or shown but its name where it is another than was set, and
what is wrong with the rest, in our own words.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import httpx
import structlog
from pydantic import BaseModel, ValidationError

from terrine_addons.oidc.settings import OidcSettings
from terrine_protocol import Role
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import read
from terrine_server.doctor import Finding, Severity, check_private_file
from terrine_server.errors import Forbidden, Unauthorized
from terrine_server.owner.sign_in import Identity, SignInAttempt
from terrine_server.settings import Settings

if TYPE_CHECKING:
    from joserfc.jwk import Key


log = structlog.get_logger("terrine")

CALLBACK = "/admin/oidc/callback"
# Signatures that are trusted: with public keys alone.
ALGORITHMS = ("RS256", "PS256", "ES256", "ES384")
# Seconds that the issuer's clock and ours may differ.
CLOCK_SKEW_SECONDS = 60
# Seconds after which an ID token is too old to begin a session with.
MAX_TOKEN_AGE_SECONDS = 600
# How long the issuer may take for an answer.
REPLY_SECONDS = 5.0
# Of an answer of the issuer's.
MAX_REPLY_BYTES = 256 * 1024
# How long its discovery document and keys are trusted.
METADATA_SECONDS = 3600.0
# How soon it may be asked again that did not answer, or for a signature that no key has made.
RETRY_SECONDS = 10.0
MIN_RSA_BITS = 2048
# Seconds since 1970 of the last second of the year 9999. What is later is no time.
LATEST_TIME = 253_402_300_799
URL = re.compile(r"[\x21-\x7e]{1,200}")
SUBJECT = re.compile(r"[\x21-\x7e]{1,255}")
MAX_NAME_CHARACTERS = 64


class IssuerError(TerrineError):
    """The issuer does not answer, or not as an issuer does. The message is public."""


class Metadata(BaseModel):
    """The discovery document, as far as it is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: list[str] = ["client_secret_basic"]
    code_challenge_methods_supported: list[str] | None = None
    authorization_response_iss_parameter_supported: bool = False


T = TypeVar("T")


class _Fetched(Generic[T]):
    """What one fetches for all who wait, and all then have for a while, as a failure. Thread-safe.

    Whoever asks an issuer that does not answer would otherwise wait for it once more.
    """

    def __init__(self, fetch: Callable[[], T]) -> None:
        self._fetch = fetch
        self._lock = Lock()
        self._found: T | IssuerError | None = None
        self._at = 0.0

    def get(self, seconds: float) -> T:
        """Return what was fetched so many seconds ago at most. Raises IssuerError."""
        with self._lock:
            kept = RETRY_SECONDS if isinstance(self._found, IssuerError) else seconds
            if self._found is None or time.monotonic() - self._at >= kept:
                try:
                    self._found = self._fetch()
                except IssuerError as error:
                    self._found = error
                self._at = time.monotonic()
            if isinstance(self._found, IssuerError):
                raise self._found.with_traceback(None)
            return self._found


class Issuer:
    """The issuer that the settings name. Thread-safe."""

    start = "/oidc/start"

    def __init__(self, settings: OidcSettings) -> None:
        """Raises IssuerError without `joserfc`, or without the secret that the settings name."""
        try:
            import joserfc  # noqa: F401
        except ModuleNotFoundError:
            raise IssuerError(
                "TERRINE_OIDC_ISSUER needs the extra `oidc`. In a checkout: pip install '.[oidc]'"
            ) from None
        self.url = settings.oidc_issuer or ""
        self.host = urlsplit(self.url).netloc
        self._settings = settings
        self._client_id = settings.oidc_client_id or ""
        self._secret = _secret(settings.oidc_client_secret_file)
        self._redirect = f"{(settings.public_url or '').rstrip('/')}{CALLBACK}"
        self._metadata = _Fetched(self._fetch_metadata)
        self._keys = _Fetched(self._fetch_keys)

    def address(self, flow: SignInAttempt) -> str:
        """Return where to send the browser. Raises IssuerError."""
        challenge = hashlib.sha256(flow.verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect,
            "scope": self._settings.oidc_scopes,
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": base64.urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        parts = urlsplit(self.metadata().authorization_endpoint)
        query = urlencode([*parse_qsl(parts.query), *asked.items()])
        return urlunsplit(parts._replace(query=query))

    def identify(self, flow: SignInAttempt, code: str, said: str | None) -> Identity:
        """Exchange a code for who signed in. `said`: the `iss` that came with it, if any.

        Raises Unauthorized for anything that is not as it must be, Forbidden without a role, and
        IssuerError.
        """
        metadata = self.metadata()
        required = metadata.authorization_response_iss_parameter_supported
        if said != self.url and (said is not None or required):
            raise Unauthorized("The answer came from another issuer. Start again.")
        claims = self._claims(self._id_token(metadata, flow, code), flow.nonce)
        role = self._role(claims)
        shown = claims.get("name") or claims.get("preferred_username")
        name = shown if isinstance(shown, str) else ""
        kept = "".join(c for c in name if c.isprintable() and c not in "()")
        name = kept[:MAX_NAME_CHARACTERS].strip()
        return Identity(f"oidc:{claims['sub']}" + (f" ({name})" if name else ""), role)

    def metadata(self) -> Metadata:
        """Return the discovery document, which is read again every hour."""
        return self._metadata.get(METADATA_SECONDS)

    def _fetch_metadata(self) -> Metadata:
        given = self._json("GET", f"{self.url.rstrip('/')}/.well-known/openid-configuration")
        try:
            found = Metadata.model_validate(given)
        except ValidationError:
            raise self._wrong("its discovery document lacks what a sign-in needs") from None
        if found.issuer != self.url:
            shown = found.issuer if URL.fullmatch(found.issuer) else "what is no address"
            raise self._wrong(
                f"its discovery document calls it {shown}, and TERRINE_OIDC_ISSUER calls it "
                f"{self.url}. They must be the same, letter by letter, to a slash at the end"
            )
        for url in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
            if not self._settings.allows_url(url):
                raise self._wrong("an address in its discovery document is not of https")
        if "S256" not in (found.code_challenge_methods_supported or ["S256"]):
            raise self._wrong("it does not take PKCE with S256")
        return found

    def _id_token(self, metadata: Metadata, flow: SignInAttempt, code: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect,
            "code_verifier": flow.verifier,
        }
        headers = {}
        if self._secret is None:
            form["client_id"] = self._client_id
        elif "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            pair = f"{quote(self._client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self._client_id, "client_secret": self._secret}
        given = self._json("POST", metadata.token_endpoint, data=form, headers=headers)
        token = given.get("id_token")
        if not isinstance(token, str):
            raise self._declined()
        return token

    def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token for us, of now, of this flow. Raises Unauthorized."""
        from joserfc.errors import ClaimError
        from joserfc.jwt import JWTClaimsRegistry

        required = JWTClaimsRegistry(
            leeway=CLOCK_SKEW_SECONDS,
            iss={"essential": True, "value": self.url},
            sub={"essential": True},
            aud={"essential": True, "value": self._client_id},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
            azp={"value": self._client_id},
        )
        claims = self._signed(token)
        self._check_times(claims)
        try:
            required.validate(claims)
        except ClaimError as error:
            raise self._refused(f"claims: {error.claim} ({error.error})") from None
        for name in ("nonce", "azp"):  # of a list, joserfc takes any element
            if not isinstance(claims.get(name, ""), str):
                raise self._refused(f"claims: {name} is not text")
        alone = claims["aud"] in (self._client_id, [self._client_id])
        if not alone and claims.get("azp") != self._client_id:
            raise self._refused("claims: aud has others, and azp does not say that it is for us")
        if not SUBJECT.fullmatch(claims["sub"]):
            raise self._refused("claims: sub is none")
        return claims

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        """Check that a token that was fetched just now is of now. Raises Unauthorized."""
        now, times = time.time(), {}
        for name in ("iat", "exp", "nbf"):
            value = claims.get(name)
            if value is not None:
                if type(value) not in (int, float) or not 0 <= value <= LATEST_TIME:
                    raise self._refused(f"claims: {name} is no time")
                times[name] = value - now
        early = max(times.get("iat", 0), times.get("nbf", 0))
        oldest = MAX_TOKEN_AGE_SECONDS + CLOCK_SKEW_SECONDS
        if early > CLOCK_SKEW_SECONDS:
            raise self._clocks_differ(f"begins to be valid in {early:.0f} s")
        if times.get("exp", 0) <= -CLOCK_SKEW_SECONDS:
            raise self._clocks_differ(f"expired {-times['exp']:.0f} s ago")
        if times.get("iat", 0) < -oldest:
            raise self._clocks_differ(
                f"was made {-times['iat']:.0f} s ago, and may be {oldest} old"
            )

    def _signed(self, token: str) -> dict[str, Any]:
        """Return the claims of a token that a key of the issuer's has signed."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        kid = _header(token).get("kid")
        for keys in self._key_sets():
            for name, key in keys:
                if kid in (None, name) or name is None:
                    try:
                        return jwt.decode(token, key, algorithms=list(ALGORITHMS)).claims
                    except (JoseError, ValueError):
                        continue
        raise self._refused("no key of the issuer has signed it, in a way that is trusted")

    def _key_sets(self) -> Iterator[list[tuple[str | None, Key]]]:
        """Yield the keys that are known, then, for who finds none among them, those of now."""
        known = self._keys.get(METADATA_SECONDS)
        yield known
        newer = self._keys.get(RETRY_SECONDS)
        if newer is not known:
            yield newer

    def _fetch_keys(self) -> list[tuple[str | None, Key]]:
        given = self._json("GET", self.metadata().jwks_uri).get("keys")
        return list(_public_keys(given if isinstance(given, list) else []))

    def _role(self, claims: Mapping[str, Any]) -> Role:
        """Return the role that the claims map to. Without one, nobody gets in."""
        settings = self._settings
        value = _claim(claims, settings.oidc_role_claim)
        given = value if isinstance(value, list) else [value]
        values = {each for each in given if isinstance(each, str) and each}
        roles = {Role.ADMIN: settings.oidc_admins, Role.AUDITOR: settings.oidc_auditors}
        for role, mapped in roles.items():
            if values & set(mapped):
                return role
        raise Forbidden(
            f"{self.host} knows you, but says of you nothing that is a role here. Whoever runs "
            "this server decides what is (TERRINE_OIDC_ADMINS, TERRINE_OIDC_AUDITORS)."
        )

    def _json(self, method: str, url: str, **request: Any) -> dict[str, Any]:
        """Return an answer of the issuer's. Raises IssuerError, and Unauthorized if it declines."""
        deadline, body = time.monotonic() + REPLY_SECONDS, b""
        try:
            with httpx.stream(method, url, timeout=REPLY_SECONDS, **request) as reply:
                for part in reply.iter_bytes():
                    body += part
                    if len(body) > MAX_REPLY_BYTES or time.monotonic() > deadline:
                        raise self._wrong("its answer is too long, or too slow")
                status = reply.status_code
        except (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError, OSError) as error:
            # The last four are of a proxy or certificates that the environment names.
            raise self._wrong(f"it does not answer ({type(error).__name__})") from None
        if method == "POST" and 400 <= status < 500:
            raise self._declined()
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict) or status != 200:
            raise self._wrong(f"its answer is of no use (status {status})")
        return given

    def _wrong(self, what: str) -> IssuerError:
        return IssuerError(f"Nobody can sign in through {self.host} now: {what}.")

    def _declined(self) -> Unauthorized:
        return Unauthorized(
            f"{self.host} did not accept this sign-in: it was used before, took too long, or "
            "this server's client is not set up there. Start again."
        )

    def _clocks_differ(self, what: str) -> Unauthorized:
        return self._refused(
            f"claims: by the clock here, the token {what}",
            f"What {self.host} made just now {what}, by the clock of this server. The two clocks "
            f"may differ by {CLOCK_SKEW_SECONDS} s: let both be set over the network, then start "
            "again.",
        )

    def _refused(self, cause: str, said: str | None = None) -> Unauthorized:
        log.warning("sign-in refused", issuer=self.url, cause=cause)
        return Unauthorized(
            said or f"What {self.host} sent does not prove who you are. Start again."
        )


def _secret(file: Path | None) -> str | None:
    try:
        found = None if file is None else read(file).decode().strip()
    except (OSError, ValueError):
        found = ""
    if found == "":
        raise IssuerError(
            f"The client's secret {file} cannot be read, or is empty. "
            "Correct TERRINE_OIDC_CLIENT_SECRET_FILE."
        )
    return found


def _header(token: str) -> dict[str, Any]:
    """Return a token's header, of which nothing is trusted; empty if it has none."""
    part = token.partition(".")[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _public_keys(given: list[Any]) -> Iterator[tuple[str | None, Key]]:
    """Yield the public keys of a key set that sign, each with its id, if any. Leaves others out."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, RSAKey

    for each in given:
        if not isinstance(each, dict) or each.get("use", "sig") != "sig":
            continue
        public = {name: value for name, value in each.items() if name not in ("d", "p", "q")}
        try:
            if each.get("kty") == "RSA":
                key = RSAKey.import_key(public)
                if key.raw_value.key_size >= MIN_RSA_BITS:
                    yield each.get("kid"), key
            elif each.get("kty") == "EC":
                yield each.get("kid"), ECKey.import_key(public)
        except (JoseError, ValueError, TypeError, KeyError):
            continue


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim: of this very name, or by a path with dots."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def make_issuer(settings: Settings) -> Issuer | None:
    """Return the issuer that the settings name, if they name one. Raises IssuerError."""
    chosen = OidcSettings.of(settings)
    return None if chosen.oidc_issuer is None else Issuer(chosen)


def check_sign_in(given: Settings) -> Iterator[Finding]:
    """Check that the issuer answers, as an issuer that can be used here."""
    settings = OidcSettings.of(given)
    if settings.oidc_issuer is None:
        return
    try:
        issuer = Issuer(settings)
        issuer.metadata()
    except IssuerError as error:
        fix = "Correct TERRINE_OIDC_ISSUER, or see to the issuer; tokens are admitted meanwhile"
        yield Finding("sign-in", Severity.PROBLEM, str(error), fix)
        return
    if settings.oidc_client_secret_file is not None:
        yield check_private_file("client secret", settings.oidc_client_secret_file)
    back = f"{(settings.public_url or '').rstrip('/')}{CALLBACK}"
    found = f"{issuer.host} answers as an issuer. It must know the address {back}."
    yield Finding("sign-in", Severity.OK, found)
