"""`terrine token …`: create, list and revoke tokens."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from terrine_server.cli.console import AsJson, console, print_json

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.")


@app.command()
def create(
    role: Annotated[str, typer.Option(help="student, auditor or admin.")],
    project: Annotated[str | None, typer.Option(help="Project of a student's token.")] = None,
    label: Annotated[str, typer.Option(help="A note for yourself.")] = "",
    expires_in_days: Annotated[float, typer.Option(help="Days until it expires.")] = 90,
    as_json: AsJson = False,
) -> None:
    """Create a token. It is printed once, alone on stdout, and cannot be shown again."""
    from terrine_protocol import TokenCreate
    from terrine_server.cli.console import errors
    from terrine_server.owner.operations import open_ledger
    from terrine_server.owner.tokens import Tokens, load_secret_key
    from terrine_server.settings import Settings

    settings = Settings()
    request = TokenCreate.model_validate(
        {"role": role, "project": project, "label": label, "expires_in_days": expires_in_days}
    )
    tokens = Tokens(open_ledger(settings), load_secret_key(settings.secret_key_path))
    made = tokens.create(request)
    if as_json:
        print_json(made)
    else:
        typer.echo(made.token)
    errors.print(
        f"Role {made.role}, id {made.id}, expires {made.expires_at:%Y-%m-%d}. "
        "Keep it safe: it will not be shown again.",
        soft_wrap=True,
    )


@app.command("list")
def list_tokens(as_json: AsJson = False) -> None:
    """List all tokens, without their secrets."""
    from terrine_server import views
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import Settings

    tokens = open_ledger(Settings()).list_tokens()
    if as_json:
        print_json([views.token(token) for token in tokens])
        return
    table = Table("id", "role", "project", "label", "expires", "revoked")
    for token in tokens:
        table.add_row(
            token.id,
            token.role,
            token.project or "",
            Text(token.label),  # as it is, without markup
            f"{token.expires_at:%Y-%m-%d}",
            f"{token.revoked_at:%Y-%m-%d}" if token.revoked_at else "",
        )
    console.print(table)


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(help="Id of the token.")]) -> None:
    """Revoke a token immediately and for good."""
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import Settings

    open_ledger(Settings()).revoke_token(token_id)
    console.print(f"{token_id} is revoked.")
