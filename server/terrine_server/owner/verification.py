"""Verifying the books: a project's entries or the log, and the schema that guards them."""

from __future__ import annotations

from terrine_protocol import LogVerification, Verification
from terrine_server.ledger import Ledger
from terrine_server.ledger.verifying.walk import Progress


def verify_project(ledger: Ledger, project: str, progress: Progress | None = None) -> Verification:
    """As `Ledger.verify`; nothing is intact in a database whose schema is not Terrine's."""
    found = ledger.verify(project, progress)
    return found.model_copy(update={"problems": [*found.problems, *ledger.verify_schema()]})


def verify_log(ledger: Ledger) -> LogVerification:
    """As `Ledger.verify_log`; nothing is intact in a database whose schema is not Terrine's."""
    found = ledger.verify_log()
    return found.model_copy(update={"problems": [*found.problems, *ledger.verify_schema()]})
