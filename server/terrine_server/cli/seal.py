"""`terrine ledger seal`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from terrine_server.cli.console import console


def seal(
    old_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The key that the ledger was sealed with until now."),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Believe the rows as they are, whatever their seals say. For a key that is lost, "
            "or for edits that you made yourself.",
        ),
    ] = False,
) -> None:
    """Verify the books, then seal every row with the server's secret key.

    Needed when the secret key changed, with --old-key, or was lost, with --accept. Stop the servers
    first. What is printed is what will be believed from now on: read it.
    """
    from terrine_server.ledger import check_schema, connect
    from terrine_server.ledger import seal as seal_ledger
    from terrine_server.owner.tokens import load_secret_key
    from terrine_server.settings import Settings

    settings = Settings()
    engine = connect(settings.database, settings.database_password())
    check_schema(engine)
    sealed = seal_ledger(
        engine,
        load_secret_key(settings.secret_key_path),
        old_key=None if old_key is None else load_secret_key(old_key),
        accept=accept,
    )
    for kind, subjects in sealed.adopted.items():
        for subject in subjects:
            console.print(f"Taken as it is: {kind} {subject}", highlight=False, soft_wrap=True)
    console.print(f"Sealed, with {sealed.projects} projects. `terrine log show` shows the details.")
    if old_key is not None:
        console.print("Tokens were made with the old key, and are no longer valid: make new ones.")
