"""What the largest bodies cost a server in a process of its own: memory, and others' time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from caller import npy, npz
from enrolled import student
from machine import Machine
from serving import serving, until

JSON_LIMIT, LIMIT = 4 << 20, 16 << 20
TIMES = 8
"""A body may cost so many times its limit."""
HEALTH_SECONDS = 1.0
"""Far more than it takes: the machine has other things to do."""


def status(process: int, field: str) -> int:
    """Return a figure of the process's memory, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


def filled(start: str, item: str, end: str, limit: int) -> bytes:
    """Return a text of almost `limit` bytes: `start`, as many items as fit, `end`."""
    count = (limit - len(start) - len(end)) // len(item)
    return (start + item * count).rstrip(",").encode() + end.encode()


ROW = json.dumps(np.zeros((8, 8), int).tolist()).replace(" ", "") + ","
BODIES = {
    "json of as many inputs as are allowed": (
        "application/json",
        ('{"inputs":[' + ROW * 4095 + ROW[:-1] + "]}").encode(),
    ),
    "json": ("application/json", filled('{"inputs":[', ROW, "]}", JSON_LIMIT)),
    "json of other shapes": ("application/json", filled('{"inputs":[', "[],", "]}", JSON_LIMIT)),
    "json of other members": (
        "application/json",
        filled('{"inputs":[],"more":[', "{},", "]}", JSON_LIMIT),
    ),
    "json of long numbers": (
        "application/json",
        filled('{"inputs":[[[', "1e5,", "]]]}", JSON_LIMIT),
    ),
    "npy of bytes": ("application/x-npy", npy(np.zeros(((LIMIT >> 6) - 2, 8, 8), np.uint8))),
    "npy of doubles": ("application/x-npy", npy(np.zeros(((LIMIT >> 9) - 1, 8, 8)))),
    "npy of halves": ("application/x-npy", npy(np.zeros(((LIMIT >> 7) - 1, 8, 8), np.float16))),
    "npz": (
        "application/x-npz",
        npz(inputs=np.random.default_rng(0).integers(0, 17, ((LIMIT >> 6) - 9, 8, 8), np.uint8)),
    ),
    "npz that unpacks to much more": (
        "application/x-npz",
        npz(inputs=np.zeros((LIMIT, 8, 8), np.uint8)),
    ),
}


@contextmanager
def health(url: str) -> Iterator[Callable[[], float]]:
    """Ask all the while whether the server is alive; yield what the slowest hundredth took."""
    took, done = list[float](), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            while not done.is_set():
                began = time.monotonic()
                assert http.get("/healthz").status_code == 200
                took.append(time.monotonic() - began)
                time.sleep(0.002)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield lambda: float(np.quantile(until(lambda: took, bool), 0.99))
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_body_costs_many_times_its_limit_or_others_their_time(
    served_machine: Machine, record_property: Callable[[str, object], None]
) -> None:
    headers = student(served_machine, "kept", 50)
    limits = {"max_body_bytes": LIMIT, "max_json_bytes": JSON_LIMIT}
    with (
        serving(served_machine, before=None, **limits) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=120) as http,
    ):
        process = server.process.pid
        small = {"Content-Type": "application/x-npy"}
        http.post("/label", content=npy(np.ones((1, 8, 8), np.uint8)), headers=small)
        for name, (kind, body) in BODIES.items():
            limit = JSON_LIMIT if "json" in kind else LIMIT
            assert len(body) <= limit
            Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak is now what is used
            before = status(process, "VmRSS")
            with health(server.url) as slowest:
                reply = http.post("/label", content=body, headers={"Content-Type": kind})
                seconds = slowest()
            peak = (status(process, "VmHWM") - before) / limit
            record_property(
                "torture",
                f"{name}: {reply.status_code}, peak {peak:.1f} x its limit, "
                f"/healthz p99 {1000 * seconds:.0f} ms",
            )
            assert reply.status_code in (200, 403, 413, 422), reply.text[:300]
            assert peak <= TIMES, name
            assert seconds < HEALTH_SECONDS, name
