"""What a server needs to know to let people sign in through an issuer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode

from terrine_server.settings import LOOPBACK, Settings

# A part of a distinguished name (RFC 4514) that names no group, but what many groups are in.
ABOVE_GROUPS = re.compile(r"(c|dc|o|ou)\s*=[^,]*", re.IGNORECASE)


class OidcSettings(Settings):
    """Of the add-on [oidc](addons/oidc.md). It needs `TERRINE_PUBLIC_URL`, too."""

    oidc_issuer: Annotated[
        str | None,
        Field(
            description="Issuer (OpenID Connect) through which admins and auditors may sign in, "
            "`https://…`. It sends browsers back to `/admin/oidc/callback` below the public URL. "
            "Default: with tokens alone."
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
    def _check_sign_in(self) -> Self:
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
    def secret_files(self) -> dict[str, Path | None]:
        """Files of secrets that no command of Terrine's makes, by what they hold."""
        return {"the secret at the issuer": self.oidc_client_secret_file}
