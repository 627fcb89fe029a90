"""Clues in a column's name and values: people, identifiers, dates, text or numbers."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from functools import cached_property

from terrine_protocol.tables import DateOrder

from .columns import MISSING, date_order
from .csv_files import DECIMAL_COMMA, Sheet, number

FEW = 20
"""A column with at most this many distinct values is not taken for names, text or identifiers."""
LONG_WORDS, LONG_LENGTH = 5, 40
"""From this average number of words or characters on, values are prose."""

_PERSON = (
    r"(patient(en)?|pat|pid|mrn|medicalrecord|person(en)?|subject|subjekt|proband(en)?|individual|"
    r"participant|teilnehmer|versicherten?|insured|member|customer|client|kunden?|user|employee|"
    r"student|pupil|citizen|ssn|nhs)"
)
_ID = r"(id|identifier|key|uuid|guid)"
_NUMBER = r"(nr|no|number|nummer)"
_PERSON_NAME = re.compile(rf"(id|nr)?{_PERSON}({_ID}|{_NUMBER}|num|code|hash|pseudonym|kennung)*")
_BARE_PERSON_NAME = re.compile(_PERSON)
_STAY_NAME = re.compile(
    rf"(case|record|encounter|admission|hadm|visit|stay|icustay|episode|account|row)?{_ID}|"
    rf"(case|record|encounter|admission|account|fall){_NUMBER}"
)
_LAST_WORD_ID = re.compile(rf"(.*[^a-z])?({_ID}|{_NUMBER})")
_CONTACT_NAME = re.compile(
    rf"{_PERSON}?(first|last|sur|family|full|given|middle|vor|nach|familien)?name|"
    r"e?mail(address)?|(tele|mobile)?phone(number)?|telefon(nummer)?|(street|home|post)?address|"
    r"stra(ss|ß)e|street|adresse|anschrift"
)

_MONTH = r"(jan|feb|m[aä]r|mrz|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])\w*\.?"
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[ap]m)?(z|[+-]\d{2}:?\d{2})?"
_DAY = (
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2})|"
    r"(19|20)\d{2}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])|"
    rf"\d{{1,2}}\.?[- ]?{_MONTH}[- ,]*\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}})"
)
_DATE = re.compile(rf"{_DAY}([t ]{_CLOCK})?|(?=\d\d:){_CLOCK}", re.IGNORECASE)
SCALES = (
    (
        "no",
        "none",
        "minimal",
        "slight",
        "mild",
        "some",
        "moderate",
        "much",
        "severe",
        "very severe",
    ),
    ("keine", "gering", "leicht", "mäßig", "mittel", "schwer", "sehr schwer"),
    ("never", "rarely", "sometimes", "often", "usually", "always"),
    ("nie", "selten", "manchmal", "oft", "häufig", "immer"),
    ("very low", "low", "below normal", "normal", "medium", "above normal", "high", "very high"),
    ("sehr niedrig", "niedrig", "normal", "mittel", "hoch", "sehr hoch"),
    ("very poor", "poor", "fair", "good", "very good", "excellent"),
    ("xs", "s", "m", "l", "xl", "xxl"),
    ("small", "medium", "large"),
    ("i", "ii", "iii", "iv", "v", "vi"),
)
"""Words that are levels, from least to most, in lower case."""
_BAND = re.compile(
    r"(?P<only>\d+)|[\[(]?(?P<low>\d+)( ?[-–] ?| to | bis |, ?)(?P<high>\d+)[\])]?|"
    r"(<|under|below|unter) ?=?(?P<below>\d+)|"
    r"(>|over|above|über|≥) ?=?(?P<above>\d+)|(?P<least>\d+) ?(\+|and over|or more|und mehr)",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
_HEX = re.compile(r"[0-9a-f-]{16,}", re.IGNORECASE)


@dataclass(frozen=True)
class Clues:
    """A column of a table, and the clues in it."""

    name: str
    sheet: Sheet
    all: list[str]

    @cached_property
    def known(self) -> list[str]:
        """The values that are not missing."""
        return [value for value in self.all if value not in MISSING]

    @cached_property
    def distinct(self) -> list[str]:
        """The distinct values, sorted."""
        return sorted(set(self.known))

    @cached_property
    def numbers(self) -> list[float]:
        """The known values as numbers; NaN for those that are not finite numbers."""
        comma = self.sheet.decimal_commas(self.known)
        found = (number(value, decimal_comma=comma) for value in self.known)
        return [value if math.isfinite(value) else math.nan for value in found]

    @property
    def numeric(self) -> bool:
        """Whether the values are quantities, not codes such as 00417."""
        return self._all_numbers and not self._coded

    @property
    def whole(self) -> bool:
        """Whether all numbers are integers."""
        return all(value.is_integer() for value in self.numbers)

    @property
    def decimal_commas(self) -> bool:
        """Whether numbers are written as 3,5 in a file where that is not read as a number."""
        return not self._all_numbers and all(
            DECIMAL_COMMA.fullmatch(value) or not math.isnan(number)
            for value, number in zip(self.known, self.numbers, strict=True)
        )

    @property
    def thousands(self) -> bool:
        """Whether commas read as decimal signs may be thousands separators, as in 1,234."""
        return self.sheet.decimal_commas(self.known) and all(
            _THOUSANDS.fullmatch(value) for value in self.known if "," in value
        )

    @property
    def unique(self) -> bool:
        """Whether all rows have different values."""
        return len(self.distinct) == len(self.all)

    @property
    def counts_rows(self) -> bool:
        """Whether the values are consecutive integers, each once."""
        span = max(self.numbers) - min(self.numbers)
        return self.unique and self.whole and len(self.all) > FEW and span == len(self.all) - 1

    @property
    def uniform(self) -> bool:
        """Whether all values have one form with four or more digits, as P-00417, or are hex."""
        forms = {re.sub(r"\d", "9", re.sub(r"[^\W\d_]", "a", value)) for value in self.distinct}
        alike = len(forms) == 1 and forms.pop().count("9") >= 4
        return alike or all(map(_HEX.fullmatch, self.distinct))

    @property
    def rare(self) -> bool:
        """Whether values repeat too rarely to learn from; uniform values must repeat more often."""
        rows = 5 if self.uniform else 2
        return len(self.distinct) > FEW and rows * len(self.distinct) > len(self.known)

    @property
    def prose(self) -> bool:
        """Whether the values are long or have line breaks, and rarely repeat."""
        words = sum(len(value.split()) for value in self.known)
        length = sum(map(len, self.known))
        long = words >= LONG_WORDS * len(self.known) or length >= LONG_LENGTH * len(self.known)
        broken = any("\n" in value or "\r" in value for value in self.known)
        return (long or broken) and 5 * len(self.distinct) > len(self.known)

    @property
    def dates(self) -> bool:
        """Whether nine of ten distinct values are dates or times."""
        found = sum(_DATE.fullmatch(value) is not None for value in self.distinct)
        return found * 10 >= len(self.distinct) * 9

    @property
    def days(self) -> bool:
        """Whether there are dates among them, and not times of day alone."""
        return any(re.match(_DAY, value, re.IGNORECASE) for value in self.distinct)

    @cached_property
    def date_order(self) -> DateOrder | None:
        """The order of year, month and day, if all values are dates and it is unambiguous."""
        return date_order(self.distinct) if self.dates else None

    @property
    def boolean(self) -> bool:
        """Whether the values are true and false, however they are written."""
        return {value.lower() for value in self.distinct} == {"true", "false"}

    @property
    def levels(self) -> tuple[str, ...] | None:
        """The values from least to most, if they are three or more known levels, or bands."""
        if len(self.distinct) < 3 or self._all_numbers:
            return None
        words = [value.lower() for value in self.distinct]
        for scale in SCALES:
            if set(words) <= set(scale) and len(set(words)) == len(words):
                return tuple(sorted(self.distinct, key=lambda value: scale.index(value.lower())))
        bands = [_BAND.fullmatch(word) for word in words]
        spans = {
            value: _span(band) for value, band in zip(self.distinct, bands, strict=True) if band
        }
        if len(spans) < len(words) or not _disjoint(list(spans.values())):
            return None
        return tuple(sorted(spans, key=spans.__getitem__))

    @property
    def names_people(self) -> bool:
        """Whether the name is one for people; yes and no under "patient" are not people."""
        bare = _BARE_PERSON_NAME.fullmatch(self._letters) is not None
        answer = bare and len(self.distinct) <= 2 and not self.unique
        return bool(self.known) and not answer and bool(_PERSON_NAME.fullmatch(self._letters))

    @property
    def may_be_a_category_of_people(self) -> bool:
        """Whether the name is a bare noun such as "subject", and the values are few."""
        few = len(self.distinct) <= FEW < len(self.all)
        return few and _BARE_PERSON_NAME.fullmatch(self._letters) is not None

    @property
    def names_repeated_stays(self) -> bool:
        """Whether the name is one for cases or stays, or just "id", and values repeat."""
        repeats = FEW < len(self.distinct) < len(self.known)
        return repeats and _STAY_NAME.fullmatch(self._letters) is not None

    @property
    def names_identifier(self) -> bool:
        """Whether the last word of the name is "id" or similar; PatientID is two words."""
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.name).lower().strip(" _-.#")
        return bool(_LAST_WORD_ID.fullmatch(words) or _STAY_NAME.fullmatch(self._letters))

    @property
    def names_contact(self) -> bool:
        """Whether the name is one for names or contact details, and there are many values."""
        many = len(self.distinct) > FEW or self.unique
        return many and _CONTACT_NAME.fullmatch(self._letters) is not None

    @property
    def _letters(self) -> str:
        return re.sub(r"[\W_]", "", self.name).lower()

    @property
    def _all_numbers(self) -> bool:
        return bool(self.known) and not any(map(math.isnan, self.numbers))

    @property
    def _coded(self) -> bool:
        lengths = {len(value) for value in self.known}
        zero = any(value.startswith("0") for value in self.known)
        return zero and len(lengths) == 1 and lengths != {1} and self.whole


def _span(band: re.Match[str]) -> tuple[float, float]:
    """The numbers that a band such as 18-29, <18, 65+ or 0 covers."""
    only, low, high, below, above, least = (
        None if text is None else float(text)
        for text in band.group("only", "low", "high", "below", "above", "least")
    )
    if only is not None:
        return only, only
    if low is not None and high is not None:
        return low, high
    if below is not None:
        return -math.inf, below
    return above or least or 0, math.inf


def _disjoint(spans: list[tuple[float, float]]) -> bool:
    """Whether bands may touch, but do not overlap."""
    ordered = sorted(spans)
    starts, ends = [low for low, _ in ordered], [high for _, high in ordered]
    return all(map(operator.le, starts, ends)) and all(map(operator.le, ends[:-1], starts[1:]))
