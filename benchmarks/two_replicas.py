"""Two replicas against one where the ensemble is the bottleneck, and what the machine allows.

One PostgreSQL, one ensemble of separate CNNs, and servers that vote with one thread each, so that
one replica can use one core. Eight clients keep one connection each and send 32 new images at a
time; with two replicas they are spread over both ports in turn, as a proxy would do. The peer is
the bare ensemble in one process and in two, with one thread each and nothing else to do: a second
replica cannot gain more than that on this machine, where clients, servers and PostgreSQL share the
cores. One and two are measured in turn; each number is the best of the rounds, because other load
on the machine can only lower it. Needs the development extra, which installs PostgreSQL.

MNIST is read from TERRINE_SHARED_DATA, else from ../shared/data; without it, scikit-learn's digits
are used. Teachers see few images, for one epoch: that does not change how fast they vote.

    python benchmarks/two_replicas.py [--teachers 100] [--seconds 10] [--rounds 4]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from end_to_end import SERVE, open_service, query_rate, served, student_token
from teachers import SHARED, digits, first, mnist
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Networks

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from postgres import running_postgres

CLIENTS, BATCH = 8, 32
"""CNNs vote on 32 images at a time; a smaller batch would be padded with blank ones."""
TARGET = 1.6
RECORDS = 24
"""Training images of each teacher."""

Rate = Callable[[int], float]
"""From the number of processes to images per second."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teachers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10, help="per measurement and round")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of every process that is started later
    folder = Path(os.environ.get("TERRINE_SHARED_DATA", SHARED)) / "mnist"
    material = mnist(folder) if folder.is_dir() else digits()
    small = replace(material, private=first(material.private, RECORDS * options.teachers))
    with (
        tempfile.TemporaryDirectory() as directory,
        running_postgres() as server,
        server.database() as name,
    ):
        how = Networks(epochs=1)
        settings = open_service(Path(directory), small, options.teachers, how, server.url(name))
        token = student_token(settings)
        with ExitStack() as stack:
            ensemble = settings.ensembles_dir / "bench"
            bare = stack.enter_context(voters(ensemble, material.images, options.seconds))
            urls = [stack.enter_context(served(SERVE, settings, f"{i}.log")) for i in range(2)]
            sources = [np.random.default_rng(client) for client in range(CLIENTS)]

            def served_rate(replicas: int) -> float:
                served_by, seconds = urls[:replicas], options.seconds
                return query_rate(served_by, token, material.images, BATCH, seconds, sources)

            rounds = [
                [bare(1), bare(2), served_rate(1), served_rate(2)] for _ in range(options.rounds)
            ]
    best = [max(each) for each in zip(*rounds, strict=True)]
    report(f"{material.name}, {options.teachers} CNNs", best)


def report(what: str, figures: Sequence[float]) -> None:
    print(f"{what}, {os.cpu_count()} cores, one thread each: images per second")
    print(f"{'':44}{'one':>8}{'two':>8}{'ratio':>8}")
    bare_one, bare_two, one, two = figures
    possible, reached = bare_two / bare_one, two / one
    service = f"POST /label, {CLIENTS} clients x {BATCH}, replicas"
    print(f"{'bare ensemble, processes':44}{bare_one:8,.0f}{bare_two:8,.0f}{possible:8.2f}")
    print(f"{service:44}{one:8,.0f}{two:8,.0f}{reached:8.2f}")
    share = reached / possible
    print(f"Target: {TARGET} if the cores allow it. Reached: {share:.0%} of what they allow.")


@contextmanager
def voters(directory: Path, images: NDArray[np.uint8], seconds: float) -> Iterator[Rate]:
    """Two processes that load the ensemble and vote on command."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        arguments = (directory, images[: CLIENTS * BATCH], seconds, theirs)
        context.Process(target=vote, args=arguments, daemon=True).start()
        assert ours.recv() == "loaded"
        pipes.append(ours)

    def rate(processes: int) -> float:
        for pipe in pipes[:processes]:
            pipe.send("vote")
        rates: list[float] = [pipe.recv() for pipe in pipes[:processes]]
        return sum(rates)

    yield rate
    for pipe in pipes:
        pipe.close()


def vote(directory: Path, images: NDArray[np.uint8], seconds: float, pipe: Pipe) -> None:
    """The main function of such a process, which ends when its pipe closes."""
    ensemble = Ensemble.load(directory)
    ensemble.votes(images)
    pipe.send("loaded")
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        voted, started = 0, time.perf_counter()
        while time.perf_counter() < started + seconds:
            ensemble.votes(images)
            voted += len(images)
        pipe.send(voted / (time.perf_counter() - started))


if __name__ == "__main__":
    main()
