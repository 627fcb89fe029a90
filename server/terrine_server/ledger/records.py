"""The arguments and results of the ledger: frozen, and free of SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from typing import Any

from terrine_protocol import EnsembleFacts, Outcome, ProjectStatus, Role
from terrine_server.ledger.chain import Counts, canonical_json, sigma_of_counts
from terrine_server.privacy import (
    GDP,
    Account,
    Accounts,
    Cap,
    Mechanism,
    Price,
    Rule,
    Terms,
    VoteOutcome,
)

# The kind of an ensemble whose units vote themselves, and have accounts in each project.
NEIGHBOURS = "neighbours"
# The kind of an ensemble that has noisy sums of its records alone, which answer all queries.
SUMS = "sums"


@dataclass(frozen=True)
class Edition:
    """Who is there in an ensemble of `neighbours`, from when people left or came.

    `units`: how many people there were on the last day that this was published. `slots`: accounts
    in each project; `erased`: those of people who left; both secret. `begins`: by the id of a
    project, after how many charges of it.
    """

    number: int
    manifest_sha256: str
    units: int
    slots: int = field(repr=False)
    erased: tuple[int, ...] = field(repr=False)
    begins: Mapping[int, int]
    made_at: datetime


@dataclass(frozen=True)
class PopulationRecord:
    """The people whom records are about, and the cap that all ensembles of them share.

    Costs are in units of 1e-12 of the rule's quantity, δ in 1e-18.
    """

    id: int
    name: str
    epsilon: float
    delta: float
    rdp_order: float | None
    cap: int
    delta_cap: int
    reserved: int
    delta_reserved: int
    disjoint_from: tuple[str, ...] | None
    """The populations of which the owner said that no person is in both; None if nobody asked."""
    declared_at: datetime

    @property
    def rule(self) -> Rule:
        """The rule by which the spends of its projects add up."""
        return GDP if self.rdp_order is None else Rule("rdp", self.rdp_order)

    @property
    def limit(self) -> Cap:
        """Its cap."""
        return Cap(self.epsilon, self.delta, self.rule, self.cap, self.delta_cap)


@dataclass(frozen=True)
class EnsembleRecord:
    """A registered ensemble."""

    id: int
    name: str
    population: PopulationRecord
    path: str
    manifest_sha256: str
    facts: EnsembleFacts
    units: int
    registered_at: datetime
    edition: Edition | None = None
    """The newest; None if it was not asked for. `path` and digest are those of the first."""

    @property
    def current(self) -> EnsembleRecord:
        """The same, with path and digest of its newest edition: what votes."""
        newest = self.edition
        if newest is None or newest.number == 1:
            return self
        path = f"{self.path}/edition-{newest.number}"
        return replace(self, path=path, manifest_sha256=newest.manifest_sha256)

    @property
    def published_units(self) -> int:
        """How many units there are, as it was last published: with the registration, or later."""
        return self.units if self.edition is None else self.edition.units

    @property
    def most_units(self) -> int:
        """The most units that were published, by which it is judged whether a δ is too large."""
        return max(self.units, self.published_units)

    @property
    def person_column(self) -> str | None:
        """The column that names whose a record is; None if nobody knows."""
        columns = self.facts.encoding.columns if self.facts.encoding else ()
        of_table = next((each.name for each in columns if each.role == "group"), None)
        return self.facts.group_column or of_table

    @property
    def release_spec(self) -> dict[str, Any] | None:
        """What each of its projects begins with (`privacy.build_release`), or None."""
        release = self.facts.release
        return None if release is None else release.model_dump(mode="json")

    @property
    def unit(self) -> str:
        """What the promise protects one of, as text."""
        facts = self.facts
        if self.person_column is not None:
            return f"{self.person_column} with all its records"
        if facts.disjoint_by is not None:
            return "record, or person with all their records"
        return "record"

    @property
    def protects(self) -> str:
        """What the promise protects one of, and how many there are."""
        return f"one {self.unit}, {self.units:,} of them"

    @cached_property
    def class_names(self) -> Mapping[int | None, str]:
        """The name of each class, by its label. Empty if classes are named 0, 1, …"""
        names: dict[int | None, str] = dict(enumerate(self.facts.classes))
        return {} if all(name == str(label) for label, name in names.items()) else names


@dataclass(frozen=True)
class ProjectRecord:
    """A project's account. `mechanism` and `terms` never change once it is opened."""

    id: int
    name: str
    ensemble: EnsembleRecord
    status: ProjectStatus
    mechanism: Mapping[str, Any]
    events: Mapping[str, Any]
    """The cost event of each outcome, as JSON."""
    terms: Terms
    spent: int
    delta_spent: int
    cap_spent: int
    charges: int
    published: Sequence[Publication]
    """The bounds on its spend that were published so far, in order."""
    genesis: str
    """Hash of the terms, in hex: the start of the chain of charges."""
    head: str
    """Hash of the last charge, in hex; the genesis if there is none."""
    opened_at: datetime
    closed_at: datetime | None
    seal: bytes = field(repr=False, compare=False)
    """That of its row when it was read."""
    title: str | None = None
    purpose: str | None = None

    @cached_property
    def account(self) -> Account:
        """The state that decides whether the next query is admitted."""
        return Account(
            spent=self.spent,
            delta_spent=self.delta_spent,
            cap_spent=self.cap_spent,
            queries=self.charges - self.released - len(self.published),
            published=len(self.published),
            fresh=self.charges > (self.published[-1].seq if self.published else self.released),
            released=self.released,
        )

    @property
    def released(self) -> int:
        """How many of its entries are for what it begins with: the first, or none."""
        return 0 if self.terms.release is None else 1

    @property
    def affordable(self) -> int:
        """How many further queries are certain to fit, at the worst price."""
        return self.terms.affordable(self.account)

    @property
    def spent_share(self) -> float:
        """How much of the budget is spent: of its cost or its δ, whichever ends sooner."""
        terms = self.terms
        costs = [(self.spent, terms.budget), (self.delta_spent, terms.delta_budget)]
        return max(spent / budget for spent, budget in costs if budget)

    @property
    def free(self) -> bool:
        """Whether nothing is ever paid but what it began with, from which all queries follow."""
        return not self.terms.prices

    @property
    def exhausted(self) -> bool:
        """Whether what is left pays for no further query, however cheap."""
        terms, account = self.terms, self.account
        return (
            not self.free
            and not terms.due(account)
            and not terms.admits(account, terms.baselines[-1])
        )

    def counts_due(self, outcome: str) -> int | None:
        """How many noisy counts an entry with this outcome has; None where it has none."""
        return len(self.ensemble.facts.classes) if outcome in self._sigma_of_counts else None

    @property
    def noise_sigma(self) -> float | None:
        """The σ of the noise in its entries' counts, in votes; None if it releases no counts."""
        return next(iter(self._sigma_of_counts.values()), None)

    @cached_property
    def _sigma_of_counts(self) -> dict[str, float]:
        return sigma_of_counts(self.events)


