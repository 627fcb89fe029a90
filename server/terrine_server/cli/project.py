"""`terrine project …` and `token …`, and the caps of registered ensembles."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from terrine_protocol import (
    EnsembleRegister,
    ProjectInfo,
    ProjectOpen,
    ProjectStatus,
    TokenCreate,
    TokenInfo,
)
from terrine_server import views
from terrine_server.cli.console import (
    Row,
    as_json,
    errors,
    fail,
    output,
    print_json,
    say,
    warn,
    with_json,
)
from terrine_server.cli.ledger import open_current_ledger
from terrine_server.cli.options import Yes, takes
from terrine_server.labeling.voters import AnyVoters
from terrine_server.ledger import ProjectRecord
from terrine_server.owner import operations
from terrine_server.owner.sign_in import Tokens, load_token_key
from terrine_server.planning.first_project import forecast_neighbours
from terrine_server.planning.opening import small_budget_warning
from terrine_server.privacy.allowance import Allowance
from terrine_server.settings import Settings

app = typer.Typer()

Name = Annotated[str, typer.Argument(help="Name of the project.")]
NameOrAll = Annotated[str | None, typer.Argument(help="Name of the project.")]


@app.command("open")
@with_json
@takes(ProjectOpen, arguments=("name",))
def open_project(request: ProjectOpen) -> None:
    """Open a project. Its mechanism, prices and budget can never change.

    `terrine parameters` names the mechanisms, `terrine plan` proposes one.

    [bold]Example[/bold]

      terrine project open sepsis --ensemble ward --epsilon 1 --delta 1e-5
          --mechanism confident_gnmax:threshold=600,sigma1=200,sigma2=120
    """
    settings = Settings()
    record = operations.open_project(open_current_ledger(), request)
    warning = small_budget_warning(record.terms, len(record.ensemble.facts.classes))
    info = _as_api(settings, [record])[0].model_copy(update={"warning": warning})
    output(info, _tabulate_terms(record))
    if as_json():
        return
    if warning is not None:
        warn(warning, to=errors)
    if record.terms.allowance is not None:
        _show_retirement(settings, record, record.terms.allowance)
    say(f"Opened. Next: terrine token create --role student --project {record.name}")


def _show_retirement(settings: Settings, record: ProjectRecord, allowance: Allowance) -> None:
    # PyTorch comes with these, and no other command here needs it.
    from terrine_models.teachers.neighbours import NeighbourEnsemble, forecast_from_public
    from terrine_server.cli.plan import retirement_forecast

    ensemble = NeighbourEnsemble.load(settings.data_dir / record.ensemble.current.path)
    by = forecast_from_public(ensemble, allowance.norm)
    found = forecast_neighbours(
        by.spent,
        units=by.units,
        near=by.near,
        sigma=allowance.sigma,
        queries=allowance.queries,
        allowed=allowance.most,
        norm=allowance.norm,
    )
    say(retirement_forecast(found, by))


@app.command()
@with_json
def show(
    name: Annotated[str | None, typer.Argument(help="Name of the project. Default: all.")] = None,
    secret_spend: Annotated[
        bool,
        typer.Option(
            "--secret-spend",
            help="SECRET: what the queries of a data-dependent project cost at their actual votes. "
            "For the owner alone: it is a function of the private data, and no guarantee covers "
            "showing it to anyone. Students see bounds on it, published at counts that were fixed "
            "beforehand.",
        ),
    ] = False,
) -> None:
    """Show a project's terms and account, or list all projects.

    JSON has the terms; see also `terrine ledger show`.
    """
    if secret_spend:
        if name is None:
            fail("--secret-spend is of one project: name it.")
        _show_secret_spend(name)
    elif name is None:
        _list_projects()
    else:
        record = open_current_ledger().projects.get(name)
        output(_as_api(Settings(), [record])[0], _tabulate_terms(record))


def _list_projects() -> None:
    settings, ledger = Settings(), open_current_ledger()
    records: list[ProjectRecord] = []
    while page := ledger.projects.list(records[-1].name if records else None, 100):
        records += page
    accounts = [views.budget(record) for record in records]
    output(
        _as_api(settings, records) if as_json() else None,
        [
            {
                "project": record.name,
                "ensemble": record.ensemble.name,
                "mechanism": record.mechanism["name"],
                "status": record.status,
                "ε": account.epsilon,
                "ε spent": account.epsilon_spent,
                "left": f"≥ {account.affordable}",
            }
            for record, account in zip(records, accounts, strict=True)
        ],
    )


def _show_secret_spend(name: str) -> None:
    spend = operations.secret_spend(open_current_ledger(), name)
    errors.print(
        "[bold red]SECRET:[/] this is computed from private votes, outside every guarantee. "
        "Do not share it.",
        soft_wrap=True,
    )
    people = {
        "project": spend.project,
        "queries": spend.queries,
        f"Rényi divergence at order {spend.order:g}": f"{spend.cost:.6g}",
        "smooth sensitivity": f"{spend.smooth_sensitivity:.3g}",
    }
    output(spend, people)


@app.command()
def pause(
    name: NameOrAll = None,
    every: Annotated[
        bool, typer.Option("--all", help="For maintenance: pause every active project.")
    ] = False,
) -> None:
    """Pause a project: it answers no queries until it is resumed.

    With `--all`, every active project, in one transaction, so that `resume --all` resumes these.
    """
    if not _means_all(name, every):
        return _set_status(str(name), ProjectStatus.PAUSED)
    paused = open_current_ledger().projects.pause_all()
    if not paused:
        return say("No project is active.")
    say(f"Paused {', '.join(paused)}. Afterwards: terrine project resume --all")


@app.command()
def resume(
    name: NameOrAll = None,
    every: Annotated[
        bool, typer.Option("--all", help="After maintenance: resume what `pause --all` paused.")
    ] = False,
) -> None:
    """Resume a paused project.

    With `--all`, what `pause --all` paused, in one transaction: not what was paused before, nor
    what was paused or resumed by its name since.
    """
    if not _means_all(name, every):
        return _set_status(str(name), ProjectStatus.ACTIVE)
    ledger = open_current_ledger()
    if ledger.projects.maintenance() is None:
        return say("Nothing is paused by `terrine project pause --all`.")
    say(f"Resumed {', '.join(ledger.projects.resume_all()) or 'no project'}.")


def _means_all(name: str | None, every: bool) -> bool:
    """Return whether all projects are meant. Exactly one of these must be given."""
    if (name is None) != every:
        fail("Name one project, or give --all.")
    return every


@app.command()
def close(
    name: Name,
    yes: Yes = False,
) -> None:
    """Close a project for good, and return its unspent budget to its ensemble's cap."""
    open_current_ledger().projects.get(name)  # fails for an unknown name, before the prompt
    if not yes:
        typer.confirm(f"Close {name} for good?", abort=True)
    _set_status(name, ProjectStatus.CLOSED)


