"""The wire contract: what students, auditors and the server say to each other.

Both sides import these models and nothing else of one another. Requests forbid unknown fields, so
a misspelt option is an error and never a silent default; replies may grow. The terms of a project
are strict numbers: neither `true` nor "1" is taken for 1. Vote counts have no
field here.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$",
        description="Lower-case letters, digits, '-' and '_'; at most 64 characters.",
        examples=["diabetes-study"],
    ),
]
Sigma = Annotated[
    float,
    Field(
        strict=True,
        gt=0,
        allow_inf_nan=False,
        description="Standard deviation of the noise, in votes.",
    ),
]
Gamma = Annotated[
    float,
    Field(
        strict=True,
        gt=0,
        allow_inf_nan=False,
        description="Laplace noise has scale 1/gamma, in votes.",
    ),
]
Threshold = Annotated[
    int,
    Field(
        strict=True,
        ge=0,
        description="Votes that the noisy maximum must reach; at most the teachers.",
    ),
]


class Wire(BaseModel):
    """Base of what is sent to the server: immutable, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Reply(BaseModel):
    """Base of what the server sends: a newer server may add fields that older clients ignore."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Guarantee(StrEnum):
    """How far a stated (ε, δ) may be trusted."""

    PROVEN = "proven"
    CLAIMED = "claimed"
    """A published claim that is known to fail for some neighbouring data sets."""


class Outcome(StrEnum):
    """What became of one query."""

    ANSWERED = "answered"
    ABSTAINED = "abstained"
    REINFORCED = "reinforced"
    PUBLISHED = "published"
    """No query: an entry of the ledger that publishes a bound on what the queries cost so far."""
    REFUSED = "refused"
    """The budget does not reach this query. Nothing was looked at and nothing was charged."""


class ProjectStatus(StrEnum):
    """Whether a project answers."""

    ACTIVE = "active"
    PAUSED = "paused"
    CLOSED = "closed"


class Role(StrEnum):
    """What the holder of a token may do."""

    STUDENT = "student"
    AUDITOR = "auditor"
    ADMIN = "admin"


# ---------------------------------------------------------------------------- mechanisms


class LNMaxSpec(Wire):
    """Noisy max with Laplace noise (Papernot et al. 2017)."""

    name: Literal["lnmax"]
    gamma: Gamma


class GNMaxSpec(Wire):
    """Noisy max with Gaussian noise (Papernot et al. 2018, section 4.1)."""

    name: Literal["gnmax"]
    sigma: Sigma


class ConfidentGNMaxSpec(Wire):
    """Answers only when the noisy maximum reaches a threshold (Papernot et al. 2018, Alg. 1)."""

    name: Literal["confident_gnmax"]
    threshold: Threshold
    sigma1: Sigma
    sigma2: Sigma


class InteractiveGNMaxSpec(Wire):
    """Answers where teachers disagree with the student (Papernot et al. 2018, Alg. 2)."""

    name: Literal["interactive_gnmax"]
    threshold: Threshold
    sigma1: Sigma
    sigma2: Sigma
    confidence: Annotated[
        float,
        Field(
            strict=True, ge=0, le=1, description="The student's own label is confirmed above this."
        ),
    ]


class ImmutableSpec(Wire):
    """Immutable noisy argmax: the winner gets `c` extra votes before the noise.

    `pricing="as_published"` charges the paper's own (2γ, 0), which does not hold for every
    neighbouring data set; everything said about such a project carries `guarantee: "claimed"`.
    """

    name: Literal["immutable"]
    c: Annotated[
        int, Field(strict=True, ge=0, le=1_000_000_000, description="Votes added to the winner.")
    ]
    gamma: Gamma | None = None
    sigma: Sigma | None = None
    pricing: Literal["honest", "as_published"] = "honest"


class StableSpec(Wire):
    """Releases the exact winner after a private test of its margin (propose-test-release)."""

    name: Literal["stable"]
    sigma: Sigma
    delta_per_query: Annotated[
        float,
        Field(
            strict=True, gt=0, lt=1, description="Chance that an unstable winner passes the test."
        ),
    ]


class StableSVTSpec(Wire):
    """Releases exact winners, paid by the epoch, which an abstention ends (sparse vector)."""

    name: Literal["stable_svt"]
    epsilon_per_epoch: Annotated[
        float,
        Field(strict=True, gt=0, allow_inf_nan=False, description="Pure ε of an epoch."),
    ]
    delta_per_query: Annotated[
        float, Field(strict=True, gt=0, lt=1, description="Chance that an unstable winner passes.")
    ]
    answers_per_epoch: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=1_000_000,
            description="An epoch ends after so many; its δ is delta_per_query for each of them.",
        ),
    ]


MechanismSpec = Annotated[
    LNMaxSpec
    | GNMaxSpec
    | ConfidentGNMaxSpec
    | InteractiveGNMaxSpec
    | ImmutableSpec
    | StableSpec
    | StableSVTSpec,
    Field(discriminator="name"),
]


# ------------------------------------------------------------------------------ labeling


class LabelRequest(Wire):
    """`POST /label` as JSON. The binary forms carry the same two arrays."""

    inputs: Annotated[
        list[Any],
        Field(min_length=1, description="Nested numbers of shape [B, …], as the ensemble asks."),
    ]
    probabilities: Annotated[
        list[list[float]] | None,
        Field(description="[B, m] class probabilities of the student; for interactive_gnmax."),
    ] = None


class LabelResult(Reply):
    """One query's fate."""

    outcome: Outcome
    label: Annotated[int | None, Field(description="Class index, where there is one.")] = None
    charge: Annotated[
        int | None, Field(description="Number of the ledger entry that paid for it.")
    ] = None
    replayed: Annotated[
        bool, Field(description="True when an earlier answer was repeated, at no cost.")
    ] = False


