"""The dossier of one project, from its page at /admin."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from terrine_addons.dossier.facts import CONTENT_POLICY, gather, render
from terrine_protocol import Name
from terrine_server.admin.access import Checked
from terrine_server.admin.rendering import HEADERS
from terrine_server.api.paths import PAGES_PATH
from terrine_server.api.services import Services, ServicesDep
from terrine_server.api.shared import VERIFYING

router = APIRouter(prefix=f"{PAGES_PATH}/projects")


@router.post("/{name}/dossier")
async def dossier(services: ServicesDep, sent: Checked, name: Name) -> Response:
    """Send what `terrine dossier --project NAME` writes: to verify the ledger takes its time."""
    written = await VERIFYING.run(sent.session.token_id, _write, services, name)
    policy = f"{CONTENT_POLICY}; frame-ancestors 'none'"
    return HTMLResponse(written, headers=HEADERS | {"Content-Security-Policy": policy})


def _write(services: Services, name: str) -> str:
    return render(gather(services.ledger, services.settings, name))
