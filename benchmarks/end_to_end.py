"""What the service adds to the teachers' voting, end to end over HTTP, beside its peers.

Throughput: 8 clients that each send 64 new inputs again and again, beside the bare ensemble on
batches of 512 in its own process: for separate networks, and for heads on shared features, which
vote faster than Python reads requests. Latency: single new inputs to a tiny ensemble, one after
another, beside a FastAPI route that reads the body and replies at once, served in the same way. The
difference consists of a check of the token, two look-ups and a durable commit.

Each is measured beside what we aim at, and with the time that the stages took, as `GET /metrics`
says it: a group of requests shares all stages but the first, and waits in them for processors,
locks and the disk. All are measured in turn and compared within each round, because the speed of a
machine varies.

On SQLite, in a temporary directory, or with `--postgresql` on PostgreSQL (needs the development
extra). MNIST is read from TERRINE_SHARED_DATA, else from ../shared/data; without it, scikit-learn's
digits are used. Networks see few images, for one epoch: that does not change how fast they vote.

    python benchmarks/end_to_end.py [--rounds 5] [--seconds 3] [--postgresql]
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from datasets import Material, digits, first, pictures
from terrine_models.features.maps import PublicData
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Heads, Networks
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import EnsembleRegister, ProjectOpen, Role, TokenCreate
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.owner.sign_in import Tokens, load_secret_key, make_secret_key
from terrine_server.settings import Settings

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.databases import running_postgres

CLIENTS = 8
BATCH = 64
LEAST_RATE = 0.45
"""What we aim at: of the bare ensemble's rate with 250 heads."""
MOST_LATENCY = 8
"""What we aim at: of the no-op route's median."""
STAGE = re.compile(r'terrine_stage_seconds_sum\{stage="(\w+)"\} (\S+)')
HEADS = 250
"""Teachers."""
NETWORKS = 100
"""Teachers."""
RECORDS = 24
"""Training images of each network."""
SERVE = [sys.executable, "-m", "terrine_server", "serve", "--port", "0"]
NOOP = """
import sys, uvicorn
from fastapi import FastAPI, Request
from terrine_server import logs
from terrine_server.serving.bounds import options
from terrine_server.settings import Settings

app = FastAPI()

@app.post("/label")
async def label(request: Request):
    return {"bytes": len(await request.body())}

logs.configure("info")
uvicorn.run(app, host="127.0.0.1", port=0, **options(Settings().limits))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="per line and round")
    parser.add_argument("--postgresql", action="store_true", help="instead of SQLite")
    options = parser.parse_args()
    rounds = [options.seconds] * options.rounds
    material = pictures()
    few = replace(material, private=first(material.private, RECORDS * NETWORKS))
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(running_postgres()) if options.postgresql else None

        def database() -> str | None:
            return None if server is None else server.url(stack.enter_context(server.database()))

        throughput(home / "networks", few, NETWORKS, Networks(epochs=1), rounds, database())
        throughput(home / "heads", material, HEADS, Heads(), rounds, database())
        latency(home / "tiny", rounds, database())


def throughput(
    home: Path,
    material: Material,
    teachers: int,
    config: Heads | Networks,
    rounds: Sequence[float],
    database_url: str | None,
) -> None:
    settings = open_service(home, material, teachers, config, database_url)
    ensemble = Ensemble.load(settings.ensembles_dir / "bench")
    sources = [np.random.default_rng(client) for client in range(CLIENTS)]
    token, auditor = student_token(settings), auditor_token(settings)
    with served(SERVE, settings, "server.log") as url:
        spent = Stages(url, auditor)
        bare, asked = [], []
        for seconds in rounds:
            bare.append(bare_rate(ensemble, material.images, seconds))
            with spent:
                asked.append(query_rate([url], token, material.images, BATCH, seconds, sources))
    print(f"{material.name}, {teachers} {config.kind}: queries per second")
    print(f"  {'bare ensemble, batches of 512':45} {median(bare):10,.0f}")
    what = f"POST /label, {CLIENTS} clients x {BATCH}"
    ratios = [rate / alone for rate, alone in zip(asked, bare, strict=True)]
    aim = f"   aim: {LEAST_RATE}" if config.kind == "heads" else ""
    print(f"  {what:45} {median(asked):10,.0f}   {compared(ratios)}{aim}")
    print(f"      {spent}")


class Stages:
    """Adds up what the stages of a server took while it is entered, and its requests."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.headers = url, {"Authorization": f"Bearer {token}"}
        self.took: dict[str, float] = defaultdict(float)
        self.requests = 0.0

    def __enter__(self) -> None:
        self._read(-1)

    def __exit__(self, *_: object) -> None:
        self._read(1)

    def _read(self, sign: int) -> None:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        connection.request("GET", "/metrics", headers=self.headers)
        text = connection.getresponse().read().decode()
        connection.close()
        for stage, seconds in STAGE.findall(text):
            self.took[stage] += sign * 1e3 * float(seconds)
        count = re.search(r'terrine_stage_seconds_count\{stage="decode"\} (\S+)', text)
        self.requests += sign * float(count[1]) if count else 0

    def __str__(self) -> str:
        each = (f"{stage} {took / self.requests:.2f}" for stage, took in self.took.items())
        return f"milliseconds a request: {', '.join(each)}"


