"""Owners behind one real socket, each a model of its own, who may misbehave."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from terrine_addons.federation import inference
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
        head = request.headers.get(inference.HEADER_LENGTH)
        x = inference.decode_inputs(await request.body(), int(head) if head else None, spec)
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
