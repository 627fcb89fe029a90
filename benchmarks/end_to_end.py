"""What the service adds to the teachers' voting, end to end over HTTP, beside its peers.

    python benchmarks/end_to_end.py [--rounds 5] [--seconds 3] [--postgresql] [--ray]

Throughput: 8 clients that each send 64 new inputs again and again, beside the bare ensemble on
batches of 512 in its own process: for separate networks, and for heads on shared features, which
vote faster than Python reads requests. With `--ray`, also votes of two actors of a Ray cluster.
Latency: single new inputs to a tiny ensemble, beside a FastAPI route that reads the body and
replies at once, served in the same way. Stages are those of `GET /metrics`: a group of requests
shares all but the first, and waits in them for processors, locks and the disk.

On SQLite or, with `--postgresql`, on PostgreSQL. MNIST is looked for as `datasets.py` says; without
it, scikit-learn's digits are used. Networks see few images, for one epoch: that does not change how
fast they vote.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import httpx
import numpy as np
import typer
from numpy.typing import NDArray

from datasets import SHARED, first_rows
from serving import CHEAP, LabelConnection, Service, in_turn, install, ratios, train
from support.data import known_digits
from support.databases import running_postgres
from terrine_experiments.sources import load
from terrine_models.data.arrays import Dataset
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Heads, Networks

CLIENTS = 8
BATCH = 64
LEAST_RATE = 0.45
"""What we aim at: of the bare ensemble's rate with 250 heads."""
MOST_LATENCY = 8
"""What we aim at: of the no-op route's median."""
STAGE = re.compile(r'terrine_stage_seconds_sum\{stage="(\w+)"\} (\S+)')
HEADS, NETWORKS = 250, 100
"""Teachers of each kind."""
RECORDS = 24
"""Training images of each network."""
ACTORS = 2
NOOP = """
import uvicorn
from fastapi import FastAPI, Request
from terrine_server import logs
from terrine_server.serving.connections import uvicorn_options
from terrine_server.settings import Settings

app = FastAPI()

@app.get("/readyz")
async def readyz():
    return {}

@app.post("/label")
async def label(request: Request):
    return {"bytes": len(await request.body())}

logs.configure("info")
settings = Settings()
uvicorn.run(app, host="127.0.0.1", port=settings.port, **uvicorn_options(settings.limits))
"""


def main(rounds: int = 5, seconds: float = 3, postgresql: bool = False, ray: bool = False) -> None:
    """Measure for so many seconds per line and round."""
    private, public = pictures()
    few = first_rows(private, RECORDS * NETWORKS), public
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(running_postgres()) if postgresql else None

        def opened(
            name: str, data: tuple[Dataset, Dataset], teachers: int, config: Heads | Networks
        ) -> Service:
            url = None if server is None else server.url(stack.enter_context(server.database()))
            ensemble = train(home / name, *data, teachers, config)
            service = install(home / name, ensemble, url, requests_per_minute=10**9)
            service.open_project(mechanism=CHEAP, epsilon=40.0)
            print(f"{data[0].name}, {teachers} {config.kind}", flush=True)
            return service

        throughput(opened("networks", few, NETWORKS, Networks(epochs=1)), rounds, seconds, ray)
        heads = opened("heads", (private, public), HEADS, Heads())
        throughput(heads, rounds, seconds, ray, LEAST_RATE)
        latency(opened("tiny", table(), 5, Heads()), rounds, seconds)


def pictures() -> tuple[Dataset, Dataset]:
    """MNIST where it is there, else digits: training data, and what students ask."""
    if not (SHARED / "mnist").is_dir():
        return known_digits(slice(1200)), known_digits(slice(1200, None))
    source = load("mnist", SHARED / "mnist")
    return source.private, source.test


def table() -> tuple[Dataset, Dataset]:
    """scikit-learn's digits as rows of a table: its columns are the features."""

    def flat(rows: slice) -> Dataset:
        of = known_digits(rows)
        spec = of.spec.model_copy(update={"shape": (64,)})
        return replace(of, inputs=of.inputs.reshape(-1, 64), spec=spec)

    return flat(slice(1200)), flat(slice(1200, None))


def throughput(
    service: Service, rounds: int, seconds: float, with_ray: bool, aim: float | None = None
) -> None:
    images, token = service.ensemble.public, service.token()
    sources = [np.random.default_rng(client) for client in range(CLIENTS)]
    ensemble = Ensemble.load(service.ensemble.directory)
    asked = f"POST /label, {CLIENTS} clients x {BATCH}"
    with ExitStack() as stack:
        url = stack.enter_context(service.serve())
        spent = Stages(url, service.token("auditor"))
        lines = {
            "bare ensemble, batches of 512": partial(bare_rate, ensemble, images, seconds),
            asked: partial(query_rate, url, token, images, sources, spent, seconds),
        }
        if with_ray:
            cluster = stack.enter_context(service.serve("ray", voters="ray", ray_actors=ACTORS))
            on_ray = partial(query_rate, cluster, token, images, sources, None, seconds)
            lines[f"the same, with {ACTORS} actors of Ray"] = on_ray
        found = in_turn(lines, rounds)
    print("  queries per second, and what that is of the line above")
    above: Sequence[float] = ()
    for what, rates in found.items():
        beside = ratios(rates, above) if above else ""
        goal = f"   aim: {aim}" if what == asked and aim else ""
        print(f"  {what:45} {median(rates):10,.0f}   {beside}{goal}")
        above = rates
    print(f"      {spent}", flush=True)


