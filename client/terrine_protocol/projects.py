"""Ensembles and their inputs, and projects: how one is opened, and its terms."""

from __future__ import annotations

import math
import operator
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from terrine_protocol.base import (
    PROTECTS,
    DeltaSplitInfo,
    Name,
    Outcome,
    PriceInfo,
    ProjectStatus,
    Purpose,
    Record,
    Reply,
    RuleInfo,
    Sha256,
    Title,
    Wire,
    absent,
)
from terrine_protocol.mechanisms import MechanismSpec
from terrine_protocol.schema import NO_EMBEDDINGS, TableSchema

Side = Annotated[int, Field(ge=1, le=1024)]


class ImageFormat(Record):
    """What every picture is converted to: its size, and grey or colour.

    A picture is turned as its EXIF data say, laid on white where it is transparent, made grey or
    RGB, and scaled to this size, whatever its own proportions. Of a grey PNG of 16 bits, the
    highest 8 of `bits` are kept; what is brighter is white.
    """

    height: Side
    width: Side
    grey: bool
    bits: Annotated[int, Field(ge=8, le=16)] | None = Field(
        None,
        description="Of each value of a grey PNG of 16 bits, how many are used, as by a camera of "
        "12. Absent: all 16.",
        exclude_if=absent,
    )

    @property
    def shape(self) -> tuple[int, ...]:
        """That of one input: [H, W], or [H, W, 3] in colour. Values are from 0 to 255."""
        return (self.height, self.width) if self.grey else (self.height, self.width, 3)


class TextNumbers(Record):
    """Which numbers of an input are those of a text: its n-grams."""

    start: Annotated[int, Field(ge=0)]
    hashed: Annotated[int, Field(ge=1)]
    embedded: Literal[0] = 0
    """Numbers of an embedding: what is stored says that there are none."""

    @field_validator("embedded", mode="before")
    @classmethod
    def _are_none(cls, given: object) -> object:
        if given:
            raise ValueError(NO_EMBEDDINGS)
        return given


class InputSpec(Record):
    """The format of an ensemble's inputs."""

    model_config = ConfigDict(extra="ignore")  # as replies

    shape: Annotated[tuple[int, ...], Field(description="Shape of one input, without the batch.")]
    dtype: Literal["uint8", "float32"]
    low: Annotated[float, Field(description="Smallest allowed value.")]
    high: Annotated[float, Field(description="Largest allowed value.")]
    texts: Annotated[
        tuple[TextNumbers, ...] | None,
        Field(
            min_length=1,
            description="Of rows with columns of text: where the numbers of each are.",
            exclude_if=absent,
        ),
    ] = None

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        end = 0
        for text in self.texts or ():
            if text.start < end or len(self.shape) != 1:
                raise ValueError("texts are in rows of a table, one after another")
            end = text.start + text.hashed
        if end > self.shape[0]:
            raise ValueError("texts have more numbers than an input has")
        if not 1 <= len(self.shape) <= 4 or min(self.shape) < 1:
            raise ValueError(f"shape must be one to four sizes from 1, got {list(self.shape)}")
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")
        return self

    @property
    def size(self) -> int:
        """How many numbers an input has."""
        return math.prod(self.shape)


class HistogramRelease(Record):
    """Histograms that each project on an ensemble begins with. All of this is public."""

    kind: Literal["histograms"] = "histograms"
    sigma: Annotated[float, Field(gt=0, description="Noise in every count, in units.")]
    cells: Annotated[
        tuple[Annotated[int, Field(ge=2)], ...],
        Field(min_length=1, description="How many each histogram has; the label's is the last."),
    ]
    schema_sha256: Annotated[Sha256, Field(description="Of the schema that the cells follow from.")]


