"""The server's settings: environment variables `TERRINE_*`. Every default is safe.

Secrets come from files, never from variables, so that they stay out of process listings and
container inspection.
"""

from __future__ import annotations

import json
import os
import re
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from terrine_protocol.base import VISIBLE_LINE
from terrine_protocol.files import read
from terrine_server.serving import Limits

MAYBE_EMPTY = {"TERRINE_FORWARDED_ALLOW_IPS", "TERRINE_PATH_PREFIX"}
LOW_DISK_BYTES = 2**30
"""With less free space on the disk of the ledger or of the data directory, operators are told."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
OWN_PATHS = {
    *("admin", "budget", "checkpoint", "ensembles", "healthz", "label", "ledger", "log"),
    *("metrics", "openapi.json", "pool", "problems", "project", "projects", "readyz"),
    *("receipts", "tile", "tokens"),
}
"""What the paths of routes begin with: below such a prefix, nobody knows whose a path is."""
PREFIX = re.compile(r"(/[A-Za-z0-9_~-]+)*")
ABOVE_GROUPS = re.compile(r"(c|dc|o|ou)\s*=[^,]*", re.IGNORECASE)
"""A part of a distinguished name (RFC 4514) that names no group, but what many groups are in."""


@lru_cache(maxsize=1024)
def _nearest_name(name: str, names: frozenset[str]) -> str | None:
    """Return which of these names a misspelt one comes close to, if any."""
    return next(iter(get_close_matches(name, names, n=1, cutoff=0.9)), None)


class VotersKind(StrEnum):
    """Where the teachers of a registered ensemble vote."""

    HERE = "here"
    RAY = "ray"


class Variables(BaseSettings):
    """Settings that come from environment variables."""

    model_config = SettingsConfigDict(env_prefix="TERRINE_", frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_variable_names(cls, given: Any) -> Any:
        """Refuse a misspelt or an empty variable, which would silently become a default."""
        names = frozenset(f"TERRINE_{field.upper()}" for field in cls.model_fields)
        for name in os.environ:
            if name not in names and (meant := _nearest_name(name, names)):
                raise ValueError(f"There is no setting {name}. Did you mean {meant}?")
            if name in names - MAYBE_EMPTY and not os.environ[name]:
                raise ValueError(f"{name} is empty. Give it a value or leave it out.")
        return given


class Settings(Variables):
    """Paths, addresses and limits."""

    data_dir: Annotated[
        Path, Field(description="Ensembles, the secret key and, by default, the database.")
    ] = Path("terrine-data")
    database_url: Annotated[
        str | None,
        Field(
            description="SQLAlchemy URL of the ledger, `sqlite:///…` or `postgresql+psycopg://…`. "
            "Default: `terrine.sqlite` in the data directory."
        ),
    ] = None
    database_password_file: Annotated[
        Path | None, Field(description="File that contains the database password.")
    ] = None
    secret_key_file: Annotated[
        Path | None,
        Field(
            description="File that contains the key of the token hashes. "
            "Default: `secret.key` in the data directory."
        ),
    ] = None
    checkpoint_key_file: Annotated[
        Path | None,
        Field(
            description="File that contains the key that signs the transparency log's checkpoints. "
            "A server without it signs none. Default: `checkpoint.key` in the data directory."
        ),
    ] = None
    checkpoint_seconds: Annotated[
        float, Field(ge=0.1, le=3600, description="How often the log is grown and signed at most.")
    ] = 5.0
    log_policy_file: Annotated[
        Path | None,
        Field(
            description="Policy with the witnesses that are asked to cosign checkpoints, in the "
            "format of c2sp.org/tlog-policy. Default: `policy` in the data directory, if it is "
            "there."
        ),
    ] = None
    host: Annotated[
        str,
        Field(
            min_length=1,
            description="Address to listen on. `*`: all, of IPv4 and IPv6; `0.0.0.0` and `::`: all "
            "of one of them.",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on.")] = 8000
    public_url: Annotated[
        str | None,
        Field(
            description="Where students and browsers reach this server, as commands print it. An "
            "issuer sends browsers back to `/admin/oidc/callback` below it, and needs `https://…`. "
            "Default: host and port."
        ),
    ] = None
    started_by: Annotated[
        Literal["hand", "compose"],
        Field(
            description="How the server was started, and so how the commands that it prints are "
            "typed. `compose`: by `docker-compose.yml`."
        ),
    ] = "hand"
    forwarded_allow_ips: Annotated[
        str,
        Field(
            description="Proxies (comma-separated addresses) whose X-Forwarded-* headers are "
            "trusted. Empty: none."
        ),
    ] = ""
    path_prefix: Annotated[
        str,
        Field(
            max_length=100,
            description="Path below which a proxy has this server, such as `/terrine`. The proxy "
            "may pass it on or take it off.",
        ),
    ] = ""
    device: Annotated[
        str | None,
        Field(
            description="Torch device for voting, such as `cpu` or `cuda`. "
            "Default: the best available."
        ),
    ] = None
    voters: Annotated[
        VotersKind,
        Field(
            description="Where teachers vote: `here`, in the server and in a guarded process for "
            "each imported ensemble, or on a `ray` cluster."
        ),
    ] = VotersKind.HERE
    ray_address: Annotated[
        str | None,
        Field(
            pattern=r"^(auto|[^\s/:]+:[0-9]{1,5})$",
            description="Ray cluster for votes and training: `HOST:PORT`, or `auto` for the one to "
            "which this machine belongs. Default: start one here.",
        ),
    ] = None
    ray_actors: Annotated[
        int | None,
        Field(
            ge=1,
            le=256,
            description="How many actors of the Ray cluster vote for one server process. Default: "
            "one for each of its processors.",
        ),
    ] = None
    max_batch: Annotated[int, Field(ge=1, description="Maximum queries in one request.")] = 4096
    max_waiting: Annotated[
        int,
        Field(ge=1, description="Maximum queries of one project that wait; others get a 503."),
    ] = 16384
    max_body_bytes: Annotated[
        int,
        Field(
            ge=1024,
            description="Maximum bytes in a request body, compressed and decompressed, and of its "
            "arrays as they are used.",
        ),
    ] = 64 * 1024 * 1024
    max_held_bytes: Annotated[
        int,
        Field(
            ge=1024,
            description="Maximum bytes of all request bodies held at a time, of which one token "
            "(or address, without a token) has at most half of those that others leave; a request "
            "beyond it gets a 503, unless it is alone.",
        ),
    ] = 512 * 1024 * 1024
    contact: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=200,
            pattern=VISIBLE_LINE,
            description="How students reach the data owner, such as a mail address: said when a "
            "budget is spent, or a project is paused or closed.",
        ),
    ] = None
    requests_per_minute: Annotated[
        int,
        Field(
            ge=1,
            description="Maximum requests of one token in a minute; one to label that takes long "
            "to decode counts as several.",
        ),
    ] = 600
    replays_per_minute: Annotated[
        int,
        Field(
            ge=1,
            description="Maximum queries of one token in a minute that are answered from the "
            "record, free; then its requests to label wait.",
        ),
    ] = 100_000
    failed_logins_per_minute: Annotated[
        int, Field(ge=1, description="Maximum failed authentications of one address in a minute.")
    ] = 30
    max_connections: Annotated[
        int,
        Field(
            ge=1,
            description="Maximum requests served at a time; others get a 503. "
            "At most half of them are without a valid token, and a quarter of one address.",
        ),
    ] = 128
    max_per_token: Annotated[
        int | None,
        Field(
            ge=1,
            description="Maximum of them with one token; as a part of all, its part of those that "
            "others leave. Default: half of `TERRINE_MAX_CONNECTIONS`.",
        ),
    ] = None
    keep_alive_seconds: Annotated[
        int,
        Field(
            ge=1,
            description="How long an idle connection is kept, and how long the headers of a "
            "request may take.",
        ),
    ] = 15
    body_seconds: Annotated[
        int, Field(ge=1, description="How long the body of a request may take to arrive.")
    ] = 60
    write_seconds: Annotated[
        int,
        Field(
            ge=1,
            description="How long a client may take to read 64 KiB of a response, or its rest; "
            "then its connection is closed.",
        ),
    ] = 30
    database_seconds: Annotated[
        int,
        Field(
            ge=1,
            description="How long PostgreSQL may take for a statement; then the request gets a "
            "503.",
        ),
    ] = 10
    voting_seconds: Annotated[
        int,
        Field(
            ge=1,
            description="How long the guarded process of an imported ensemble may take for a "
            "block of inputs (at most 128), or an actor of the Ray cluster; then it is replaced, "
            "and the request gets a 503.",
        ),
    ] = 60
    shutdown_seconds: Annotated[
        int, Field(ge=1, description="How long running requests may take to finish at shutdown.")
    ] = 30
    oidc_issuer: Annotated[
        str | None,
        Field(
            description="Issuer (OpenID Connect) through which admins and auditors may sign in, "
            "`https://…`. Default: with tokens alone."
        ),
    ] = None
    oidc_client_id: Annotated[
        str | None, Field(min_length=1, description="This server's client id at the issuer.")
    ] = None
    oidc_client_secret_file: Annotated[
        Path | None,
        Field(description="File that contains the client's secret. Default: a public client."),
    ] = None
    oidc_scopes: Annotated[str, Field(description="Scopes that are asked for.")] = "openid profile"
    oidc_role_claim: Annotated[
        str,
        Field(
            min_length=1,
            description="Claim of the ID token that says who has a role, by its name or a path "
            "such as `realm_access.roles`.",
        ),
    ] = "groups"
    oidc_admins: Annotated[
        tuple[str, ...],
        NoDecode,
        Field(
            description="Values of the claim that make an admin: a JSON list, such as "
            '`["owners","CN=board,OU=groups,DC=hospital"]`, or one value without a comma.'
        ),
    ] = ()
    oidc_auditors: Annotated[
        tuple[str, ...],
        NoDecode,
        Field(
            description="Values of the claim that make an auditor: a JSON list, such as "
            '`["auditors","data-protection"]`, or one value without a comma.'
        ),
    ] = ()
    oidc_plain_http: Annotated[
        bool,
        Field(description="Allow `http` to an issuer on this machine's loopback. For tests."),
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="Lowest severity logged.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "text"],
        Field(
            description="How the log is written to standard error: `json`, an object a line; "
            "`text`, for people; `auto`, as text if that is a terminal."
        ),
    ] = "auto"

    @field_validator("path_prefix")
    @classmethod
    def _check_prefix(cls, given: str) -> str:
        """Refuse what is no prefix, and one that paths of ours begin with."""
        given = given.rstrip("/")
        if not PREFIX.fullmatch(given):
            raise ValueError(
                f"TERRINE_PATH_PREFIX is {given!r}. It must begin with a slash, and have letters, "
                "digits, `-`, `_` and `~` between slashes, such as /terrine."
            )
        first = given.split("/")[1] if given else ""
        if first in OWN_PATHS:
            raise ValueError(
                f"TERRINE_PATH_PREFIX is {given}, and Terrine has paths of its own below /{first}. "
                "Choose another, such as /terrine."
            )
        return given

    @field_validator("oidc_admins", "oidc_auditors", mode="before")
    @classmethod
    def _read_claim_values(cls, given: Any, info: ValidationInfo) -> Any:
        """Read a JSON list, or one value. A comma may be part of one, so it divides nothing."""
        name = f"TERRINE_{(info.field_name or '').upper()}"
        text = given.strip() if isinstance(given, str) else json.dumps(given)
        values: Any = [text]
        if text.startswith(("[", '"')):
            try:
                values = json.loads(text)
            except (ValueError, RecursionError):
                values = None
        elif "," in text:
            raise ValueError(
                f"{name} has a comma, and could be one value or several. Write a JSON list: "
                f"{json.dumps([text])}, or {json.dumps([part.strip() for part in text.split(',')])}"
            )
        if not isinstance(values, list) or not all(
            isinstance(value, str) and value and value == value.strip() for value in values
        ):
            raise ValueError(
                f"{name} must be one value, or a JSON list of texts without spaces around them, "
                'such as ["owners", "CN=board,OU=groups,DC=hospital"].'
            )
        for value in filter(ABOVE_GROUPS.fullmatch, values):
            raise ValueError(
                f"{name} has {value!r} by itself, which is a part of the names of many groups. "
                'Write the whole name of the group, such as ["CN=board,OU=groups,DC=hospital"].'
            )
        return values

    @model_validator(mode="after")
    def _check_sign_in(self) -> Settings:
        """Refuse an issuer without all that a sign-in needs: it would admit nobody, or too many."""
        if self.oidc_issuer is None:
            return self
        for name in ("oidc_client_id", "public_url"):
            if getattr(self, name) is None:
                raise ValueError(f"TERRINE_OIDC_ISSUER needs TERRINE_{name.upper()}, too.")
        for name in ("oidc_issuer", "public_url"):
            url = getattr(self, name)
            if not self.allows_url(url) or "?" in url or "#" in url:
                raise ValueError(f"TERRINE_{name.upper()} must be an address of https.")
        path = urlsplit(self.public_url or "").path.rstrip("/")
        if path != self.path_prefix:
            raise ValueError(
                f"TERRINE_PUBLIC_URL has the path {path or '/'!r} and TERRINE_PATH_PREFIX is "
                f"{self.path_prefix!r}. They must be the same: browsers come back by the one, and "
                "pages lead to the other."
            )
        if not self.oidc_admins + self.oidc_auditors:
            raise ValueError(
                "TERRINE_OIDC_ISSUER needs TERRINE_OIDC_ADMINS or TERRINE_OIDC_AUDITORS: nobody "
                "has a role by default."
            )
        if "openid" not in self.oidc_scopes.split():
            raise ValueError("TERRINE_OIDC_SCOPES must have `openid` among them.")
        return self

    def allows_url(self, url: str) -> bool:
        """Return whether an issuer may be asked at a URL: over TLS, or on this machine."""
        parts = urlsplit(url)
        plain = self.oidc_plain_http and parts.hostname in LOOPBACK
        return bool(parts.hostname) and (
            parts.scheme == "https" or (plain and parts.scheme == "http")
        )

    @property
    def url(self) -> str:
        """Where students reach this server, without a slash at its end."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        here = self.host in ("*", "0.0.0.0", "::")  # noqa: S104
        return f"http://{'127.0.0.1' if here else self.host}:{self.port}{self.path_prefix}"

    @property
    def ensembles_dir(self) -> Path:
        """The directory of the ensembles, one subdirectory each."""
        return self.data_dir / "ensembles"

    @property
    def database(self) -> str:
        """The ledger's SQLAlchemy URL."""
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / 'terrine.sqlite'}"

    @property
    def secret_key_path(self) -> Path:
        """The file that contains the key of the token hashes."""
        return self.secret_key_file or self.data_dir / "secret.key"

    @property
    def last_backup_path(self) -> Path:
        """An empty file, as old as the last good backup."""
        return self.data_dir / "backup.last"

    @property
    def token_key_path(self) -> Path:
        """The key of token hashes, once the secret key has been replaced."""
        return self.data_dir / "token.key"

    @property
    def records_key_path(self) -> Path:
        """The file that contains the key of the digests by which people are found again."""
        return self.data_dir / "records.key"

    @property
    def checkpoint_key_path(self) -> Path:
        """The file that contains the key of the transparency log."""
        return self.checkpoint_key_file or self.data_dir / "checkpoint.key"

    @property
    def signed_checkpoint_path(self) -> Path:
        """The file that keeps the last checkpoint outside the database, which may be set back."""
        return self.data_dir / "checkpoint.signed"

    @property
    def log_policy_path(self) -> Path | None:
        """The file that contains the transparency log's policy, if there is one."""
        usual = self.data_dir / "policy"
        return self.log_policy_file or (usual if usual.exists() else None)

    @property
    def limits(self) -> Limits:
        """The limits of connections and requests in this process."""
        return Limits(
            connections=self.max_connections,
            per_token=self.max_per_token,
            held_bytes=self.max_held_bytes,
            keep_alive_seconds=self.keep_alive_seconds,
            body_seconds=self.body_seconds,
            write_seconds=self.write_seconds,
            shutdown_seconds=self.shutdown_seconds,
        )

    def database_password(self) -> str | None:
        """Return the password read from `database_password_file`, or None without one."""
        if self.database_password_file is None:
            return None
        return read(self.database_password_file).decode().strip()
