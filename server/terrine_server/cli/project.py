"""`terrine project open`, `show`, `pause`, `resume` and `close`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from terrine_protocol import (
    ProjectInfo,
    ProjectOpen,
    ProjectStatus,
)
from terrine_server import views
from terrine_server.cli.console import (
    ALL_FREE,
    Row,
    as_json,
    errors,
    fail,
    output,
    say,
    warn,
    with_json,
)
from terrine_server.cli.ledger import open_current_ledger
from terrine_server.cli.options import Yes, takes
from terrine_server.labeling.voters import AnyVoters
from terrine_server.ledger import ProjectRecord
from terrine_server.owner import operations
from terrine_server.planning.opening import small_budget_warning
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
    record = operations.open_project(open_current_ledger(), request)
    warning = small_budget_warning(record.terms, len(record.ensemble.facts.classes))
    info = _as_api(Settings(), [record])[0].model_copy(update={"warning": warning})
    output(info, _tabulate_terms(record))
    if as_json():
        return
    if warning is not None:
        warn(warning, to=errors)
    say(f"Opened. Next: terrine token create --role student --project {record.name}")


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
                "left": "any, free" if record.free else f"≥ {account.affordable}",
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
        "queries left": ALL_FREE if record.free else f"at least {account.affordable}",
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
    if terms.choice is None or record.free:
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
