"""What the largest bodies cost a server in a process of its own: memory.

What others notice of them is measured by `benchmarks/attacks.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from support.clients import npy, npz
from support.servers import Machine, serving_process
from terrine_server.api.decoding import MAX_TEXT_BYTES

LIMIT = 16 << 20
MOST = 64 << 20
"""A body may cost so much memory."""


def status(process: int, field: str) -> int:
    """Return a figure of the process's memory, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


def filled(start: str, item: str, end: str, limit: int) -> bytes:
    """Return a text of almost `limit` bytes: `start`, as many items as fit, `end`."""
    count = (limit - len(start) - len(end)) // len(item)
    return (start + item * count).rstrip(",").encode() + end.encode()


def row(*shape: int) -> str:
    """Return the shortest text of an input, and a comma."""
    return json.dumps(np.zeros(shape, int).tolist()).replace(" ", "") + ","


def bodies() -> dict[str, tuple[str, bytes]]:
    """Return bodies for inputs of 8 by 8, each with its media type."""
    return {
        "json of as many inputs as are allowed": (
            "application/json",
            ('{"inputs":[' + row(8, 8) * 4095 + row(8, 8)[:-1] + "]}").encode(),
        ),
        "json": ("application/json", filled('{"inputs":[', row(8, 8), "]}", MAX_TEXT_BYTES)),
        "json of other shapes": (
            "application/json",
            filled('{"inputs":[', "[],", "]}", MAX_TEXT_BYTES),
        ),
        "json of other members": (
            "application/json",
            filled('{"inputs":[],"more":[', "{},", "]}", MAX_TEXT_BYTES),
        ),
        "json of long numbers": (
            "application/json",
            filled('{"inputs":[[[', "1e5,", "]]]}", MAX_TEXT_BYTES),
        ),
        "npy of bytes": ("application/x-npy", npy(np.zeros(((LIMIT >> 6) - 2, 8, 8), np.uint8))),
        "npy of doubles": ("application/x-npy", npy(np.zeros(((LIMIT >> 9) - 1, 8, 8)))),
        "npy of halves": ("application/x-npy", npy(np.zeros(((LIMIT >> 7) - 1, 8, 8), np.float16))),
        "npz": (
            "application/x-npz",
            npz(
                inputs=np.random.default_rng(0).integers(0, 17, ((LIMIT >> 6) - 9, 8, 8), np.uint8)
            ),
        ),
        "npz that unpacks to much more": (
            "application/x-npz",
            npz(inputs=np.zeros((LIMIT, 8, 8), np.uint8)),
        ),
    }


@pytest.mark.nightly
def test_no_body_costs_much_memory(
    served_machine: Machine, record_property: Callable[[str, object], None]
) -> None:
    headers = served_machine.student("kept", 50)
    with (
        serving_process(served_machine, max_body_bytes=LIMIT) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        process = server.pid

        def ask(kind: str, body: bytes) -> int:
            reply = http.post("/label", content=body, headers={"Content-Type": kind} | headers)
            assert reply.status_code in (200, 403, 413, 422), reply.text[:300]
            return reply.status_code

        def cost(kind: str, body: bytes) -> tuple[int, int]:
            """Return the status, and the peak in bytes."""
            assert len(body) <= (MAX_TEXT_BYTES if "json" in kind else LIMIT)
            Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak is now what is used
            before = status(process, "VmRSS")
            code = ask(kind, body)
            return code, status(process, "VmHWM") - before

        ask("application/x-npy", npy(np.ones((1, 8, 8), np.uint8)))
        for name, (kind, body) in bodies().items():
            code, peak = cost(kind, body)
            record_property("torture", f"{name}: {code}, peak {peak >> 20} MiB")
            assert peak <= MOST, name
