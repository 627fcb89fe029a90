"""`terrine federation …`: teachers that stay with their owners, and who asks them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from terrine_addons.federation.gathering import create_federation
from terrine_addons.federation.settings import TeacherServer
from terrine_addons.federation.teacher import LIMITS, Teacher
from terrine_addons.federation.voters import reach
from terrine_models.teachers.kinds import load_manifest
from terrine_protocol.files import read, write_atomically
from terrine_server.cli.console import console, fail, say, tabulate
from terrine_server.cli.ensemble import ensemble_directory
from terrine_server.cli.options import EnsembleName, NewEnsemble
from terrine_server.ledger.ensembles import check_name
from terrine_server.serving import listening
from terrine_server.settings import Settings

app = typer.Typer()


@app.command()
def gather(
    file: Annotated[Path, typer.Argument(metavar="OWNERS.toml", help="Who they are, and where.")],
    name: NewEnsemble,
) -> None:
    """Make an ensemble of owners who each keep their teacher, and ask each of them once.

    docs/addons/federation.md has an example of the file. Next, register the ensemble.

    `terrine ensemble show NAME --verify` asks them again.

    [bold]Example[/bold]: terrine federation gather owners.toml --name wards
    """
    check_name("an ensemble", name)
    directory = Settings().ensembles_dir / name
    federation = create_federation(file, name, directory)
    answers = reach(directory).answers
    console.print(tabulate(answers))
    console.print(f"{len(federation.owners)} owners, quorum {federation.quorum}: {directory}")
    absent = sum(each["answers"] != "yes" for each in answers)
    if absent:
        console.print(
            f"{absent} did not answer as they should. That may change; the "
            f"file may be wrong, too: then remove {directory}, fix the file and gather again.",
            style="bold yellow",
            soft_wrap=True,
        )
    say(f"Next: terrine ensemble register {name} --epsilon … --delta …")


@app.command()
def serve_teacher(ensemble: EnsembleName) -> None:
    """Be one of these owners: answer the service that gathers votes, from your own teachers.

    All teachers of the ensemble together cast one vote. Speaks the Open Inference Protocol.

    Environment variables set the rest: docs/settings.md. TERRINE_TEACHER_TOKEN_FILE is needed.

    [bold]Example[/bold]:
    TERRINE_TEACHER_TOKEN_FILE=wards.token terrine federation serve-teacher wards
    """
    settings = TeacherServer()
    directory = ensemble_directory(ensemble)
    name = settings.teacher_model or load_manifest(directory).name
    token_file = settings.teacher_token_file
    if token_file is None:
        fail("Set TERRINE_TEACHER_TOKEN_FILE: only who has this token is answered.")
    if not token_file.exists():
        write_atomically(token_file, f"{secrets.token_urlsafe(32)}\n".encode())
        token_file.chmod(0o600)
        console.print(f"Made the token {token_file}.")
    token = read(token_file).decode("ascii").strip()
    if len(token) < 20:
        fail(f"{token_file} holds no token of at least 20 characters.")
    app = Teacher(directory, name, token).app()
    certificate, key = settings.certificate_file, settings.certificate_key_file
    sockets = listening.bind(settings.host, settings.port)

    def announce(url: str) -> None:
        console.print(f"Model {name} on {url}. Interrupt to stop.", soft_wrap=True)

    try:
        listening.serve(app, sockets, LIMITS, certificate=certificate, key=key, announce=announce)
    finally:
        for own in sockets:
            own.close()
