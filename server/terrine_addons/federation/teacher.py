"""One owner's server: answers the service that gathers votes, and nobody else.

Its answers are not private: they are what a model trained on private records says. Only who has the
token gets them.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import structlog
from anyio import CapacityLimiter, to_thread
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from terrine_addons.federation.inference import (
    DATATYPES,
    HEADER_LENGTH,
    InferenceError,
    decode_inputs,
    encode_response,
)
from terrine_models.storage.manifests import StoreError
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.manifests import VotingError
from terrine_server.serving import Limits
from terrine_server.serving.bodies import Guard, limits_for

log = structlog.get_logger("terrine")

# Of a request's body.
MAX_BODY_BYTES = 64 * 2**20
LIMITS = limits_for(1)


class Teacher:
    """An ensemble in a directory, as one teacher: it votes as most of its teachers do."""

    def __init__(self, directory: Path, model: str, token: str) -> None:
        """Verify and load it. Raises StoreError."""
        self.ensemble = Ensemble.load(directory)
        self.model = model
        self._token = token.encode()
        self._voting = CapacityLimiter(1)

    def app(self, limits: Limits = LIMITS) -> Starlette:
        """Return the server's routes: those of the Open Inference Protocol that are needed."""
        model = f"/v2/models/{self.model}"
        return Starlette(
            routes=[
                Route("/v2/health/live", self._alive),
                Route("/v2/health/ready", self._alive),
                Route(f"{model}/ready", self._alive),
                Route(model, self._metadata),
                Route(f"{model}/infer", self._infer, methods=["POST"]),
            ],
            middleware=[Middleware(Guard, limits, MAX_BODY_BYTES, self._caller)],
        )

    def _caller(self, headers: Mapping[bytes, bytes]) -> str | None:
        given = headers.get(b"authorization", b"")
        return "service" if hmac.compare_digest(given, b"Bearer " + self._token) else None

    async def _alive(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def _metadata(self, request: Request) -> Response:
        if not self._allowed(request):
            return _refuse(401, "This needs the token of this teacher (Authorization: Bearer).")
        spec = self.ensemble.manifest.input
        tensor = {
            "name": "input",
            "datatype": DATATYPES[spec.dtype],
            "shape": [-1, *spec.shape],
        }
        label = {"name": "label", "datatype": "INT64", "shape": [-1]}
        return JSONResponse(
            {"name": self.model, "platform": "terrine", "inputs": [tensor], "outputs": [label]}
        )

    async def _infer(self, request: Request) -> Response:
        if not self._allowed(request):
            return _refuse(401, "This needs the token of this teacher (Authorization: Bearer).")
        body = await request.body()
        head = request.headers.get(HEADER_LENGTH)
        if head is not None and not head.isdecimal():
            return _refuse(400, f"{HEADER_LENGTH} is not a number of bytes.")
        length = None if head is None else int(head)
        try:
            found = await to_thread.run_sync(self._labels, body, length, limiter=self._voting)
        except InferenceError as error:
            return _refuse(400, f"The request is refused: {error}.")
        except (VotingError, StoreError) as error:
            log.warning("imported teachers did not vote", cause=str(error))
            return _refuse(503, "The teachers did not vote. Retry later.")
        return Response(encode_response(self.model, found), media_type="application/json")

    def _labels(self, body: bytes, header_length: int | None) -> NDArray[np.int64]:
        spec = self.ensemble.manifest.input
        x = decode_inputs(body, header_length, spec)
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise InferenceError("inputs that are not finite")
        chosen: NDArray[np.int64] = self.ensemble.votes(x.astype(spec.dtype)).argmax(axis=1)
        return chosen

    def _allowed(self, request: Request) -> bool:
        return self._caller(dict(request.headers.raw)) is not None


def _refuse(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status_code=status)