@dataclass(frozen=True)
class QueryDigest:
    """SHA-256 of the canonical query, and of its input alone; 32 bytes each.

    A query is more than its input if the student also sends a baseline (`interactive_gnmax`).
    """

    query: bytes
    input: bytes


@dataclass(frozen=True)
class Proposal:
    """A query to pay for.

    `outcome` is None for a query that was not voted on, which can only be replayed or refused, or,
    if it is `exhausted`, is answered so: by public rows, hardly anybody near it can vote any more.
    `places`: where a data-dependent project counts it in its tally; secret. `counts`: noisy
    counts that are released with the label; None if the mechanism releases none. `baseline`: the
    least number of votes that the query's baseline has for a class; 0 if it has no baseline.
    """

    query_digest: bytes
    input_digest: bytes
    outcome: VoteOutcome | None
    label: int | None
    places: tuple[int, ...] = field(default=(), repr=False)
    counts: Counts | None = field(default=None, repr=False)
    baseline: int = 0
    exhausted: bool = False

    def __post_init__(self) -> None:
        if len(self.query_digest) != 32 or len(self.input_digest) != 32:
            raise ValueError("a digest is 32 bytes")
        if (self.label is None) != (self.outcome in (None, VoteOutcome.ABSTAINED)):
            raise ValueError(f"outcome {self.outcome} with label {self.label}")
        if self.exhausted and self.outcome is not None:
            raise ValueError("nobody votes on a query that is exhausted")


@dataclass(frozen=True)
class SpentAccounts:
    """What each unit of a project of `neighbours` has spent once some proposals are paid. Secret.

    `charges`, `head`: the entry after which the accounts were read that these follow from.
    `queries`: how many proposals it was drawn for; it holds for all of them together, in order.
    """

    charges: int
    head: str
    queries: int
    accounts: Accounts = field(repr=False)
    shadows: Accounts = field(repr=False)
    """The same for the public points that are charged as if they were private; public."""


