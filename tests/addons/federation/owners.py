"""Owners behind one real socket, each a model of its own, who may misbehave; and an aggregator."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from terrine_addons.federation import voters
from terrine_addons.federation.aggregator import OWNERS, Aggregator, make
from terrine_addons.federation.federations import Federation, read_token
from terrine_addons.federation.voters import TERMS, AggregatorTerms
from terrine_models.data.arrays import InputSpec
from terrine_models.teachers.ensemble import Ensemble

Labels = Callable[[NDArray[Any]], NDArray[np.int64]]
"""Inputs `[B, …]` to the choices `[B, n]` of all owners."""


def choices(ensemble: Ensemble, x: NDArray[Any]) -> NDArray[np.int64]:
    """Return what each teacher of an ensemble chooses, as its own voting computes it."""
    import torch

    choose, found, size = ensemble.voting.choose, [], ensemble.voting.block
    for at in range(0, len(x), size):
        part = x[at : at + size]
        block = np.zeros((size, *x.shape[1:]), x.dtype)
        block[: len(part)] = part
        with torch.inference_mode():
            found.append(choose(torch.from_numpy(block)).numpy()[: len(part)])
    return np.concatenate(found)


@dataclass
class ManyOwners:
    """`behaviour` by owner's number; nothing there means that it answers as it should."""

    url: str
    classes: int
    behaviour: dict[int, str] = field(default_factory=dict)
    asked: int = 0
    speak: threading.Event = field(default_factory=threading.Event)
    """Until when those are silent who behave so."""

    def body(self, number: int, labels: NDArray[np.int64]) -> bytes:
        """Return what an owner sends, as it behaves."""
        rows = len(labels)
        tensor: dict[str, Any] = {
            "name": "label",
            "datatype": "INT64",
            "shape": [rows],
            "data": labels.tolist(),
        }
        scores = {**tensor, "datatype": "FP32", "shape": [rows, self.classes]}
        match self.behaviour.get(number, "sound"):
            case "other votes":
                tensor["data"] = ((labels + 1) % self.classes).tolist()
            case "scores":
                tensor = {**scores, "data": np.eye(self.classes)[labels].ravel().tolist()}
            case "no class":
                tensor["data"] = [self.classes] * rows
            case "below":
                tensor["data"] = [-1] * rows
            case "fractions":
                tensor["data"] = [0.5] * rows
            case "too many":
                tensor |= {"shape": [rows + 1], "data": [0] * (rows + 1)}
            case "too few numbers":
                tensor["data"] = tensor["data"][1:]
            case "infinite":
                tensor = {**scores, "data": [1e400] * (rows * self.classes)}
            case "nan":
                text = ",".join(["NaN"] * (rows * self.classes))
                head = msgspec.json.encode({"outputs": [{**scores, "data": []}]})
                return head.replace(b'"data":[]', f'"data":[{text}]'.encode())
            case "null":
                tensor = {**scores, "data": [None] * (rows * self.classes)}
            case "huge":
                tensor["data"] = [2**70] * rows
            case "nothing":
                return b""
            case "text":
                return b"<html>out of order</html>"
            case "deep":
                return b'{"outputs":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
            case "two outputs":
                return msgspec.json.encode({"outputs": [tensor, tensor]})
        return msgspec.json.encode({"outputs": [tensor]})


WITHOUT_A_CLASS = ("no class", "below", "fractions", "infinite", "nan", "null", "huge")
"""Behaviours of an owner who is there, and whose outputs choose no class."""
FAILING: tuple[str, ...] = ("too many", "too few numbers")
FAILING += ("nothing", "text", "deep", "two outputs", "status", "reset", "endless", "stall", "drip")
"""Behaviours that make an owner absent."""