class Rule(Reply):
    """How a project adds up what it spends; fixed when it is opened."""

    name: Annotated[
        Literal["gdp", "rdp"],
        Field(description="Gaussian-DP filter on μ², or Rényi-DP filter at one order."),
    ]
    order: Annotated[float | None, Field(description="Rényi order, for the rdp rule.")] = None


class DeltaSplit(Reply):
    """How a project's δ is divided; the four parts add up to at most δ."""

    conversion: float
    stability: float
    publication: float
    sampler: float


class Price(Reply):
    """What one outcome debits, in the project's integer units."""

    cost: Annotated[int, Field(ge=0, description="Units of 1e-12 of the rule's quantity.")]
    delta: Annotated[int, Field(ge=0, description="Units of 1e-18 of δ.")]


Opening = Annotated[
    Price | None,
    Field(
        description="Of stable_svt: what the first query of an epoch pays beside its own price. An "
        "epoch ends with its request, an abstention or its last answer."
    ),
]


class Published(Reply):
    """A bound on what a data-dependent project's queries had cost, as it was published."""

    charge: Annotated[int, Field(description="Number of its ledger entry.")]
    queries: Annotated[int, Field(description="Queries that it covers.")]
    figure: Annotated[int, Field(description="Units of 1e-12 of the rule's quantity.")]


class Budget(Reply):
    """A project's public account. Every figure follows from public parameters and outcomes."""

    project: Name
    status: ProjectStatus
    guarantee: Guarantee
    epsilon: float
    delta: float
    rule: Rule
    budget: Annotated[int, Field(description="What may be spent, in units of 1e-12.")]
    spent: int
    delta_budget: Annotated[int, Field(description="Additive δ to spend, in units of 1e-18.")]
    delta_spent: int
    epsilon_spent: Annotated[
        float,
        Field(description="ε of what is spent so far at the same δ. Informational."),
    ]
    charges: Annotated[int, Field(ge=0, description="Ledger entries so far.")]
    publications: Annotated[
        list[Published],
        Field(description="Of a data-dependent project: what stands for its queries' worst case."),
    ] = []
    affordable: Annotated[
        int, Field(ge=0, description="Further queries that are certain to fit, at worst price.")
    ]


