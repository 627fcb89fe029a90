"""Routes of students: labels, their price, and the project's account and terms."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from terrine_protocol import Budget, LabelResponse, ProjectInfo, UsedUp
from terrine_server import views
from terrine_server.api import openapi
from terrine_server.api.callers import OwnProject
from terrine_server.api.decoding import (
    BodyLimits,
    DecodedQueries,
    check_length,
    decode,
)
from terrine_server.api.paths import LABEL_PATH, USED_UP_PATH
from terrine_server.api.services import Services, ServicesDep
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.queries import CheckedRequest
from terrine_server.labeling.voters import read_pool, read_sums
from terrine_server.ledger import ChargedBatch, EnsembleRecord
from terrine_server.serving.connections import client_check
from terrine_server.serving.threads import PerTokenThreads
from terrine_server.views import LabelReply

router = APIRouter(tags=["students"])
# Of what a project begins with.
ARCHIVE = openapi.BYTES | openapi.problems("not-found", "ensemble-unavailable")

AcceptClipped = Annotated[
    bool,
    Query(
        description="Of rows by name: ask although more than a tenth of a column is outside the "
        "schema's range, or missing where the schema knows no gaps."
    ),
]

T = TypeVar("T")

# Label requests decoded and checked at a time, of each token one. Other routes use a separate
# thread pool.
DECODING = PerTokenThreads(8)
# Processor seconds of decoding and checking that are one request in those of a minute.
REQUEST_SECONDS = 0.05


@router.post(
    LABEL_PATH,
    response_model=LabelResponse,
    openapi_extra=openapi.LABEL_REQUEST,
    responses=openapi.LABEL_RESPONSES,
)
async def label(
    request: Request,
    services: ServicesDep,
    project: OwnProject,
    accept_clipped: AcceptClipped = False,
) -> Response:
    """Answer a batch of inputs, in order, as far as the budget reaches.

    Answers that this project has paid for before are replayed at no cost. In a project of sums all
    are free: they follow from what it paid for when it was opened. If no query of the batch
    can be answered, the problem is `budget-exhausted`.
    """
    holder = request.state.principal
    services.replays.take(holder.token_id)
    decoded = await _read_body(request, services, project, accept_clipped)

    def check() -> CheckedRequest:
        with services.metrics.stage("decode"):
            sent = decoded()
            return services.labeling.check(
                project, sent.inputs, sent.probabilities, holder.record, sent.notes
            )

    ask = await _count_work(request, services, check)
    check_client = client_check(request.scope)
    answered = await services.queue.ask(project, ask, ask.waits_for_others, check_client)
    services.replays.use(holder.token_id, answered.free)
    request.state.charges = answered.paid
    return Response(answered.body, media_type="application/json")


@router.post(
    USED_UP_PATH,
    response_model=UsedUp,
    openapi_extra=openapi.INPUTS_REQUEST,
    responses=openapi.problems("invalid-query", "ensemble-unavailable"),
)
async def used_up(
    request: Request,
    services: ServicesDep,
    project: OwnProject,
    accept_clipped: AcceptClipped = False,
) -> UsedUp:
    """Say for a batch of inputs how far people near each are used up, by public rows. Free.

    For projects of neighbours. No private record is looked at, and nothing is asked of any.
    """
    decoded = await _read_body(request, services, project, accept_clipped)

    def found() -> list[float]:
        return services.labeling.exhausted_shares(project, decoded().inputs)

    return UsedUp(used_up=await _count_work(request, services, found))


async def _count_work(request: Request, services: Services, work: Callable[[], T]) -> T:
    """Return what `work` returns, in the turn of the request's token, unless the client has hung up
    by then, and count its processor time as so many requests of the token.

    Raises `RateLimited` if earlier ones took more than there is in a minute, `ClientDisconnect`,
    and what `work` raises.
    """
    token_id, check_client = request.state.principal.token_id, client_check(request.scope)

    def counted() -> T:
        check_client()
        services.requests.check_made_up(token_id)
        began = time.thread_time()
        try:
            return work()
        finally:
            more = int((time.thread_time() - began) / REQUEST_SECONDS)
            request.state.left = max(0, services.requests.use(token_id, more))

    return await DECODING.run(token_id, counted)


async def _read_body(
    request: Request, services: Services, project: str, accept_clipped: bool
) -> Callable[[], DecodedQueries]:
    """Return what decodes the body, which is there. One that is too long for its project is refused
    by what its head says, or once so much is there."""
    content_type, settings = request.headers.get("content-type", ""), services.settings
    token_id = request.state.principal.token_id
    known = await DECODING.run(token_id, services.ledger.projects.get_cached, project)
    expected = known.ensemble.facts
    limits = BodyLimits(settings.max_body_bytes, settings.max_batch)
    declared = request.headers.get("content-length", "0")  # digits: the middleware has looked
    check_length(content_type, int(declared), expected, limits)
    body = bytearray()
    async for part in request.stream():
        body += part
        check_length(content_type, len(body), expected, limits)
    check_client = client_check(request.scope)
    given = expected, limits, accept_clipped, check_client
    return partial(decode, content_type, bytes(body), *given)


def answer_group(
    labeling: Labeling, project: str, asks: Sequence[CheckedRequest]
) -> list[LabelReply | Exception]:
    """Answer a group of requests with their response bodies.

    They are rendered in the group's thread. Thousands of results take milliseconds, and on the
    event loop every other request would wait for them.
    """
    replies: list[LabelReply | Exception] = []
    for ask, result in zip(asks, labeling.answer(project, asks), strict=True):
        if not isinstance(result, ChargedBatch):
            replies.append(result)
            continue
        try:
            replies.append(views.label_reply(result, ask.notes))
        except Exception as error:  # a defect in one request's body: the others are paid as well
            replies.append(error)
    return replies


@router.get("/budget", responses=openapi.problems())
def budget(services: ServicesDep, project: OwnProject) -> Budget:
    """Return the account of the token's project."""
    return views.budget(*services.ledger.projects.get_with_shadows(project))


@router.get("/pool", response_class=Response, responses=ARCHIVE)
def pool(services: ServicesDep, project: OwnProject) -> Response:
    """Return what the owner of the token's project designed to be asked. Free.

    An .npz archive: `x` float32 [R, D], the inputs to ask; `natural` float32 [P, D], public rows,
    or drawn as released margins are; `prior` float64 [m]; `of_public`, whether `natural` are
    public. What was released to design them is paid for by the project's first charge.
    """
    return _send(services, project, read_pool)


@router.get("/sums", response_class=Response, responses=ARCHIVE)
def sums(services: ServicesDep, project: OwnProject) -> Response:
    """Return the sums that answer all queries of the token's project of sums. Free.

    An .npz archive (`ReleasedSums` of terrine_models.sums): `sums` int64 [d + 1, m] with noise, the
    public map of inputs to d features, public rows, and how much noise it is. The project's first
    charge paid for it.
    """
    return _send(services, project, read_sums)


def _send(
    services: Services, project: str, read: Callable[[Path, EnsembleRecord], bytes]
) -> Response:
    ensemble = services.ledger.projects.get(project).ensemble.current
    return Response(
        read(services.settings.data_dir, ensemble), media_type="application/octet-stream"
    )


@router.get("/project", responses=openapi.problems())
def project(services: ServicesDep, project: OwnProject) -> ProjectInfo:
    """Return the terms of the token's project."""
    record = services.ledger.projects.get(project)
    return views.project(record, services.available(record.ensemble))
