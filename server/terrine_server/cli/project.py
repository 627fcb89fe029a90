"""`terrine project …`: open, show, pause and close projects."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_protocol import ProjectOpen, RequestApprove, TokenCreate, TokenInfo
from terrine_server.cli.console import (
    Row,
    as_json,
    console,
    errors,
    fail,
    opened_ledger,
    output,
    print_json,
    takes,
    with_json,
)

if TYPE_CHECKING:
    from terrine_protocol import ApprovalInfo, ProjectInfo
    from terrine_server.ledger import ProjectRecord
    from terrine_server.privacy.budget import Allowance
    from terrine_server.settings import Settings


app = typer.Typer(no_args_is_help=True, help="Open, show, pause and close projects.")

Name = Annotated[str, typer.Argument(help="Name of the project.")]
NameOrAll = Annotated[str | None, typer.Argument(help="Name of the project.")]


@app.command("open")
@with_json
@takes(ProjectOpen, arguments=("name",))
def open_project(request: ProjectOpen) -> None:
    """Open a project. Its mechanism, prices and budget can never change.

    `terrine mechanisms` names the mechanisms, `terrine plan` proposes one.

    [bold]Example[/bold]

      terrine project open sepsis --ensemble ward --epsilon 1 --delta 1e-5
          --mechanism confident_gnmax:threshold=600,sigma1=200,sigma2=120
    """
    from terrine_server.owner.operations import open_project
    from terrine_server.planning.opening import small_budget_warning
    from terrine_server.settings import Settings

    settings = Settings()
    record = open_project(opened_ledger(), request)
    warning = small_budget_warning(record.terms, len(record.ensemble.facts.classes))
    info = _infos(settings, [record])[0].model_copy(update={"warning": warning})
    output(info, _for_people(record))
    if as_json():
        return
    if warning is not None:
        errors.print(f"[bold yellow]Warning:[/] {warning}", soft_wrap=True)
    if record.terms.allowance is not None:
        _show_retirement(settings, record, record.terms.allowance)
    console.print(
        f"Opened. Next: terrine token create --role student --project {record.name}",
        soft_wrap=True,
    )


def _show_retirement(settings: Settings, record: ProjectRecord, allowance: Allowance) -> None:
    from terrine_models.teachers.neighbours import NeighbourEnsemble, forecast_from_public
    from terrine_server.cli.plan import retirement_forecast
    from terrine_server.planning.first_project import forecast_neighbours

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
    _say(retirement_forecast(found, by))


@app.command("list")
@with_json
def list_projects() -> None:
    """List all projects."""
    from terrine_server.settings import Settings
    from terrine_server.views import budget

    settings, ledger = Settings(), opened_ledger()
    records: list[ProjectRecord] = []
    while page := ledger.projects(records[-1].name if records else None, 100):
        records += page
    accounts = [budget(record) for record in records]
    output(
        _infos(settings, records) if as_json() else None,
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


@app.command()
@with_json
def show(name: Name) -> None:
    """Show a project's terms and account. JSON has the terms; see also `terrine ledger show`."""
    from terrine_server.settings import Settings

    record = opened_ledger().project(name)
    output(_infos(Settings(), [record])[0], _for_people(record))


@app.command("secret-spend")
@with_json
def secret_spend(name: Name) -> None:
    """Show what a data-dependent project's queries cost at their actual votes. SECRET.

    For the data owner only: it is a function of the private data, and no guarantee covers showing
    it to anyone. Students see bounds on it, published at counts that were fixed beforehand.
    """
    from terrine_server.owner import operations

    spend = operations.secret_spend(opened_ledger(), name)
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
    if not _one_of(name, every):
        return _set_status(str(name), "paused")
    paused = opened_ledger().pause_all()
    if not paused:
        return _say("No project is active.")
    _say(f"Paused {', '.join(paused)}. Afterwards: terrine project resume --all")


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
    if not _one_of(name, every):
        return _set_status(str(name), "active")
    ledger = opened_ledger()
    if ledger.maintenance() is None:
        return _say("Nothing is paused by `terrine project pause --all`.")
    _say(f"Resumed {', '.join(ledger.resume_all()) or 'no project'}.")


