"""Terrine's client: request labels from a private ensemble, within a privacy budget::

    with Client("https://labels.example.org", token) as client:
        labels = client.label(x)                     # x: [B, …], as project() describes
    model.fit(*labels.training_set(x))               # any classifier of scikit-learn

`terrine_protocol` describes every field of the replies; `terrine_client.errors` lists all errors as
a tree.
"""

from terrine_client._labels import NO_COUNT, Labels, TrainingSet
from terrine_client._receipts import ReceiptReport, Receipts
from terrine_client.client import AsyncClient, Client
from terrine_client.errors import (
    BudgetExhausted,
    CapExceeded,
    ClientError,
    ConfigurationError,
    Conflict,
    ConnectionFailed,
    DatabaseUnavailable,
    EnsembleUnavailable,
    Forbidden,
    InternalError,
    InvalidQuery,
    InvalidRequest,
    InvalidTerms,
    LedgerCorrupted,
    LedgerRestored,
    LogNotSigned,
    MalformedHttp,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    ProblemError,
    ProjectClosed,
    ProjectPaused,
    RateLimited,
    ReplyError,
    RequestTimeout,
    TimedOut,
    Unauthorized,
    UnexpectedReply,
    UnsupportedMediaType,
)
from terrine_protocol import Budget, Outcome
from terrine_protocol.errors import ClippedError, DataError, TerrineError

__all__ = [
    "NO_COUNT",
    "AsyncClient",
    "Budget",
    "BudgetExhausted",
    "CapExceeded",
    "Client",
    "ClientError",
    "ClippedError",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "DataError",
    "DatabaseUnavailable",
    "EnsembleUnavailable",
    "Forbidden",
    "InternalError",
    "InvalidQuery",
    "InvalidRequest",
    "InvalidTerms",
    "Labels",
    "LedgerCorrupted",
    "LedgerRestored",
    "LogNotSigned",
    "MalformedHttp",
    "MethodNotAllowed",
    "NotFound",
    "Outcome",
    "Overloaded",
    "PayloadTooLarge",
    "ProblemError",
    "ProjectClosed",
    "ProjectPaused",
    "RateLimited",
    "ReceiptReport",
    "Receipts",
    "ReplyError",
    "RequestTimeout",
    "TerrineError",
    "TimedOut",
    "TrainingSet",
    "Unauthorized",
    "UnexpectedReply",
    "UnsupportedMediaType",
]
