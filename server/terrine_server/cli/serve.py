"""`terrine serve`: the HTTP API, until it is interrupted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import structlog
import typer
from pydantic import ValidationError
from sqlalchemy import make_url

from terrine_models.addons import load_added
from terrine_server import doctor as health
from terrine_server import logs
from terrine_server.app import create_app
from terrine_server.cli.console import (
    as_typed,
    errors,
    explain,
    fail,
    say,
)
from terrine_server.doctor import Severity
from terrine_server.ledger import connect
from terrine_server.ledger.revisions import check_schema_once_started
from terrine_server.owner.operations import open_ledger
from terrine_server.serving import listening
from terrine_server.serving.listening import CannotListen
from terrine_server.settings import Settings, unknown_variables, with_added_settings

ANY_ADDRESS = {"*", "0.0.0.0/0", "::/0"}


def serve(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = None,
) -> None:
    """Serve the HTTP API until interrupted.

    Environment variables set everything else: docs/settings.md.
    """
    with _log_refusal(), ExitStack() as stack:
        settings = Settings() if port is None else Settings(port=port)
        sockets = listening.bind(settings.host, settings.port)  # before anything that takes time
        for own in sockets:
            stack.enter_context(own)
        _check_prerequisites(settings)
        app = create_app(settings, alone=True)
        chosen = settings.log_format
        for warning in _find_mistakes(
            settings, listening.allow_connections(settings.max_connections)
        ):
            logs.write_early("warning", "may be a mistake", chosen=chosen, **warning)
        if not settings.checkpoint_key_path.exists():
            cause = as_typed("no key: `terrine init` makes one, or says which to put back")
            logs.write_early("warning", "signs no checkpoints", chosen=chosen, cause=cause)
        logs.configure(settings.log_level, chosen)

        def announce(url: str) -> None:
            if logs.is_text(chosen):
                show_addresses(url, settings)
                return
            structlog.get_logger("terrine").info(
                f"Terrine running on {url} (pages for its owner: {url}/admin)"
            )

        listening.serve(
            app,
            sockets,
            settings.limits,
            proxies=settings.forwarded_allow_ips,
            announce=announce,
        )


def show_addresses(url: str, settings: Settings) -> None:
    """Print where the server is, where it keeps what, and how it is stopped."""
    database = make_url(settings.database)
    is_file = database.drivername.startswith("sqlite")
    addresses = {
        "Address, for students": url,
        "Pages for its owner": f"{url}/admin",
        "Ledger": str(database.database)
        if is_file
        else database.render_as_string(hide_password=True),
        "Data directory": str(settings.data_dir.absolute()),
    }
    width = max(map(len, addresses))
    lines = [f"  {what:{width}}  {where}" for what, where in addresses.items()]
    stop = "Stop it with Ctrl+C: requests that it has begun are answered first."
    say("\n".join(["Terrine is running.", *lines, stop]), to=errors)


@contextmanager
def _log_refusal() -> Iterator[None]:
    """Write why the server cannot start as the last line of its log, and end with exit code 1."""
    try:
        yield
    except Exception as error:  # of any library; what `explain` does not know is raised again
        message = explain(error)
        if message is None or isinstance(error, ModuleNotFoundError):
            raise
        chosen = os.environ.get("TERRINE_LOG_FORMAT", "auto")  # of settings that may be wrong
        for setting, cause in _find_causes(error, message):
            named = {"setting": setting} if setting else {}
            logs.write_early("error", "cannot start", chosen=chosen, cause=as_typed(cause), **named)
        raise typer.Exit(1) from None


def _find_causes(error: Exception, message: str) -> Iterator[tuple[str | None, str]]:
    """Yield each setting that is wrong, if that is what is, and what is wrong."""
    if isinstance(error, ValidationError):
        for found, line in zip(error.errors(), message.splitlines(), strict=True):
            yield (f"TERRINE_{found['loc'][0]}".upper() if found["loc"] else None), line
    else:
        yield (error.setting if isinstance(error, CannotListen) else None), message


def _check_prerequisites(settings: Settings) -> None:
    """Check what the server needs. Waits for a database that is starting."""
    if not settings.data_dir.is_dir():
        fail(f"There is no data directory {settings.data_dir.absolute()}. Run `terrine init`.")
    engine = connect(settings.database, settings.database_password(), settings.database_seconds)
    check_schema_once_started(engine)
    engine.dispose()
    open_ledger(settings).log.check_sealed()
    if settings.device is not None:
        votes_on = health.check_device(settings.device)
        if votes_on.state is not Severity.OK:
            fail(votes_on.found)
    with_added_settings(settings)
    for check in load_added("start"):
        check(settings)


def _find_mistakes(settings: Settings, most: int) -> Iterator[dict[str, str]]:
    """Yield what is probably not meant."""
    for name in unknown_variables(os.environ):
        yield {
            "setting": name,
            "cause": "No setting of Terrine, or of an add-on that is installed, has this name.",
        }
    if most < settings.max_connections:
        yield {
            "setting": "TERRINE_MAX_CONNECTIONS",
            "cause": f"This process may open too few files for {settings.max_connections} "
            f"connections; it serves {most} at a time. Allow more files (`ulimit -n`).",
        }
    if ANY_ADDRESS.intersection(settings.forwarded_allow_ips.replace(" ", "").split(",")):
        yield {
            "setting": "TERRINE_FORWARDED_ALLOW_IPS",
            "cause": "Everybody is trusted to say from which address a request comes, so nobody is "
            "limited by address. Name the proxies, unless nobody else can connect.",
        }
