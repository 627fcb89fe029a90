"""`terrine owners …` gathers teachers that stay with their owners; `terrine teacher …` is one."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from starlette.applications import Starlette

from terrine_addons.federation.aggregator import OWNERS, SERVICE, Aggregator, ReleaseCounter
from terrine_addons.federation.aggregator import make as make_aggregator
from terrine_addons.federation.federations import Federation, Peer, load_federation, read_token
from terrine_addons.federation.gathering import create_federation
from terrine_addons.federation.teacher import AGGREGATOR_SECONDS, LIMITS, AgreedAggregator, Teacher
from terrine_addons.federation.voters import (
    AggregatorTerms,
    ask_terms,
    make_client,
    probe,
    probe_aggregator,
    read_terms,
)
from terrine_models.teachers.kinds import load_manifest
from terrine_protocol.files import read, write_atomically
from terrine_server.cli.console import console, fail
from terrine_server.cli.plan import ensemble_directory
from terrine_server.ledger.ensembles import check_name
from terrine_server.serving import Limits, listening
from terrine_server.settings import Settings, SmallServer, TeacherServer

owners = typer.Typer()
teacher = typer.Typer()


@owners.command()
def gather(
    file: Annotated[Path, typer.Argument(metavar="OWNERS.toml", help="Who they are, and where.")],
    name: Annotated[str, typer.Option(help="Name of the ensemble: a-z, 0-9, '-' and '_'.")],
) -> None:
    """Make an ensemble of owners who each keep their teacher, and ask each of them once.

    docs/addons/federation.md has an example of the file. Next, register the ensemble.

    [bold]Example[/bold]: terrine owners gather owners.toml --name wards
    """
    check_name("an ensemble", name)
    directory = Settings().ensembles_dir / name
    federation = create_federation(file, name, directory)
    absent, aggregator = _asked(directory, federation)
    console.print(f"{len(federation.owners)} owners, quorum {federation.quorum}: {directory}")
    if absent or aggregator:
        console.print(
            f"{absent + bool(aggregator)} did not answer as they should. That may change; the "
            f"file may be wrong, too: then remove {directory}, fix the file and gather again.",
            style="bold yellow",
            soft_wrap=True,
        )
    console.print(f"Next: terrine ensemble register {name} --epsilon … --delta …")


@owners.command()
def check(
    ensemble: Annotated[
        str, typer.Argument(metavar="ENSEMBLE", help="Name of an ensemble, or its directory.")
    ],
) -> None:
    """Ask each owner of an ensemble about one blank input. Exit code 1 below the quorum.

    An aggregator, if there is one, is asked for its terms: exit code 1 if they are others.

    [bold]Example[/bold]: terrine owners check wards
    """
    directory = ensemble_directory(ensemble)
    federation = load_federation(directory)
    absent, aggregator = _asked(directory, federation)
    if aggregator:
        fail(f"The aggregator is not as the federation says: {aggregator}.")
    present = len(federation.owners) - absent
    if present < federation.quorum:
        fail(
            f"{present} of {len(federation.owners)} owners answer; the quorum is "
            f"{federation.quorum}."
        )


@teacher.command("serve")
def serve_teacher(
    ensemble: Annotated[
        str, typer.Argument(metavar="ENSEMBLE", help="Name of an ensemble, or its directory.")
    ],
) -> None:
    """Answer the service that gathers votes, from your own machine and your own teachers.

    All teachers of the ensemble together cast one vote. Speaks the Open Inference Protocol.

    Environment variables set the rest: docs/settings.md. TERRINE_TEACHER_TOKEN_FILE is needed.

    [bold]Example[/bold]: TERRINE_TEACHER_TOKEN_FILE=wards.token terrine teacher serve wards
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
    agreed = _agreed(settings)
    app = Teacher(directory, name, token, agreed).app()
    if agreed is not None:
        console.print(
            f"Votes are shared with {settings.aggregator_url}: {agreed.terms.classes} classes, "
            f"noise of σ = {agreed.terms.sigma:g} votes; the service may learn "
            f"ε = {agreed.terms.epsilon:g}, δ = {agreed.terms.delta:g} of your votes in all.",
            soft_wrap=True,
        )
    serve_over_tls(app, f"Model {name}", settings, LIMITS)


def _agreed(settings: TeacherServer) -> AgreedAggregator | None:
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


def _asked(directory: Path, federation: Federation) -> tuple[int, str | None]:
    """Ask everybody, print what they say; return how many owners are absent, and what is wrong
    with the aggregator."""
    found = probe(directory, federation)
    table = Table("owner", "model", "at", "answers")
    for owner, wrong in zip(federation.owners, found, strict=True):
        answers = "yes" if wrong is None else f"[red]{escape(wrong)}[/red]"
        table.add_row(owner.name, owner.model, owner.url, answers)
    aggregator = None
    if federation.aggregator is not None:
        aggregator = probe_aggregator(directory, federation, federation.aggregator)
        answers = "yes" if aggregator is None else f"[red]{escape(aggregator)}[/red]"
        table.add_row(federation.aggregator.name, "", federation.aggregator.url, answers)
    console.print(table)
    return sum(wrong is not None for wrong in found), aggregator


aggregator_app = typer.Typer()
Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Made by `terrine aggregator make`.")
]


@aggregator_app.command()
def make(
    file: Annotated[Path, typer.Argument(metavar="AGGREGATOR.toml", help="Owners, noise, budget.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
) -> None:
    """Make an aggregator: its count of what it releases, at 0, and a token for each who will ask
    it.

    docs/addons/federation-two-servers.md has an example of the file. What it says cannot be changed
    afterwards.

    [bold]Example[/bold]: terrine aggregator make aggregator.toml districts
    """
    make_aggregator(read_terms(file), directory)
    _show(directory)
    console.print(
        f"Give {directory / SERVICE} to the service, and each file in "
        f"{directory / OWNERS} to its owner, with your certificate and {file}, and on "
        "ways on which the service does not see, or change, what owners get.",
        soft_wrap=True,
    )
    console.print(f"Next: terrine aggregator serve {directory} …")


@aggregator_app.command()
def show(directory: Directory) -> None:
    """Show what an aggregator does, and how much of its budget is released.

    [bold]Example[/bold]: terrine aggregator show districts
    """
    _show(directory)


@aggregator_app.command("serve")
def serve_aggregator(
    directory: Directory,
) -> None:
    """Take shares of owners, and give the service their sums with noise, within the budget.

    Environment variables set the rest: docs/settings.md.

    [bold]Example[/bold]: TERRINE_PORT=8300 terrine aggregator serve districts
    """
    settings, aggregator = SmallServer(), Aggregator(directory)
    serve_over_tls(aggregator.app(), "Aggregator", settings, aggregator.limits)


def _show(directory: Path) -> None:
    count = ReleaseCounter(directory)
    terms, released = count.terms, count.released
    table = Table(show_header=False)
    table.add_row("owners", f"{len(terms.owners):,}")
    table.add_row("classes", f"{terms.classes:,}")
    table.add_row("σ of its noise", f"{terms.sigma:g} votes")
    table.add_row("budget against the service", f"ε = {terms.epsilon:g}, δ = {terms.delta:g}")
    table.add_row("queries released", f"{released:,} of {count.most:,}")
    console.print(table)


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
