"""`terrine witness …`: cosign somebody else's log."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from terrine_addons.witness.service import LIMITS, Witness, serve_app
from terrine_protocol.files import read, write_secret
from terrine_protocol.transparency import MAX_NOTE_BYTES, KeyKind, SignerKey, VerifierKey
from terrine_server import logs
from terrine_server.cli.console import console, fail
from terrine_server.serving import listening

app = typer.Typer()

KEY = "witness.key"


@app.command()
def init(
    name: Annotated[
        str,
        typer.Argument(
            help="What the witness is called, such as its address without https://: nobody else "
            "should be called so."
        ),
    ],
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where its key and its state are.")
    ] = Path("terrine-witness"),
) -> None:
    """Make the key of a witness, and print the line for policies. An existing key is kept."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = SignerKey(name, KeyKind.COSIGNATURE, secrets.token_bytes(32))
    SignerKey.parse(key.secret)  # refuses a name that is none
    made = write_secret(directory / KEY, key.secret + "\n")
    path = directory / KEY
    console.print(f"{'Created' if made else 'Kept'} the key {path}.", highlight=False)
    console.print(f"witness NAME {_key(directory).verifier}", highlight=False, soft_wrap=True)


@app.command()
def serve(
    log: Annotated[
        list[str],
        typer.Option(metavar="KEY", help="Public key of a log to cosign, as its owner prints it."),
    ],
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where its key and its state are.")
    ] = Path("terrine-witness"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 8470,
) -> None:
    """Cosign checkpoints that continue the last one, until interrupted. Plain HTTP.

    The state in its directory says what was cosigned. Never restore an older one.
    """
    keys = [VerifierKey.parse(key) for key in log]
    if any(key.kind is not KeyKind.ED25519 for key in keys):
        fail("--log is the key of a log, not of a witness.")
    witness = Witness(_key(directory), keys, directory / "state")
    sockets = listening.bind(host, port)

    def announce(url: str) -> None:
        console.print(f"Witnessing {len(keys)} logs on {url}", highlight=False, soft_wrap=True)

    logs.configure("info")
    try:
        listening.serve(serve_app(witness), sockets, LIMITS, announce=announce)
    finally:
        for own in sockets:
            own.close()
        witness.close()


def _key(directory: Path) -> SignerKey:
    try:
        key = SignerKey.parse(read(directory / KEY, MAX_NOTE_BYTES).decode())
    except FileNotFoundError:
        fail(f"There is no key {directory / KEY}. Run `terrine witness init NAME`.")
    if key.kind is not KeyKind.COSIGNATURE:
        fail(f"{directory / KEY} is the key of a log, not of a witness.")
    return key
