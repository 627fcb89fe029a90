"""The server's settings: environment variables `TERRINE_*`. Every default is safe.

Secrets come from files, never from variables, so that they stay out of process listings and
container inspection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from terrine_models.addons import added_names, load_added
from terrine_protocol.base import VISIBLE_LINE
from terrine_protocol.files import read
from terrine_server.serving import Limits

MAYBE_EMPTY = {"TERRINE_FORWARDED_ALLOW_IPS", "TERRINE_PATH_PREFIX"}
# With less free space on the disk of the ledger or of the data directory, operators are told.
LOW_DISK_BYTES = 2**30
# Where teachers vote and are trained, unless an add-on does it elsewhere.
HERE = "here"
# Variables that no setting is named by: of the command line, students and tests.
FOREIGN_VARIABLES = {
    "TERRINE_DEBUG",
    "TERRINE_SHARED_DATA",
    "TERRINE_TOKEN",
    "TERRINE_URL",
}
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# What the paths of routes begin with: below such a prefix, nobody knows whose a path is.
OWN_PATHS = {
    "admin",
    "budget",
    "checkpoint",
    "ensembles",
    "healthz",
    "label",
    "ledger",
    "log",
    "metrics",
    "openapi.json",
    "pool",
    "problems",
    "project",
    "projects",
    "readyz",
    "receipts",
    "sums",
    "tile",
    "tokens",
}
PREFIX = re.compile(r"(/[A-Za-z0-9_~-]+)*")


@lru_cache(maxsize=1024)
def _nearest_name(name: str, names: frozenset[str]) -> str | None:
    """Return which of these names a misspelt one comes close to, if any."""
    return next(iter(get_close_matches(name, names, n=1, cutoff=0.9)), None)


class Variables(BaseSettings):
    """Settings that come from environment variables."""

    model_config = SettingsConfigDict(env_prefix="TERRINE_", frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_variable_names(cls, given: Any) -> Any:
        """Refuse a misspelt or an empty variable, which would silently become a default."""
        for name in os.environ:
            if name not in variable_names() and (meant := _nearest_name(name, variable_names())):
                raise ValueError(f"There is no setting {name}. Did you mean {meant}?")
        for name in cls.variables() - MAYBE_EMPTY:
            if os.environ.get(name) == "":
                raise ValueError(f"{name} is empty. Give it a value or leave it out.")
        return given

    @classmethod
    def variables(cls) -> frozenset[str]:
        """The names of all variables that these settings come from."""
        return frozenset(f"TERRINE_{field.upper()}" for field in cls.model_fields)


class Settings(Variables):
    """Paths, addresses and limits."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return these settings where the server's own are known. Raises ValidationError."""
        if isinstance(settings, cls):
            return settings
        known = settings.model_fields_set & Settings.model_fields.keys()
        return cls(**{name: getattr(settings, name) for name in known})

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
            description="Where students and browsers reach this server, as commands print it. "
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
        str,
        Field(
            description="Where teachers vote: `here`, in the server and in a guarded process for "
            "each imported ensemble, or as an add-on has it."
        ),
    ] = HERE
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
            description="Maximum queries of one token in a minute that are answered free, from the "
            "record or from released sums; then its requests to label wait.",
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
            description="How long the guarded process of an imported ensemble, or what votes on "
            "other machines, may take for a block of inputs (at most 128); then it is replaced, "
            "and the request gets a 503.",
        ),
    ] = 60
    shutdown_seconds: Annotated[
        int, Field(ge=1, description="How long running requests may take to finish at shutdown.")
    ] = 30
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

    @field_validator("voters")
    @classmethod
    def _check_voters(cls, given: str) -> str:
        """Refuse what nothing that is installed has vote."""
        known = [HERE, *added_names("local_voters")]
        if given not in known:
            raise ValueError(
                f"TERRINE_VOTERS is {given!r}. Expected {' or '.join(known)}; what else is "
                "documented is of an add-on that this installation of Terrine lacks."
            )
        return given

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
    def secret_files(self) -> dict[str, Path | None]:
        """Files of secrets that no command of Terrine's makes, by what they hold."""
        return {"the database's password": self.database_password_file}

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


def settings_classes() -> list[type[Variables]]:
    """Return all classes of settings: the server's own, and after it those of add-ons."""
    return [Settings, *load_added("settings")]


@cache
def variable_names() -> frozenset[str]:
    """Return the names of all variables that are a setting of something that is installed."""
    return frozenset().union(*(kind.variables() for kind in settings_classes()))


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Return which `TERRINE_*` variables nothing reads that is installed, sorted."""
    ours = {name for name in environment if name.startswith("TERRINE_")}
    return sorted(ours - variable_names() - FOREIGN_VARIABLES)


def with_added_settings(settings: Settings) -> list[Settings]:
    """Return a server's settings, and with each add-on's what these are. Raises ValidationError."""
    kinds = (kind for kind in settings_classes() if issubclass(kind, Settings))
    return [kind.of(settings) for kind in kinds]
