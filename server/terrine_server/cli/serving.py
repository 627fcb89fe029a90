"""Small servers of owners and aggregators: TLS, or this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli.console import console, fail

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from terrine_server.serving.limits import Limits

HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
CertificateOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TLS certificate chain (PEM).")
]
KeyOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key (PEM).")]


def check_tls(host: str, certificate: Path | None, key: Path | None) -> None:
    """Fail unless votes, and shares of them, cross a network over TLS alone."""
    from terrine_models.teachers.federation import LOCAL_HOSTS

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
    limits: Limits,
) -> None:
    """Serve until interrupted. Raises CannotListen."""
    from terrine_server.serving import listening

    scheme, sockets = "http" if certificate is None else "https", listening.bind(host, port)
    try:
        port = sockets[0].getsockname()[1]
        console.print(f"{what} on {scheme}://{host}:{port}. Interrupt to stop.", soft_wrap=True)
        listening.serve(app, sockets, limits, certificate=certificate, key=key, announce=False)
    finally:
        for own in sockets:
            own.close()
