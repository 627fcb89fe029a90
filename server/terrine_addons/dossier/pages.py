"""The dossier of one project as a page."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from terrine_addons.dossier.facts import gather
from terrine_addons.dossier.folder import collect_for_template
from terrine_addons.dossier.words import DossierError
from terrine_protocol import Name
from terrine_server.admin.access import Checked, Reader
from terrine_server.admin.rendering import page
from terrine_server.api.services import PAGES_PATH, Services, ServicesDep
from terrine_server.errors import Conflict
from terrine_server.owner.checkpoints import CheckpointError

router = APIRouter(prefix=f"{PAGES_PATH}/projects")


@router.get("/{name}/dossier")
def dossier(request: Request, services: ServicesDep, reader: Reader, name: Name) -> Response:
    """Show what `terrine dossier --project NAME` writes, except what takes long to verify."""
    return page(request, "dossier.html", reader, **_dossier(services, name, verify=False))


@router.post("/{name}/dossier")
def verified_dossier(
    request: Request, services: ServicesDep, sent: Checked, name: Name
) -> Response:
    """Show the same, with ledger, log and files recomputed."""
    return page(request, "dossier.html", sent.session, **_dossier(services, name, verify=True))


def _dossier(services: Services, name: str, *, verify: bool) -> dict[str, Any]:
    try:
        return collect_for_template(
            gather(services.ledger, services.settings, project=name, verify=verify)
        )
    except (DossierError, CheckpointError, OSError) as error:
        raise Conflict(str(error)) from None
