"""The mechanisms that a project can be opened with, and their parameters, as words.

Which values a mechanism takes, it says itself when it is built (`terrine_server.privacy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Discriminator, Field, StrictFloat, StrictInt, StrictStr, Tag

from terrine_protocol.base import Wire, absent

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Whole = Annotated[int, Field(strict=True)]
Sigma = Annotated[Number, Field(description="Standard deviation of the noise, in votes.")]
Gamma = Annotated[Number, Field(description="Laplace noise has scale 1/gamma, in votes.")]
Threshold = Annotated[
    Whole,
    Field(description="Votes that the noisy maximum must reach; at most the number of teachers."),
]
AnswerShare = Annotated[
    Number | None,
    Field(
        exclude_if=absent,
        description="Test and maximum are priced as one release, in which an answer costs this "
        "multiple of what all queries would cost at one price. By default the server chooses.",
    ),
]


class Specification(Wire):
    """What all specifications tell. `counted`: whether answers come with noisy counts."""

    counted: ClassVar[bool] = False
    needs_probabilities: ClassVar[bool] = False
    """Whether queries come with the student's class probabilities."""
    free: ClassVar[bool] = False
    """Whether queries cost nothing, as answers follow from what the project began with."""


class LNMaxSpec(Specification):
    """Noisy max with Laplace noise (Papernot et al. 2017)."""

    name: Literal["lnmax"]
    gamma: Gamma


class GNMaxSpec(Specification):
    """Noisy max with Gaussian noise (Papernot et al. 2018, section 4.1)."""

    name: Literal["gnmax"]
    sigma: Sigma


class NoisyVotesSpec(Specification):
    """The noisy vote counts themselves, and their maximum, at the price of all that they reveal."""

    counted: ClassVar[bool] = True

    name: Literal["noisy_votes"]
    sigma: Sigma


class NeighboursSpec(Specification):
    """Noisy counts of all people near a query, each with an account; needs such an ensemble."""

    counted: ClassVar[bool] = True

    name: Literal["neighbours"]
    sigma: Sigma
    queries: Annotated[
        Whole, Field(description="New queries that are answered; then the budget is exhausted.")
    ]
    norm: Annotated[
        Whole,
        Field(
            description="Euclidean length of the most that one person casts in one query; more is "
            "scaled down. At least the largest weight of a record."
        ),
    ] = 1


class SumsSpec(Specification):
    """Answers all queries from sums that the project begins with; needs such an ensemble."""

    free: ClassVar[bool] = True

    name: Literal["sums"]


class ConfidentGNMaxSpec(Specification):
    """Answers only when the noisy maximum reaches a threshold (Papernot et al. 2018, Alg. 1)."""

    name: Literal["confident_gnmax"]
    threshold: Threshold
    sigma1: Sigma
    sigma2: Sigma
    answer_share: AnswerShare = None


class InteractiveGNMaxSpec(Specification):
    """Answers where teachers disagree with the student (Papernot et al. 2018, Alg. 2)."""

    needs_probabilities: ClassVar[bool] = True

    name: Literal["interactive_gnmax"]
    threshold: Threshold
    sigma1: Sigma
    sigma2: Sigma
    confidence: Annotated[
        Number, Field(description="Above this, the student's own label is confirmed.")
    ]
    answer_share: AnswerShare = None


class ImmutableSpec(Specification):
    """Immutable noisy argmax: the winner gets `c` extra votes before the noise."""

    name: Literal["immutable"]
    c: Annotated[StrictInt | StrictFloat, Field(description="Votes added to the winner.")]
    gamma: Annotated[
        Gamma | None, Field(description="Either: Laplace noise of scale 1/gamma, in votes.")
    ] = None
    sigma: Annotated[
        Sigma | None,
        Field(description="Or: the standard deviation of Gaussian noise, in votes."),
    ] = None


class StableSpec(Specification):
    """Releases the exact winner after a private test of its margin (propose-test-release)."""

    name: Literal["stable"]
    sigma: Sigma
    delta_per_query: Annotated[
        Number, Field(description="Chance that an unstable winner passes the test.")
    ]


class OtherSpec(Specification):
    """A mechanism that another package registered on the server, called OWNER.NAME."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, StrictInt | StrictFloat | StrictStr]

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}\.[a-z][a-z0-9_]{0,31}$")]


def mechanism_text(spec: Mapping[str, Any]) -> str:
    """Return a specification as `--mechanism` reads it: NAME:PARAMETER=VALUE,…"""
    values = ",".join(
        f"{parameter}={_shortest(value)}"
        for parameter, value in spec.items()
        if parameter != "name" and value is not None
    )
    return f"{spec['name']}:{values}" if values else str(spec["name"])


def _shortest(value: object) -> str:
    """Return a value in the fewest characters from which it is read again."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _tag(value: Any) -> Any:
    """Return which specification it is, by its name."""
    name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
    return "OWNER.NAME" if isinstance(name, str) and "." in name else name


MechanismSpec = Annotated[
    Annotated[LNMaxSpec, Tag("lnmax")]
    | Annotated[GNMaxSpec, Tag("gnmax")]
    | Annotated[NoisyVotesSpec, Tag("noisy_votes")]
    | Annotated[NeighboursSpec, Tag("neighbours")]
    | Annotated[SumsSpec, Tag("sums")]
    | Annotated[ConfidentGNMaxSpec, Tag("confident_gnmax")]
    | Annotated[InteractiveGNMaxSpec, Tag("interactive_gnmax")]
    | Annotated[ImmutableSpec, Tag("immutable")]
    | Annotated[StableSpec, Tag("stable")]
    | Annotated[OtherSpec, Tag("OWNER.NAME")],
    Discriminator(_tag),
]

# By name: what each mechanism of `MechanismSpec` takes.
MECHANISM_SPECS: dict[str, type[Specification]] = {
    tag.tag: kind
    for kind, tag in map(get_args, get_args(get_args(MechanismSpec)[0]))
    if kind is not OtherSpec
}
