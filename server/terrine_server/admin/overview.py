"""The overview: what is spent of each cap, every project, and maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator
from starlette.responses import Response

from terrine_protocol import (
    Budget,
    Name,
    ProjectStatus,
)
from terrine_server import views
from terrine_server.admin.access import ByAdmin, Reader
from terrine_server.admin.rendering import page, see_other
from terrine_server.api.paging import NameCursor
from terrine_server.api.paths import PAGES_PATH
from terrine_server.api.services import ServicesDep
from terrine_server.ledger import (
    EnsembleRecord,
    Ledger,
    PopulationRecord,
    ProjectRecord,
)
from terrine_server.owner.operations import max_fitting_epsilon
from terrine_server.privacy import Accounts

router = APIRouter(prefix=PAGES_PATH)

# Projects on a page.
PROJECTS_ON_A_PAGE = 20
MAX_SEARCH_CHARACTERS = 100


def _blank_to_none(value: Any) -> Any:
    """Return None for a filter that is left blank in a form."""
    return None if value == "" else value


Blank = BeforeValidator(_blank_to_none)


@dataclass(frozen=True)
class CapUse:
    """A population's cap, in units of 1e-12 of its rule's quantity.

    `spent` is what the projects on its `ensembles` have spent. `reserved` is what open projects may
    still spend.
    """

    population: PopulationRecord
    ensembles: Sequence[EnsembleRecord]
    spent: int
    added: int = 0
    """What a project that is not open yet would reserve."""

    @property
    def reserved(self) -> int:
        """What open projects may still spend."""
        return self.population.reserved - self.spent

    @property
    def taken(self) -> int:
        """What is spent or reserved, or would be."""
        return self.population.reserved + self.added

    @property
    def room_as_text(self) -> str:
        """The ε of a further project that fits."""
        found = max_fitting_epsilon(self.ensembles[0])
        if found is None:
            return "Nothing more fits."
        return f"A further project of up to about ε = {found:g} fits."

    @property
    def free(self) -> int:
        """What further projects may reserve; negative if it would be too much."""
        return self.population.cap - self.taken


@dataclass(frozen=True)
class ProjectOverview:
    """A project as the overview shows it. `most`: how many queries can fit."""

    record: ProjectRecord
    account: Budget
    most: float

    @classmethod
    def of(cls, record: ProjectRecord, shadows: Accounts | None = None) -> ProjectOverview:
        """Return a project's public account, as the API returns it, and what is left."""
        account = views.budget(record, shadows)
        return cls(record, account, record.terms.most_admitted(record.account))


@router.get("")
def overview(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    cursor: NameCursor = None,
    ensemble: Annotated[Name | None, Blank, Query()] = None,
    status: Annotated[ProjectStatus | None, Blank, Query()] = None,
    search: Annotated[str, Query(max_length=MAX_SEARCH_CHARACTERS)] = "",
) -> Response:
    """Show caps and projects. `search`: a part of the name or title."""
    found = services.ledger.projects.list(
        cursor or None,
        PROJECTS_ON_A_PAGE + 1,
        ensemble=ensemble,
        status=status,
        search=search.strip(),
    )
    filters = {"ensemble": ensemble, "status": status, "search": search.strip()}
    shown, maintenance = found[:PROJECTS_ON_A_PAGE], services.ledger.projects.maintenance()
    return page(
        request,
        "overview.html",
        reader,
        caps=list_caps(services.ledger),
        maintenance=maintenance,
        actors=views.actors(services.ledger, [maintenance.by] if maintenance else []),
        projects=[ProjectOverview.of(record) for record in shown],
        next=shown[-1].name if len(found) > PROJECTS_ON_A_PAGE else None,
        first=not cursor,
        filters=filters,
        query=urlencode({key: value for key, value in filters.items() if value}),
        statuses=list(ProjectStatus),
    )


@router.post("/maintenance/{act}")
def maintain(
    request: Request, services: ServicesDep, sent: ByAdmin, act: Literal["begin", "end"]
) -> Response:
    """Pause all active projects, or resume those that were paused in this way."""
    change = (
        services.ledger.projects.pause_all
        if act == "begin"
        else services.ledger.projects.resume_all
    )
    change(sent.session.actor)
    return see_other(request, "", sent.session)


def list_caps(ledger: Ledger) -> list[CapUse]:
    """Return the cap of each population, by name."""
    spent, ensembles = ledger.projects.spent_of_caps(), ledger.ensembles.list()
    return [
        CapUse(
            population,
            [each for each in ensembles if each.population.id == population.id],
            spent.get(population.id, 0),
        )
        for population in ledger.ensembles.list_populations()
    ]