class LabelResponse(Reply):
    """The answers, in the order of the inputs, and the account after them."""

    results: list[LabelResult]
    budget: Budget


class EstimateRequest(Wire):
    """`POST /label/estimate`: what would this many new queries cost at most?"""

    queries: Annotated[int, Field(ge=1, le=1_000_000_000)]


class Estimate(Reply):
    """Worst-case price of a plan. No input and no vote was looked at."""

    queries: int
    cost: Annotated[int, Field(description="Worst-case debit in units of 1e-12.")]
    delta_cost: Annotated[int, Field(description="Worst-case additive δ, in units of 1e-18.")]
    fits: Annotated[bool, Field(description="True when all are certain to be paid.")]
    epsilon_after: Annotated[
        float, Field(description="ε spent after the plan, at worst price. Informational.")
    ]
    prices: dict[Outcome, Price]
    opening: Opening = None
    budget: Budget


# ------------------------------------------------------------- ensembles, projects, tokens


class InputSpec(Reply):
    """What an ensemble's inputs must look like."""

    shape: Annotated[list[int], Field(description="Shape of one input, without the batch.")]
    dtype: Literal["uint8", "float32"]
    low: Annotated[float, Field(description="Smallest allowed value.")]
    high: Annotated[float, Field(description="Largest allowed value.")]


class EnsembleInfo(Reply):
    """An ensemble as students may know it."""

    name: Name
    manifest_sha256: str
    kind: Annotated[str, Field(examples=["heads"])]
    input: InputSpec
    classes: list[str]
    teachers: int
    available: Annotated[bool, Field(description="False when its files do not verify.")]


class EnsembleAccount(EnsembleInfo):
    """An ensemble as its owner sees it: with the cap that all its projects share."""

    guarantee: Annotated[
        Guarantee,
        Field(description="`claimed` once any project on it was priced as published."),
    ]
    epsilon: float
    delta: float
    rule: Annotated[Rule, Field(description="How the cap adds up what its projects spend.")]
    cap: Annotated[int, Field(description="Units of 1e-12 of the rule's quantity.")]
    reserved: int
    delta_cap: Annotated[int, Field(description="Additive δ, in units of 1e-18.")]
    delta_reserved: int


class ConsensusLevel(Wire):
    """A kind of query that one expects: how many of the teachers agree, on how many of the queries.

    A guess, or what public data show. Never what private teachers voted.
    """

    agreement: Annotated[float, Field(gt=0, le=1, description="Share of teachers that agree.")]
    share: Annotated[float, Field(gt=0, le=1e9, description="Weight among the queries.")] = 1.0


class Publishing(Wire):
    """How a data-dependent project publishes bounds on its spend; see docs/privacy."""

    beta: Annotated[float, Field(gt=0, lt=10, description="Rate of smoothing.")]
    sigma: Annotated[float, Field(gt=0, description="Noise, in smooth sensitivities.")]
    schedule: Annotated[
        list[Annotated[int, Field(ge=1)]],
        Field(min_length=1, max_length=64, description="Paid queries before each publication."),
    ]


class PublishingTerms(Reply):
    """A data-dependent project's schedule and the release's parameters, fixed when it is opened."""

    order: Annotated[float, Field(description="Rényi order, also the rule's and the cap's.")]
    beta: float
    sigma: float
    z: Annotated[float, Field(description="Standard deviations by which figures are raised.")]
    schedule: list[int]
    price: Price


class SecretSpend(Reply):
    """What a data-dependent project's queries cost at their votes. For the data owner alone.

    Secret: a function of private votes that no promise covers. Do not pass it on.
    """

    secret: Literal[True] = True
    project: Name
    queries: int
    order: float
    cost: Annotated[float, Field(description="Rényi divergence at the order.")]
    smooth_sensitivity: float


