"""The ledger: its domains together."""

from __future__ import annotations

from terrine_server.ledger.ensembles import Ensembles
from terrine_server.ledger.entries import Entries
from terrine_server.ledger.log import Log
from terrine_server.ledger.payments import Payments
from terrine_server.ledger.projects import Projects
from terrine_server.ledger.requests import Requests
from terrine_server.ledger.tokens import StoredTokens
from terrine_server.ledger.transparency.log import Transparency


class Ledger(Ensembles, Projects, Payments, Entries, StoredTokens, Requests, Log, Transparency):
    """Ensembles, projects, charges, tokens and requests in one database. Thread-safe.

    Each write is one transaction. It locks the rows that it changes, a request first, the ensemble
    before the project and the end of the administrative log last, and a charge is written only if
    the account has not changed since it was looked up. So no interleaving of threads, processes or
    machines overspends a budget or a cap. Any method raises DatabaseUnavailable when the database
    cannot be reached or is busy for too long, and LedgerCorrupted when its contents contradict each
    other or were edited by somebody without the key; nothing is half-written then.

    What the data owner does is recorded in the administrative log, in the same transaction. `by`:
    who does it; by default the account that this process runs as.
    """