def _set_status(name: str, status: ProjectStatus) -> None:
    record = open_current_ledger().projects.set_status(name, status)
    say(f"{record.name} is {record.status}.")


def _as_api(settings: Settings, records: Sequence[ProjectRecord]) -> list[ProjectInfo]:
    """Return projects as the HTTP API returns them."""
    voters = AnyVoters(settings)
    return [views.project(record, voters.available(record.ensemble)) for record in records]


def _tabulate_terms(record: ProjectRecord) -> Row:
    account = views.budget(record)
    disjoint_by = record.ensemble.facts.disjoint_by
    return {
        "project": record.name,
        "title": record.title,
        "purpose": record.purpose,
        "ensemble": record.ensemble.name,
        "status": "spent" if record.exhausted else record.status,
        "protects": record.ensemble.protects,
        "mechanism": ", ".join(f"{key} {value}" for key, value in record.mechanism.items()),
        "budget": f"ε = {account.epsilon:g}, δ = {account.delta:g}",
        "rule": account.rule.name
        + (f", order {account.rule.order:g}" if account.rule.order else ""),
        "ε spent": f"{account.epsilon_spent:.6g}",
        "charges": str(account.charges),
        "queries left": f"at least {account.affordable}",
        "prices": _describe_prices(record),
        "accounting": _describe_accounting(record),
        "opened": record.opened_at,
        "disjoint by": disjoint_by and f"{disjoint_by} (declared by the owner, not checked)",
    }


def _describe_prices(record: ProjectRecord) -> str:
    """Return what each outcome costs, and what the rules would have bought that were not taken."""
    terms = record.terms
    lines = [
        f"{outcome} {price.cost / 1e12:.6g}, {price.cost / terms.budget:.3%} of the budget"
        for outcome, price in terms.prices.items()
    ]
    if terms.release is not None:
        cost = terms.release.price.cost
        lines.insert(
            0,
            f"first, once: {terms.release.spec['kind']} {cost / 1e12:.6g}, "
            f"{cost / terms.budget:.3%} of the budget",
        )
    for listed in terms.by_baseline:
        prices = (f"{outcome} {price.cost / 1e12:.6g}" for outcome, price in listed.prices.items())
        least = (listed.baseline - 0.5) / record.ensemble.facts.teachers
        lines.append(f"if every probability is at least {least:.3g}: {', '.join(prices)}")
    if terms.choice is None:
        return "\n".join(lines)
    for place, each in enumerate(terms.choice.considered):
        together = "" if each.answer_share is None else ", test and maximum priced together"
        lines.append(
            f"{'instead of' if place else 'chosen:'} {each.rule}{together}: about "
            f"{each.answers:,} answers if {terms.choice.pass_rate:.0%} of queries are answered, "
            f"{each.queries:,} queries at least"
        )
    if record.ensemble.population.rdp_order is None:
        lines.append(
            "the population's cap adds up in Gaussian DP, where no joint price holds, so none was "
            "considered"
        )
    return "\n".join(lines)


