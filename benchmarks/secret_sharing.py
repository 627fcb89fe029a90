"""How long 1,000 owners take whose votes no one sees, and the same owners who show them.

    python benchmarks/secret_sharing.py [OWNERS]

Owners, aggregator and service are processes of this machine, and speak HTTP on its loopback. Owners
vote without thinking and cost as little as they can, since in truth each has a machine of its own;
all else is what serves. What the two servers compute once shares are there is timed alone, too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import uvicorn

from terrine_models.data.arrays import InputSpec
from terrine_models.teachers.federation import (
    Federation,
    federation_digest,
    read_token,
    save_federation,
)
from terrine_server.aggregator import OWNERS, SERVICE, Aggregator, make
from terrine_server.labeling import inference, shares
from terrine_server.labeling.aggregator_terms import TERMS, AggregatorTerms
from terrine_server.labeling.remote_voters import RemoteVoters
from terrine_server.labeling.shared_voters import SharedVoters, plausible
from terrine_server.ledger import EnsembleRecord

CLASSES, TIMES, SIGMA = 10, 11, 40.0
SPEC = InputSpec(shape=(64,), dtype="uint8", low=0, high=255)
OWNERS_AT, AGGREGATOR_AT = 8311, 8312


class ManyOwners:
    """All owners in one process: a vote is the first byte of an input, modulo the classes."""

    def __init__(self, tokens: list[str], terms: AggregatorTerms) -> None:
        self._tokens = tokens
        self._terms = terms.digest()
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part["body"], part.get("more_body", False)
        headers = dict(scope["headers"])
        length = headers[inference.HEADER_LENGTH.lower().encode()]
        labels = inference.inputs(body, int(length), SPEC)[:, 0].astype(np.int64) % CLASSES
        name, how = scope["path"].split("/")[-2:]
        if how == "infer":
            answer = inference.response(name, labels)
        else:
            ours, aggregators = shares.split(labels, CLASSES)
            of_round = headers[shares.ROUND.lower().encode()].decode()
            await self._put(of_round, self._tokens[int(name[6:])], aggregators)
            answer = shares.write(ours)
        length = str(len(answer)).encode()
        start = {"type": "http.response.start", "status": 200}
        await send({**start, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": answer})

    async def _put(self, of_round: str, token: str, share: shares.Share) -> None:
        body = shares.write(share)
        opened = self._idle.pop() if self._idle else None
        reader, writer = opened or await asyncio.open_connection("127.0.0.1", AGGREGATOR_AT)
        head = f"PUT /v1/rounds/{of_round}/share HTTP/1.1\r\nHost: aggregator\r\n"
        head += f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n"
        head += f"{TERMS}: {self._terms}\r\n{shares.SHAPE}: {shares.shape_of(share)}\r\n\r\n"
        writer.write(head.encode() + body)
        said = await reader.readuntil(b"\r\n\r\n")
        if b" 204 " not in said[:20]:
            raise RuntimeError(said.decode())
        self._idle.append((reader, writer))


def serve(app: Callable[[], Any], port: int) -> None:
    uvicorn.run(app(), port=port, log_level="critical", timeout_keep_alive=600, backlog=4096)


def started(app: Callable[[], Any], port: int) -> multiprocessing.Process:
    process = multiprocessing.Process(target=serve, args=(app, port), daemon=True)
    process.start()
    for _ in range(600):
        with suppress(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/")
            break
        time.sleep(0.1)
    return process


def median(call: Callable[[], Any], times: int = TIMES) -> float:
    """Return the median duration of a call, in milliseconds."""
    durations = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        durations.append(1000 * (time.perf_counter() - began))
    return float(np.median(durations))


def computing(aggregator: Aggregator, owners: int, rows: int) -> str:
    """Return what both servers compute for one round, without the network."""
    split = [shares.split(np.arange(rows) % CLASSES, CLASSES) for _ in range(owners)]
    ours, aggregators = ([shares.write(each) for each in side] for side in zip(*split, strict=True))

    def releases() -> Any:
        return aggregator._released([shares.read(each, rows, CLASSES) for each in aggregators])

    def opens() -> None:
        sums = opened.copy()
        for each in ours:
            sums += shares.read(each, rows, CLASSES)
        assert plausible(sums, owners, SIGMA)

    opened = releases()
    return (
        f"aggregator {median(releases):.1f} ms, durable count included; service {median(opens):.1f}"
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    names = [f"owner-{i}" for i in range(count)]
    with tempfile.TemporaryDirectory() as scratch:
        party, directory = Path(scratch, "party"), Path(scratch, "ward")
        given = {"owners": names, "classes": CLASSES, "sigma": SIGMA, "epsilon": 100, "delta": 1e-5}
        terms = AggregatorTerms.model_validate(given)
        make(terms, party)
        tokens = [read_token(party / OWNERS / f"{name}.token") for name in names]
        directory.mkdir()
        (directory / "aggregator.token").write_text(read_token(party / SERVICE))
        at = f"http://127.0.0.1:{OWNERS_AT}"
        federation = {
            "name": "ward",
            "input": SPEC.model_dump(),
            "classes": [str(label) for label in range(CLASSES)],
            "owners": [{"name": name, "url": at, "model": name, "binary": True} for name in names],
            "units": 100 * count,
            "disjoint_by": "position",
            "quorum": count,
            "timeout_seconds": 60,
            "salt": "0" * 64,
            "aggregator": {"url": f"http://127.0.0.1:{AGGREGATOR_AT}", "sigma": SIGMA},
        }
        save_federation(directory, Federation.model_validate(federation))
        facts = {"name": "ward", "path": "", "manifest_sha256": federation_digest(directory)}
        record = cast(EnsembleRecord, SimpleNamespace(**facts))
        processes = [
            started(lambda: ManyOwners(tokens, terms), OWNERS_AT),
            started(lambda: Aggregator(party).app(), AGGREGATOR_AT),
        ]
        shown, shared = RemoteVoters(directory), SharedVoters(directory)
        for rows in (1, 64, 512):
            x = np.random.default_rng(rows).integers(0, 256, (rows, 64)).astype(np.uint8)
            votes = shown.votes(record, x)
            noise = shared.votes(record, x).view(np.int32) - votes
            plain = median(lambda: shown.votes(record, x))  # noqa: B023
            hidden = median(lambda: shared.votes(record, x))  # noqa: B023
            print(
                f"{count} owners, {CLASSES} classes, {rows} inputs: p50 {hidden:.0f} ms "
                f"({hidden / rows:.1f} an input), with shown votes {plain:.0f} ms "
                f"({hidden / plain:.2f} times that); σ of the aggregator's noise "
                f"{noise.std():.1f}\n"
                f"  computing alone: {computing(Aggregator(party), count, rows)} ms"
            )
        for process in processes:
            process.terminate()


if __name__ == "__main__":
    main()
