"""Talks to the server without the client, so that nothing is tidied up on the way."""

from __future__ import annotations

import io

import httpx
import numpy as np
from numpy.typing import NDArray
from patience import PATIENCE_SECONDS
from server import RunningServer

Array = NDArray[np.generic]


class Caller:
    """Speaks HTTP as the holder of one token, or of none."""

    def __init__(self, server: RunningServer, token: str | None) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_SECONDS)

    def label(self, inputs: Array, **more: Array) -> httpx.Response:
        """Ask in JSON."""
        body = {"inputs": inputs.tolist()} | {name: rows.tolist() for name, rows in more.items()}
        return self.http.post("/label", json=body)

    def send(self, content: bytes, kind: str) -> httpx.Response:
        """Ask with any bytes."""
        return self.http.post("/label", content=content, headers={"Content-Type": kind})


def npy(array: Array, *, allow_pickle: bool = False) -> bytes:
    """Return the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def npz(**arrays: Array) -> bytes:
    """Return the bytes of a compressed .npz file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def slug(response: httpx.Response) -> str:
    """Return the problem's type; the body must be a complete problem document."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]
    return str(problem["type"]).removeprefix("/problems/")
