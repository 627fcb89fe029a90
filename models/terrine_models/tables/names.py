"""What the name of a column says of it: people, records, quantities, by the words in `words.toml`.

Names are understood in English, German, French, Spanish, Italian, Dutch and Portuguese, without
accents, and as a whole: patient_id, PatientID and "Patient ID" are one name, and `patients` is a
count.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Sequence
from pathlib import Path

_WORDS = {
    subject: frozenset(word for words in languages.values() for word in words.split())
    for subject, languages in tomllib.loads(
        Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
    ).items()
}


def _one_of(*subjects: str) -> str:
    """A pattern for one of the words of these subjects."""
    return f"({'|'.join(sorted(word for each in subjects for word in _WORDS[each]))})"


_KEY, _NUMBER, _RECORD = _one_of("keys"), _one_of("numbers"), _one_of("records")
_ANY_ID = _one_of("keys", "numbers", "codes")
_ID_BEFORE = rf"{_one_of('keys', 'numbers', 'codes_before')}{_one_of('articles')}?"
_STEM = _one_of("people", "stems_of_people")
_NOUN_FOR_PERSON = re.compile(rf"{_one_of('people')}|pid")
_PERSON = re.compile(
    rf"{_one_of('people')}|{_one_of('numbers_of_people')}{_ANY_ID}*|{_STEM}{_ANY_ID}+|"
    rf"{_ID_BEFORE}{_STEM}{_ANY_ID}*"
)
_RECORD_NAME = re.compile(
    rf"{_RECORD}?{_KEY}{_one_of('codes_after_keys', 'numbers')}?|"
    rf"{_one_of('names_of_record_numbers')}|"
    rf"{_one_of('numbered_records')}{_NUMBER}|{_ID_BEFORE}{_RECORD}"
)
_LAST_WORD = re.compile(rf"{_KEY}|{_NUMBER}|.{{3,}}{_one_of('ends_of_identifiers')}")
_CONTACT = re.compile(
    rf"{_one_of('people', 'owners_of_names')}?{_one_of('kinds_of_names')}?name|"
    rf"{_one_of('contacts')}"
)
_PLACE = re.compile(_one_of("parts_of_places"))
_COMPOUND_QUANTITY = re.compile(rf".+{_one_of('ends_of_quantities')}")
_PEOPLE_COUNTED = re.compile(rf"{_one_of('people')}(s|e?n)")
_COUNT = re.compile(rf"{_one_of('words_for_counts')}[ _](of[ _])?\w*(s|en|er)")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "°": "o", "#": " no "})


def names_person(name: str) -> bool:
    """Whether it is one for people: patient, Personalnummer, numéro de client."""
    return _PERSON.fullmatch(_letters(name)) is not None


def is_noun_for_person(name: str) -> bool:
    """Whether it is a noun alone, such as subject, which may mean something else; pid is a party,
    too."""
    return _NOUN_FOR_PERSON.fullmatch(_letters(name)) is not None


def names_record(name: str) -> bool:
    """Whether it is one for records, cases or stays, or just "id"."""
    return _RECORD_NAME.fullmatch(_letters(name)) is not None


def names_identifier(name: str) -> bool:
    """Whether it is one for what has a number: a record, or store_id, Vertragsnummer, id_product.

    week_no is a quantity.
    """
    words = _words(name)
    if names_record(name):
        return True
    if not words or names_quantity(name):
        return False
    return _LAST_WORD.fullmatch(words[-1]) is not None or words[0] == "id"


def names_contact(name: str) -> bool:
    """Whether it is one for names or contact details."""
    return _CONTACT.fullmatch(_letters(name)) is not None


def names_place(name: str) -> bool:
    """Whether it may be one for countries and the like."""
    return _PLACE.search(_letters(name)) is not None


def names_quantity(name: str) -> bool:
    """Whether it is one for what is measured or counted: yearVeh, body_mass_g, Körpergewicht,
    patients."""
    words = _words(name)
    if not words:
        return False
    units = _WORDS["units"]
    if words[-1] in units or any(len(word) > 3 for word in units.intersection(words)):
        return True
    if not _WORDS["quantities"].isdisjoint(words):
        return True
    count = _COUNT if len(words) > 1 else _PEOPLE_COUNTED
    counted = count.fullmatch(" ".join(words)) is not None
    return counted or any(map(_COMPOUND_QUANTITY.fullmatch, words))


def _letters(name: str) -> str:
    """All letters and digits of a name, without spaces and accents."""
    return "".join(_words(name))


def _words(name: str) -> Sequence[str]:
    """The words of a name in camelCase, snake_case or with spaces, without accents."""
    name = re.sub(r"(?<=[a-zäöüß0-9])(?=[A-ZÄÖÜ])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    plain = unicodedata.normalize("NFKD", name.lower().translate(_UMLAUTS))
    plain = "".join(each for each in plain if not unicodedata.combining(each))
    return re.findall(r"[^\W_]+", plain)