@dataclass(frozen=True)
class Result:
    """The result of one query. `seq`: the charge that paid for it; None if there is none.

    `counts`: the noisy counts with the label, for mechanisms that release them. `hash`: that of
    the charge, in hex; None until it is known. `source`: of what it follows, if not of votes.
    """

    outcome: Outcome
    label: int | None
    seq: int | None
    replayed: bool
    counts: Counts | None = None
    hash: str | None = field(default=None, compare=False)
    source: str | None = None

    @classmethod
    def of_sums(cls, label: int) -> Result:
        """Return a label that follows from sums that the project began with, free."""
        return cls(Outcome.ANSWERED, label, seq=None, replayed=False, source=SUMS)


@dataclass(frozen=True)
class ChargedBatch:
    """A batch's results, in the order of its proposals, and the project after them."""

    results: Sequence[Result]
    project: ProjectRecord


@dataclass(frozen=True)
class RecordedCharges:
    """Earlier charges that answer queries, by query digest and by input digest."""

    queries: Mapping[bytes, Result]
    answered_inputs: Mapping[bytes, Result]
    """Charges with the teachers' label. It answers any later query of the same input, whatever
    else the student sends."""

    def find(self, query_digest: bytes, input_digest: bytes) -> Result | None:
        """Return the charge that answers this query for free, if any. Its own takes precedence."""
        return self.queries.get(query_digest) or self.answered_inputs.get(input_digest)


@dataclass(frozen=True)
class ProjectSnapshot:
    """A project and what is on record for some queries to it, all as of one moment."""

    project: ProjectRecord
    recorded: RecordedCharges


@dataclass(frozen=True)
class Publication:
    """A published bound on the cost of a project's first `queries` queries.

    `figure`: the bound, in units of 1e-12. `seq`: its entry.
    """

    seq: int
    queries: int
    figure: int


@dataclass(frozen=True)
class ChargeRecord:
    """One entry of a project's ledger; digests and hash in hex. `counts`: noisy ones, if any."""

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
    mechanism: Mapping[str, Any]
    event: Mapping[str, Any]
    hash: str
    counts: Counts | None = None


def events_of(mechanism: Mechanism) -> dict[str, Any]:
    """Return the cost event of each outcome, as JSON."""
    return {str(outcome): event.to_json() for outcome, event in mechanism.events().items()}


def entry_event(events: Mapping[str, Any], outcome: str, baseline: int) -> Mapping[str, Any]:
    """Return the cost event of an entry. `baseline`: see `Terms.price`."""
    event: Mapping[str, Any] = events[outcome]
    return {**event, "baseline": baseline} if baseline else event


class EntryFields:
    """Builds the `chain.KIND_FIELDS` of a project's entries: all but number, time and query."""

    def __init__(self, project: ProjectRecord) -> None:
        self._mechanism = canonical_json(project.mechanism)
        self._events = dict(project.events)
        if project.terms.schedule is not None:
            self._events[Outcome.PUBLISHED] = project.terms.schedule.publication.event.to_json()
        if project.terms.release is not None:
            self._events[Outcome.RELEASED] = project.terms.release.event.to_json()
        self._recorded: dict[tuple[str, int], str] = {}

    def fields(
        self,
        outcome: str,
        price: Price,
        label: int | None,
        figure: int | None = None,
        *,
        baseline: int = 0,
    ) -> tuple[str | int | None, ...]:
        """Return an entry's fields. Raises KeyError for an outcome without a cost event."""
        recorded = self._recorded.get((outcome, baseline))
        if recorded is None:
            recorded = canonical_json(entry_event(self._events, outcome, baseline))
            self._recorded[outcome, baseline] = recorded
        return (
            str(outcome),
            label,
            figure,
            price.cost,
            price.delta,
            price.cap_cost,
            self._mechanism,
            recorded,
        )


@dataclass(frozen=True)
class TokenRecord:
    """A token as it is stored: a keyed hash in place of its secret."""

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
class Payment:
    """Which token paid for the entries `first` to `last` of a project.

    Among these may be figures that were published meanwhile, for which nobody's request pays.
    """

    first: int
    last: int
    token: str


@dataclass(frozen=True)
class ProjectPosition:
    """Where a project stood after one of its entries. `spent`: in units of 1e-12."""

    seq: int
    at: datetime
    spent: int


@dataclass(frozen=True)
class History:
    """How a project's budget was spent. All of it follows from its entries.

    `reached`: in order, the last is the account of now; empty if nothing was charged. `days`: how
    many entries there are with each outcome on each of the last days (UTC) that have any.
    """

    reached: Sequence[ProjectPosition]
    days: Mapping[date, Mapping[Outcome, int]]
    outcomes: Mapping[Outcome, int] = field(default_factory=dict)
    """How many of all its entries have each outcome that any has."""
