"""The overview: what is left of each population's cap, and of each project's budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from terrine_protocol import Budget, Name, ProjectStatus, RequestStatus
from terrine_server import views
from terrine_server.admin.access import ByAdmin, Reader
from terrine_server.admin.rendering import ROOT, page, see_other
from terrine_server.api.paging import NameCursor
from terrine_server.api.services import ServicesDep
from terrine_server.ledger import EnsembleRecord, Ledger, PopulationRecord, ProjectRecord
from terrine_server.owner.cap_advice import epsilon_that_fits
from terrine_server.planning.remaining import most_queries
from terrine_server.privacy import Accounts

router = APIRouter(prefix=ROOT)

ROWS = 40
"""Projects on a page; the most requests that are counted."""


@dataclass(frozen=True)
class CapUse:
    """A population's cap, in units of 1e-12 of its rule's quantity.

    `spent` is what the projects on its `ensembles` have used. `reserved` is what open projects hold
    besides.
    """

    population: PopulationRecord
    ensembles: Sequence[EnsembleRecord]
    spent: int
    added: int = 0
    """What a project would reserve that is not open yet."""

    @property
    def reserved(self) -> int:
        """What open projects may still spend."""
        return self.population.reserved - self.spent

    @property
    def taken(self) -> int:
        """What is spent, reserved or would be."""
        return self.population.reserved + self.added

    @property
    def room_in_words(self) -> str:
        """What ε of a further project fits."""
        found = epsilon_that_fits(self.ensembles[0])
        if found is None:
            return "Nothing more fits."
        return f"A further project of up to about ε = {found:g} fits."

    @property
    def free(self) -> int:
        """What further projects may reserve; negative if it would be too much."""
        return self.population.cap - self.taken


@dataclass(frozen=True)
class ProjectOverview:
    """A project as the overview shows it. `most`: how many queries fit at the most, if limited."""

    record: ProjectRecord
    account: Budget
    most: int | None

    @classmethod
    def of(cls, record: ProjectRecord, shadows: Accounts | None = None) -> ProjectOverview:
        """Return a project's public account, as the API returns it, and what is left."""
        account = views.budget(record, shadows)
        return cls(record, account, most_queries(record.terms, record.account))


@router.get("")
def overview(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    cursor: NameCursor = None,
    ensemble: Annotated[Name | None, Query()] = None,
    status: Annotated[ProjectStatus | None, Query()] = None,
) -> Response:
    """Show caps and projects."""
    found = services.ledger.projects(cursor or None, ROWS + 1, ensemble=ensemble, status=status)
    shown, maintenance = found[:ROWS], services.ledger.maintenance()
    return page(
        request,
        "overview.html",
        reader,
        caps=caps(services.ledger),
        waiting=len(services.ledger.list_requests(status=RequestStatus.OPEN, limit=ROWS)),
        most=ROWS,
        maintenance=maintenance,
        actors=views.actors(services.ledger, [maintenance.by] if maintenance else []),
        projects=[ProjectOverview.of(record) for record in shown],
        next=shown[-1].name if len(found) > ROWS else None,
        first=not cursor,
        ensemble=ensemble,
        only=status,
        statuses=list(ProjectStatus),
    )


@router.post("/maintenance/{act}")
def maintain(
    request: Request, services: ServicesDep, sent: ByAdmin, act: Literal["begin", "end"]
) -> Response:
    """Pause all active projects, or resume those that were paused so."""
    change = services.ledger.pause_all if act == "begin" else services.ledger.resume_all
    change(sent.session.actor)
    return see_other(request, "", sent.session)


def caps(ledger: Ledger) -> list[CapUse]:
    """Return the cap of each population, by name."""
    spent, ensembles = ledger.spent_of_caps(), ledger.ensembles()
    return [
        CapUse(
            population,
            [each for each in ensembles if each.population.id == population.id],
            spent.get(population.id, 0),
        )
        for population in ledger.populations()
    ]
