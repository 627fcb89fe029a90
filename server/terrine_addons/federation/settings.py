"""Settings of the servers of an owner and of an aggregator: environment variables `TERRINE_*`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from terrine_server.settings import LOOPBACK, Variables


class SmallServer(Variables):
    """Where the server of an owner or of an aggregator listens."""

    host: Annotated[
        str,
        Field(
            min_length=1,
            description="Address to listen on. Without a certificate, of this machine alone.",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on.")] = 8200
    certificate_file: Annotated[Path | None, Field(description="TLS certificate chain (PEM).")] = (
        None
    )
    certificate_key_file: Annotated[Path | None, Field(description="Its private key (PEM).")] = None

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


class TeacherServer(SmallServer):
    """Settings of the server of an owner who keeps a teacher."""

    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on.")] = 8100
    teacher_token_file: Annotated[
        Path | None,
        Field(
            description="Token that the service must show; made if it is not there. Give it a copy."
        ),
    ] = None
    teacher_model: Annotated[
        str | None, Field(min_length=1, description="Name of the model. Default: the ensemble's.")
    ] = None
    aggregator_url: Annotated[
        str | None,
        Field(
            description="Show votes to nobody: split each between the service and the aggregator "
            "there."
        ),
    ] = None
    aggregator_token_file: Annotated[
        Path | None, Field(description="Your token of the aggregator, from its party.")
    ] = None
    aggregator_certificate_file: Annotated[
        Path | None,
        Field(
            description="The aggregator's certificate, from its party; the only one that is "
            "trusted. Without it, the system's."
        ),
    ] = None
    aggregator_terms_file: Annotated[
        Path | None,
        Field(
            description="The terms that you agreed to, from the aggregator's party: owners, "
            "classes, noise, budget. Nothing is shared under others."
        ),
    ] = None

    @model_validator(mode="after")
    def _check_aggregator(self) -> Self:
        needed = ("aggregator_token_file", "aggregator_terms_file")
        if self.aggregator_url is None:
            for name in (*needed, "aggregator_certificate_file"):
                if getattr(self, name) is not None:
                    raise ValueError(f"TERRINE_{name.upper()} is for TERRINE_AGGREGATOR_URL.")
            return self
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(
                    f"TERRINE_AGGREGATOR_URL needs TERRINE_{name.upper()}: the aggregator takes "
                    "shares of its owners alone, and what the service may learn is in its terms."
                )
        return self
