"""The ledger: append-only charges, and the balances that follow from them.

connect, upgrade, check_schema      opening a database
Ledger                              everything that is read from it or written to it
"""

from terrine_server.ledger.database import connect
from terrine_server.ledger.ledger import Ledger
from terrine_server.ledger.records import (
    Batch,
    ChargeRecord,
    EnsembleRecord,
    ProjectRecord,
    Proposal,
    Publication,
    QueryDigest,
    Receipt,
    Result,
    SecretAccount,
    TokenRecord,
    Verification,
)
from terrine_server.ledger.schema import check_schema, upgrade

__all__ = [
    "Batch",
    "ChargeRecord",
    "EnsembleRecord",
    "Ledger",
    "ProjectRecord",
    "Proposal",
    "Publication",
    "QueryDigest",
    "Receipt",
    "Result",
    "SecretAccount",
    "TokenRecord",
    "Verification",
    "check_schema",
    "connect",
    "upgrade",
]
