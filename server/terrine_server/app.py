"""Wires the packages together; contains no logic."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import structlog
import uvicorn
from anyio import to_thread
from fastapi import Depends, FastAPI

from terrine_models.addons import load_added
from terrine_server import admin
from terrine_server.api import health, middleware, openapi, owner, problems, students
from terrine_server.api import ledger as ledger_routes
from terrine_server.api.callers import caller_check
from terrine_server.api.rate_limits import RateLimit
from terrine_server.api.services import Services, refuse_unknown_parameters
from terrine_server.api.shared import PublishedLog, Readiness, SharedScrape
from terrine_server.errors import ServiceError
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.queue import Queue
from terrine_server.labeling.voters import AnyVoters
from terrine_server.ledger import Ledger, connect
from terrine_server.metrics import Metrics
from terrine_server.owner.checkpoints import (
    Publisher,
    attach_history,
    load_checkpoint_key,
    load_policy,
)
from terrine_server.owner.sign_in import Issuer, Sessions, Tokens, load_secret_key, load_token_key
from terrine_server.serving.connections import uvicorn_options
from terrine_server.settings import Settings

log = structlog.get_logger("terrine")


def create_app(settings: Settings, *, alone: bool = False) -> FastAPI:
    """Return the service as an ASGI application.

    `alone`: the process serves this app and does nothing else. Everything loaded before the first
    request is then exempt from garbage collection: a full collection stops every request, takes
    0.2 s over the libraries alone, and a large response triggers one.

    Raises `SecretKeyError` without a secret key, and `CheckpointError` for a key or a policy of the
    transparency log that cannot be used. The database is first used when a request, or
    `/readyz`, needs it.
    """
    engine = connect(settings.database, settings.database_password(), settings.database_seconds)
    key = load_secret_key(settings.secret_key_path)
    ledger = Ledger(engine, key)
    policy = load_policy(settings.log_policy_path)
    signer = load_checkpoint_key(settings.checkpoint_key_path)
    history = attach_history(ledger, settings)
    voters = AnyVoters(settings, settings.voters)
    metrics = Metrics()
    labeling = Labeling(ledger, voters, metrics, settings.max_batch)
    services = Services(
        settings=settings,
        engine=engine,
        ledger=ledger,
        tokens=(tokens := Tokens(ledger, load_token_key(settings))),
        sessions=Sessions(ledger, tokens, key, _issuer(settings)),
        voters=voters,
        readiness=Readiness(engine, ledger, voters, policy),
        published_log=PublishedLog(ledger),
        labeling=labeling,
        history=history,
        queue=Queue(partial(students.answer_group, labeling), metrics, settings.max_waiting),
        requests=RateLimit(
            settings.requests_per_minute, "requests, or work that counts as so many,"
        ),
        replays=RateLimit(settings.replays_per_minute, "replayed queries"),
        failed_logins=RateLimit(settings.failed_logins_per_minute),
        metrics=metrics,
        scrape=SharedScrape(lambda: health.build_metrics(services)),
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await to_thread.run_sync(_warm_up, services)
        publisher = None
        if signer is not None:
            publisher = Publisher(
                ledger,
                signer,
                policy,
                settings.checkpoint_seconds,
                history,
                metrics,
            )
            publisher.start()
        if alone:
            gc.collect()
            gc.freeze()
        yield
        if publisher is not None:
            await to_thread.run_sync(publisher.stop)
        await to_thread.run_sync(voters.close)
        engine.dispose()

    app = FastAPI(
        title="Terrine",
        version=version("terrine"),
        summary="Labels from private teachers, within a privacy budget.",
        description="Every error is an RFC 9457 problem; `GET /problems` lists their types.",
        lifespan=lifespan,
        # These pages would load scripts from a third party's server.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.malformed = partial(middleware.answer_malformed, metrics, settings)
    app.add_middleware(
        middleware.RequestMiddleware,
        metrics=services.metrics,
        settings=settings,
        authenticate=partial(caller_check, services, admin.session_check),
        answer=admin.answer_failure,
    )
    for router in (
        students.router,
        ledger_routes.router,
        owner.router,
        ledger_routes.receipts_router,
        admin.router,
    ):
        app.include_router(router, dependencies=[Depends(refuse_unknown_parameters)])
    for router in (health.router, ledger_routes.transparency_router, *load_added("callbacks")):
        app.include_router(router)
    problems.install(app, admin.answer_failure)
    openapi.complete(app)
    return app


def _issuer(settings: Settings) -> Issuer | None:
    """Return whom callers may sign in through, if the settings of an add-on name one."""
    return next(filter(None, (make(settings) for make in load_added("issuer"))), None)


def _warm_up(services: Services) -> None:
    """Load every ensemble before the first request, and log which cannot be loaded."""
    try:
        for record in services.ledger.ensembles.list():
            services.voters.check(record)
            log.info("ensemble ready", ensemble=record.name)
        for found in services.ledger.verifier.verify_log().problems:
            log.error("not as logged", found=found)
    except ServiceError as error:
        log.error("not ready", problem=error.problem, cause=str(error))


# How long a server may take to start in a thread.
START_SECONDS = 120.0


@contextmanager
def serving(settings: Settings) -> Iterator[str]:
    """Serve on a free port as `terrine serve` would, but in a thread; yield the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    limits = replace(settings.limits, shutdown_seconds=5)
    config = uvicorn.Config(
        create_app(settings), **uvicorn_options(limits, settings.forwarded_allow_ips)
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="terrine-server")
    thread.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the server did not start; see its log")
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