class ProjectOpen(Wire):
    """`POST /projects`. Everything here is fixed for the project's life."""

    name: Name
    ensemble: Name
    mechanism: MechanismSpec
    epsilon: Annotated[float, Field(strict=True, gt=0, le=100, allow_inf_nan=False)]
    delta: Annotated[float, Field(strict=True, gt=0, lt=1)]
    acknowledge_claimed: Annotated[
        bool,
        Field(description='Must be true for pricing "as_published": its guarantee is a claim.'),
    ] = False
    accounting: Annotated[
        Literal["worst_case", "data_dependent"],
        Field(description="data_dependent publishes bounds on the spend and refuses by those."),
    ] = "worst_case"
    consensus: Annotated[
        list[ConsensusLevel] | None,
        Field(min_length=1, max_length=100, description="What data_dependent is planned for."),
    ] = None
    publishing: Annotated[
        Publishing | None,
        Field(description="For data_dependent; what suits the consensus, where left out."),
    ] = None

    @model_validator(mode="after")
    def _publishing_goes_with_data_dependent(self) -> Self:
        given = self.consensus is not None or self.publishing is not None
        if given and self.accounting == "worst_case":
            raise ValueError('consensus and publishing go with accounting "data_dependent".')
        return self


class ProjectUpdate(Wire):
    """`PATCH /projects/{name}`. Closing is final and returns what was not spent."""

    status: ProjectStatus


class ProjectInfo(Reply):
    """A project's terms. A student may read those of its own project."""

    name: Name
    status: ProjectStatus
    guarantee: Guarantee
    ensemble: EnsembleInfo
    mechanism: MechanismSpec
    epsilon: float
    delta: float
    delta_split: DeltaSplit
    rule: Rule
    prices: dict[Outcome, Price]
    opening: Opening = None
    publishing: Annotated[
        PublishingTerms | None, Field(description="Of a data-dependent project.")
    ] = None
    opened_at: datetime
    closed_at: datetime | None = None


