"""`terrine request …`: see, approve and refuse what students ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from terrine_protocol import RequestApprove
from terrine_server.cli.console import (
    as_json,
    console,
    errors,
    opened_ledger,
    output,
    print_json,
    with_json,
)
from terrine_server.cli.derived import takes

if TYPE_CHECKING:
    from terrine_protocol import ApprovalInfo

app = typer.Typer(no_args_is_help=True, help="See, approve and refuse requests for projects.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the request.")]
ELSEWHERE = ("delta", "accounting", "consensus", "expected_pass_rate", "title", "purpose")
"""Terms that are as requested, or given to the API or on the request's page."""


@app.command("list")
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


@app.command()
@with_json
def show(request_id: Id) -> None:
    """Show a request and, while it is open, what approving it as it was made would mean."""
    from terrine_server import views
    from terrine_server.owner import requests

    ledger = opened_ledger()
    record = ledger.find_request(request_id)
    shown = views.request_account(record, *requests.examine(ledger, record))
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


@app.command()
@with_json
@takes(RequestApprove, without=ELSEWHERE)
def approve(approval: RequestApprove, request_id: Id) -> None:
    """Open the project that was asked for. A token is printed once, alone on stdout.

    Other terms can be given on the page of the request, or to the API.
    """
    from terrine_protocol import RequestApproved
    from terrine_server import views
    from terrine_server.labeling.any_voters import AnyVoters
    from terrine_server.owner import requests
    from terrine_server.owner.tokens import Tokens, load_secret_key
    from terrine_server.settings import Settings

    settings, ledger = Settings(), opened_ledger()
    terms = requests.as_opened(ledger.find_request(request_id), approval)
    tokens = Tokens(ledger, load_secret_key(settings.secret_key_path))
    done = requests.approve(ledger, tokens, request_id, terms, approval.token_expires_in_days)
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


@app.command()
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