class SumRelease(Record):
    """Sums, by class, of public features: all that a project on an ensemble of `sums` tells.

    Each person counts once. All of this is public.
    """

    kind: Literal["sums"] = "sums"
    sigma: Annotated[float, Field(gt=0, description="Noise in every sum.")]
    norm: Annotated[
        int,
        Field(
            ge=1,
            description="The most that a person's features are long: whole numbers, to which "
            "longer ones are shortened.",
        ),
    ]
    features: Annotated[int, Field(ge=1, description="Sums of a class, beside its count.")]
    classes: Annotated[int, Field(ge=2)]
    map_sha256: Annotated[Sha256, Field(description="Of the public map of inputs to features.")]


# Told apart by their fields, as ledgers keep them without what is a default.
Release = HistogramRelease | SumRelease


class EnsembleFacts(Reply):
    """What students may know of an ensemble's teachers. It never changes."""

    kind: Annotated[str, Field(examples=["heads"])]
    input: InputSpec
    classes: Annotated[list[str], Field(min_length=2)]
    teachers: Annotated[int, Field(ge=1)]
    matches_prior: Annotated[
        bool,
        Field(
            exclude_if=operator.not_,
            description="For two classes: each teacher chooses the second for the same share of "
            "public rows as its own records have it.",
        ),
    ] = False
    disjoint_by: Annotated[
        str | None,
        Field(
            exclude_if=absent,
            description="Of teachers trained elsewhere: how no person's records trained two of "
            "them. The guarantee rests on it. Declared by the owner, not checked.",
        ),
    ] = None
    group_column: Annotated[
        str | None,
        Field(
            exclude_if=absent,
            description="The column that names whose a record is: all records of one are protected "
            "together. Absent where each record counts by itself.",
        ),
    ] = None
    encoding: Annotated[
        TableSchema | None,
        Field(
            exclude_if=absent,
            description="Of tables: how rows become inputs, as by `encode_table` and "
            "`encode_frame` of `terrine_tables.encoding`.",
        ),
    ] = None
    image: Annotated[
        ImageFormat | None,
        Field(
            exclude_if=absent,
            description="Of pictures: how files become inputs, as by "
            "`terrine_models.data.images.load_images`.",
        ),
    ] = None
    designed: Annotated[
        bool,
        Field(
            exclude_if=operator.not_,
            description="Whether the owner designed the inputs that students ask: GET /pool.",
        ),
    ] = False
    release: Annotated[
        Release | None,
        Field(
            exclude_if=absent,
            description="What each project begins with, and pays for by its first charge: "
            "histograms, of which the inputs were designed, or sums, which answer all queries.",
        ),
    ] = None


class EnsembleInfo(EnsembleFacts):
    """An ensemble as students see it."""

    name: Name
    population: Annotated[
        Name | None,
        Field(
            exclude_if=absent,
            description="The people whom its records are about, by the owner's name.",
        ),
    ] = None
    protects: Annotated[str, Field(description=PROTECTS)]
    units: Annotated[int, Field(ge=1, description="How many of them there are.")]
    manifest_sha256: str
    available: Annotated[bool, Field(description="False if its files do not verify.")]


class EnsembleAccount(EnsembleInfo):
    """An ensemble as its owner sees it: with the cap that it shares with all of its population."""

    population: Annotated[
        Name, Field(description="The people whom its records are about, by the owner's name.")
    ]
    epsilon: Annotated[float, Field(description="Cap of the population: ε of all its projects.")]
    delta: Annotated[float, Field(description="Its δ.")]
    rule: Annotated[RuleInfo, Field(description="How the costs of its projects add up.")]
    cap: Annotated[int, Field(description="Units of 1e-12 of the rule's quantity.")]
    reserved: Annotated[int, Field(description="Reserved by all projects of the population.")]
    delta_cap: Annotated[int, Field(description="Additive δ, in units of 1e-18.")]
    delta_reserved: int


