"""Verifying the books: a project's entries or the log, and the schema that guards them."""

from __future__ import annotations

from dataclasses import replace

from terrine_server.ledger import Ledger, LogVerificationRecord, VerificationRecord
from terrine_server.ledger.anchors import Anchor, LogAnchor
from terrine_server.ledger.verifying.walk import Progress


def verify_project(
    ledger: Ledger,
    project: str,
    anchor: Anchor | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> VerificationRecord:
    """As `Ledger.verify`; nothing is intact in a database whose schema is not Terrine's."""
    found = ledger.verify(project, anchor, resume, progress)
    schema = ledger.verify_schema()
    return replace(found, problems=[*found.problems, *schema], anchor=None) if schema else found


def verify_log(ledger: Ledger, anchor: LogAnchor | None = None) -> LogVerificationRecord:
    """As `Ledger.verify_log`; nothing is intact in a database whose schema is not Terrine's."""
    found = ledger.verify_log(anchor)
    schema = ledger.verify_schema()
    return replace(found, problems=[*found.problems, *schema], anchor=None) if schema else found
