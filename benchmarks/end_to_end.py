"""What the service adds to the teachers' voting, end to end over HTTP, beside its peers.

Throughput: 8 clients that send 64 new inputs each, again and again, beside the bare ensemble on
batches of 512 in a process of its own. Latency: single new inputs to a tiny ensemble, one after
another, beside a FastAPI route that reads the body and answers at once, served in the same way.
A durable commit, a dozen statements and a check of the token are what the difference consists of.

SQLite, in a temporary directory; `--database-url` names an empty PostgreSQL database instead. MNIST
is looked up in TERRINE_SHARED_DATA, else in ../shared/data; without it scikit-learn's digits serve.

    python benchmarks/end_to_end.py [--teachers 250] [--seconds 10] [--database-url URL]
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from teachers import SHARED, Material, digits, images_per_second, mnist, train
from terrine_client.protocol import ProjectOpen, Role, TokenCreate
from terrine_models.ensemble import Ensemble
from terrine_models.teachers import Heads, Networks
from terrine_server.auth import Tokens, load_secret_key, make_secret_key
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.operations import open_project, register_ensemble
from terrine_server.settings import Settings

CLIENTS, BATCH = 8, 64
NOOP = """
import sys, uvicorn
from fastapi import FastAPI, Request
from terrine_server import logs
from terrine_server.api.connection import options
from terrine_server.settings import Settings

app = FastAPI()

@app.post("/label")
async def label(request: Request):
    return {"bytes": len(await request.body())}

logs.configure("info")
uvicorn.run(app, host="127.0.0.1", port=0, **options(Settings()))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teachers", type=int, default=250)
    parser.add_argument("--seconds", type=float, default=10, help="for each line")
    parser.add_argument("--database-url", help="an empty PostgreSQL database")
    options = parser.parse_args()
    folder = Path(os.environ.get("TERRINE_SHARED_DATA", SHARED)) / "mnist"
    with tempfile.TemporaryDirectory() as directory:
        throughput(
            Path(directory) / "large",
            mnist(folder) if folder.is_dir() else digits(),
            options.teachers,
            options.seconds,
            options.database_url,
        )
        latency(Path(directory) / "tiny", options.seconds)


def throughput(
    home: Path, material: Material, teachers: int, seconds: float, database_url: str | None
) -> None:
    settings = opened(home, material, teachers, Heads(), database_url)
    ensemble = Ensemble.load(settings.ensembles_dir / "bench")
    images = perturbed(material.images, 512, np.random.default_rng(0))
    bare = images_per_second(ensemble.votes, images)
    with served([sys.executable, "-m", "terrine_server", "serve", "--port", "0"], settings) as url:
        token = student(settings)

        def ask(client: int) -> int:
            source, asked = np.random.default_rng(client + 1), 0
            connection = Connection(url, token)
            connection.label(perturbed(material.images, BATCH, source))
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                connection.label(perturbed(material.images, BATCH, source))
                asked += BATCH
            return asked

        started = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as clients:
            asked = sum(clients.map(ask, range(CLIENTS)))
        rate = asked / (time.perf_counter() - started)
    print(f"{material.name}, {teachers} heads: queries a second")
    print(f"  {'bare ensemble, batches of 512':40} {bare:10,.0f}")
    what = f"POST /label, {CLIENTS} clients x {BATCH}"
    print(f"  {what:40} {rate:10,.0f}   {rate / bare:.2f}")


def latency(home: Path, seconds: float) -> None:
    material = digits()
    settings = opened(home, material, 5, Heads(), None)
    source = np.random.default_rng(0)
    print("Single queries to 5 heads, one client: milliseconds")
    noop = [sys.executable, "-c", NOOP]
    serve = [sys.executable, "-m", "terrine_server", "serve", "--port", "0"]
    reference = 0.0
    for what, command in [("no-op FastAPI route", noop), ("POST /label", serve)]:
        with served(command, settings) as url:
            connection = Connection(url, student(settings))
            took: list[float] = []
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                started = time.perf_counter()
                connection.label(perturbed(material.images, 1, source))
                took.append(1e3 * (time.perf_counter() - started))
        median, slow = np.percentile(took[20:], [50, 99])
        reference = reference or median
        print(
            f"  {what:24} p50 {median:7.2f}   p99 {slow:7.2f}   "
            f"p50 of no-op {median / reference:6.1f}   p99 of own p50 {slow / median:5.1f}"
        )


class Connection:
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
    """Return images that were never asked before: a few pixels differ."""
    chosen = images[source.integers(0, len(images), count)].copy()
    flat = chosen.reshape(count, -1)
    for _ in range(6):
        pixels = source.integers(0, flat.shape[1], count)
        flat[np.arange(count), pixels] = source.integers(0, 17, count)
    return chosen


def opened(
    home: Path, material: Material, teachers: int, how: Heads | Networks, database_url: str | None
) -> Settings:
    """Train teachers and open a project that affords more than can be asked."""
    settings = Settings(data_dir=home, database_url=database_url, requests_per_minute=10**9)
    settings.ensembles_dir.mkdir(parents=True)
    public = material.public if isinstance(how, Heads) else None
    train(material.private, settings.ensembles_dir / "bench", teachers, how, public)
    make_secret_key(settings.secret_key_path)
    engine = connect(settings.database)
    upgrade(engine)
    ledger = Ledger(engine)
    register_ensemble(ledger, settings, "bench", 99.0, 1e-5)
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


def student(settings: Settings) -> str:
    engine = connect(settings.database)
    tokens = Tokens(Ledger(engine), load_secret_key(settings.secret_key_path))
    token = tokens.create(TokenCreate(role=Role.STUDENT, project="study")).token
    engine.dispose()
    return token


@contextmanager
def served(command: list[str], settings: Settings, log_name: str = "server.log") -> Iterator[str]:
    """Run a server in a process of its own; yields its address."""
    environment = os.environ | {
        "TERRINE_DATA_DIR": str(settings.data_dir),
        "TERRINE_DATABASE_URL": settings.database,
        "TERRINE_REQUESTS_PER_MINUTE": "1000000000",
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
