"""What an honest student notices of others who want nobody else to be served.

    python benchmarks/attacks.py [--rounds 3] [--requests 150] [--only TEXT]

Runs `terrine serve` on this machine's loopback, and asks it again and again: alone, beside a
process that only keeps a processor busy, and beside attackers. Prints the median and the 99th
percentile, and how many times as long each is as alone in the same round. Attackers run at the
lowest priority, in a process of their own: on a small machine they would otherwise take the
server's processor without any mistake of the server's; the busy process shows what is left of that.
Each attack has a fixed number of connections and ends with its measurement. Everybody has the
server's default limits, also of requests in a minute.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import typer

from serving import CHEAP, Service, in_turn, install, ratios
from support.clients import npy, npz
from support.data import train_digits
from support.tables import open_counted
from terrine_models.tables.loading import load_table
from terrine_protocol import Column, TableSchema
from terrine_server.owner.checkpoints import make_checkpoint_key

ATTACK_SECONDS = 120
"""Seconds after which an attacker ends by itself."""
SENDING_CONNECTIONS = 16
"""Of an attacker who sends requests."""
ADDRESSES = 3
"""Of an attacker who sends requests: one has a quarter of all places without a token."""
HELD_CONNECTIONS = 300
"""Of one who does not finish them."""
WARM_UP_SECONDS = 1.5
PAUSE_SECONDS = 0.01
METRICS_LOOPS = 16
AUDITORS = 8
VERIFIED_CHARGES = 4096
"""Entries of the project that they verify."""
PATIENT_STRANGERS = 63
"""Strangers who begin to sign in through an issuer that does not reply."""
STRANGERS = {
    "the log": ("/checkpoint", "/tile/0/000.p/1", "/tile/entries/000.p/5", "/tile/0/000.p/7"),
    "tiles that are not there": ("/tile/0/001.p/1", "/tile/entries/999", "/tile/1/000.p/3"),
    "other pages": ("/problems", "/readyz", "/problems/internal", "/admin/sign-in"),
}
"""What strangers ask for: it takes no token."""
Attack = tuple[Callable[..., None], Any]
"""A function that runs until it is ended, and what it is given beside the port."""


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def label(service: Service, project: str, kind: str, body: bytes) -> bytes:
    """A request of a new token, which has an allowance of requests in a minute of its own."""
    bearer = f"Bearer {service.token(project=project)}"
    form = f"application/{kind}"
    return request("POST", "/label", body, Authorization=bearer, Content_Type=form)


def ask(service: Service, path: str, **whose: str) -> bytes:
    """A request of a new token."""
    return request("GET", path, Authorization=f"Bearer {service.token(**whose)}")


SIGNING_IN = f"{PATIENT_STRANGERS} strangers who sign in"
READING = "alone, reading"
"""What is beside those who sign in is how long a student's `GET /budget` takes."""


TEXTS, TEXT_WORDS, WORD_CHARACTERS = 260, 500, 7
"""Texts in a request of nearly 1 MiB, and words in each."""


def long_texts(service: Service) -> bytes:
    """A request of a new project of texts, with as many as are taken at once."""
    home = service.settings.data_dir
    text = Column(name="text", role="text", width=256)
    label = Column(name="label", role="label", values=("a", "b"))
    private = [f"{number:0{WORD_CHARACTERS}},{'ab'[number % 2]}" for number in range(400)]
    (home / "texts.csv").write_text("\n".join(["text,label", *private, ""]))
    data = load_table(home / "texts.csv", TableSchema(columns=(text, label)), lambda said: None)
    token = open_counted(service.ledger, service.settings, "texts", data)
    random = np.random.default_rng(0)
    words = random.integers(0, 1000, (TEXTS, TEXT_WORDS)).tolist()
    texts = [" ".join(f"{word:0{WORD_CHARACTERS}}" for word in some) for some in words]
    body = json.dumps({"rows": [{"text": each} for each in texts]}).encode()
    given = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}
    return request("POST", "/label", body, **given)