class TokenCreate(Wire):
    """`POST /tokens`. A student's token belongs to one project; the others to none."""

    role: Role
    project: Name | None = None
    label: Annotated[
        str,
        Field(max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$", description="For your own records."),
    ] = ""
    expires_in_days: Annotated[float, Field(gt=0, le=3650)] = 90

    @model_validator(mode="after")
    def _project_goes_with_the_role(self) -> Self:
        if (self.role is Role.STUDENT) != (self.project is not None):
            raise ValueError("A student's token needs a project, and no other token has one.")
        return self


class TokenInfo(Reply):
    """A token as it is remembered: its secret is not."""

    id: str
    role: Role
    project: Name | None
    label: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None


class TokenCreated(TokenInfo):
    """The one time the secret is shown."""

    token: str


# -------------------------------------------------------------------------------- ledger


class Charge(Reply):
    """One entry of a project's ledger."""

    project: Name
    seq: Annotated[int, Field(ge=1, description="Numbered from 1 without gaps.")]
    created_at: datetime
    outcome: Outcome
    label: int | None
    figure: Annotated[
        int | None, Field(description="Of a publication: the bound, in units of 1e-12.")
    ] = None
    cost: int
    delta: int
    guarantee: Guarantee
    mechanism: MechanismSpec
    event: Annotated[dict[str, Any], Field(description="What happened, for any accountant.")]
    query_digest: Annotated[str, Field(description="SHA-256 of the canonical query.")]
    hash: Annotated[str, Field(description="SHA-256 over this entry and the previous hash.")]


class LedgerPage(Reply):
    """A page of charges, oldest first."""

    items: list[Charge]
    next: Annotated[
        str | None, Field(description="Pass as `cursor` for the next page; null at the end.")
    ] = None


class BudgetPage(Reply):
    """A page of projects' accounts, by name."""

    items: list[Budget]
    next: str | None = None


class Verification(Reply):
    """Whether a project's books are whole."""

    project: Name
    ok: bool
    charges: int
    head: Annotated[str, Field(description="Hash of the last entry.")]
    problems: Annotated[list[str], Field(description="What is wrong, first finding first.")]


# ------------------------------------------------------------------------------ problems


class Problem(BaseModel):
    """RFC 9457 problem details. `type` ends in one of the names in `PROBLEMS`."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(examples=["/problems/budget-exhausted"])]
    title: str
    status: int
    detail: str
    instance: str | None = None


class ProblemType(BaseModel):
    """One stable kind of problem, with its documentation."""

    model_config = ConfigDict(frozen=True)

    status: int
    title: str
    meaning: str


PROBLEMS: dict[str, ProblemType] = {
    slug: ProblemType(status=status, title=title, meaning=meaning)
    for slug, status, title, meaning in [
        (
            "malformed-http",
            400,
            "This is no HTTP request",
            "The request line, headers or chunks are malformed, too long or contradict each other.",
        ),
        (
            "invalid-request",
            422,
            "The request is malformed",
            "A field is missing, unknown or out of range. `errors` names each one.",
        ),
        (
            "invalid-query",
            422,
            "The inputs are not what the ensemble takes",
            "Shape, dtype, finiteness or range of the inputs or probabilities is wrong, or the "
            "bytes are not a plain array. Nothing was charged.",
        ),
        (
            "invalid-terms",
            422,
            "The project cannot be opened on these terms",
            "A mechanism's parameter, ε or δ is outside what can be proved or makes no sense.",
        ),
        (
            "unsupported-media-type",
            415,
            "Content type not supported",
            "Send application/json, application/x-npy or application/x-npz.",
        ),
        (
            "payload-too-large",
            413,
            "Too much in one request",
            "The body or the batch exceeds the server's limits, which `limit` names. Split it.",
        ),
        (
            "request-timeout",
            408,
            "The body took too long",
            "It did not arrive whole in the time allowed. Nothing was charged. Send less at once.",
        ),
        (
            "unauthorized",
            401,
            "No valid token",
            "The bearer token is missing, unknown, expired or revoked.",
        ),
        (
            "forbidden",
            403,
            "This token may not do that",
            "The token's role or project does not cover the request.",
        ),
        (
            "not-found",
            404,
            "No such thing",
            "The named project, ensemble, token or page does not exist.",
        ),
        (
            "method-not-allowed",
            405,
            "Method not allowed",
            "The path exists, but not with this method.",
        ),
        (
            "conflict",
            409,
            "In conflict with what exists",
            "A name is taken, or a status cannot be changed that way.",
        ),
        (
            "idempotency-conflict",
            409,
            "Idempotency key used for another request",
            "The same Idempotency-Key came before with a different body. Use a fresh key.",
        ),
        (
            "cap-exceeded",
            409,
            "The ensemble's cap does not allow this budget",
            "Projects share the cap of their ensemble, because students can collude.",
        ),
        (
            "budget-exhausted",
            403,
            "The privacy budget is spent",
            "No new query fits the project's budget. Earlier answers remain free to repeat.",
        ),
        (
            "project-paused",
            403,
            "The project is paused",
            "The data owner has paused it. Ask again later.",
        ),
        (
            "project-closed",
            403,
            "The project is closed",
            "The data owner has closed it. It will not answer again.",
        ),
        (
            "rate-limited",
            429,
            "Too many requests",
            "The token has used its requests for this minute. See Retry-After.",
        ),
        (
            "overloaded",
            503,
            "The server is busy",
            "It takes on no more for the moment. Nothing was charged. See Retry-After.",
        ),
        (
            "ensemble-unavailable",
            503,
            "The ensemble cannot be used",
            "Its files are missing, altered, or not the ones that were registered.",
        ),
        (
            "database-unavailable",
            503,
            "The ledger cannot be reached",
            "Without a durable charge there is no answer. Retry with the same Idempotency-Key.",
        ),
        (
            "broken-books",
            503,
            "The ledger's books do not agree",
            "The ledger contradicts itself, so nothing is answered or charged. Asking again does "
            "not help: the server's operator should run `terrine ledger verify`.",
        ),
        (
            "internal",
            500,
            "Internal error",
            "A defect in the server. Nothing was answered; the request id finds it in the log.",
        ),
    ]
}