def compared(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


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
    urls: Sequence[str],
    token: str,
    images: NDArray[np.uint8],
    batch: int,
    seconds: float,
    sources: Sequence[np.random.Generator],
) -> float:
    """Queries answered per second, with one client for each of the sources.

    The clients are spread over the addresses. A request counts by the share of its time that lies
    within the measurement.
    """
    start = time.perf_counter() + seconds / 5  # warm up until then
    end = start + seconds

    def ask(client: int) -> float:
        connection, answered = LabelConnection(urls[client % len(urls)], token), 0.0
        while (sent := time.perf_counter()) < end:
            connection.label(perturbed(images, batch, sources[client]))
            done = time.perf_counter()
            answered += max(0, min(done, end) - max(sent, start)) / (done - sent)
        return answered

    with ThreadPoolExecutor(len(sources)) as pool:
        return sum(pool.map(ask, range(len(sources)))) * batch / seconds


def latency(home: Path, rounds: Sequence[float], database_url: str | None) -> None:
    material = table()
    settings = open_service(home, material, 5, Heads(), database_url)
    source = np.random.default_rng(0)
    noop = [sys.executable, "-c", NOOP]
    with ExitStack() as stack:
        token, auditor = student_token(settings), auditor_token(settings)
        nothing = stack.enter_context(served(noop, settings, "noop.log"))
        url = stack.enter_context(served(SERVE, settings, "server.log"))
        clients = {
            "no-op FastAPI route": LabelConnection(nothing, token),
            "POST /label": LabelConnection(url, token),
        }
        spent = Stages(url, auditor)
        for client in clients.values():
            single_query_times(client, material.images, 0.5, source)  # warm up
        with spent:
            found = [
                [
                    single_query_times(client, material.images, each, source)
                    for client in clients.values()
                ]
                for each in rounds
            ]
    print("Single queries to 5 heads on a table, one client: milliseconds")
    for number, what in enumerate(clients):
        times = np.concatenate([both[number] for both in found])
        tails = [np.percentile(both[number], 99) / np.median(both[number]) for both in found]
        ratios = [float(np.median(both[number]) / np.median(both[0])) for both in found]
        print(
            f"  {what:22} p50 {np.median(times):6.2f}   p99 {np.percentile(times, 99):6.2f}   "
            f"p50 of no-op {compared(ratios)}   p99 of own p50 {compared(tails)}"
        )
    print(f"  aim: at most {MOST_LATENCY} times the no-op route")
    print(f"  {spent}")