def attacks_on(service: Service, texts: bytes) -> dict[str, Attack]:
    """Who attacks how. They have one project, the honest student another."""
    largest = np.zeros((4096, 8, 8))
    largest[-1, -1, -1] = 99  # is refused after all the rest was looked at
    text = largest.astype(np.uint8).tolist()
    sent = {
        "npz that unpack to 63 MiB": ("x-npz", npz(inputs=np.zeros((63 << 14, 8, 8), np.uint8))),
        "npz of the largest batch": ("x-npz", npz(inputs=largest)),
        "npy of the largest batch": ("x-npy", npy(largest)),
        "JSON of the largest batch": ("json", f'{{"inputs":{text}}}'.replace(" ", "").encode()),
    }
    made = {name: label(service, "greedy", *each) for name, each in sent.items()}
    whole = made["npy of the largest batch"]
    found: dict[str, Attack] = {
        name: (repeat, [each] * SENDING_CONNECTIONS) for name, each in made.items()
    }
    found |= {
        "half-sent heads": (hold, whole[:40]),
        "half-sent bodies": (hold, whole[:60_000]),
        "idle connections": (hold, b""),
    }
    scrape = [ask(service, "/metrics", role="metrics") for _ in range(METRICS_LOOPS)]
    verify = [ask(service, "/ledger/greedy/verify", role="auditor") for _ in range(AUDITORS)]
    found |= {
        f"{METRICS_LOOPS} loops of /metrics": (repeat, scrape),
        f"{AUDITORS} auditors who verify": (repeat, verify),
        SIGNING_IN: (repeat, [request("GET", "/admin/oidc/start")] * PATIENT_STRANGERS),
    }
    found["long texts, asked again and again"] = (repeat, [texts] * SENDING_CONNECTIONS)
    found["long texts, of clients that leave"] = (leave, [texts] * SENDING_CONNECTIONS)
    for what, paths in STRANGERS.items():
        for count in (8, 32):
            asked = [request("GET", paths[number % len(paths)]) for number in range(count)]
            found[f"{count} strangers who ask for {what}"] = (repeat, asked)
    return found


def exchange(connection: socket.socket, sent: bytes) -> int:
    """Send a request; return the status of the reply, which is read to its end."""
    connection.sendall(sent)
    reply = http.client.HTTPResponse(connection)
    reply.begin()
    reply.read()
    if reply.will_close:
        raise ConnectionError
    return reply.status


# Attacks: each runs in a process of its own until it is ended.


def busy(_: int, __: None) -> None:
    """Keep a processor busy."""
    ends = time.monotonic() + ATTACK_SECONDS
    while time.monotonic() < ends:
        pass


