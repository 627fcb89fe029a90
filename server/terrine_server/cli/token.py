"""`terrine token create`, `list` and `revoke`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from terrine_protocol import (
    TokenCreate,
    TokenInfo,
)
from terrine_server.cli.console import (
    as_json,
    errors,
    output,
    print_json,
    say,
    with_json,
)
from terrine_server.cli.ledger import open_current_ledger
from terrine_server.cli.options import takes
from terrine_server.owner.sign_in import Tokens, load_token_key
from terrine_server.settings import Settings

app = typer.Typer()


@app.command()
@with_json
@takes(TokenCreate)
def create(request: TokenCreate) -> None:
    """Create a token. It is printed once, alone on stdout, and cannot be shown again."""
    ledger = open_current_ledger()
    made = Tokens(ledger, load_token_key(Settings())).create(request)
    try:
        if as_json():
            print_json(made)
        else:
            typer.echo(made.token)
        sys.stdout.flush()
    except OSError:  # a full disk, or whoever read it has gone: nobody has it
        ledger.tokens.revoke(made.id)
        raise
    say(
        f"Role {made.role}, id {made.id}, expires {made.expires_at:%Y-%m-%d}. "
        "Keep it safe: it will not be shown again.",
        to=errors,
    )


@app.command("list")
@with_json
def list_tokens() -> None:
    """List all tokens, without their secrets."""
    tokens = open_current_ledger().tokens.list()
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
    open_current_ledger().tokens.revoke(token_id)
    say(f"{token_id} is revoked.")
