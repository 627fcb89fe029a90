"""`terrine owners …` gathers teachers that stay with their owners; `terrine teacher …` is one."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from terrine_protocol.files import read
from terrine_server.cli.console import console, fail
from terrine_server.cli.evaluate import ensemble_directory
from terrine_server.cli.serving import (
    CertificateOption,
    HostOption,
    KeyOption,
    check_tls,
    serve_over_tls,
)

if TYPE_CHECKING:
    from terrine_models.teachers.federation import Federation
    from terrine_server.labeling.aggregator_terms import AggregatorTerms

owners = typer.Typer(no_args_is_help=True, help="Let owners vote who keep their teachers.")
teacher = typer.Typer(no_args_is_help=True, help="Be one of these owners.")


@owners.command()
def gather(
    file: Annotated[Path, typer.Argument(metavar="OWNERS.toml", help="Who they are, and where.")],
    name: Annotated[str, typer.Option(help="Name of the ensemble: a-z, 0-9, '-' and '_'.")],
) -> None:
    """Make an ensemble of owners who each keep their teacher, and ask each of them once.

    docs/owners.md has an example of the file. Next, register the ensemble.

    [bold]Example[/bold]: terrine owners gather owners.toml --name wards
    """
    from terrine_server.ledger.ensembles import check_name
    from terrine_server.owner.gathering import gather as gathered
    from terrine_server.settings import Settings

    check_name("an ensemble", name)
    directory = Settings().ensembles_dir / name
    federation = gathered(file, name, directory)
    absent, aggregator = _asked(directory, federation)
    console.print(f"{len(federation.owners)} owners, quorum {federation.quorum}: {directory}")
    if absent or aggregator:
        console.print(
            f"{absent + bool(aggregator)} did not answer as they should. That may change; the file "
            "may "
            f"be wrong, too: then remove {directory}, fix the file and gather again.",
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
    from terrine_models.teachers.federation import load_federation

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


@teacher.command()
def serve(
    ensemble: Annotated[
        str, typer.Argument(metavar="ENSEMBLE", help="Name of an ensemble, or its directory.")
    ],
    token_file: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Token that the service must show; made if it is not there. Give it a copy.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="Name of the model. Default: the ensemble's.")
    ] = None,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8100,
    certificate: CertificateOption = None,
    key: KeyOption = None,
    aggregator: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Show votes to nobody: split each between the service and the aggregator here.",
        ),
    ] = None,
    aggregator_token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your token of the aggregator, from its party."),
    ] = None,
    aggregator_certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The aggregator's certificate, from its party; the only one that is trusted. "
            "Without it, the system's.",
        ),
    ] = None,
    aggregator_terms: Annotated[
        Path | None,
        typer.Option(
            metavar="AGGREGATOR.toml",
            help="The terms that you agreed to, from the aggregator's party: owners, classes, "
            "noise, budget. Nothing is shared under others.",
        ),
    ] = None,
) -> None:
    """Answer the service that gathers votes, from your own machine and your own teachers.

    All teachers of the ensemble together cast one vote. Speaks the Open Inference Protocol.

    [bold]Example[/bold]: terrine teacher serve wards --token-file wards.token --host 0.0.0.0
        --certificate wards.pem --key wards.key
    """
    from terrine_models.storage.manifests import write_atomically
    from terrine_models.teachers.federation import Peer, read_token
    from terrine_models.teachers.kinds import load_manifest
    from terrine_server.labeling.aggregator_terms import ask_terms, read_terms
    from terrine_server.labeling.remote_voters import client
    from terrine_server.teacher import AGGREGATOR_SECONDS, LIMITS, Agreed, Teacher

    check_tls(host, certificate, key)
    if aggregator is None and (aggregator_token_file or aggregator_certificate or aggregator_terms):
        fail(
            "--aggregator-token-file, --aggregator-certificate and --aggregator-terms are for "
            "--aggregator."
        )
    if aggregator is not None and aggregator_token_file is None:
        fail(
            "--aggregator needs --aggregator-token-file: the aggregator takes shares of its owners "
            "alone."
        )
    if aggregator is not None and aggregator_terms is None:
        fail(
            "--aggregator needs --aggregator-terms: what the service may learn of your votes is in "
            "them."
        )
    directory = ensemble_directory(ensemble)
    name = model or load_manifest(directory).name
    if not token_file.exists():
        write_atomically(token_file, f"{secrets.token_urlsafe(32)}\n".encode())
        token_file.chmod(0o600)
        console.print(f"Made the token {token_file}.")
    token = read(token_file).decode("ascii").strip()
    if len(token) < 20:
        fail(f"{token_file} holds no token of at least 20 characters.")
    agreed = None
    if (
        aggregator is not None
        and aggregator_token_file is not None
        and aggregator_terms is not None
    ):
        Peer.model_validate({"name": "aggregator", "url": aggregator})  # https, but on this machine
        terms, shown = read_terms(aggregator_terms), read_token(aggregator_token_file)
        found = ask_terms(client(aggregator, aggregator_certificate, shown), AGGREGATOR_SECONDS)
        if isinstance(found, str):
            fail(f"The aggregator at {aggregator} does not tell its terms: {found}.")
        if found.terms != terms:
            fail(
                f"The aggregator at {aggregator} has other terms than {aggregator_terms}: "
                f"{_difference(found.terms, terms)}. Share nothing before all agree on one file."
            )
        agreed = Agreed(client(aggregator, aggregator_certificate, shown), terms)
    app = Teacher(directory, name, token, agreed).app()
    if agreed is not None:
        console.print(
            f"Votes are shared with {aggregator}: {agreed.terms.classes} classes, noise of σ = "
            f"{agreed.terms.sigma:g} votes; the service may learn ε = {agreed.terms.epsilon:g}, "
            f"δ = {agreed.terms.delta:g} of your votes in all.",
            soft_wrap=True,
        )
    serve_over_tls(app, f"Model {name}", host, port, certificate, key, LIMITS)


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
    from terrine_server.labeling.remote_voters import probe
    from terrine_server.labeling.shared_voters import probe_aggregator

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
