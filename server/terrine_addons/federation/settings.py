"""Settings of an owner's server: environment variables `TERRINE_*`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from terrine_server.settings import LOOPBACK, Variables


class TeacherServer(Variables):
    """Of the add-on [federation](addons/federation.md): the server of an owner who keeps a teacher,
    `terrine federation serve-teacher`."""

    host: Annotated[
        str,
        Field(
            min_length=1,
            description="Address to listen on. Without a certificate, of this machine alone.",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on.")] = 8100
    certificate_file: Annotated[Path | None, Field(description="TLS certificate chain (PEM).")] = (
        None
    )
    certificate_key_file: Annotated[Path | None, Field(description="Its private key (PEM).")] = None
    teacher_token_file: Annotated[
        Path | None,
        Field(
            description="Token that the service must show; made if it is not there. Give it a copy."
        ),
    ] = None
    teacher_model: Annotated[
        str | None, Field(min_length=1, description="Name of the model. Default: the ensemble's.")
    ] = None

    @model_validator(mode="after")
    def _require_tls(self) -> Self:
        if (self.certificate_file is None) != (self.certificate_key_file is None):
            raise ValueError(
                "TERRINE_CERTIFICATE_FILE and TERRINE_CERTIFICATE_KEY_FILE come together."
            )
        if self.certificate_file is None and self.host not in LOOPBACK:
            raise ValueError(
                "Votes cross a network only over TLS: set TERRINE_CERTIFICATE_FILE and "
                f"TERRINE_CERTIFICATE_KEY_FILE, or listen on {LOOPBACK[0]} behind a proxy that "
                "has them."
            )
        return self
