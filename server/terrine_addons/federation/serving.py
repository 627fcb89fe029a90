"""Small servers of owners and aggregators: TLS, or this machine alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from terrine_server.cli.console import console

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from terrine_server.serving import Limits
    from terrine_server.settings import SmallServer


def serve_over_tls(app: Starlette, what: str, settings: SmallServer, limits: Limits) -> None:
    """Serve until interrupted. Raises CannotListen."""
    from terrine_server.serving import listening

    certificate, key = settings.certificate_file, settings.certificate_key_file
    sockets = listening.bind(settings.host, settings.port)

    def announce(url: str) -> None:
        console.print(f"{what} on {url}. Interrupt to stop.", soft_wrap=True)

    try:
        listening.serve(app, sockets, limits, certificate=certificate, key=key, announce=announce)
    finally:
        for own in sockets:
            own.close()
