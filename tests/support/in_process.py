"""The service in the test's own process: real requests, but no socket in between."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI


class InProcess:
    """Sends requests to applications, each with a token or none.

    One event loop serves them all, so that its threads serve one request after the other, as in a
    server: they end with the loop.
    """

    def __init__(self) -> None:
        self._running: AbstractContextManager[BlockingPortal] = start_blocking_portal()

    def __enter__(self) -> InProcess:
        self._portal = self._running.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running.__exit__(kind, error, traceback)

    def __call__(
        self, app: FastAPI, method: str, path: str, token: str = "", **request: Any
    ) -> httpx.Response:
        if token:
            given = request.pop("headers", {})
            request["headers"] = given | {"Authorization": f"Bearer {token}"}
        reply: httpx.Response = self._portal.call(_send, app, method, path, request)
        return reply


async def _send(app: FastAPI, method: str, path: str, request: dict[str, Any]) -> httpx.Response:
    # The reply to a defect is wanted, not the defect.
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://terrine") as http:
        return await http.request(method, path, **request)
