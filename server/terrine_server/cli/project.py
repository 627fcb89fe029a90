"""`terrine project …`: open, show, pause and close projects."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from terrine_server.cli.console import (
    AsJson,
    by_option,
    console,
    errors,
    fail,
    print_json,
)
from terrine_server.cli.mechanism import Mechanism, parse_mechanism

if TYPE_CHECKING:
    from terrine_protocol import ProjectInfo
    from terrine_server.ledger import ProjectRecord
    from terrine_server.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Open, show, pause and close projects.")

Name = Annotated[str, typer.Argument(help="Name of the project.")]


class Accounting(StrEnum):
    """What each query counts against the budget."""

    WORST_CASE = "worst_case"
    DATA_DEPENDENT = "data_dependent"


@app.command("open")
def open_project(
    name: Name,
    ensemble: Annotated[str, typer.Option(help="Name of the registered ensemble.")],
    mechanism: Mechanism,
    epsilon: Annotated[float, typer.Option(help="Budget: ε.")],
    delta: Annotated[float, typer.Option(help="Budget: δ; below 1 / training records.")],
    accounting: Annotated[
        Accounting,
        typer.Option(
            help="data_dependent publishes noisy bounds on what the queries cost at their actual "
            "votes, and refuses by those bounds; the ensemble's cap must add up by the rule rdp."
        ),
    ] = Accounting.WORST_CASE,
    consensus: Annotated[
        str | None,
        typer.Option(
            metavar="C[:SHARE],…",
            help="For data_dependent: how far teachers are expected to agree, as for "
            "`terrine plan`. A guess or public knowledge, never the private teachers' votes.",
        ),
    ] = None,
    expected_pass_rate: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of queries that are expected to be answered, as `terrine plan` says: a "
            "public guess, which divides the price between answers and abstentions.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="What it is called among people, in one line.")
    ] = None,
    purpose: Annotated[str | None, typer.Option(help="What its labels are for.")] = None,
    as_json: AsJson = False,
) -> None:
    """Open a project. Its mechanism, prices and budget can never change."""
    from pydantic import ValidationError

    from terrine_protocol import ProjectOpen
    from terrine_server.owner.operations import open_ledger, open_project
    from terrine_server.planning.forecast import Consensus
    from terrine_server.planning.remaining import too_few
    from terrine_server.settings import Settings

    terms = {
        "name": name,
        "ensemble": ensemble,
        "mechanism": parse_mechanism(mechanism),
        "epsilon": epsilon,
        "delta": delta,
        "title": title,
        "purpose": purpose,
        "accounting": accounting.value,
        "expected_pass_rate": expected_pass_rate,
        "consensus": consensus
        and [
            {"agreement": level.agreement, "share": level.share}
            for level in Consensus.parse(consensus)
        ],
    }
    try:
        request = ProjectOpen.model_validate(terms)
    except ValidationError as error:
        fail(by_option(error))
    settings = Settings()
    record = open_project(open_ledger(settings), request)
    warning = too_few(record.terms, len(record.ensemble.info["classes"]))
    if as_json:
        print_json(_infos(settings, [record])[0].model_copy(update={"warning": warning}))
        return
    _show(record)
    if warning is not None:
        errors.print(f"[bold yellow]Warning:[/] {warning}", soft_wrap=True)
    console.print(
        f"Opened. Next: terrine token create --role student --project {name}", soft_wrap=True
    )


@app.command("list")
def list_projects(
    ensemble: Annotated[str | None, typer.Option(help="Only projects on this ensemble.")] = None,
    as_json: AsJson = False,
) -> None:
    """List all projects."""
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import Settings
    from terrine_server.views import budget

    settings = Settings()
    ledger = open_ledger(settings)
    records: list[ProjectRecord] = []
    while page := ledger.projects(records[-1].name if records else None, 100, ensemble=ensemble):
        records += page
    if as_json:
        print_json(_infos(settings, records))
        return
    table = Table("project", "ensemble", "mechanism", "status", "ε", "ε spent", "left")
    for record in records:
        account = budget(record)
        table.add_row(
            record.name,
            record.ensemble.name,
            record.mechanism["name"],
            record.status,
            f"{account.epsilon:g}",
            f"{account.epsilon_spent:.4g}",
            f"≥ {account.affordable}",
        )
    console.print(table)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show a project's terms and account. --json has the terms; see also `terrine ledger show`."""
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import Settings

    settings = Settings()
    record = open_ledger(settings).project(name)
    if as_json:
        print_json(_infos(settings, [record])[0])
    else:
        _show(record)