def _one_of(name: str | None, every: bool) -> bool:
    """Return whether all projects are meant. Exactly one of these must be given."""
    if (name is None) != every:
        fail("Name one project, or give --all.")
    return every


def _say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)


@app.command()
def close(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Close a project for good, and return its unspent budget to its ensemble's cap."""
    opened_ledger().project(name)  # fails for an unknown name, before the prompt
    if not yes:
        typer.confirm(f"Close {name} for good?", abort=True)
    _set_status(name, "closed")


def _set_status(name: str, status: str) -> None:
    from terrine_protocol import ProjectStatus

    record = opened_ledger().set_status(name, ProjectStatus(status))
    console.print(f"{record.name} is {record.status}.")


def _infos(settings: Settings, records: Sequence[ProjectRecord]) -> list[ProjectInfo]:
    """Return projects as the HTTP API returns them."""
    from terrine_server import views
    from terrine_server.labeling.any_voters import AnyVoters

    voters = AnyVoters(settings)
    return [views.project(record, voters.available(record.ensemble)) for record in records]


def _for_people(record: ProjectRecord) -> Row:
    from terrine_server.views import budget

    account = budget(record)
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
        "prices": _prices(record),
        "accounting": _accounting(record),
        "opened": record.opened_at,
        "disjoint by": disjoint_by and f"{disjoint_by} (declared by the owner, not checked)",
    }


def _prices(record: ProjectRecord) -> str:
    """Return what each outcome costs, and what the rules would have bought that were not taken."""
    terms = record.terms
    lines = [
        f"{outcome} {price.cost / 1e12:.6g}, {price.cost / terms.budget:.3%} of the budget"
        for outcome, price in terms.prices.items()
    ]
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


def _accounting(record: ProjectRecord) -> str:
    schedule = record.terms.schedule
    if schedule is None:
        return "worst case"
    counts = ", ".join(f"{count:,}" for count in schedule.counts)
    return (
        f"data-dependent: bounds published after {counts} queries, {len(record.published)} so far"
    )


requests_app = typer.Typer(
    no_args_is_help=True, help="See, approve and refuse requests for projects."
)

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the request.")]
ELSEWHERE = ("delta", "accounting", "consensus", "expected_pass_rate", "title", "purpose")
"""Terms that are as requested, or given to the API or on the request's page."""


@requests_app.command("list")
@with_json
def list_requests() -> None:
    """List requests, oldest first."""
    from terrine_server import views

    found = opened_ledger().list_requests()
    output(
        [views.request_account(each) for each in found],
        [
            {
                "id": each.id,
                "made": each.created_at,
                "by token": f"{each.token} of {each.token_project}",
                "on": each.ensemble,
                "title": each.title,
                "ε": each.asked["epsilon"],
                "status": f"approved: {each.project}" if each.project else each.status,
            }
            for each in found
        ],
    )


@requests_app.command("show")
@with_json
def show_request(request_id: Id) -> None:
    """Show a request and, while it is open, what approving it as it was made would mean."""
    from terrine_server import views
    from terrine_server.owner import operations

    ledger = opened_ledger()
    record = ledger.find_request(request_id)
    shown = views.request_account(record, *operations.examine_request(ledger, record))
    mechanism = shown.mechanism.model_dump(exclude_none=True)
    people: dict[str, object] = {
        "request": shown.id,
        "title": shown.title,
        "purpose": shown.purpose,
        "made": f"{shown.created_at:%Y-%m-%d %H:%M} UTC, token {shown.token} of "
        f"{shown.token_project}",
        "asks for": f"ε = {shown.epsilon:g}, δ = {shown.delta:g} on {shown.ensemble}, besides what "
        "other projects have",
        "mechanism": ", ".join(f"{key} {value}" for key, value in mechanism.items()),
        "status": shown.status,
        "opened": shown.project,
        "reason": shown.reason,
        "cannot be opened": shown.cannot_be_opened,
    }
    if shown.approval is not None:
        people |= _outlook(shown.approval)
    output(shown, people)


