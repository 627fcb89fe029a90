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

KEY = "witness.key"


def witness(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="What the witness is called, such as its address without https://: nobody else "
            "should be called so.",
        ),
    ],
    log: Annotated[
        list[str],
        typer.Option(
            metavar="KEY",
            help="Public key of a log to cosign, as its owner prints it. May be repeated.",
        ),
    ],
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where its key and its state are.")
    ] = Path("terrine-witness"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 8470,
) -> None:
    """Cosign the checkpoints of a transparency log that is not yours, until interrupted.

    The first start makes the key of the witness; every start prints the line for policies. It
    cosigns checkpoints that continue the last one. The state in its directory says what was
    cosigned: never restore an older one. Plain HTTP.

    [bold]Example[/bold]: terrine witness witness.example.org --log labels.example.org+1f0c2b9d+AQ…
    """
    keys = [VerifierKey.parse(key) for key in log]
    if any(key.kind is not KeyKind.ED25519 for key in keys):
        fail("--log is the key of a log, not of a witness.")
    cosigner = Witness(_own_key(directory, name), keys, directory / "state")
    sockets = listening.bind(host, port)

    def announce(url: str) -> None:
        console.print(f"Witnessing {len(keys)} logs on {url}", highlight=False, soft_wrap=True)

    logs.configure("info")
    try:
        listening.serve(serve_app(cosigner), sockets, LIMITS, announce=announce)
    finally:
        for own in sockets:
            own.close()
        cosigner.close()


def _own_key(directory: Path, name: str) -> SignerKey:
    """Return the key of a witness, which is made if there is none."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = SignerKey(name, KeyKind.COSIGNATURE, secrets.token_bytes(32))
    SignerKey.parse(new.secret)  # refuses a name that is none
    path = directory / KEY
    if write_secret(path, new.secret + "\n"):
        console.print(f"Created the key {path}.", highlight=False)
    key = SignerKey.parse(read(path, MAX_NOTE_BYTES).decode())
    if key.kind is not KeyKind.COSIGNATURE:
        fail(f"{path} is the key of a log, not of a witness.")
    if key.name != name:
        fail(f"{path} is the key of {key.name}, not of {name}: give another --dir to another.")
    console.print(f"witness NAME {key.verifier}", highlight=False, soft_wrap=True)
    return key