@app.command("secret-spend")
def secret_spend(name: Name, as_json: AsJson = False) -> None:
    """Show what a data-dependent project's queries cost at their actual votes. SECRET.

    For the data owner only: it is a function of the private data, and no guarantee covers showing
    it to anyone. Students see bounds on it, published at counts that were fixed beforehand.
    """
    from terrine_server import views
    from terrine_server.owner import operations
    from terrine_server.settings import Settings

    spend = views.secret_spend(
        name, operations.secret_spend(operations.open_ledger(Settings()), name)
    )
    errors.print(
        "[bold red]SECRET:[/] this is computed from private votes, outside every guarantee. "
        "Do not share it.",
        soft_wrap=True,
    )
    if as_json:
        print_json(spend)
        return
    table = Table(show_header=False)
    table.add_row("project", spend.project)
    table.add_row("queries", f"{spend.queries:,}")
    table.add_row(f"Rényi divergence at order {spend.order:g}", f"{spend.cost:.6g}")
    table.add_row("smooth sensitivity", f"{spend.smooth_sensitivity:.3g}")
    console.print(table)


@app.command()
def pause(name: Name) -> None:
    """Pause a project: it answers no queries until it is resumed."""
    _set_status(name, "paused")


@app.command()
def resume(name: Name) -> None:
    """Resume a paused project."""
    _set_status(name, "active")


@app.command()
def close(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Close a project for good, and return its unspent budget to its ensemble's cap."""
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import Settings

    open_ledger(Settings()).project(name)  # fails for an unknown name, before the prompt
    if not yes:
        typer.confirm(f"Close {name} for good?", abort=True)
    _set_status(name, "closed")


def _set_status(name: str, status: str) -> None:
    from terrine_protocol import ProjectStatus
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import Settings

    record = open_ledger(Settings()).set_status(name, ProjectStatus(status))
    console.print(f"{record.name} is {record.status}.")


def _infos(settings: Settings, records: Sequence[ProjectRecord]) -> list[ProjectInfo]:
    """Return projects as the HTTP API returns them."""
    from terrine_server import views
    from terrine_server.labeling.any_voters import AnyVoters

    voters = AnyVoters(settings)
    return [views.project(record, voters.available(record.ensemble)) for record in records]


def _show(record: ProjectRecord) -> None:
    from terrine_server.views import budget

    account = budget(record)
    table = Table(show_header=False)
    rows = {
        "project": record.name,
        "title": escape(record.title or ""),
        "purpose": escape(record.purpose or ""),
        "ensemble": record.ensemble.name,
        "status": record.status,
        "mechanism": ", ".join(f"{key} {value}" for key, value in record.mechanism.items()),
        "budget": f"ε = {account.epsilon:g}, δ = {account.delta:g}",
        "rule": account.rule.name
        + (f", order {account.rule.order:g}" if account.rule.order else ""),
        "ε spent": f"{account.epsilon_spent:.6g}",
        "charges": str(account.charges),
        "queries left": f"at least {account.affordable}",
        "prices": _prices(record),
        "accounting": _accounting(record),
        "opened": f"{record.opened_at:%Y-%m-%d %H:%M} UTC",
    }
    disjoint_by = record.ensemble.info.get("disjoint_by")
    if disjoint_by is not None:
        rows["disjoint by"] = escape(f"{disjoint_by} (declared by the owner, not checked)")
    for label, value in rows.items():
        if value:
            table.add_row(label, value)
    console.print(table)


def _prices(record: ProjectRecord) -> str:
    """Return what each outcome costs, and what the rules would have bought that were not taken."""
    terms = record.terms
    lines = [
        f"{outcome} {price.cost / 1e12:.6g}, {price.cost / terms.budget:.3%} of the budget"
        for outcome, price in terms.prices.items()
    ]
    for listed in terms.by_baseline:
        prices = (f"{outcome} {price.cost / 1e12:.6g}" for outcome, price in listed.prices.items())
        least = (listed.baseline - 0.5) / record.ensemble.info["teachers"]
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
    if record.ensemble.rdp_order is None:
        lines.append(
            "the ensemble's cap adds up in Gaussian DP, where no joint price holds, so none was "
            "considered"
        )
    return "\n".join(lines)


def _accounting(record: ProjectRecord) -> str:
    schedule = record.terms.schedule
    if schedule is None:
        return "worst case"
    counts = ", ".join(f"{count:,}" for count in schedule.counts)
    return (
        f"data-dependent: bounds published after {counts} queries, {len(record.published)} so far"
    )