def _describe_accounting(record: ProjectRecord) -> str:
    schedule = record.terms.schedule
    if schedule is None:
        return "worst case"
    counts = ", ".join(f"{count:,}" for count in schedule.counts)
    return (
        f"data-dependent: bounds published after {counts} queries, {len(record.published)} so far"
    )


tokens_app = typer.Typer()


@tokens_app.command()
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


@tokens_app.command("list")
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


@tokens_app.command()
def revoke(token_id: Annotated[str, typer.Argument(help="Id of the token.")]) -> None:
    """Revoke a token immediately and for good."""
    open_current_ledger().tokens.revoke(token_id)
    say(f"{token_id} is revoked.")


@takes(EnsembleRegister, arguments=("name",), without=("rule", "order"))
def register(
    wanted: EnsembleRegister,
    rule: Annotated[
        str | None,
        typer.Option(
            metavar="rdp[:ORDER]|gdp",
            help="How a new cap adds up what projects cost. rdp, the default: at one Rényi order, "
            "by default what suits ε and δ, where joint prices and published bounds hold; "
            "`terrine plan` proposes an order for data-dependent accounting. gdp: in Gaussian DP, "
            "where about a tenth more of plain gnmax fits, but neither of these.",
        ),
    ] = None,
) -> None:
    """Allow projects on an ensemble, under the cap of the people whom its records are about.

    All ensembles of a population share one cap. The first fixes it, for good; by default
    everything in a data directory is of one population.

    [bold]Examples[/bold]

      terrine ensemble register digits --epsilon 4 --delta 1e-5

      terrine ensemble register digits-again

      terrine ensemble register staff --population staff --disjoint --epsilon 2 --delta 1e-5
    """
    if rule is not None:
        found = re.fullmatch(r"(rdp|gdp)(?::([\d.]+))?", rule)
        if found is None:
            fail(f"--rule is rdp, rdp:ORDER (such as rdp:12) or gdp; not {rule}.")
        wanted = EnsembleRegister.model_validate(
            {**wanted.model_dump(), "rule": found[1], "order": found[2]}
        )
    ledger = open_current_ledger()
    record = operations.register_ensemble(ledger, Settings(), wanted)
    population = record.population
    others = [
        each.name
        for each in ledger.ensembles.list()
        if each.population.id == population.id and each.name != record.name
    ]
    shared = f" It shares this cap with {', '.join(others)}." if others else ""
    say(
        f"Registered {record.name}, of the population {population.name}: all projects on its "
        f"ensembles together stay within ε = {population.epsilon:g}, δ = {population.delta:g}, "
        f"added up in {population.rule}.{shared} "
        f"Next: terrine project open --ensemble {record.name} …"
    )


@with_json
def show_ensemble(
    ensemble: Annotated[
        str | None,
        typer.Argument(
            metavar="[ENSEMBLE]",
            help="Name of an ensemble, or its directory. Default: all that are registered.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="First check every file against the digests in the manifest. Owners who keep "
            "their teachers are asked about one blank input. Exits with code 1 if files differ or "
            "owners are fewer than the quorum.",
        ),
    ] = False,
) -> None:
    """Show an ensemble's manifest; or list registered ensembles, with caps and what is reserved.

    A cap is of a population: it is listed with each ensemble that shares it.

    [bold]Examples[/bold]: terrine ensemble show, terrine ensemble show digits --verify
    """
    if ensemble is None:
        if verify:
            fail("--verify is of one ensemble: name it.")
        _list_ensembles()
        return
    # PyTorch comes with these, and a list needs none.
    from terrine_server.cli.ensemble import show_directory
    from terrine_server.cli.plan import ensemble_directory

    show_directory(ensemble_directory(ensemble), verify=verify)


def _list_ensembles() -> None:
    records = open_current_ledger().ensembles.list()
    if as_json():
        voters = AnyVoters(Settings())
        print_json([views.ensemble_account(record, voters.available(record)) for record in records])
        return
    listed = [
        {
            "ensemble": record.name,
            "protects": record.protects,
            "teachers": record.facts.teachers,
            "classes": len(record.facts.classes),
            "population": record.population.name,
            "cap": f"ε = {record.population.epsilon:g}, δ = {record.population.delta:g}",
            "reserved": f"{record.population.reserved / record.population.cap:.1%}",
        }
        for record in records
    ]
    output(None, listed)
