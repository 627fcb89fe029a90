"""Responses that do not change: a client that kept one is told so instead of sent it again."""

from __future__ import annotations

import hashlib
import re

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from terrine_server.api.openapi import Responses

TAG = re.compile(r'(?:W/)?("[^"]*")')
UNCHANGED: Responses = {304: {"description": "Not Modified: what `If-None-Match` names."}}


def unchanging(request: Request, response: Response) -> Response:
    """Name a response by its body's digest; return 304 if the client has it (RFC 9110, 13.1.2).

    It may be kept, unlike others, but only by the client itself, which must ask each time: its
    token may have been revoked.
    """
    tag = f'"{hashlib.sha256(response.body).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Accept"}
    given = ",".join(request.headers.getlist("if-none-match"))
    if given.strip() == "*" or tag in TAG.findall(given):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response


def install(app: FastAPI) -> None:
    """Serve the OpenAPI document, which is the same as long as the process runs."""

    @app.get("/openapi.json", include_in_schema=False)
    def document(request: Request) -> Response:
        return unchanging(request, JSONResponse(app.openapi()))