class Stages:
    """Adds up what the stages of a server took while it is entered, and its requests."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.headers = f"{url}/metrics", {"Authorization": f"Bearer {token}"}
        self.took: dict[str, float] = defaultdict(float)
        self.requests = 0.0

    def __enter__(self) -> None:
        self._read(-1)

    def __exit__(self, *_: object) -> None:
        self._read(1)

    def _read(self, sign: int) -> None:
        text = httpx.get(self.url, headers=self.headers, timeout=60).text
        for stage, seconds in STAGE.findall(text):
            self.took[stage] += sign * 1e3 * float(seconds)
        count = re.search(r'terrine_stage_seconds_count\{stage="decode"\} (\S+)', text)
        self.requests += sign * float(count[1]) if count else 0

    def __str__(self) -> str:
        each = (f"{stage} {took / self.requests:.2f}" for stage, took in self.took.items())
        return f"milliseconds a request: {', '.join(each)}"


def bare_rate(ensemble: Ensemble, images: NDArray[np.uint8], seconds: float) -> float:
    """Images per second that the bare ensemble votes on, in batches of 512."""
    batch = perturbed(images, CLIENTS * BATCH, np.random.default_rng(0))
    ensemble.votes(batch)
    votes, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        ensemble.votes(batch)
        votes += len(batch)
    return votes / (time.perf_counter() - started)


def query_rate(
    url: str,
    token: str,
    images: NDArray[np.uint8],
    sources: Sequence[np.random.Generator],
    spent: Stages | None,
    seconds: float,
) -> float:
    """Queries answered per second, with one client for each of the sources.

    A request counts by the share of its time that lies within the measurement.
    """
    start = time.perf_counter() + seconds / 5  # warm up until then
    end = start + seconds

    def ask(source: np.random.Generator) -> float:
        connection, answered = LabelConnection(url, token), 0.0
        while (sent := time.perf_counter()) < end:
            connection.label(perturbed(images, BATCH, source))
            done = time.perf_counter()
            answered += max(0, min(done, end) - max(sent, start)) / (done - sent)
        return answered

    with ThreadPoolExecutor(len(sources)) as pool, spent or nullcontext():
        return sum(pool.map(ask, sources)) * BATCH / seconds


def latency(service: Service, rounds: int, seconds: float) -> None:
    images, token, source = service.ensemble.public, service.token(), np.random.default_rng(0)
    with ExitStack() as stack:
        nothing = stack.enter_context(service.serve("noop", (sys.executable, "-c", NOOP)))
        url = stack.enter_context(service.serve())
        spent = Stages(url, service.token("auditor"))
        clients = {"no-op FastAPI route": nothing, "POST /label": url}
        lines = {
            what: partial(single_query_times, LabelConnection(to, token), images, source)
            for what, to in clients.items()
        }
        for measure in lines.values():
            measure(0.5)  # warm up
        with spent:
            found = in_turn({what: partial(each, seconds) for what, each in lines.items()}, rounds)
    print("  single queries, one client: milliseconds")
    middles = {what: [float(np.median(each)) for each in times] for what, times in found.items()}
    for what, times in found.items():
        usual, slow = np.median(np.concatenate(times)), np.percentile(np.concatenate(times), 99)
        tails = ratios([float(np.percentile(each, 99)) for each in times], middles[what])
        of_noop = ratios(middles[what], middles["no-op FastAPI route"])
        print(
            f"  {what:22} p50 {usual:6.2f}   p99 {slow:6.2f}   "
            f"p50 of no-op {of_noop}   p99 of own p50 {tails}"
        )
    print(f"  aim: at most {MOST_LATENCY} times the no-op route")
    print(f"  {spent}")


def single_query_times(
    client: LabelConnection, images: NDArray[np.uint8], source: np.random.Generator, seconds: float
) -> NDArray[np.float64]:
    """Milliseconds of each single query, one after another for the given time."""
    took: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        image = perturbed(images, 1, source)
        started = time.perf_counter()
        client.label(image)
        took.append(1e3 * (time.perf_counter() - started))
    return np.array(took)


def perturbed(
    images: NDArray[np.uint8], count: int, source: np.random.Generator
) -> NDArray[np.uint8]:
    """Return images that were never sent before: a few pixels differ."""
    chosen = images[source.integers(0, len(images), count)].copy()
    flat = chosen.reshape(count, -1)
    for _ in range(6):
        pixels = source.integers(0, flat.shape[1], count)
        flat[np.arange(count), pixels] = source.integers(0, 17, count)
    return chosen


if __name__ == "__main__":
    typer.run(main)
