"""Rows designed from a schema: what students ask where there is no public data.

    questions = margin_questions(schema)
    counts = count_cells(questions, data)           # private: one row of each person counts
    margins = Margins.of_counts(questions, noisy, sigma=80.0, units=32_561)
    pool = design_pool(schema, margins, rows=8_000, seed=0)

A schema is public by declaration, and so is a row that is drawn from it alone. What else is needed
is little: where the numbers of a column lie within its range, and how common classes are. That is a
histogram of each column, its margin, in which each person counts once; it is released with noise,
and each project on an ensemble that is asked such rows begins with the charge for it. Rows are
drawn column by column, each cell as often as any other: on natural rows most votes are unanimous
and tell little, while these divide the teachers.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, Dataset
from terrine_protocol.base import list_names
from terrine_protocol.schema import Column, TableSchema
from terrine_tables.columns import encoded_width

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Cells of equal width into which the range of a number is divided.
EQUAL_CELLS = 40
# Times that the cells at either end are halved: many columns are at an end in most rows, or lie
# near it by orders of magnitude.
HALVINGS = 14
# Of the cells of a number, encoded from 0 to 1.
NUMBER_EDGES = np.unique(
    np.concatenate(
        [
            np.linspace(0, 1, EQUAL_CELLS + 1),
            2.0 ** -np.arange(2, HALVINGS + 1),
            1 - 2.0 ** -np.arange(2, HALVINGS + 1),
        ]
    )
)
# Of a question, for whose cells noise is drawn and sent.
MAX_CELLS = 2_000
MAX_QUESTIONS = 250
# Into which a column is cut, each asked about equally often.
BINS = 10
# By which a count must differ from 0 to be told from noise.
MIN_STANDARD_ERRORS = 2.0
# Of the categories of a designed row, the share that is drawn evenly; the rest is as common as in
# the margin, or rare categories of a long list would crowd out those that matter.
EVEN_SHARE = 0.5
# Up to so many categories, all are drawn evenly.
EVEN_CATEGORIES = 50
LABEL_QUESTION = "label"


@dataclass(frozen=True)
class Question:
    """In which cell of one part of a row a person is: a column, a part of a date, or the label.

    `start`: the first of its encoded numbers, of `width`; a category has one for each value.
    `levels`: of what has equally spaced values from 0 to 1; None: a number in `NUMBER_EDGES`, or a
    category. `missing`: the encoded number that says so, and its cell is the last.
    """

    name: str
    start: int
    width: int = 1
    levels: int | None = None
    missing: int | None = None

    @property
    def is_category(self) -> bool:
        """Whether a value has a number of its own."""
        return self.width > 1

    @property
    def is_number(self) -> bool:
        """Whether cells are intervals."""
        return self.width == 1 and self.levels is None

    @property
    def cells(self) -> int:
        """How many answers there are."""
        own = self.width if self.is_category else self.levels or len(NUMBER_EDGES) - 1
        return own + (self.missing is not None)

    def find_cells(self, inputs: NDArray[np.float32]) -> Ints:
        """The cell of each encoded row [N]."""
        found: Ints
        if self.is_category:
            found = inputs[:, self.start : self.start + self.width].argmax(1).astype(np.int64)
            return found
        values = inputs[:, self.start].astype(np.float64)
        if self.levels is not None:
            found = np.rint(values * (self.levels - 1)).astype(np.int64)
        else:
            found = np.searchsorted(NUMBER_EDGES, values, side="right") - 1
            found = found.clip(0, len(NUMBER_EDGES) - 2)
        if self.missing is not None:
            found = np.where(inputs[:, self.missing] > 0, self.cells - 1, found)
        return found


_PART_LEVELS = {"month": 12, "weekday": 7, "hour": 24}


def margin_questions(schema: TableSchema) -> tuple[Question, ...]:
    """The questions whose answers are the margins of a schema; the label is the last.

    Raises DataError for more columns or categories than can be released.
    """
    if prose := [column.name for column in schema.columns if column.role == "text"]:
        raise DataError(
            f"Column {list_names(prose)} is text, and nobody can say which texts there may be. "
            "Give it the role ignored, or ask public rows (--public)."
        )
    found, start = list[Question](), 0
    for column in schema.columns:
        found += _questions_of(column, start)
        start += encoded_width(column)
    label = next(column for column in schema.columns if column.role == "label")
    found.append(Question(LABEL_QUESTION, start, levels=len(label.values or ())))
    if len(found) > MAX_QUESTIONS:
        raise DataError(
            f"The schema has {len(found):,} columns and parts of dates; at most {MAX_QUESTIONS} "
            "can be designed. Give those that tell little the role ignored."
        )
    if large := [each.name for each in found if each.cells > MAX_CELLS]:
        raise DataError(
            f"Column {list_names(large)} has more than {MAX_CELLS:,} categories, most of which "
            "nobody would be asked about. List the common ones, the others count as other; or give "
            "it the role ignored."
        )
    return tuple(found)


def _questions_of(column: Column, start: int) -> list[Question]:
    width = encoded_width(column)
    match column.role:
        case "numeric":
            gaps = None if column.missing is None else start + 1
            return [Question(column.name, start, missing=gaps)]
        case "categorical":
            return [Question(column.name, start, width)]
        case "ordinal":
            return [
                Question(column.name, start, levels=len(column.values or ()), missing=start + 1)
            ]
        case "boolean":
            return [Question(column.name, start, levels=2, missing=start + 1)]
        case "date":
            return [
                Question(
                    f"{column.name}: {part}",
                    start + place,
                    levels=_PART_LEVELS.get(part),
                    missing=start + width - 1,
                )
                for place, part in enumerate(column.parts or ())
            ]
        case _:
            return []


def count_cells(
    questions: Sequence[Question], data: Dataset, seed: int = 0
) -> list[NDArray[np.int64]]:
    """How many units are in which cell of each question, by one row of each: int64[cells]. Private.

    Replacing a unit moves one of each histogram from one cell to another.
    """
    cells = find_cells(questions, data, seed)
    return [
        np.bincount(of_one, minlength=each.cells).astype(np.int64)
        for each, of_one in zip(questions, cells.T, strict=True)
    ]


def digest_schema(schema: TableSchema) -> str:
    """Return the SHA-256 of a schema, as hex."""
    return hashlib.sha256(schema.model_dump_json(exclude_defaults=True).encode()).hexdigest()


def find_cells(questions: Sequence[Question], data: Dataset, seed: int = 0) -> Ints:
    """The cells [U, Q] of one row of each unit: what it answers. Private.

    Of a person with several rows one is drawn, by the seed and the person's number alone: so
    whatever rows somebody else has, nobody's answers change.
    """
    rows = np.arange(len(data))
    if data.groups is not None:
        order = np.argsort(data.groups, kind="stable")
        counts = np.bincount(data.groups)
        drawn = np.random.Generator(np.random.Philox(seed)).random(len(counts))
        first = np.concatenate([[0], counts.cumsum()[:-1]])
        rows = order[first + np.floor(drawn * counts).astype(np.int64)]
    inputs, labels = data.inputs[rows].astype(np.float32), data.labels[rows]
    *columns, _ = questions
    return np.stack([*(each.find_cells(inputs) for each in columns), labels], axis=1)


@dataclass(frozen=True, eq=False)
class Margins:
    """How many units are in each cell, as far as noise lets it be seen. Public, once paid for."""

    questions: tuple[Question, ...]
    shares: tuple[Floats, ...]
    """Of each question, by cell; they add up to 1."""

    @classmethod
    def of_counts(
        cls,
        questions: Sequence[Question],
        counts: Sequence[NDArray[np.int64]],
        *,
        sigma: float,
        units: int,
    ) -> Margins:
        """Of noisy counts of each question, [cells].

        Counts that noise explains are 0, and what is missing from `units` is spread over their
        cells: over numbers by the width of each, else evenly. Of the label, no class is 0.
        """
        shares = []
        for place, (question, row) in enumerate(zip(questions, counts, strict=True), 1):
            seen = row.astype(np.float64)
            kept = np.where(seen > MIN_STANDARD_ERRORS * sigma, seen, 0.0)
            if place == len(questions):  # the label, whatever columns are called
                kept = np.maximum(seen, max(sigma, 1.0) / 2)
            unseen = (kept == 0) * question_widths(question)
            left = max(0.0, units - kept.sum())
            if unseen.any():
                kept = kept + unseen / unseen.sum() * max(left, 1e-9)
            shares.append(kept / kept.sum())
        return cls(tuple(questions), tuple(shares))

    @property
    def prior(self) -> Floats:
        """The share of each class, [m]."""
        return self.shares[-1]


def question_widths(question: Question) -> Floats:
    """How much of its range each cell covers, where nothing is known: [cells]."""
    if not question.is_number:
        return np.ones(question.cells)
    widths = np.diff(NUMBER_EDGES)
    gap = [widths.sum() / BINS] if question.missing is not None else []
    return np.concatenate([widths, gap])


@dataclass(frozen=True, eq=False)
class DesignedPool:
    """What students ask, and what tells them how common things are. All of it is public."""

    rows: NDArray[np.float32]
    """[R, D], encoded: the questions."""
    natural: NDArray[np.float32]
    """[P, D], public rows or, if there are none, rows drawn by the margins, each column for itself:
    to see how often a class is said."""
    prior: Floats
    """The share of each class, [m]."""
    of_public: bool = False
    """Whether `natural` are public rows, not drawn ones, whose columns do not go together."""

    def to_bytes(self) -> bytes:
        """An .npz archive with `x`, `natural`, `prior` and `of_public`."""
        made = io.BytesIO()
        np.savez_compressed(
            made, x=self.rows, natural=self.natural, prior=self.prior, of_public=self.of_public
        )
        return made.getvalue()

    @classmethod
    def of_bytes(cls, data: bytes) -> DesignedPool:
        """Read such an archive. Raises DataError."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as held:
                # An earlier version did not say.
                of_public = bool(held["of_public"]) if "of_public" in held else False
                found = cls(held["x"], held["natural"], held["prior"], of_public)
        except (ValueError, KeyError, OSError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise DataError(f"This is not a designed pool: {error}") from None
        rows, natural, prior = found.rows, found.natural, found.prior
        if not (
            rows.ndim == natural.ndim == 2
            and rows.shape[1] == natural.shape[1]
            and prior.ndim == 1
            and {rows.dtype, natural.dtype} == {np.dtype(np.float32)}
            and prior.dtype == np.float64
            and len(rows) > 0
            and len(natural) > 0
        ):
            raise DataError(
                "This is not a designed pool: expected x and natural float32 [R, D] and [P, D], "
                f"and prior float64 [m]; found {rows.shape}, {natural.shape}, {prior.shape}."
            )
        return found


NATURAL_ROWS = 4_000


def design_pool(
    schema: TableSchema,
    margins: Margins,
    rows: int,
    seed: int = 0,
    public: NDArray[np.float32] | None = None,
) -> DesignedPool:
    """Draw `rows` questions, no two of them equal as far as the schema allows.

    `public`: natural rows [P, D], if there are any. Their columns go together as those of margins
    do not, so that with them a class is said about as often as it occurs.
    """
    random = np.random.default_rng(seed)
    designed = _draw(schema, margins, rows, random, even=True)
    if public is None:
        natural = _draw(schema, margins, NATURAL_ROWS, random, even=False)
    else:
        natural = random.permutation(public)[:NATURAL_ROWS].astype(np.float32)
    return DesignedPool(designed, natural, margins.prior, of_public=public is not None)


def _draw(
    schema: TableSchema, margins: Margins, rows: int, random: np.random.Generator, *, even: bool
) -> NDArray[np.float32]:
    """Encoded rows [rows, D]: each cell or bin as often as any other, or as often as it occurs."""
    encoded = np.zeros((rows, sum(map(encoded_width, schema.columns))), np.float32)
    gaps: dict[int, NDArray[np.bool_]] = {}
    for question, shares in zip(margins.questions[:-1], margins.shares[:-1], strict=True):
        known = None if question.missing is None else gaps.get(question.missing)
        drawn = _draw_cells(question, shares, rows, random, even=even)
        if question.is_category:
            encoded[np.arange(rows), question.start + drawn.astype(np.int64)] = 1
            continue
        if question.missing is not None:
            if known is None:  # the parts of a date are missing together
                known = gaps[question.missing] = drawn < 0
            missing = known
            encoded[:, question.missing] = missing
            middle = 0.5 if question.levels else _middle(schema, question)
            drawn = np.where(missing, middle, np.where(drawn < 0, 0.0, drawn))
        encoded[:, question.start] = drawn
    return encoded


def _middle(schema: TableSchema, question: Question) -> float:
    """What stands for a missing number, encoded."""
    column = next((each for each in schema.columns if each.name == question.name), None)
    if column is None or column.missing is None or column.low is None or column.high is None:
        return 0.5
    return (column.missing - column.low) / (column.high - column.low)


def _draw_cells(
    question: Question, shares: Floats, rows: int, random: np.random.Generator, *, even: bool
) -> Floats:
    """Values of one question [rows]: encoded, of a category its place; -1 where it is missing."""
    if question.is_category:
        weights = shares
        if even:
            cells = np.full(len(shares), 1 / len(shares))
            few = len(shares) <= EVEN_CATEGORIES
            weights = cells if few else EVEN_SHARE * cells + (1 - EVEN_SHARE) * shares
        return random.choice(len(weights), rows, p=weights).astype(np.float64)
    if question.levels is not None:
        weights = np.full(question.cells, 1 / question.cells) if even else shares
        place = random.choice(question.cells, rows, p=weights)
        missing = (place == question.levels) & (question.missing is not None)
        return np.where(missing, -1.0, place / max(1, question.levels - 1))
    gap = float(shares[-1]) if question.missing is not None else 0.0
    own = shares[: len(NUMBER_EDGES) - 1]
    edges = _bin_edges(own) if even else NUMBER_EDGES
    bins = len(edges) - 1
    if even:
        gap = 1 / (bins + 1) if question.missing is not None else 0.0
        weights = np.full(bins, 1 / bins)
    else:
        weights = own / own.sum()
    place = random.choice(bins, rows, p=weights)
    low, high = edges[place], edges[place + 1]
    values = low + (high - low) * random.random(rows)
    # A cell at an end that is hardly wider than a point is that end: 0 is not 0.00001.
    values = np.where(high <= NUMBER_EDGES[1], 0.0, values)
    values = np.where(low >= NUMBER_EDGES[-2], 1.0, values)
    return np.where(random.random(rows) < gap, -1.0, values)


def _bin_edges(shares: Floats) -> Floats:
    """Cut a number where its margin has equal shares, and around cells that hold one by themselves.

    Either end is a bin of its own if so many rows are there: of a number that is 0 in most rows,
    the others cut what is not.
    """
    large = shares > shares.sum() / BINS
    rest = shares.copy()
    ends = [end for end in (0, -1) if large[end]]
    rest[ends] = 0.0
    if rest.sum() <= 0:
        rest = np.diff(NUMBER_EDGES)
    below = np.concatenate([[0.0], rest.cumsum()]) / rest.sum()
    inner = np.interp(np.linspace(0, 1, BINS + 1)[1:-1], below, NUMBER_EDGES)
    at = np.flatnonzero(large)
    return np.unique(np.concatenate([[0.0, 1.0], inner, NUMBER_EDGES[at], NUMBER_EDGES[at + 1]]))