def single_query_times(
    client: LabelConnection, images: NDArray[np.uint8], seconds: float, source: np.random.Generator
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


def table() -> Material:
    """scikit-learn's digits as rows of a table: its columns are the features."""
    drawn = digits()
    rows = drawn.images.reshape(len(drawn.images), -1)
    private = replace(
        drawn.private,
        inputs=drawn.private.inputs.reshape(-1, rows.shape[1]),
        spec=drawn.private.spec.model_copy(update={"shape": rows.shape[1:]}),
    )
    public = PublicData.declare("digits as a table", rows)
    return Material("digits as a table", private, public, rows, drawn.labels)


class LabelConnection:
    """One client that keeps its connection."""

    def __init__(self, url: str, token: str) -> None:
        self.http = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-npy"}

    def label(self, images: NDArray[np.uint8]) -> None:
        body = io.BytesIO()
        np.save(body, images)
        self.http.request("POST", "/label", body.getvalue(), self.headers)
        reply = self.http.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise SystemExit(f"the service answered {reply.status}: {text[:300]!r}")


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


def open_service(
    home: Path,
    material: Material,
    teachers: int,
    config: Heads | Networks,
    database_url: str | None,
) -> Settings:
    """Train teachers and open a project with a larger budget than can be used."""
    settings = Settings(data_dir=home, database_url=database_url, requests_per_minute=10**9)
    settings.ensembles_dir.mkdir(parents=True)
    public = material.public if isinstance(config, Heads) else None
    train_ensemble(
        material.private,
        settings.ensembles_dir / "bench",
        name="bench",
        teachers=teachers,
        config=config,
        public=public,
    )
    make_secret_key(settings.secret_key_path)
    engine = connect(settings.database)
    key = load_secret_key(settings.secret_key_path)
    upgrade(engine, key)
    ledger = Ledger(engine, key)
    register_ensemble(ledger, settings, EnsembleRegister(name="bench", epsilon=99.0, delta=1e-5))
    terms = {
        "name": "study",
        "ensemble": "bench",
        "mechanism": {"name": "gnmax", "sigma": 9000.0},
        "epsilon": 90.0,
        "delta": 1e-6,
    }
    open_project(ledger, ProjectOpen.model_validate(terms))
    engine.dispose()
    return settings


def student_token(settings: Settings) -> str:
    return new_token(settings, TokenCreate(role=Role.STUDENT, project="study"))


def auditor_token(settings: Settings) -> str:
    return new_token(settings, TokenCreate(role=Role.AUDITOR))


def new_token(settings: Settings, request: TokenCreate) -> str:
    engine = connect(settings.database)
    key = load_secret_key(settings.secret_key_path)
    tokens = Tokens(Ledger(engine, key), key)
    token = tokens.create(request).token
    engine.dispose()
    return token


@contextmanager
def served(command: list[str], settings: Settings, log_name: str = "server.log") -> Iterator[str]:
    """Run a server in a separate process; yields its address."""
    environment = os.environ | {
        "TERRINE_DATA_DIR": str(settings.data_dir),
        "TERRINE_DATABASE_URL": settings.database,
        "TERRINE_REQUESTS_PER_MINUTE": str(settings.requests_per_minute),
        "TERRINE_VOTERS": settings.voters,
    }
    log = settings.data_dir / log_name
    with log.open("w") as file, subprocess.Popen(command, stderr=file, env=environment) as server:
        try:
            yield address(log, server)
        finally:
            server.terminate()


def address(log: Path, server: subprocess.Popen[bytes]) -> str:
    for _ in range(600):
        for line in log.read_text().splitlines():
            found = re.search(r"running on (http://\S+)", json.loads(line).get("event", ""))
            if found:
                return found[1]
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the server did not start: {log.read_text()[-500:]}")


if __name__ == "__main__":
    main()
