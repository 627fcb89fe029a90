"""The ledger: append-only charges, and the balances that follow from them.

connect, upgrade, check_schema      opening a database
check_active                        whether a project answers
Ledger                              everything that is read from it or written to it
"""

from terrine_server.ledger.charging.charge import check_active
from terrine_server.ledger.ledger import Ledger
from terrine_server.ledger.records import (
    Batch,
    ChargeRecord,
    EnsembleRecord,
    OnRecord,
    ProjectRecord,
    Proposal,
    Publication,
    QueryDigest,
    Receipt,
    Recorded,
    Result,
    SecretAccount,
    TokenRecord,
    Verification,
)
from terrine_server.ledger.store.database import connect
from terrine_server.ledger.store.schema import check_schema, upgrade

__all__ = [
    "Batch",
    "ChargeRecord",
    "EnsembleRecord",
    "Ledger",
    "OnRecord",
    "ProjectRecord",
    "Proposal",
    "Publication",
    "QueryDigest",
    "Receipt",
    "Recorded",
    "Result",
    "SecretAccount",
    "TokenRecord",
    "Verification",
    "check_active",
    "check_schema",
    "connect",
    "upgrade",
]