def repeat(port: int, sent: Sequence[bytes]) -> None:
    """Send each request again and again, on a connection of its own."""
    ends = time.monotonic() + ATTACK_SECONDS

    def one(body: bytes, source: str) -> None:
        while time.monotonic() < ends:
            with (
                suppress(OSError, http.client.HTTPException),
                socket.create_connection(("127.0.0.1", port), 60, (source, 0)) as connection,
            ):
                while time.monotonic() < ends:
                    exchange(connection, body)
            time.sleep(0.01)

    given = [(body, f"127.0.0.{1 + number % ADDRESSES}") for number, body in enumerate(sent)]
    threads = [threading.Thread(target=one, args=each, daemon=True) for each in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def leave(port: int, sent: Sequence[bytes]) -> None:
    """Send each request again and again, each on a new connection that is closed a second later."""
    ends = time.monotonic() + ATTACK_SECONDS

    def one(body: bytes) -> None:
        while time.monotonic() < ends:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 60) as connection:
                connection.sendall(body)
                time.sleep(1)

    threads = [threading.Thread(target=one, args=(body,), daemon=True) for body in sent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hold(port: int, sent: bytes) -> None:
    """Keep connections open on which this much was sent; open anew what is closed, 100 a second."""
    ends = time.monotonic() + ATTACK_SECONDS
    held: list[socket.socket | None] = [None] * HELD_CONNECTIONS
    opened = 0
    while time.monotonic() < ends:
        for number, one in enumerate(held):
            if one is not None:
                try:
                    if one.recv(65536):
                        continue
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                one.close()
                held[number] = None
                continue
            opened += 1
            if opened > HELD_CONNECTIONS:
                time.sleep(0.01)
            with suppress(OSError):
                made = socket.create_connection(("127.0.0.1", port), 5)
                made.setblocking(False)
                held[number] = made
                with suppress(BlockingIOError):
                    made.send(sent)
        time.sleep(0.05)


@contextmanager
def attacking(attack: Callable[..., None], port: int, given: Any) -> Iterator[None]:
    context = get_context("fork")  # at once: what is imported here takes seconds
    begins = context.Event()
    process = context.Process(target=_nicely, args=(begins, attack, port, given), daemon=True)
    process.start()
    try:
        if not begins.wait(60):
            raise RuntimeError("the attacker did not begin")
        time.sleep(WARM_UP_SECONDS)
        yield
        if not process.is_alive():
            raise RuntimeError("the attacker gave up before it was measured")
    finally:
        process.kill()
        process.join()


def _nicely(begins: Any, attack: Callable[..., None], port: int, given: Any) -> None:
    os.nice(19)
    begins.set()
    attack(port, given)


def latencies(
    port: int, service: Service, requests: int, reading: bool = False
) -> tuple[float, float]:
    """Median and 99th percentile of milliseconds of an honest student's requests.

    They are sent on one connection, which is opened anew where it was closed.
    """
    asked = label(service, "honest", "x-npy", npy(service.ensemble.public[:2]))
    sent = ask(service, "/budget", project="honest") if reading else asked
    took = list[float]()
    connection: socket.socket | None = None
    failed = 0
    while len(took) < requests:
        began = time.perf_counter()
        try:
            if connection is None:
                connection = socket.create_connection(("127.0.0.1", port), 60)
            if exchange(connection, sent) not in (200, 204):
                failed += 1
        except (OSError, http.client.HTTPException):
            connection, failed = None, failed + 1
        took.append(1000 * (time.perf_counter() - began))
        time.sleep(PAUSE_SECONDS)
    if connection is not None:
        connection.close()
    if failed:
        print(f"    {failed} of {requests} were not answered")
    return float(np.quantile(took, 0.5)), float(np.quantile(took, 0.99))


@contextmanager
def silent_issuer() -> Iterator[dict[str, Any]]:
    """Settings with an issuer that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        yield {
            "oidc_issuer": url,
            "oidc_client_id": "terrine",
            "public_url": "http://127.0.0.1",
            "oidc_admins": "owners",
            "oidc_plain_http": True,
        }


def fill(port: int, service: Service) -> None:
    """Charge the project that auditors verify."""
    images = np.random.default_rng(0).integers(0, 17, (VERIFIED_CHARGES, 8, 8), dtype=np.uint8)
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        status = exchange(connection, label(service, "greedy", "x-npy", npy(images)))
    if status != 200:
        raise RuntimeError(f"the project was not filled: {status}")


def main(rounds: int = 3, requests: int = 150, only: str = "") -> None:
    """Measure beside attacks with `only` in their names."""
    print(f"processors: {os.cpu_count()}, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        service = install(home, train_digits(home / "digits"))
        make_checkpoint_key(service.settings.checkpoint_key_path)
        for name in ("honest", "greedy"):
            service.open_project(name, CHEAP)
        texts = long_texts(service)
        with silent_issuer() as issuer, service.serve(**issuer) as url:
            port = urlsplit(url).port or 80
            alone = partial(latencies, port, service, requests)
            reading = partial(alone, reading=True)
            fill(port, service)

            def beside(
                measure: Callable[[], tuple[float, float]], attack: Callable[..., None], given: Any
            ) -> tuple[float, float]:
                with attacking(attack, port, given):
                    return measure()

            chosen = {
                name: each for name, each in attacks_on(service, texts).items() if only in name
            }
            attacks: dict[str, Attack] = {"a busy process": (busy, None), **chosen}
            latencies(port, service, 20)
            lines = {
                name: partial(beside, reading if name == SIGNING_IN else alone, *each)
                for name, each in attacks.items()
            }
            found = in_turn({"alone": alone, READING: reading, **lines}, rounds)
    print("milliseconds, and times as long as alone in the same round")
    for name, each in found.items():
        line = f"  {name:32}"
        for which, what in enumerate(("p50", "p99")):
            peer = found[READING if name in (SIGNING_IN, READING) else "alone"]
            own, first = ([pair[which] for pair in pairs] for pairs in (each, peer))
            line += f"   {what} {median(own):7.1f} x {ratios(own, first)}"
        print(line)


if __name__ == "__main__":
    typer.run(main)
