"""What votes on a Ray cluster of this machine cost, beside votes in threads of the server.

    python benchmarks/ray_voters.py [--rounds 5] [--seconds 3]

8 clients send 64 new inputs again and again, to one server after the other within each round: one
votes on all processors, the other's cluster has two actors. Teachers are heads, and separate
networks, which are divided among the actors.
Data are those of `end_to_end.py`. Needs the `ray` extra.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from datasets import Material, first, pictures
from end_to_end import (
    BATCH,
    CLIENTS,
    HEADS,
    NETWORKS,
    RECORDS,
    SERVE,
    compared,
    open_service,
    query_rate,
    served,
    student_token,
)
from terrine_models.teachers.kinds import Heads, Networks
from terrine_server.settings import VotersKind

ACTORS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="per server and round")
    options = parser.parse_args()
    os.environ["TERRINE_RAY_ACTORS"] = str(ACTORS)
    material = pictures()
    few = replace(material, private=first(material.private, RECORDS * NETWORKS))
    with tempfile.TemporaryDirectory() as home:
        rounds = [options.seconds] * options.rounds
        compare(Path(home, "heads"), material, HEADS, Heads(), rounds)
        compare(Path(home, "networks"), few, NETWORKS, Networks(epochs=1), rounds)


def compare(
    home: Path, material: Material, teachers: int, config: Heads | Networks, rounds: list[float]
) -> None:
    settings = open_service(home, material, teachers, config, None)
    token = student_token(settings)
    with ExitStack() as stack:
        rates = []
        for voters in VotersKind:
            chosen = settings.model_copy(update={"voters": voters})
            url = stack.enter_context(served(SERVE, chosen, f"{voters}.log"))
            rates.append(partial(query_rate, [url], token, material.images, BATCH))
        sources = [np.random.default_rng(client) for client in range(CLIENTS)]
        found = [[rate(seconds, sources) for rate in rates] for seconds in rounds]
    print(f"{material.name}, {teachers} {config.kind}: queries per second, {CLIENTS} x {BATCH}")
    own, on_ray = (median(each) for each in zip(*found, strict=True))
    print(f"  {'threads':16} {own:10,.0f}")
    ratios = [theirs / ours for ours, theirs in found]
    print(f"  {f'{ACTORS} actors of Ray':16} {on_ray:10,.0f}   {compared(ratios)}")


if __name__ == "__main__":
    main()
