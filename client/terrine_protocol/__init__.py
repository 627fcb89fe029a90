"""The wire contract: what students, auditors and the server send to each other.

Client and server import these models, and this package imports neither. Requests forbid unknown
fields, so that a misspelt option is an error and never a silent default; replies may gain fields.
The terms of a project are strict numbers: neither `true` nor "1" is accepted as 1. No model has a
field for vote counts, except the noisy ones that projects of `noisy_votes` or `neighbours` pay for.

`schema` says how rows of a table become numbers, which `terrine_tables` makes of them.
"""

from terrine_protocol.base import (
    DeltaSplitInfo,
    Name,
    Outcome,
    PriceInfo,
    ProjectStatus,
    Reply,
    Role,
    RuleInfo,
    Wire,
)
from terrine_protocol.labeling import (
    Budget,
    LabelRequest,
    LabelResponse,
    LabelResult,
    PublicationInfo,
    RowsRequest,
    UsedUp,
)
from terrine_protocol.ledger import (
    BudgetPage,
    Charge,
    EntryReceipt,
    LedgerPage,
    LogEntry,
    LogPage,
    LogState,
    LogVerification,
    Ready,
    ReceiptPage,
    Verification,
)
from terrine_protocol.mechanisms import MECHANISM_SPECS, MechanismSpec
from terrine_protocol.problems import PROBLEMS, Problem, ProblemType
from terrine_protocol.projects import (
    ChoiceInfo,
    ConsensusLevel,
    ConsideredInfo,
    EnsembleAccount,
    EnsembleFacts,
    EnsembleInfo,
    EnsembleRegister,
    HistogramRelease,
    ImageFormat,
    InputSpec,
    ProjectInfo,
    ProjectOpen,
    ProjectPage,
    ProjectUpdate,
    PublishingTerms,
    Release,
    SecretSpend,
    SumRelease,
)
from terrine_protocol.schema import Column, PublicSource, TableSchema
from terrine_protocol.tokens import (
    TokenCreate,
    TokenCreated,
    TokenInfo,
    TokenPage,
)

__all__ = [
    "MECHANISM_SPECS",
    "PROBLEMS",
    "Budget",
    "BudgetPage",
    "Charge",
    "ChoiceInfo",
    "Column",
    "ConsensusLevel",
    "ConsideredInfo",
    "DeltaSplitInfo",
    "EnsembleAccount",
    "EnsembleFacts",
    "EnsembleInfo",
    "EnsembleRegister",
    "EntryReceipt",
    "HistogramRelease",
    "ImageFormat",
    "InputSpec",
    "LabelRequest",
    "LabelResponse",
    "LabelResult",
    "LedgerPage",
    "LogEntry",
    "LogPage",
    "LogState",
    "LogVerification",
    "MechanismSpec",
    "Name",
    "Outcome",
    "PriceInfo",
    "Problem",
    "ProblemType",
    "ProjectInfo",
    "ProjectOpen",
    "ProjectPage",
    "ProjectStatus",
    "ProjectUpdate",
    "PublicSource",
    "PublicationInfo",
    "PublishingTerms",
    "Ready",
    "ReceiptPage",
    "Release",
    "Reply",
    "Role",
    "RowsRequest",
    "RuleInfo",
    "SecretSpend",
    "SumRelease",
    "TableSchema",
    "TokenCreate",
    "TokenCreated",
    "TokenInfo",
    "TokenPage",
    "UsedUp",
    "Verification",
    "Wire",
]
