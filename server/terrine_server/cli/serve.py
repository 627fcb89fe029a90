"""`terrine init` and `terrine serve`."""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from terrine_server.cli.console import console, fail

WORKER_SECONDS = 20
"""A worker that does not respond for this long is replaced."""


def init(
    service_role: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE",
            help="PostgreSQL role that `serve` will log in as. It may add charges, never change "
            "them.",
        ),
    ] = None,
) -> None:
    """Create the data directory, the secret key and the tables; migrate older tables.

    Safe to repeat: existing files and data are kept.
    """
    from terrine_server.errors import NotSealed
    from terrine_server.ledger import Ledger, connect, upgrade
    from terrine_server.ledger.store.roles import grant
    from terrine_server.owner.operations import make_directories
    from terrine_server.owner.tokens import load_secret_key, make_secret_key
    from terrine_server.settings import Settings

    settings = Settings()
    make_directories(settings)
    made = make_secret_key(settings.secret_key_path)
    key = load_secret_key(settings.secret_key_path)
    engine = connect(settings.database, settings.database_password())
    if service_role is not None and engine.dialect.name != "postgresql":
        fail("--service-role is for PostgreSQL; SQLite has no roles.")
    restored = upgrade(engine, key)
    if service_role is not None:
        grant(engine, service_role)
    console.print(f"{'Created' if made else 'Kept'} the secret key {settings.secret_key_path}.")
    if restored:
        console.print(
            f"Restored in the ledger's tables: {'; '.join(restored)}. Nothing guarded what was "
            "written without them: run `terrine ledger verify all`.",
            style="bold yellow",
            highlight=False,
            soft_wrap=True,
        )
    try:
        Ledger(engine, key).check_sealed()
    except NotSealed as error:
        console.print(error.detail, style="bold yellow", highlight=False, soft_wrap=True)
        return
    console.print(f"The ledger is ready. Data directory: {settings.data_dir.absolute()}")


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that share the port and the ledger.")
    ] = 1,
) -> None:
    """Serve the HTTP API until interrupted.

    Environment variables set everything else; docs/api.md explains each one.
    Places: TERRINE_DATA_DIR, TERRINE_DATABASE_URL, TERRINE_DATABASE_PASSWORD_FILE,
    TERRINE_SECRET_KEY_FILE, TERRINE_HOST, TERRINE_PORT, TERRINE_FORWARDED_ALLOW_IPS,
    TERRINE_DEVICE.
    Limits: TERRINE_MAX_BATCH, TERRINE_MAX_WAITING, TERRINE_MAX_BODY_BYTES,
    TERRINE_MAX_JSON_BYTES, TERRINE_MAX_HELD_BYTES, TERRINE_REQUESTS_PER_MINUTE,
    TERRINE_FAILED_LOGINS_PER_MINUTE, TERRINE_MAX_CONNECTIONS, TERRINE_KEEP_ALIVE_SECONDS,
    TERRINE_BODY_SECONDS, TERRINE_SHUTDOWN_SECONDS.
    Log: TERRINE_LOG_LEVEL.
    """
    import uvicorn

    from terrine_server import doctor, logs
    from terrine_server.api import connection
    from terrine_server.app import create_app
    from terrine_server.ledger import check_schema, connect
    from terrine_server.metrics import SHARED_DIR
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import Settings

    given: dict[str, Any] = {"host": host, "port": port}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    if not settings.data_dir.is_dir():
        fail(f"There is no data directory {settings.data_dir.absolute()}. Run `terrine init`.")
    check_schema(connect(settings.database, settings.database_password()))
    open_ledger(settings).check_sealed()
    if settings.device is not None:
        votes_on = doctor.device(settings.device)
        if votes_on.state is not doctor.State.OK:
            fail(votes_on.found)
    app = create_app(settings, alone=True)
    logs.configure(settings.log_level)
    how = connection.options(settings)
    if workers == 1:
        uvicorn.run(app, host=settings.host, port=settings.port, **how)
        return
    with TemporaryDirectory(prefix="terrine-metrics-") as shared:
        os.environ[SHARED_DIR] = shared
        uvicorn.run(
            "terrine_server.app:create_worker",
            factory=True,
            workers=workers,
            host=settings.host,
            port=settings.port,
            timeout_worker_healthcheck=WORKER_SECONDS,
            **how,
        )