class EnsembleRegister(Wire):
    """Allow projects on an ensemble, under the cap of its population, which is final."""

    name: Annotated[
        Name, Field(description="Name of an ensemble in ensembles/ of the data directory.")
    ]
    epsilon: Annotated[
        float | None,
        Field(
            description="Cap of a new population: ε of all projects on its ensembles together. "
            "Ensembles that join it give none, or the same."
        ),
    ] = None
    delta: Annotated[float | None, Field(description="The same for δ.")] = None
    population: Annotated[
        Name | None,
        Field(
            description="The people whom the records are about. All ensembles of a population "
            "share its cap. Default: the one that exists, or `people`."
        ),
    ] = None
    disjoint: Annotated[
        bool,
        Field(
            description="The owner states that nobody in a new population is in another one. It "
            "gets a cap of its own, and the statement is logged."
        ),
    ] = False
    rule: Annotated[
        Literal["rdp", "gdp"] | None,
        Field(
            description="How a new cap adds up what projects cost. rdp, the default: at one Rényi "
            "order, where joint prices and published bounds hold. gdp: in Gaussian DP, where about "
            "a tenth more of plain gnmax fits, but neither of these."
        ),
    ] = None
    order: Annotated[
        float | None,
        Field(
            description="Rényi order of the cap; by default what suits its ε and δ. `terrine plan` "
            "proposes one for data-dependent accounting."
        ),
    ] = None

    @model_validator(mode="after")
    def _cap_is_whole(self) -> Self:
        if (self.epsilon is None) != (self.delta is None):
            raise ValueError("a cap has both, epsilon and delta")
        if self.epsilon is None and (self.rule is not None or self.order is not None):
            raise ValueError("a rule or an order is of a new cap: give epsilon and delta as well")
        return self


class ConsensusLevel(Wire):
    """An expected kind of query: how many of the teachers agree, on how many of the queries.

    A guess, or an estimate from public data. Never what private teachers voted.
    """

    agreement: Annotated[float, Field(gt=0, le=1, description="Share of teachers that agree.")]
    share: Annotated[float, Field(gt=0, le=1e9, description="Weight among the queries.")] = 1.0


class PublishingTerms(Reply):
    """When and how a data-dependent project publishes bounds, fixed when it is opened."""

    order: Annotated[float, Field(description="Rényi order, the same as the rule's and the cap's.")]
    beta: float
    sigma: float
    z: Annotated[float, Field(description="Standard deviations by which figures are raised.")]
    schedule: list[int]
    price: PriceInfo


class SecretSpend(Reply):
    """The data-dependent cost of a project's queries. For the data owner alone.

    Secret: a function of private votes that no guarantee covers. Do not share it.
    """

    secret: Literal[True] = True
    project: Name
    queries: int
    order: float
    cost: Annotated[float, Field(description="Rényi divergence at the order.")]
    smooth_sensitivity: float


class ConsideredInfo(Reply):
    """A sound rule that a project could have been opened under."""

    rule: RuleInfo
    answer_share: Annotated[
        float | None,
        Field(description="None if test and maximum are charged apart, each at its worst case."),
    ] = None
    answers: Annotated[int, Field(ge=0, description="Expected at the planned pass rate.")]
    queries: Annotated[int, Field(ge=0, description="Certain, whatever their outcomes.")]


class ChoiceInfo(Reply):
    """Why a project has its rule: it buys the most answers of those considered, best first."""

    pass_rate: Annotated[
        float, Field(description="Share of queries that were expected to be answered.")
    ]
    considered: list[ConsideredInfo]


class BaselinePricesInfo(Reply):
    """Prices of queries whose baseline is at least `baseline` votes for every class.

    The baseline of a class is its probability times the number of teachers, rounded.
    """

    baseline: int
    prices: dict[Outcome, PriceInfo]


Epsilon = Annotated[float, Field(strict=True, gt=0, le=100, allow_inf_nan=False)]
Delta = Annotated[float, Field(strict=True, gt=0, lt=1)]


