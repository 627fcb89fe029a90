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

import logging
import statistics
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import structlog
import typer

from ledger import MECHANISM, fill
from serving import seconds
from support.browser import InProcess, Visitor
from support.databases import SECRET_KEY, running_postgres
from support.ledgers import answered, charge_one, open_ledger, terms
from terrine_protocol import Role, TokenCreate
from terrine_server.app import create_app
from terrine_server.ledger import NewProject
from terrine_server.owner.sign_in import Tokens
from terrine_server.settings import Settings

TARGET = 0.3
"""Seconds that 95 of 100 requests for a page of the projects may take at most."""
NEW = 10
"""Charges that the large project gets before each round."""


def main(
    projects: int = 200,
    charges: int = 1_000_000,
    large: int = 1_000_000,
    rounds: int = 30,
    postgresql: bool = False,
) -> None:
    """Fill a ledger, and ask for its pages."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        send = stack.enter_context(InProcess())
        url = f"sqlite:///{data / 'terrine.sqlite'}"
        if postgresql:
            server = stack.enter_context(running_postgres())
            url = server.url(stack.enter_context(server.database()))
        ledger = open_ledger(url, epsilon=50.0)
        each = charges // (projects - 1)
        priced = terms(large + 10_000, MECHANISM, ledger.ensembles.list()[0].population.rule)
        for number in range(projects):
            last = number == projects - 1
            project = ledger.projects.open(
                NewProject(f"project-{number:04}", "mnist", MECHANISM, priced)
            )
            fill(url, project, large if last else each)
        (data / "secret.key").write_bytes(SECRET_KEY)
        settings = Settings(data_dir=data, database_url=url, requests_per_minute=1_000_000)
        app = create_app(settings)
        token = Tokens(ledger, SECRET_KEY).create(TokenCreate(role=Role.ADMIN)).token
        visitor = Visitor(app, send)
        visitor.sign_in(token)
        largest = f"/admin/projects/project-{projects - 1:04}"
        pages = {
            "overview": "/admin",
            f"a project of {each:,} charges": "/admin/projects/project-0000",
            f"a project of {large:,} charges": largest,
            "  its older charges": f"{largest}?before={large // 2}",
            "  an outcome that none has": f"{largest}?outcome=abstained",
            "  its first day": f"{largest}?until=2025-01-01",
            "tokens": "/admin/tokens",
            "ensembles": "/admin/ensembles",
            "log": "/admin/log",
            "audit": "/admin/audit",
            "GET /projects, of the API": "/projects?cursor=&limit=1000",
        }

        def ask(path: str) -> None:
            of_pages = path.startswith("/admin")
            reply = visitor.get(path) if of_pages else send(app, "GET", path, token)
            if reply.status_code != 200:
                sys.exit(f"{path}: {reply.status_code}")

        took: dict[str, list[float]] = {page: [] for page in pages}
        for number in range(1 + rounds):
            if number:
                new = range(number * NEW, (number + 1) * NEW)
                charge_one(ledger, project.id, [answered(f"new {query}") for query in new])
            for page, path in pages.items():
                took[page].append(seconds(partial(ask, path)))
    print(f"{projects:,} projects, {charges + large:,} charges; milliseconds")
    print(f"  {'':<32}{'first':>8}{'median':>10}{'95 of 100':>12}")
    slow = {page: statistics.quantiles(each[1:], n=20)[-1] for page, each in took.items()}
    for page, (first, *others) in took.items():
        usual = statistics.median(others)
        print(f"  {page:<32}{first * 1e3:>8.0f}{usual * 1e3:>10.0f}{slow[page] * 1e3:>12.0f}")
    print(f"target: {TARGET * 1e3:.0f} ms for 95 of 100 of each")
    if max(slow.values()) > TARGET:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
