"""`terrine federation …`: teachers that stay with their owners, and who adds up their votes."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer
from starlette.applications import Starlette

from terrine_addons.federation.aggregator import OWNERS, SERVICE, Aggregator, ReleaseCounter, make
from terrine_addons.federation.federations import Peer, read_token
from terrine_addons.federation.gathering import create_federation
from terrine_addons.federation.settings import SmallServer, TeacherServer
from terrine_addons.federation.teacher import AGGREGATOR_SECONDS, LIMITS, AgreedAggregator, Teacher
from terrine_addons.federation.voters import (
    AggregatorTerms,
    ask_terms,
    make_client,
    reach,
    read_terms,
)
from terrine_models.teachers.kinds import load_manifest
from terrine_protocol.files import read, write_atomically
from terrine_server.cli.console import console, fail, say, tabulate
from terrine_server.cli.options import EnsembleName, NewEnsemble
from terrine_server.cli.plan import ensemble_directory
from terrine_server.ledger.ensembles import check_name
from terrine_server.serving import Limits, listening
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
    agreed = _load_agreed(settings)
    app = Teacher(directory, name, token, agreed).app()
    if agreed is not None:
        console.print(
            f"Votes are shared with {settings.aggregator_url}: {agreed.terms.classes} classes, "
            f"noise of σ = {agreed.terms.sigma:g} votes; the service may learn "
            f"ε = {agreed.terms.epsilon:g}, δ = {agreed.terms.delta:g} of your votes in all.",
            soft_wrap=True,
        )
    serve_over_tls(app, f"Model {name}", settings, LIMITS)


def _load_agreed(settings: TeacherServer) -> AgreedAggregator | None:
    """Return the aggregator with which votes are shared, once it has the terms of the file."""
    url, file = settings.aggregator_url, settings.aggregator_terms_file
    if url is None or file is None or settings.aggregator_token_file is None:
        return None
    Peer.model_validate({"name": "aggregator", "url": url})  # https, but on this machine
    terms, token = read_terms(file), read_token(settings.aggregator_token_file)
    certificate = settings.aggregator_certificate_file
    found = ask_terms(make_client(url, certificate, token), AGGREGATOR_SECONDS)
    if isinstance(found, str):
        fail(f"The aggregator at {url} does not tell its terms: {found}.")
    if found.terms != terms:
        fail(
            f"The aggregator at {url} has other terms than {file}: "
            f"{_difference(found.terms, terms)}. Share nothing before all agree on one file."
        )
    return AgreedAggregator(make_client(url, certificate, token), terms)


def _difference(there: AggregatorTerms, here: AggregatorTerms) -> str:
    """Return what an aggregator's terms and those of a file say differently."""
    differing = [
        name for name in type(here).model_fields if getattr(there, name) != getattr(here, name)
    ]
    return ", ".join(
        name
        if name == "owners"
        else f"{name} {getattr(there, name):g} there, {getattr(here, name):g} here"
        for name in differing
    )


@app.command()
def make_aggregator(
    file: Annotated[Path, typer.Argument(metavar="AGGREGATOR.toml", help="Owners, noise, budget.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
) -> None:
    """Make the second of two servers that add up votes neither sees.

    It gets its count of what it releases, at 0, and a token for each who will ask it.
    docs/addons/federation-two-servers.md has an example of the file. What it says cannot be changed
    afterwards.

    [bold]Example[/bold]: terrine federation make-aggregator aggregator.toml districts
    """
    make(read_terms(file), directory)
    _show(ReleaseCounter(directory))
    console.print(
        f"Give {directory / SERVICE} to the service, and each file in "
        f"{directory / OWNERS} to its owner, with your certificate and {file}, and on "
        "ways on which the service does not see, or change, what owners get.",
        soft_wrap=True,
    )
    say(f"Next: terrine federation serve-aggregator {directory} …")


@app.command()
def serve_aggregator(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Made by `terrine federation make-aggregator`.")
    ],
) -> None:
    """Take shares of owners, and give the service their sums with noise, within the budget.

    First it prints how much of the budget is released. `GET /v1/terms` has the queries that are
    left, for the token of the service or of an owner.

    Environment variables set the rest: docs/settings.md.

    [bold]Example[/bold]: TERRINE_PORT=8300 terrine federation serve-aggregator districts
    """
    settings, aggregator = SmallServer(), Aggregator(directory)
    _show(aggregator.count)
    serve_over_tls(aggregator.app(), "Aggregator", settings, aggregator.limits)


def _show(count: ReleaseCounter) -> None:
    """Print what an aggregator does, and how much of its budget is released."""
    terms, released = count.terms, count.released
    shown = {
        "owners": len(terms.owners),
        "classes": terms.classes,
        "σ of its noise": f"{terms.sigma:g} votes",
        "budget against the service": f"ε = {terms.epsilon:g}, δ = {terms.delta:g}",
        "queries released": f"{released:,} of {count.most:,}",
    }
    console.print(tabulate(shown))


def serve_over_tls(app: Starlette, what: str, settings: SmallServer, limits: Limits) -> None:
    """Serve until interrupted. Raises CannotListen."""
    certificate, key = settings.certificate_file, settings.certificate_key_file
    sockets = listening.bind(settings.host, settings.port)

    def announce(url: str) -> None:
        console.print(f"{what} on {url}. Interrupt to stop.", soft_wrap=True)

    try:
        listening.serve(app, sockets, limits, certificate=certificate, key=key, announce=announce)
    finally:
        for own in sockets:
            own.close()
