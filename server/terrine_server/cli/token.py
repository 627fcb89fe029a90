"""`terrine token …`: create, list and revoke tokens."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from terrine_protocol import TokenCreate, TokenInfo
from terrine_server.cli.console import (
    as_json,
    console,
    errors,
    opened_ledger,
    output,
    print_json,
    with_json,
)
from terrine_server.cli.derived import takes

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.")


@app.command()
@with_json
@takes(TokenCreate)
def create(request: TokenCreate) -> None:
    """Create a token. It is printed once, alone on stdout, and cannot be shown again."""
    from terrine_server.owner.tokens import Tokens, load_secret_key
    from terrine_server.settings import Settings

    ledger = opened_ledger()
    made = Tokens(ledger, load_secret_key(Settings().secret_key_path)).create(request)
    try:
        if as_json():
            print_json(made)
        else:
            typer.echo(made.token)
        sys.stdout.flush()
    except OSError:  # a full disk, or whoever read it has gone: nobody has it
        ledger.revoke_token(made.id)
        raise
    errors.print(
        f"Role {made.role}, id {made.id}, expires {made.expires_at:%Y-%m-%d}. "
        "Keep it safe: it will not be shown again.",
        soft_wrap=True,
    )


@app.command("list")
@with_json
def list_tokens() -> None:
    """List all tokens, without their secrets."""
    tokens = opened_ledger().list_tokens()
    output(
        [TokenInfo.model_validate(token) for token in tokens],
        [
            {
                "id": token.id,
                "role": token.role,
                "project": token.project,
                "label": token.label,
                "expires": f"{token.expires_at:%Y-%m-%d}",
                "revoked": token.revoked_at and f"{token.revoked_at:%Y-%m-%d}",
            }
            for token in tokens
        ],
    )


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(help="Id of the token.")]) -> None:
    """Revoke a token immediately and for good."""
    opened_ledger().revoke_token(token_id)
    console.print(f"{token_id} is revoked.")
