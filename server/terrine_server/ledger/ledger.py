"""A ledger: its parts, opened together."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine

from terrine_server.ledger.charging import Charging
from terrine_server.ledger.database import Access
from terrine_server.ledger.ensembles import Ensembles
from terrine_server.ledger.entries import Entries
from terrine_server.ledger.exports import Exports
from terrine_server.ledger.log import AdministrativeLog
from terrine_server.ledger.losses import Losses
from terrine_server.ledger.projects import Projects
from terrine_server.ledger.rows import ProjectCache
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.tokens import Tokens
from terrine_server.ledger.transparency import Tree
from terrine_server.ledger.verifying import Verifier


class Ledger:
    """One database, opened with the key that it is sealed with. Thread-safe, as its parts are.

    Each write is one transaction. It locks the rows that it changes, the population before the
    project and the end of the administrative log last, and a charge is written only if the account
    has not changed since it was looked up. So no interleaving of threads, processes or
    machines overspends a budget or a cap. Any method raises DatabaseUnavailable when the database
    cannot be reached or is busy for too long, and LedgerCorrupted when its contents contradict each
    other or were edited by somebody without the key; nothing is half-written then.

    What the data owner does is recorded in the administrative log, in the same transaction. `by`:
    who does it; by default the account that this process runs as.
    """

    def __init__(self, engine: Engine, key: bytes) -> None:
        seals = Seals(key)
        self._access = access = Access(engine, seals)
        opened = ProjectCache(seals)
        self.ensembles = Ensembles(access)
        self.projects = Projects(access, opened)
        self.charging = Charging(access, opened)
        self.entries = Entries(access)
        self.tokens = Tokens(access)
        self.log = AdministrativeLog(access)
        self.losses = Losses(access)
        self.tree = Tree(access)
        self.exports = Exports(access, self.entries, self.log)
        self.verifier = Verifier(access)

    def guard(self, check_history: Callable[[], None]) -> None:
        """Let nothing be spent from now on unless this check passes.

        It raises LedgerRestored or LogNotSigned otherwise.
        """
        self._access.check_history = check_history

    def check_history(self) -> None:
        """Raise LedgerRestored or LogNotSigned if nothing may be spent."""
        self._access.check_history()