class ProjectChoices(Wire):
    """What the data owner decides about a new project besides its mechanism and budget."""

    accounting: Annotated[
        Literal["worst_case", "data_dependent"],
        Field(
            description="data_dependent publishes noisy bounds on what the queries cost at their "
            "actual votes, and refuses by those bounds. The ensemble's cap must add up by the rule "
            "rdp."
        ),
    ] = "worst_case"
    consensus: Annotated[
        list[ConsensusLevel] | None,
        Field(
            min_length=1,
            max_length=100,
            description="For data_dependent: how far teachers are expected to agree. A guess or "
            "public knowledge, never the private teachers' votes.",
        ),
    ] = None
    expected_pass_rate: Annotated[
        float | None,
        Field(
            gt=0,
            le=1,
            exclude_if=absent,
            description="Share of queries that are expected to be answered: a public guess, which "
            "decides how the price is divided between answers and abstentions. By default, prices "
            "suit any share from 10 % to 95 %, and neither costs more than four times the other.",
        ),
    ] = None

    @model_validator(mode="after")
    def _a_guess_goes_with_its_accounting(self) -> Self:
        if self.consensus is not None and self.accounting == "worst_case":
            raise ValueError('consensus goes with accounting "data_dependent".')
        if self.expected_pass_rate is not None and self.accounting == "data_dependent":
            raise ValueError('`expected_pass_rate` goes with accounting "worst_case".')
        return self


class ProjectOpen(ProjectChoices):
    """`POST /projects`. Everything here is fixed for the project's life."""

    name: Annotated[Name, Field(description="Name of the project.")]
    ensemble: Annotated[Name, Field(description="Name of the registered ensemble.")]
    mechanism: Annotated[
        MechanismSpec, Field(description="How votes become answers, and its parameters.")
    ]
    epsilon: Annotated[Epsilon, Field(description="Budget: ε.")]
    delta: Annotated[Delta, Field(description="Budget: δ; below 1 / `units`.")]
    title: Annotated[
        Title | None,
        Field(exclude_if=absent, description="What it is called among people, in one line."),
    ] = None
    purpose: Annotated[
        Purpose | None, Field(exclude_if=absent, description="What its labels are for.")
    ] = None


class ProjectUpdate(Wire):
    """`PATCH /projects/{name}`. Closing is final and returns the unspent budget to the cap."""

    status: ProjectStatus


class ProjectInfo(Reply):
    """A project's terms. A student may read those of its own project."""

    name: Name
    title: Annotated[
        str | None,
        Field(exclude_if=absent, description="What it is called among people."),
    ] = None
    purpose: Annotated[
        str | None, Field(exclude_if=absent, description="What its labels are for.")
    ] = None
    status: ProjectStatus
    ensemble: EnsembleInfo
    mechanism: MechanismSpec
    epsilon: float
    delta: float
    delta_split: DeltaSplitInfo
    rule: RuleInfo
    prices: dict[Outcome, PriceInfo]
    release: Annotated[
        PriceInfo | None,
        Field(
            exclude_if=absent,
            description="Price of what the project begins with (`ensemble.release`), its first "
            "charge; the budget is of it and of all answers together.",
        ),
    ] = None
    by_baseline: Annotated[
        list[BaselinePricesInfo] | None,
        Field(exclude_if=absent, description="Prices of queries with a baseline, ascending."),
    ] = None
    publishing: Annotated[PublishingTerms | None, Field(description="For data_dependent.")] = None
    choice: Annotated[
        ChoiceInfo | None,
        Field(exclude_if=absent, description="The rules that were considered at opening."),
    ] = None
    opened_at: datetime
    closed_at: datetime | None = None
    warning: Annotated[
        str | None,
        Field(
            exclude_if=absent,
            description="Only in the reply to opening it: its budget buys too few answers to "
            "learn from.",
        ),
    ] = None


class ProjectPage(Reply):
    """A page of projects' terms, by name."""

    items: list[ProjectInfo]
    next: str | None = None
