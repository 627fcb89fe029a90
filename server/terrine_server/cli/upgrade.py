"""`terrine upgrade`: whether this version will serve what is here."""

from __future__ import annotations

from typing import Annotated

import typer

from terrine_server import doctor as health
from terrine_server.cli.console import (
    as_json,
    fail,
    with_json,
)
from terrine_server.cli.doctor import show_findings
from terrine_server.cli.init import ServiceRole, init


@with_json
def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Only say what was found, and change nothing.")
    ] = False,
    service_role: ServiceRole = None,
) -> None:
    """Say whether this version will serve what is here; if so, migrate the ledger.

    It looks at settings, keys, the ledger's tables and every registered ensemble, whose files are
    read and loaded. Exits with code 1, and migrates nothing, if there is a problem. Unlike `init`,
    it never makes a new ledger.
    """
    if as_json() and not check:
        fail("`terrine --json upgrade` needs --check.")
    if not show_findings(health.examine_upgrade()):
        raise typer.Exit(1)
    if not check:
        init(service_role=service_role, origin=None)
