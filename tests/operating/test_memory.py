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
from sklearn.datasets import load_digits

from support.clients import npy, npz
from support.servers import Machine, serving_process
from terrine_models.data.arrays import DIGITS, Dataset, InputSpec
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.training import train_ensemble
from terrine_server.api.decoding import MAX_TEXT_BYTES

LIMIT = 16 << 20
MOST = 64 << 20
"""A body may cost so much memory."""
PAGE = (28, 28)


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


def bodies_of_pages() -> dict[str, tuple[str, bytes]]:
    """Return bodies for inputs so large that a batch of them has more numbers than the text may."""
    return {
        "json of pages": (
            "application/json",
            filled('{"inputs":[', row(*PAGE), "]}", MAX_TEXT_BYTES),
        ),
        "json of pages of other numbers": (
            "application/json",
            filled('{"inputs":[', row(*PAGE), "[1e999]]}", MAX_TEXT_BYTES),
        ),
        "json of one page too wide": (
            "application/json",
            filled('{"inputs":[[[', "0,", "0]]]}", MAX_TEXT_BYTES),
        ),
    }


def pages(machine: Machine) -> dict[str, str]:
    """Register an ensemble on larger inputs; return the headers of a student of it."""
    digits = load_digits()
    images = np.pad(np.kron(digits.images[:40], np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    train_ensemble(
        Dataset(
            images.astype(np.uint8),
            digits.target[:40].astype(np.int64),
            DIGITS,
            InputSpec(shape=PAGE, dtype="uint8", low=0, high=16),
            name="pages",
        ),
        machine.data / "ensembles" / "pages",
        name="pages",
        teachers=4,
        config=Heads(width=10, augmentations=0),
    )
    cap = ("--epsilon", "20", "--delta", "1e-4")
    machine.run("ensemble", "register", "pages", *cap).fine  # noqa: B018
    return machine.student("read", 4096, ensemble="pages")


@pytest.mark.nightly
def test_no_body_costs_much_memory(
    served_machine: Machine, record_property: Callable[[str, object], None]
) -> None:
    kept, read = served_machine.student("kept", 50), pages(served_machine)
    with (
        serving_process(served_machine, max_body_bytes=LIMIT) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        process = server.pid

        def ask(kind: str, body: bytes, headers: dict[str, str]) -> int:
            reply = http.post("/label", content=body, headers={"Content-Type": kind} | headers)
            assert reply.status_code in (200, 403, 413, 422), reply.text[:300]
            return reply.status_code

        def cost(kind: str, body: bytes, headers: dict[str, str]) -> tuple[int, int]:
            """Return the status, and the peak in bytes."""
            assert len(body) <= (MAX_TEXT_BYTES if "json" in kind else LIMIT)
            Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak is now what is used
            before = status(process, "VmRSS")
            code = ask(kind, body, headers)
            return code, status(process, "VmHWM") - before

        small = np.ones((1, 8, 8), np.uint8), np.ones((1, *PAGE), np.uint8)
        for inputs, headers in zip(small, (kept, read), strict=True):
            ask("application/x-npy", npy(inputs), headers)
        for sent, headers in ((bodies(), kept), (bodies_of_pages(), read)):
            for name, (kind, body) in sent.items():
                code, peak = cost(kind, body, headers)
                record_property("torture", f"{name}: {code}, peak {peak >> 20} MiB")
                assert peak <= MOST, name