@requests_app.command()
@with_json
@takes(RequestApprove, without=ELSEWHERE)
def approve(approval: RequestApprove, request_id: Id) -> None:
    """Open the project that was asked for. A token is printed once, alone on stdout.

    Other terms can be given on the page of the request, or to the API.
    """
    from terrine_protocol import RequestApproved
    from terrine_server import views
    from terrine_server.labeling.any_voters import AnyVoters
    from terrine_server.owner import operations
    from terrine_server.owner.sign_in import Tokens, load_secret_key
    from terrine_server.settings import Settings

    settings, ledger = Settings(), opened_ledger()
    terms = operations.merge_approval(ledger.find_request(request_id), approval)
    tokens = Tokens(ledger, load_secret_key(settings.secret_key_path))
    done = operations.approve_request(
        ledger, tokens, request_id, terms, approval.token_expires_in_days
    )
    if as_json():
        available = AnyVoters(settings).available(done.project.ensemble)
        print_json(
            RequestApproved(
                request=views.request_account(done.request),
                project=views.project(done.project, available),
                token=done.token,
            )
        )
        return
    if done.token is not None:
        typer.echo(done.token.token)
        errors.print(
            f"Opened {approval.name}, with the student's token {done.token.id}, which expires "
            f"{done.token.expires_at:%Y-%m-%d}. Keep it safe: it will not be shown again.",
            soft_wrap=True,
        )
    else:
        console.print(
            f"Opened {approval.name}. Next: terrine token create --role student --project "
            f"{approval.name}",
            soft_wrap=True,
        )


@requests_app.command()
def refuse(
    request_id: Id, reason: Annotated[str, typer.Option(help="Whoever made it reads this.")]
) -> None:
    """Refuse a request, with a reason."""
    from terrine_protocol import RequestRefuse

    refusal = RequestRefuse(reason=reason)
    opened_ledger().refuse_request(request_id, refusal.reason)
    console.print(f"{request_id} is refused.", highlight=False)


def _outlook(found: ApprovalInfo) -> dict[str, str | None]:
    def of(part: int, whole: int) -> str:
        return f"{part / whole:.1%}"

    room = "" if found.fits else ": the cap has no room for it"
    return {
        "if approved": f"{of(found.reserved, found.cap)} of the cap is reserved in all, and "
        f"{of(found.delta_reserved, found.delta_cap)} of its additive δ{room}",
        "queries": f"at least {found.affordable:,}",
        "prices": ", ".join(
            f"{kind} {price.cost / 1e12:.6g}" for kind, price in found.prices.items()
        ),
        "warning": found.warning,
    }


tokens_app = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.")


@tokens_app.command()
@with_json
@takes(TokenCreate)
def create(request: TokenCreate) -> None:
    """Create a token. It is printed once, alone on stdout, and cannot be shown again."""
    from terrine_server.owner.sign_in import Tokens, load_secret_key
    from terrine_server.settings import Settings

    ledger = opened_ledger()
    made = Tokens(ledger, load_secret_key(Settings().secret_key_path)).create(request)
    try:
        if as_json():
            print_json(made)
        else:
            typer.echo(made.token)
        sys.stdout.flush()
    except OSError:  # a full disk, or whoever read it has gone: nobody has it
        ledger.revoke_token(made.id)
        raise
    errors.print(
        f"Role {made.role}, id {made.id}, expires {made.expires_at:%Y-%m-%d}. "
        "Keep it safe: it will not be shown again.",
        soft_wrap=True,
    )


@tokens_app.command("list")
@with_json
def list_tokens() -> None:
    """List all tokens, without their secrets."""
    tokens = opened_ledger().list_tokens()
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
    opened_ledger().revoke_token(token_id)
    console.print(f"{token_id} is revoked.")
