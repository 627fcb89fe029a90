"""The service in the test's own process: real requests, but no socket in between."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import httpx
from fastapi import FastAPI


class InProcess:
    """Sends requests to applications, each with a token or none."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __enter__(self) -> InProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._runner.close()

    def __call__(
        self, app: FastAPI, method: str, path: str, token: str = "", **request: Any
    ) -> httpx.Response:
        if token:
            given = request.pop("headers", {})
            request["headers"] = given | {"Authorization": f"Bearer {token}"}
        return self._runner.run(_send(app, method, path, **request))


async def _send(app: FastAPI, method: str, path: str, **request: Any) -> httpx.Response:
    # The reply to a defect is wanted, not the defect.
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://terrine") as http:
        return await http.request(method, path, **request)
