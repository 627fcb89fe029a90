"""The mechanisms that a project can be opened with, and their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    field_validator,
)
from pydantic_core import PydanticCustomError

from terrine_protocol.base import Wire, absent

MAX_EXTRA_VOTES = 1_000_000_000
"""The most that `immutable` adds to the winner; far fewer cost more than a project may have."""
NEAR_ZERO_COST = (
    "each extra vote is paid for, as other records move them all. With the near-zero-cost paper's "
    "own c = 1e100 and gamma = 1e-10, one answer has an ε of about 1e90, not near 0: "
    "docs/privacy/failed-claims.md, Near-zero cost. For exact winners use stable"
)
"""Why not more."""

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
        description="Votes that the noisy maximum must reach; at most the number of teachers.",
    ),
]


AnswerShare = Annotated[
    float | None,
    Field(
        strict=True,
        ge=0.001,
        le=100,
        exclude_if=absent,
        description="Test and maximum are priced as one release, in which an answer costs this "
        "multiple of what all queries would cost at one price. By default the server chooses.",
    ),
]


class LNMaxSpec(Wire):
    """Noisy max with Laplace noise (Papernot et al. 2017)."""

    name: Literal["lnmax"]
    gamma: Gamma


class GNMaxSpec(Wire):
    """Noisy max with Gaussian noise (Papernot et al. 2018, section 4.1)."""

    name: Literal["gnmax"]
    sigma: Sigma


class NoisyVotesSpec(Wire):
    """The noisy vote counts themselves, and their maximum, at the price of all that they reveal."""

    name: Literal["noisy_votes"]
    sigma: Sigma


class NeighboursSpec(Wire):
    """Noisy counts of all people near a query, each with an account; needs such an ensemble."""

    name: Literal["neighbours"]
    sigma: Sigma
    queries: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=10_000_000,
            description="New queries that are answered; then the budget is exhausted.",
        ),
    ]
    norm: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=255,
            description="Euclidean length of the most that one person casts in one query; more is "
            "scaled down. At least the largest weight of a record.",
        ),
    ] = 1


class ConfidentGNMaxSpec(Wire):
    """Answers only when the noisy maximum reaches a threshold (Papernot et al. 2018, Alg. 1)."""

    name: Literal["confident_gnmax"]
    threshold: Threshold
    sigma1: Sigma
    sigma2: Sigma
    answer_share: AnswerShare = None


class InteractiveGNMaxSpec(Wire):
    """Answers where teachers disagree with the student (Papernot et al. 2018, Alg. 2)."""

    name: Literal["interactive_gnmax"]
    threshold: Threshold
    sigma1: Sigma
    sigma2: Sigma
    confidence: Annotated[
        float,
        Field(
            strict=True, ge=0, le=1, description="Above this, the student's own label is confirmed."
        ),
    ]
    answer_share: AnswerShare = None


class ImmutableSpec(Wire):
    """Immutable noisy argmax: the winner gets `c` extra votes before the noise."""

    name: Literal["immutable"]
    c: Annotated[
        int, Field(strict=True, ge=0, le=MAX_EXTRA_VOTES, description="Votes added to the winner.")
    ]
    gamma: Annotated[
        Gamma | None, Field(description="Either: Laplace noise of scale 1/gamma, in votes.")
    ] = None
    sigma: Annotated[
        Sigma | None,
        Field(description="Or: the standard deviation of Gaussian noise, in votes."),
    ] = None

    @field_validator("c", mode="before")
    @classmethod
    def _refuse_what_nobody_can_pay(cls, value: object) -> object:
        if isinstance(value, int | float) and value > MAX_EXTRA_VOTES:
            why = f"Input should be at most {MAX_EXTRA_VOTES:,}: {NEAR_ZERO_COST}"
            raise PydanticCustomError("too_many_extra_votes", "{why}", {"why": why})
        return value


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


class OtherSpec(Wire):
    """A mechanism that another package registered on the server, called OWNER.NAME."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, StrictInt | StrictFloat | StrictStr]

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}\.[a-z][a-z0-9_]{0,31}$")]


def _tag(value: Any) -> Any:
    """Return which specification it is, by its name."""
    name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
    return "OWNER.NAME" if isinstance(name, str) and "." in name else name


MechanismSpec = Annotated[
    Annotated[LNMaxSpec, Tag("lnmax")]
    | Annotated[GNMaxSpec, Tag("gnmax")]
    | Annotated[NoisyVotesSpec, Tag("noisy_votes")]
    | Annotated[NeighboursSpec, Tag("neighbours")]
    | Annotated[ConfidentGNMaxSpec, Tag("confident_gnmax")]
    | Annotated[InteractiveGNMaxSpec, Tag("interactive_gnmax")]
    | Annotated[ImmutableSpec, Tag("immutable")]
    | Annotated[StableSpec, Tag("stable")]
    | Annotated[OtherSpec, Tag("OWNER.NAME")],
    Discriminator(_tag),
]

MECHANISM_SPECS: dict[str, type[Wire]] = {
    "lnmax": LNMaxSpec,
    "gnmax": GNMaxSpec,
    "noisy_votes": NoisyVotesSpec,
    "neighbours": NeighboursSpec,
    "confident_gnmax": ConfidentGNMaxSpec,
    "interactive_gnmax": InteractiveGNMaxSpec,
    "immutable": ImmutableSpec,
    "stable": StableSpec,
}
"""By name: what each mechanism of `MechanismSpec` takes."""

COUNTED = frozenset({"noisy_votes", "neighbours"})
"""The mechanisms whose answers come with noisy counts."""