@contextmanager
def listening(app: Starlette) -> Iterator[str]:
    """Serve an app in a thread, on a free port; yield its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    # uvicorn's own configuration of logs would close the handlers of all libraries that were
    # imported. That of absl closes its stream: what pytest captures stderr in, for good.
    config = uvicorn.Config(app, log_config=None, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def many_owners(vote: Labels, spec: InputSpec, classes: int) -> Iterator[ManyOwners]:
    """Serve owners 0, 1, … as the models `owner-0`, `owner-1`, … on a free port."""
    known: dict[bytes, NDArray[np.int64]] = {}
    owners = ManyOwners("", classes)

    async def infer(request: Request) -> Response:
        number = int(request.path_params["number"])
        head = request.headers.get(voters.HEADER_LENGTH)
        x = voters.decode_inputs(await request.body(), int(head) if head else None, spec)
        owners.asked += 1
        behaves = owners.behaviour.get(number)
        if behaves == "status":
            return Response(status_code=500)
        if behaves == "stall":
            await asyncio.sleep(30)
        while behaves == "silent" and not owners.speak.is_set():
            await asyncio.sleep(0.01)
        if behaves in ("reset", "endless", "drip"):
            return StreamingResponse(_misbehaving(behaves))
        if x.tobytes() not in known:
            known[x.tobytes()] = vote(x)
        return Response(owners.body(number, known[x.tobytes()][:, number]))

    app = Starlette(routes=[Route("/v2/models/owner-{number}/infer", infer, methods=["POST"])])
    with listening(app) as owners.url:
        yield owners


async def _misbehaving(behaves: str) -> Any:
    yield b'{"outputs":['
    if behaves == "reset":
        raise ConnectionResetError
    while True:
        yield b" " * (1 if behaves == "drip" else 1_000_000)
        await asyncio.sleep(0.05 if behaves == "drip" else 0)


@dataclass
class SharingOwners:
    """`behaviour` by owner's number; nothing there means that it shares as it should.

    `seen`: what each round's owners sent to the service and to the aggregator.
    """

    url: str
    terms: AggregatorTerms
    aggregator_url: str
    tokens: Sequence[str]
    behaviour: dict[int, str] = field(default_factory=dict)
    split: Callable[..., tuple[voters.Share, voters.Share]] = voters.split_votes
    seen: list[tuple[voters.Share, voters.Share]] = field(default_factory=list)

    async def share(
        self, http: httpx.AsyncClient, number: int, name: str, labels: NDArray[np.int64]
    ) -> Response:
        """Vote, share, and answer as this owner behaves."""
        behaves = self.behaviour.get(number, "sound")
        ours, aggregators = self.split(labels, self.terms.classes)
        if behaves == "lies":
            ours = ours + np.arange(1, self.terms.classes + 1, dtype=np.uint32) * np.uint32(10_000)
        self.seen.append((ours, aggregators))
        if behaves == "status":
            return Response(status_code=500)
        if behaves != "without the aggregator":
            kept = await http.put(
                f"{self.aggregator_url}/v1/rounds/{name}/share",
                content=voters.encode_share(aggregators)[
                    : -1 if behaves == "aggregator's is short" else None
                ],
                headers={
                    "Authorization": f"Bearer {self.tokens[number]}",
                    TERMS: self.terms.digest(),
                    voters.SHAPE: voters.shape_of(aggregators),
                },
            )
            if kept.status_code != 204:
                return Response(kept.content, 502)
        return Response(voters.encode_share(ours)[: -4 if behaves == "short" else None])


def shared_federation(owners: SharingOwners, spec: InputSpec, quorum: int) -> Federation:
    """Describe these owners, whose votes are added up with the aggregator."""
    names = owners.terms.owners
    return Federation.model_validate(
        {
            "name": "ward",
            "input": spec.model_dump(),
            "classes": [str(number) for number in range(owners.terms.classes)],
            "owners": [
                {"name": name, "url": owners.url, "model": name, "binary": True} for name in names
            ],
            "units": 1000,
            "disjoint_by": "each hospital has its own patients",
            "quorum": quorum,
            "timeout_seconds": 30,
            "salt": "0" * 64,
            "aggregator": {"url": owners.aggregator_url, "sigma": owners.terms.sigma},
        }
    )


def owner_tokens(directory: Path, terms: AggregatorTerms) -> list[str]:
    """Return the tokens of an aggregator's owners, in their order."""
    return [read_token(directory / OWNERS / f"{name}.token") for name in terms.owners]


def sharing_app(vote: Labels, spec: InputSpec, owners: SharingOwners) -> Starlette:
    """Return the routes of owners 0, 1, … as the models `owner-0`, `owner-1`, …"""
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    http = httpx.AsyncClient(timeout=30, trust_env=False, limits=limits)
    known: dict[bytes, NDArray[np.int64]] = {}

    async def labels(request: Request) -> NDArray[np.int64]:
        number = int(request.path_params["number"])
        head = request.headers.get(voters.HEADER_LENGTH)
        body = await request.body()
        if body not in known:
            known[body] = vote(voters.decode_inputs(body, int(head) if head else None, spec))
        return known[body][:, number]

    async def share(request: Request) -> Response:
        number, name = int(request.path_params["number"]), request.headers[voters.ROUND]
        return await owners.share(http, number, name, await labels(request))

    async def infer(request: Request) -> Response:
        return Response(voters.encode_response("any", await labels(request)))

    model = "/v2/models/owner-{number}"
    return Starlette(
        routes=[
            Route(f"{model}/share", share, methods=["POST"]),
            Route(f"{model}/infer", infer, methods=["POST"]),
        ]
    )


@contextmanager
def sharing_owners(
    vote: Labels, spec: InputSpec, terms: AggregatorTerms, directory: Path
) -> Iterator[tuple[SharingOwners, Aggregator]]:
    """Make an aggregator in `directory`, and serve it and its owners."""
    make(terms, directory)
    aggregator = Aggregator(directory)
    with ExitStack() as stack:
        aggregator_url = stack.enter_context(listening(aggregator.app()))
        owners = SharingOwners("", terms, aggregator_url, owner_tokens(directory, terms))
        owners.url = stack.enter_context(listening(sharing_app(vote, spec, owners)))
        yield owners, aggregator
