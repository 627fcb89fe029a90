"""What the ledger takes and gives back: frozen, and free of SQL.

EnsembleRecord      an ensemble and how much of its cap is reserved
ProjectRecord       a project's terms and balances
QueryDigest         what identifies a query
Proposal            a query with the outcome that its votes gave, not yet paid
Batch               one request's proposals
Result              a query's fate, paid or refused
Receipt             a batch's results and the account after them
Recorded            earlier answers
OnRecord            what is known of requests before they are paid
Publication         a published bound on a data-dependent project's spend
SecretAccount       that spend, for the data owner alone
ChargeRecord        one entry
TokenRecord         a token without its secret
Verification        whether a project's books are whole
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from terrine_protocol import Guarantee, Outcome, ProjectStatus, Role
from terrine_server.errors import TerrineError
from terrine_server.ledger.anchors import Anchor
from terrine_server.privacy import GDP, Account, Rule, Terms, VoteOutcome


@dataclass(frozen=True)
class EnsembleRecord:
    """A registered ensemble. Cost in units of 1e-12 of the rule's quantity, δ in units of 1e-18."""

    id: int
    name: str
    path: str
    manifest_sha256: str
    info: Mapping[str, Any]
    records: int
    epsilon: float
    delta: float
    rdp_order: float | None
    cap: int
    delta_cap: int
    reserved: int
    delta_reserved: int
    claimed: bool
    """True once any project on it was opened with a claimed guarantee; it never goes back."""
    registered_at: datetime

    @property
    def rule(self) -> Rule:
        """How the cap adds up what its projects spend."""
        return GDP if self.rdp_order is None else Rule("rdp", self.rdp_order)

    @property
    def guarantee(self) -> Guarantee:
        """How far the cap's (ε, δ) may be trusted."""
        return Guarantee.CLAIMED if self.claimed else Guarantee.PROVEN


@dataclass(frozen=True)
class ProjectRecord:
    """A project's account. `mechanism` and `terms` never change once it is opened."""

    id: int
    name: str
    ensemble: EnsembleRecord
    status: ProjectStatus
    guarantee: Guarantee
    mechanism: Mapping[str, Any]
    events: Mapping[str, Any]
    """The cost event of each outcome and, where there are epochs, of opening one, as JSON."""
    terms: Terms
    spent: int
    delta_spent: int
    cap_spent: int
    charges: int
    published: Sequence[Publication]
    """The bounds on its spend that were published so far."""
    genesis: str
    """Hash of the terms, in hex: where the chain of charges starts."""
    head: str
    """Hash of the last charge, in hex; the genesis when there is none."""
    opened_at: datetime
    closed_at: datetime | None

    @property
    def account(self) -> Account:
        """What decides on the next query."""
        return Account(
            spent=self.spent,
            delta_spent=self.delta_spent,
            cap_spent=self.cap_spent,
            queries=self.charges - len(self.published),
            published=len(self.published),
            fresh=self.charges > (self.published[-1].seq if self.published else 0),
        )

    @property
    def affordable(self) -> int:
        """Further queries that are certain to fit, at the worst price."""
        return self.terms.affordable(self.account)


@dataclass(frozen=True)
class QueryDigest:
    """SHA-256 of the canonical query, and of its input alone; 32 bytes each.

    They differ where the student sends more than the input (interactive_gnmax: its baseline).
    """

    query: bytes
    input: bytes


@dataclass(frozen=True)
class Proposal:
    """A query that asks to be paid.

    `outcome` is None for a query that was not voted on: it can be replayed or refused, no more.
    `places`: where a data-dependent project counts it in its tally; secret. `epoch`: to which of
    its release's epochs it belongs; None where nothing outlives a query.
    """

    query_digest: bytes
    input_digest: bytes
    outcome: VoteOutcome | None
    label: int | None
    places: tuple[int, ...] = field(default=(), repr=False)
    epoch: int | None = None

    def __post_init__(self) -> None:
        if len(self.query_digest) != 32 or len(self.input_digest) != 32:
            raise ValueError("a digest is 32 bytes")
        if (self.label is None) != (self.outcome in (None, VoteOutcome.ABSTAINED)):
            raise ValueError(f"outcome {self.outcome} with label {self.label}")


@dataclass(frozen=True)
class Batch:
    """One request's queries; `key` is its idempotency key and the SHA-256 of its body."""

    proposals: Sequence[Proposal]
    key: tuple[str, bytes] | None = None


@dataclass(frozen=True)
class Result:
    """A query's fate. `seq` is the charge that paid for it, None when refused."""

    outcome: Outcome
    label: int | None
    seq: int | None
    replayed: bool


@dataclass(frozen=True)
class Receipt:
    """A batch's results, in the order of its proposals, and the project after them."""

    results: Sequence[Result]
    project: ProjectRecord


@dataclass(frozen=True)
class Recorded:
    """Earlier charges that answer queries of a batch, by query and by input digest."""

    queries: Mapping[bytes, Result]
    answered_inputs: Mapping[bytes, Result]
    """Charges that were answered with the teachers' label: it holds for any later query of the
    same input, whatever else the student sent along."""

    def find(self, query_digest: bytes, input_digest: bytes) -> Result | None:
        """Return the charge that answers this query for free. The identical query comes first."""
        return self.queries.get(query_digest) or self.answered_inputs.get(input_digest)


@dataclass(frozen=True)
class OnRecord:
    """A project as it stands, and what is on record of some requests to it, all at one moment.

    `answers`: for each request the receipt that came before under its key, None for a new one, an
    IdempotencyConflict for a key that came with another request. `recorded`: earlier answers.
    """

    project: ProjectRecord
    answers: Sequence[Receipt | TerrineError | None]
    recorded: Recorded


@dataclass(frozen=True)
class Publication:
    """A published bound on what a project's queries had cost, after `queries` of them.

    `figure` in units of 1e-12; `seq` is its entry.
    """

    seq: int
    queries: int
    figure: int


@dataclass(frozen=True)
class SecretAccount:
    """What a project's queries cost at their votes, and its smooth sensitivity. Both are secret.

    In Rényi divergence at the project's order.
    """

    queries: int
    order: float
    cost: float
    smooth_sensitivity: float


@dataclass(frozen=True)
class ChargeRecord:
    """One entry of a project's ledger; digests and hash in hex."""

    project: str
    project_id: int
    seq: int
    created_at: datetime
    query_digest: str
    input_digest: str
    outcome: Outcome
    label: int | None
    figure: int | None
    cost: int
    delta: int
    cap_cost: int
    guarantee: Guarantee
    mechanism: Mapping[str, Any]
    event: Mapping[str, Any]
    hash: str


@dataclass(frozen=True)
class TokenRecord:
    """A token as it is remembered: a keyed hash in place of its secret."""

    id: str
    role: Role
    project: str | None
    project_id: int | None
    label: str
    hash: bytes
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True)
class Verification:
    """Whether a project's books are whole. `problems` names what is not, first finding first.

    `vouched`: so many entries were taken on an anchor's word. `anchor`: where the books stand, if
    they are whole.
    """

    project: str
    charges: int
    head: str
    problems: Sequence[str]
    vouched: int = 0
    anchor: Anchor | None = None

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems
