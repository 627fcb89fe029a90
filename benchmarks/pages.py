"""How long the pages take where there are many projects and a million charges, or two.

Each page is asked for in turn, through the whole application but its socket; beside it the API's
list of all projects, in the same rounds. All projects but the last share `--charges`; the last one
has `--large` more to itself. The first round is shown apart: a process sums a project's charges
when it first shows it. Before every other round the large one gets new charges, which it must add.

    python benchmarks/pages.py [--projects 200] [--charges 1000000] [--large 1000000] [--rounds 30]
        [--postgresql]

On SQLite, in a temporary directory, or with `--postgresql` on PostgreSQL (needs the development
extra).
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from ledger import MECHANISM, fill
from support.browser import InProcess, Visitor
from support.databases import SECRET_KEY, running_postgres
from support.ledgers import answered, open_ledger, terms
from terrine_protocol import Role, TokenCreate
from terrine_server.app import create_app
from terrine_server.ledger import NewProject
from terrine_server.owner.sign_in import Tokens
from terrine_server.settings import Settings

TARGET = 0.3
"""Seconds that 95 of 100 requests for a page of the projects may take at most."""
NEW = 10
"""Charges that the large project gets before each round."""


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--projects", type=int, default=200)
    parser.add_argument("--charges", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--postgresql", action="store_true", help="instead of SQLite")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        send = stack.enter_context(InProcess())
        url = f"sqlite:///{data / 'terrine.sqlite'}"
        if options.postgresql:
            server = stack.enter_context(running_postgres())
            url = server.url(stack.enter_context(server.database()))
        ledger = open_ledger(url, epsilon=50.0)
        each = options.charges // (options.projects - 1)
        priced = terms(options.large + 10_000, MECHANISM, ledger.ensembles()[0].population.rule)
        for number in range(options.projects):
            last = number == options.projects - 1
            project = ledger.open_project(
                NewProject(f"project-{number:04}", "mnist", MECHANISM, priced)
            )
            fill(url, project, options.large if last else each)
        (data / "secret.key").write_bytes(SECRET_KEY)
        settings = Settings(data_dir=data, database_url=url, requests_per_minute=1_000_000)
        app = create_app(settings)
        token = Tokens(ledger, SECRET_KEY).create(TokenCreate(role=Role.ADMIN)).token
        visitor = Visitor(app, send)
        visitor.sign_in(token)
        path = f"/admin/projects/project-{options.projects - 1:04}"
        asked: dict[str, Callable[[], int]] = {
            "overview": lambda: visitor.get("/admin").status_code,
            f"a project of {each:,} charges": lambda: (
                visitor.get("/admin/projects/project-0000").status_code
            ),
            f"a project of {options.large:,} charges": lambda: visitor.get(path).status_code,
            "  its older charges": lambda: (
                visitor.get(f"{path}?before={options.large // 2}").status_code
            ),
            "  an outcome that none has": lambda: (
                visitor.get(f"{path}?outcome=abstained").status_code
            ),
            "  its first day": lambda: visitor.get(f"{path}?until=2025-01-01").status_code,
            "tokens": lambda: visitor.get("/admin/tokens").status_code,
            "ensembles": lambda: visitor.get("/admin/ensembles").status_code,
            "log": lambda: visitor.get("/admin/log").status_code,
            "audit": lambda: visitor.get("/admin/audit").status_code,
            "GET /projects, of the API": lambda: (
                send(app, "GET", "/projects?cursor=&limit=1000", token).status_code
            ),
        }
        seconds: dict[str, list[float]] = {page: [] for page in asked}
        for number in range(1 + options.rounds):
            if number:
                new = range(number * NEW, (number + 1) * NEW)
                ledger.charge(project.id, [answered(f"new {query}") for query in new])
            for page, ask in asked.items():
                start = time.perf_counter()
                status = ask()
                seconds[page].append(time.perf_counter() - start)
                if status != 200:
                    sys.exit(f"{page}: {status}")
    total = options.charges + options.large
    print(f"{options.projects:,} projects, {total:,} charges; milliseconds")
    print(f"  {'':<32}{'first':>8}{'median':>10}{'95 of 100':>12}")
    met = True
    for page, (first, *took) in seconds.items():
        slow = statistics.quantiles(took, n=20)[-1]
        usual = statistics.median(took)
        print(f"  {page:<32}{first * 1e3:>8.0f}{usual * 1e3:>10.0f}{slow * 1e3:>12.0f}")
        met = met and slow <= TARGET
    print(f"target: {TARGET * 1e3:.0f} ms for 95 of 100 of each")
    return met


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
