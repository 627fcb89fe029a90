"""The wire contract: what students, auditors and the server send to each other.

Client and server import these models, and this package imports neither. Requests forbid unknown
fields, so that a misspelt option is an error and never a silent default; replies may gain fields.
The terms of a project are strict numbers: neither `true` nor "1" is accepted as 1. No model has a
field for vote counts.
"""

from terrine_protocol.base import (
    DeltaSplitInfo,
    Guarantee,
    Name,
    Opening,
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
    Estimate,
    EstimateRequest,
    LabelRequest,
    LabelResponse,
    LabelResult,
    PublicationInfo,
)
from terrine_protocol.ledger import BudgetPage, Charge, LedgerPage, Verification
from terrine_protocol.mechanisms import (
    ConfidentGNMaxSpec,
    Gamma,
    GNMaxSpec,
    ImmutableSpec,
    InteractiveGNMaxSpec,
    LNMaxSpec,
    MechanismSpec,
    Sigma,
    StableSpec,
    StableSVTSpec,
    Threshold,
)
from terrine_protocol.problems import PROBLEMS, Problem, ProblemType
from terrine_protocol.projects import (
    ConsensusLevel,
    EnsembleAccount,
    EnsembleInfo,
    InputSpec,
    ProjectInfo,
    ProjectOpen,
    ProjectPage,
    ProjectUpdate,
    PublishingRequest,
    PublishingTerms,
    SecretSpend,
)
from terrine_protocol.tokens import TokenCreate, TokenCreated, TokenInfo, TokenPage

__all__ = [
    "PROBLEMS",
    "Budget",
    "BudgetPage",
    "Charge",
    "ConfidentGNMaxSpec",
    "ConsensusLevel",
    "DeltaSplitInfo",
    "EnsembleAccount",
    "EnsembleInfo",
    "Estimate",
    "EstimateRequest",
    "GNMaxSpec",
    "Gamma",
    "Guarantee",
    "ImmutableSpec",
    "InputSpec",
    "InteractiveGNMaxSpec",
    "LNMaxSpec",
    "LabelRequest",
    "LabelResponse",
    "LabelResult",
    "LedgerPage",
    "MechanismSpec",
    "Name",
    "Opening",
    "Outcome",
    "PriceInfo",
    "Problem",
    "ProblemType",
    "ProjectInfo",
    "ProjectOpen",
    "ProjectPage",
    "ProjectStatus",
    "ProjectUpdate",
    "PublicationInfo",
    "PublishingRequest",
    "PublishingTerms",
    "Reply",
    "Role",
    "RuleInfo",
    "SecretSpend",
    "Sigma",
    "StableSVTSpec",
    "StableSpec",
    "Threshold",
    "TokenCreate",
    "TokenCreated",
    "TokenInfo",
    "TokenPage",
    "Verification",
    "Wire",
]
