"""Small servers of owners and helpers: TLS, or this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli.console import console, fail

if TYPE_CHECKING:
    from starlette.applications import Starlette

HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
CertificateOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TLS certificate chain (PEM).")
]
KeyOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key (PEM).")]


def check_tls(host: str, certificate: Path | None, key: Path | None) -> None:
    """Fail unless votes, and shares of them, cross a network over TLS alone."""
    from terrine_models.roster import LOCAL_HOSTS

    if (certificate is None) != (key is None):
        fail("--certificate and --key come together.")
    if certificate is None and host not in LOCAL_HOSTS:
        fail(
            f"Votes cross a network only over TLS: give --certificate and --key, or listen on "
            f"{LOCAL_HOSTS[0]} behind a proxy that has them."
        )


def serve_over_tls(
    app: Starlette,
    what: str,
    host: str,
    port: int,
    certificate: Path | None,
    key: Path | None,
    connections: int = 64,
) -> None:
    """Serve until interrupted; `connections`: at the same time, further ones are refused."""
    import uvicorn

    scheme = "http" if certificate is None else "https"
    console.print(f"{what} on {scheme}://{host}:{port}. Interrupt to stop.", soft_wrap=True)
    uvicorn.run(
        app,
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=connections,
        timeout_keep_alive=75,  # longer than those who ask keep an idle connection
        timeout_graceful_shutdown=1,  # peers keep connections open that they do not read from
    )
