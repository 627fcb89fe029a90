"""Routes of students: labels, their price, and the project's account and terms."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response

from terrine_protocol import (
    Budget,
    Estimate,
    EstimateRequest,
    LabelResponse,
    ProjectInfo,
)
from terrine_server import views
from terrine_server.api import openapi
from terrine_server.api.decoding import Expected, Limits, decode
from terrine_server.api.negotiation import JsonBody
from terrine_server.api.services import (
    LABEL,
    Answered,
    OwnProject,
    Services,
    ServicesDep,
    check_again,
    get_services,
    known_parameters,
    own_project,
)
from terrine_server.errors import TokenChanged
from terrine_server.labeling.pipeline import Ask, Labeling
from terrine_server.ledger import Receipt, TokenRecord
from terrine_server.threads import Threads

router = APIRouter(tags=["students"])

PACKED = "npz"
"""In the content type of a body that may unpack to a thousand times its size."""
IDEMPOTENCY_KEY = re.compile(openapi.IDEMPOTENCY_KEY, re.ASCII)
CHECKING = Threads(8)
"""Label requests decoded and checked at a time. Other routes use a separate thread pool."""


class Direct(APIRoute):
    """A route whose function reads the request itself, without declared parameters.

    To resolve those takes a tenth of a small request.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""

        async def handle(request: Request) -> Response:
            await known_parameters(request)
            response: Response = await self.endpoint(request)
            return response

        return handle


async def label(request: Request) -> Response:
    """Answer a batch of inputs, in order, as far as the budget reaches.

    Answers that this project has paid for before are replayed at no cost. If no query of the batch
    can be answered, the problem is `budget-exhausted`.
    """
    services = await get_services(request)
    try:
        return await _label(request, services)
    except TokenChanged:
        await check_again(request, services)
        return await _label(request, services)


def install(app: FastAPI) -> None:
    """Add all routes. That of labels is the app's own: it is found sooner than in a router."""
    app.router.add_api_route(
        LABEL,
        label,
        methods=["POST"],
        tags=list(router.tags),
        response_model=LabelResponse,
        openapi_extra=openapi.LABEL_REQUEST,
        responses=openapi.LABEL_RESPONSES,
        route_class_override=Direct,
    )
    app.include_router(router, dependencies=[Depends(known_parameters)])


async def _label(request: Request, services: Services) -> Response:
    project = await own_project(request, services, None)
    key = _idempotency_key(request)
    holder = request.state.principal
    services.replays.take(holder.token_id)
    body = await request.body()
    content_type = request.headers.get("content-type", "")
    asked = (services, project, content_type, body, key, holder.record)
    if PACKED not in content_type.lower() and services.labeling.small(project, len(body)):
        ask = _ask(*asked)
    else:
        ask = await CHECKING.run(_ask, *asked)
    answered = await services.queue.ask(project, ask)
    services.replays.use(holder.token_id, answered.replayed)
    request.state.charges = answered.paid
    return Response(answered.body, media_type="application/json")


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        message = "From 1 to 255 printable ASCII characters are expected, without spaces"
        raise RequestValidationError([{"loc": ("header", "Idempotency-Key"), "msg": message}])
    return key


def _ask(
    services: Services,
    project: str,
    content_type: str,
    body: bytes,
    key: str | None,
    token: TokenRecord | None,
) -> Ask:
    with services.metrics.stage("decode"):
        settings, expected = services.settings, services.labeling.expected(project)
        limits = Limits(settings.max_body_bytes, settings.max_json_bytes, settings.max_batch)
        sent = decode(content_type, body, Expected(*expected), limits)
        return services.labeling.check(project, sent.inputs, sent.probabilities, key, token)


def answering(labeling: Labeling) -> Callable[[str, Sequence[Ask]], list[Answered | Exception]]:
    """Return a function that answers a group of requests with their response bodies.

    The bodies are rendered in the group's thread. Thousands of results take milliseconds, and on
    the event loop every other request would wait for them.
    """

    def body(result: Receipt | Exception) -> Answered | Exception:
        try:
            if not isinstance(result, Receipt):
                return result
            paid = [r.seq for r in result.results if r.seq is not None and not r.replayed]
            replayed = sum(r.replayed for r in result.results)
            return Answered(views.answers(result), replayed, (paid[0], paid[-1]) if paid else None)
        except Exception as error:  # a defect in one request's body: the others are paid as well
            return error

    def answer(project: str, asks: Sequence[Ask]) -> list[Answered | Exception]:
        return [body(result) for result in labeling.answer(project, asks)]

    return answer


@router.post("/label/estimate", responses=openapi.problems("project-closed"))
def estimate(
    services: ServicesDep, project: OwnProject, _: JsonBody, plan: EstimateRequest
) -> Estimate:
    """Return the worst-case price of a number of new queries. No input or vote is looked at."""
    return views.estimate(services.ledger.project(project), plan.queries)


@router.get("/budget", responses=openapi.problems())
def budget(services: ServicesDep, project: OwnProject) -> Budget:
    """Return the account of the token's project."""
    return views.budget(services.ledger.project(project))


@router.get("/project", responses=openapi.problems())
def project(services: ServicesDep, project: OwnProject) -> ProjectInfo:
    """Return the terms of the token's project."""
    record = services.ledger.project(project)
    return views.project(record, services.available(record.ensemble))
