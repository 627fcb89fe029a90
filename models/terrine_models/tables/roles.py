"""Propose a role for each column of a public table, and say why.

Names, forms and counts of values are clues, not proof, so doubts are reported. A column that
identifies people becomes the group, and one that may do so in doubt; columns that identify rows or
cannot be learned from are ignored. Names are understood in English, German, French, Spanish,
Italian, Dutch and Portuguese, without accents, and as a whole: patient_id, PatientID and "Patient
ID" are one name, and `patients` is a count.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from terrine_models.data.arrays import DataError
from terrine_models.tables.loading import warn
from terrine_protocol.base import ask_whether_one, fold, list_names, normalize
from terrine_protocol.names import find_unshown
from terrine_protocol.schema import (
    FEATURE_ROLES,
    Column,
    Commas,
    DateOrder,
    DatePart,
    PublicSource,
    TableSchema,
)
from terrine_tables.columns import (
    DECIMAL_COMMA,
    MISSING_TEXTS,
    THOUSANDS,
    CodedValues,
    Note,
    Progress,
    as_text,
    check_names,
    date_orders,
    ignore_progress,
    parse_number,
    read_date,
)
from terrine_tables.files import open_table


def _each_of(*texts: str) -> frozenset[str]:
    """The words in these texts."""
    return frozenset(word for text in texts for word in text.split())


def _one_of(*texts: str) -> str:
    """A pattern for one of the words in these texts."""
    return f"({'|'.join(sorted(_each_of(*texts)))})"


_PEOPLE = (
    "patient person subject individual participant insured member customer client user employee "
    "worker student pupil citizen respondent interviewee borrower applicant tenant voter viewer "
    "donor athlete player taxpayer policyholder cardholder subscriber panelist learner",
    "patientin proband probandin subjekt teilnehmer teilnehmerin versicherter versicherte kunde "
    "kundin klient klientin mitglied mitarbeiter mitarbeiterin beschaeftigter arbeiter "
    "arbeitnehmer angestellter benutzer nutzer schueler schuelerin buerger einwohner befragter",
    "patiente personne sujet individu participante assure assuree membre cliente usager "
    "utilisateur employe employee salarie travailleur ouvrier etudiant eleve citoyen adherent",
    "paciente persona sujeto individuo asegurado miembro socio usuario empleado trabajador "
    "estudiante alumno ciudadano afiliado encuestado",
    "paziente soggetto partecipante assicurato membro utente dipendente impiegato lavoratore "
    "studente alunno cittadino",
    "persoon proefpersoon deelnemer verzekerde klant gebruiker medewerker werknemer leerling",
    "pessoa sujeito segurado utilizador empregado funcionario trabalhador aluno cidadao",
)
"""Nouns for one person; in the plural they are counts of people."""
_STEMS = (
    *_PEOPLE,
    "pat pers staff personnel household hh family resident candidate driver passenger",
    "patienten personen personal probanden individuen versicherten kunden kd mitglieds "
    "mitglieder mitarbeiter beschaeftigten angestellten studenten matrikel buerger haushalts "
    "haushalt familien sozialversicherungs rentenversicherungs krankenversicherungs steuer "
    "steueridentifikations personalausweis ausweis",
    "foyer menage famille hogar familia famiglia",
    "lid leden klanten persoons personeels burgerservice huishouden",
)
"""What is one for a person only together with a word for a number."""
_KEYS = (
    "id ident identifier key uuid guid uid",
    "identifiant identificador identificativo identificatore identifikator",
    "kennung kennziffer kennzeichen schluessel",
)
_NUMBERS = ("nr no nro number nummer numero",)
_CODES = ("num code kode codigo codice cod hash pseudonym pseudonyme token ref",)
_PERSONAL_NUMBERS = (
    "mrn medicalrecordnumber medicalrecordno pid ssn socialsecuritynumber nhs nhsno nhsnumber "
    "passport passportno passportnumber nationalid svnr ahv ahvnr persnr bsn dni nif cpf pesel "
    "codicefiscale matricule matricola legajo"
)
_KEY = _one_of(*_KEYS)
_NUMBER = _one_of(*_NUMBERS)
_ANY_ID = _one_of(*_KEYS, *_NUMBERS, *_CODES)
_ID_BEFORE = _one_of(*_KEYS, *_NUMBERS, "code codigo codice cod")
_OF = "(de|du|d|des|del|della|di|do|da|van|von|l|la|le)?"
_STEM = _one_of(*_STEMS)
_BARE_PERSON = re.compile(_one_of(*_PEOPLE, "pid"))
_PERSON = re.compile(
    rf"{_one_of(*_PEOPLE)}|{_one_of(_PERSONAL_NUMBERS)}{_ANY_ID}*|{_STEM}{_ANY_ID}+|"
    rf"{_ID_BEFORE}{_OF}{_STEM}{_ANY_ID}*"
)
_RECORD = (
    "case record encounter admission hadm visit stay icustay episode account row entry obs "
    "observation sequence seq serial lfd laufende fall akten satz zeilen dossier caso "
    "expediente cartella historia"
)
_NUMBERED_RECORD = (
    "case record encounter admission account row entry obs serial seq lfd laufende fall akten satz "
    "zeilen dossier caso expediente cartella historia"
)
_RECORD_NAME = re.compile(
    rf"{_one_of(_RECORD)}?{_KEY}{_one_of('code kode num', *_NUMBERS)}?|"
    rf"nr|no|nro|kennnummer|rownames|"
    rf"{_one_of(_NUMBERED_RECORD)}{_NUMBER}|{_ID_BEFORE}{_OF}{_one_of(_RECORD)}"
)
_LAST_WORD = re.compile(rf"{_KEY}|{_NUMBER}")
_COMPOUND = re.compile(r".{3,}(nummer|kennung|nr)")
_CONTACT = re.compile(
    rf"({_one_of(*_PEOPLE)}|patienten|kunden)?"
    r"(first|last|sur|family|full|given|middle|vor|nach|familien)?name|"
    r"e?mail(address)?|(tele|mobile)?phone(number)?|telefon(nummer)?|(street|home|post)?address|"
    r"strasse|street|adresse|anschrift|prenom|nom(defamille)?|apellidos?|cognome|"
    r"achternaam|voornaam|courriel|correo|direccion|indirizzo|telefono|endereco"
)
_PLACE = re.compile(r"countr|nation|land|staat|continent|kontinent|region|iso|pa[iy]s")
_UNITS = _each_of(
    "mm cm dm m km kg g mg ug lb lbs oz ml cl dl l mmhg bpm kmh mph mpg hp ps kw kwh watt volt db "
    "hz s sec secs second seconds ms min mins minute minutes h hr hrs hour hours day days week "
    "weeks month months year years yr yrs percent pct usd eur euro euros dollar dollars chf gbp "
    "sqft sqm ha acres"
)
"""The last word of a quantity's name, or if it is long any."""
_QUANTITIES = _each_of(
    "year yr month week day hour age length width height depth size weight mass area volume "
    "distance speed temp temperature pressure pulse rate ratio score points price cost income "
    "revenue salary wage wages pay amount balance sum total count quantity qty value population "
    "pop rank "
    "limit loan debt tax sales profit turnover budget latitude longitude lat lon lng elevation "
    "altitude dose level concentration mileage odometer time timestamp date duration visits rooms "
    "visit wave round trial session period version page floor step lag "
    "jahr monat woche tag stunde alter laenge breite hoehe tiefe groesse gewicht masse flaeche "
    "volumen entfernung abstand dauer zeit zeitpunkt datum temperatur druck puls preis kosten "
    "einkommen gehalt lohn umsatz gewinn betrag summe saldo anzahl menge wert einwohner prozent "
    "annee an mois semaine jour heure longueur largeur hauteur taille poids surface duree prix "
    "cout revenu salaire montant solde somme nombre quantite valeur "
    "ano mes semana dia hora edad longitud ancho altura peso superficie distancia duracion precio "
    "costo ingreso salario importe suma cantidad valor poblacion "
    "anno mese settimana giorno ora eta lunghezza larghezza altezza distanza durata prezzo reddito "
    "stipendio importo somma valore quantita "
    "jaar maand dag uur leeftijd lengte hoogte gewicht oppervlakte afstand duur prijs inkomen "
    "bedrag aantal waarde idade preco renda quantidade"
)
"""A word of a quantity's name: what is measured, counted, or put in an order."""
_GERMAN_QUANTITY = re.compile(
    r".+(jahr|gewicht|laenge|breite|hoehe|groesse|flaeche|preis|kosten|einkommen|gehalt|umsatz|"
    r"betrag|summe|dauer|anzahl|menge|alter|temperatur|druck)"
)
_PEOPLE_COUNTED = re.compile(rf"{_one_of(*_PEOPLE)}(s|e?n)")
_COUNT = re.compile(r"(n|num|number|no|nr|nb|count|anzahl|nombre)[ _](of[ _])?\w*(s|en|er)")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "°": "o", "#": " no "})


def names_person(name: str) -> bool:
    """Whether it is one for people: patient, Personalnummer, numéro de client."""
    return _PERSON.fullmatch(_letters(name)) is not None


def is_noun_for_person(name: str) -> bool:
    """Whether it is a noun alone, such as subject, which may mean something else; pid is a party,
    too."""
    return _BARE_PERSON.fullmatch(_letters(name)) is not None


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
    ends = _LAST_WORD.fullmatch(words[-1]) or _COMPOUND.fullmatch(words[-1])
    return ends is not None or words[0] == "id"


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
    units = words[-1] in _UNITS or any(len(word) > 3 for word in _UNITS.intersection(words))
    if units or not _QUANTITIES.isdisjoint(words):
        return True
    counted = len(words) > 1 and _COUNT.fullmatch(" ".join(words)) is not None
    several = len(words) == 1 and _PEOPLE_COUNTED.fullmatch(words[0]) is not None
    return counted or several or any(map(_GERMAN_QUANTITY.fullmatch, words))


def _letters(name: str) -> str:
    """All letters and digits of a name, without spaces and accents."""
    return "".join(_words(name))


def _words(name: str) -> Sequence[str]:
    """The words of a name in camelCase, snake_case or with spaces, without accents."""
    name = re.sub(r"(?<=[a-zäöüß0-9])(?=[A-ZÄÖÜ])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    plain = unicodedata.normalize("NFKD", name.lower().translate(_UMLAUTS))
    plain = "".join(each for each in plain if not unicodedata.combining(each))
    return re.findall(r"[^\W_]+", plain)


FEW_VALUES = 20
"""A column with at most this many distinct values is not taken for names, text or identifiers."""
PROSE_WORDS = 5
"""Mean number of words from which values are prose."""
PROSE_CHARACTERS = 40
"""Mean number of characters from which they are."""

_MONTH = r"(jan|feb|m[aä]r|mrz|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])\w*\.?"
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[ap]m)?(z|[+-]\d{2}:?\d{2})?"
_DAY = (
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2})|"
    r"(19|20)\d{2}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])|"
    rf"\d{{1,2}}\.?[- ]?{_MONTH}[- ,]*\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}})"
)
_DATE = re.compile(rf"{_DAY}([t ]{_CLOCK})?|(?=\d\d:){_CLOCK}", re.IGNORECASE)
_POINTS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
"""Of numbers that may be whole, with points between thousands."""
_UNREAD_NUMBER = re.compile(
    r"(?=.*[ \u00a0\u202f'’.%€£$¥])[+-]?([€£$¥] ?|(USD|EUR|GBP|CHF) )?[+-]?"
    r"(\d+|\d{1,3}([ \u00a0\u202f'’.,]\d{3})+)([.,]\d+)?( ?[%€£$¥]| (USD|EUR|GBP|CHF))?"
)
_NINES = re.compile(r"-?9{2,}|-9")
MIN_OTHER_VALUES = 3
"""Other values beside one that may stand for a missing one."""
LIFE_DAYS = 100 * 366
MIN_YEAR, MAX_YEAR = 1800, 2100
MIN_EVEN_SHARE = 0.9
"""Share of the values that are in equally many rows, or of the rows that have a value of their
own."""
MIN_NUMBERED_RECORDS = 100
"""Fewer numbers of records are told by their names alone."""
MAX_UNIFORM_DISTANCE = 1.63
"""Times the square root of their count: how far evenly spread numbers are from evenly spaced ones,
in 99 of 100 cases (Kolmogorov and Smirnov)."""
_TWO_LETTERS = re.compile(r"[A-Z]{2}")
_PLAIN = re.compile(r"[0-9+\-.eE\n]+")
_HEX = re.compile(r"[0-9a-f-]{16,}", re.IGNORECASE)


MAX_VALUES = 100_000
"""Different values of a column that are counted."""
MAX_CHARACTERS = 10_000_000
"""Of the counted values of a column, together."""
MAX_VALUES_OF_TABLE = 5_000_000
"""Different values of all columns that are counted."""
MIN_COUNTED_VALUES = 2_000
"""Different values of a column that are counted however many columns there are."""


def max_counted_values(columns: int) -> int:
    """How many different values of each of so many columns are counted."""
    return min(MAX_VALUES, max(MIN_COUNTED_VALUES, MAX_VALUES_OF_TABLE // columns))


@dataclass
class Overflow:
    """What is known of the values that are not counted."""

    orders: list[DateOrder] = field(default_factory=list)
    """In which all of them are dates."""
    read_as: Commas | None = None
    """What commas are read as, by the values that are counted."""
    first: dict[DateOrder, datetime] = field(default_factory=dict)
    last: dict[DateOrder, datetime] = field(default_factory=dict)
    low: float = math.inf
    high: float = -math.inf
    words: int = 0
    """Rows whose value is not a number."""
    points: int = 0
    """Rows whose value has a point and no comma."""
    commas: bool = False
    """Whether a value has a comma."""

    def add(self, text: str, rows: int) -> None:
        """Note a value, and how many rows have it."""
        comma, thousands = "," in text, self.read_as == "thousands"
        decimal = comma and self.read_as == "decimal"
        value = parse_number(text, decimal_comma=decimal, thousands=thousands)
        if math.isfinite(value):
            self.low, self.high = min(self.low, value), max(self.high, value)
        else:
            self.words += rows
        self.commas |= comma
        self.points += rows if "." in text and not comma else 0
        for order in self.orders:
            if (day := read_date(text, order)) is None:
                self.orders = [other for other in self.orders if other != order]
            else:
                self.first[order] = min(self.first.get(order, day), day)
                self.last[order] = max(self.last.get(order, day), day)


def form_of(value: str) -> str:
    """Return a value with every digit as 9 and every letter as a."""
    return re.sub(r"\d", "9", re.sub(r"[^\W\d_]", "a", value))


@dataclass
class ColumnStats:
    """Clues in the name and the values of a column; `delimiter` separates the table's fields.

    Values are added in one pass and bounded memory: the first `max_counted` different ones are
    counted. Of those beyond, only what must hold for every row is kept: whether all are numbers or
    dates, and their range. So what else is said of such a column comes from the rows with a counted
    value.
    """

    path: Path
    name: str
    delimiter: str
    max_counted: int
    """Different values that are counted."""
    counts: Counter[str] = field(default_factory=Counter)
    """Rows of each of the first different values, by the order in which they appear."""
    rows: int = 0
    given: int = 0
    """Rows with a value."""
    not_available: int = 0
    """Rows with NA, which counts as no value."""
    rest: Overflow | None = None
    """None if all values are counted."""
    runs: int = 0
    """Runs of rows with one value."""
    _last: object = None
    _characters: int = 0

    def add(self, coded: CodedValues) -> None:
        """Count the values of some more rows."""
        rows_of = np.bincount(coded.places, minlength=len(coded.values)).tolist()
        self.rows += len(coded.places)
        self._count_runs(coded)
        for value, rows in zip(coded.values, rows_of, strict=True):
            text = as_text(value)
            if text in MISSING_TEXTS:
                self.not_available += rows if text == "NA" else 0
                continue
            self.given += rows
            if text in self.counts:
                self.counts[text] += rows
            elif len(self.counts) < self.max_counted and self._characters < MAX_CHARACTERS:
                self.counts[text] = rows
                self._characters += len(text)
            else:
                if self.rest is None:
                    usual: Commas | None = None if self.delimiter == "," else "decimal"
                    read_as = _commas(self.counts, self.delimiter) or usual
                    self.rest = Overflow(date_orders(self.counts), read_as)
                self.rest.add(text, rows)

    def _count_runs(self, coded: CodedValues) -> None:
        if len(coded.places):
            first, last = coded.values[coded.places[0]], coded.values[coded.places[-1]]
            starts = not self.runs or first != self._last
            self.runs += int(np.count_nonzero(np.diff(coded.places))) + starts
            self._last = last

    @cached_property
    def distinct(self) -> list[str]:
        """The distinct values that were counted, sorted."""
        return sorted(self.counts)

    @property
    def different(self) -> str:
        """How many distinct values there are, for people."""
        return f"{'more than ' if self.rest else ''}{len(self.distinct):,}"

    @property
    def gaps(self) -> int:
        """Rows without a value."""
        return self.rows - self.given

    @property
    def decimal(self) -> bool:
        """Whether commas are decimal signs, as in 3,5."""
        return self.commas == "decimal"

    @cached_property
    def commas(self) -> Commas | None:
        """What commas are read as; None if there are none, or if no value is a number with one."""
        if self.rest is not None:
            return self.rest.read_as if self.rest.commas else _commas(self.counts, self.delimiter)
        return _commas(self.counts, self.delimiter)

    @cached_property
    def low(self) -> float:
        """The least number, of a numeric column."""
        rest = self.rest
        return min([*self._numbers.values(), *([rest.low] if rest else [])])

    @cached_property
    def high(self) -> float:
        """The greatest number, of a numeric column."""
        rest = self.rest
        return max([*self._numbers.values(), *([rest.high] if rest else [])])

    @property
    def median(self) -> float:
        """The median of a numeric column."""
        ordered = sorted((self._numbers[text], rows) for text, rows in self.counts.items())
        ends = list(itertools.accumulate(rows for _, rows in ordered))
        middle = ((ends[-1] - 1) // 2, ends[-1] // 2)
        low, high = (ordered[bisect.bisect_right(ends, place)][0] for place in middle)
        return low if low == high else (low + high) / 2

    @cached_property
    def words(self) -> int:
        """Rows whose value is not a number."""
        counts, rest = self.counts, self.rest
        words = sum(counts[text] for text, value in self._numbers.items() if math.isnan(value))
        if rest is None:
            return words
        return words + rest.words + (rest.points if self.decimal else 0)

    def is_word(self, value: str) -> bool:
        """Whether a counted value is not a number."""
        return math.isnan(self._numbers[value])

    def rows_between(self, edges: Sequence[float]) -> list[int]:
        """The rows below, between and above increasing edges, of those with a counted number."""
        rows = [0] * (len(edges) + 1)
        for text, value in self._numbers.items():
            rows[bisect.bisect_right(edges, value)] += self.counts[text]
        return rows

    @cached_property
    def numeric(self) -> bool:
        """Whether the values are quantities, not codes such as 00417."""
        return self._all_numbers and not self._coded

    @property
    def stand_ins(self) -> list[float]:
        """Ends of a numeric column that look as if they stood for a missing number: -999 or 9999,
        far from all others."""
        rest = sorted({self.low, self.high, *self._numbers.values()})
        found = list[float]()
        while len(rest) > MIN_OTHER_VALUES:
            low, high = rest[0], rest[-1]
            below = rest[1] - low > high - rest[1] or rest[1] >= 0
            above = high - rest[-2] > max(rest[-2] - low, abs(rest[-2]) / 10)
            if below and low < 0 and low.is_integer() and _NINES.fullmatch(f"{low:.0f}"):
                found.append(rest.pop(0))
            elif above and high.is_integer() and _NINES.fullmatch(f"{high:.0f}"):
                found.append(rest.pop())
            else:
                break
        return found

    def stand_in_days(self, order: DateOrder) -> list[date]:
        """First or last dates in this order that are further from all others than these are from
        each other, and than a life is long: 9999-12-31."""
        days = sorted({day.date() for text in self.distinct if (day := read_date(text, order))})
        days = sorted({*days, *self.span(order)})
        found = list[date]()
        while len(days) > MIN_OTHER_VALUES:
            usual = max((days[-2] - days[0]).days, LIFE_DAYS)
            if (days[-1] - days[-2]).days > usual:
                found.append(days.pop())
            elif (days[1] - days[0]).days > max((days[-1] - days[1]).days, LIFE_DAYS):
                found.append(days.pop(0))
            else:
                break
        return found

    @property
    def names_places(self) -> bool:
        """Whether NA may be a place: the name says so, or all values are codes of two letters."""
        codes = [value for value in self.distinct if _TWO_LETTERS.fullmatch(value)]
        pairs = len(codes) == len(self.distinct) >= MIN_OTHER_VALUES
        return pairs or names_place(self.name)

    @property
    def whole(self) -> bool:
        """Whether all numbers are integers."""
        return all(value.is_integer() for value in self._numbers.values())

    @property
    def unread_number(self) -> str | None:
        """A number that is written in a way that is not read, if nearly all values are such: 1 234,
        1'234, 1.234.567, $5 or 12 %."""
        others = [text for text, value in self._numbers.items() if math.isnan(value)]
        unread = [text for text in others if _UNREAD_NUMBER.fullmatch(text)]
        nearly = 10 * (len(others) - len(unread)) <= len(self.distinct)
        return unread[0] if len(unread) > FEW_VALUES and nearly else None

    @property
    def ask_of_commas(self) -> str | None:
        """Ask what commas are, or points, if both readings are possible."""
        marked = [text for text in self.distinct if "," in text]
        if self.commas is None:
            dots = [text for text in self.distinct if "." in text]
            if self.delimiter == "," or not dots or not all(map(_POINTS.fullmatch, dots)):
                return None
            return (
                f"Do the points separate thousands? {dots[0]} is read as "
                f"{self._numbers[dots[0]]:.12g}. If they do, leave them out in all files."
            )
        thousands = all(map(THOUSANDS.fullmatch, marked))
        if not marked or (thousands and not all(map(DECIMAL_COMMA.fullmatch, marked))):
            return None
        read = f"{marked[0]} is read as {self._numbers[marked[0]]:.12g}"
        if thousands:
            others = "decimal signs" if self.commas == "thousands" else "thousands separators"
            way = "decimal" if self.commas == "thousands" else "thousands"
            return (
                f"Are the commas {others}? {read}. If they are, write "
                f'"commas": "{way}" and another range in the schema.'
            )
        if self.delimiter != ",":
            return None
        return f"Is this a number? {read}. If not, use --ignore {self.name}."

    @property
    def unique(self) -> bool:
        """Whether all rows have different values."""
        return not self.gaps and len(self.distinct) == self._counted

    @property
    def nameless(self) -> bool:
        """Whether nobody named it: such is the number of a row that a data frame was saved with."""
        return not self.name.strip() or self.name.startswith("Unnamed: ")

    @property
    def counts_rows(self) -> bool:
        """Whether the values are consecutive integers, each once."""
        rows, span = self.rows, self.high - self.low
        return self.unique and self.whole and rows > FEW_VALUES and span == rows - 1

    @property
    def uniform(self) -> bool:
        """Whether all values have one form with four or more digits, as P-00417, or are hex."""
        form = form_of(self.distinct[0]) if self.distinct else ""
        alike = form.count("9") >= 4 and all(form_of(value) == form for value in self.distinct)
        return alike or all(map(_HEX.fullmatch, self.distinct))

    @property
    def rare(self) -> bool:
        """Whether values repeat too rarely to learn from; uniform values must repeat more often."""
        rows = 5 if self.uniform else 2
        return len(self.distinct) > FEW_VALUES and rows * len(self.distinct) > self._counted

    @property
    def prose(self) -> bool:
        """Whether the values are long or have line breaks, and rarely repeat."""
        counts, rows = self.counts, self._counted
        words = sum(len(text.split()) * counts[text] for text in counts)
        length = sum(len(text) * counts[text] for text in counts)
        long = words >= PROSE_WORDS * rows or length >= PROSE_CHARACTERS * rows
        broken = any("\n" in text or "\r" in text for text in counts)
        return (long or broken) and 5 * len(counts) > rows

    @property
    def has_phrases(self) -> bool:
        """Whether values have two words or more, on average."""
        counts = self.counts
        words = sum(len(text.split()) * counts[text] for text in counts)
        return words >= 2 * self._counted

    @cached_property
    def dates(self) -> bool:
        """Whether nine of ten distinct values are dates or times."""
        others, count = 0, len(self.distinct)
        for value in self.distinct:
            others += _DATE.fullmatch(value) is None
            if others * 10 > count:
                return False
        return count > 0

    @property
    def days(self) -> bool:
        """Whether there are dates among them, and not times of day alone."""
        return any(re.match(_DAY, value, re.IGNORECASE) for value in self.distinct)

    @cached_property
    def date_order(self) -> DateOrder | None:
        """The order of year, month and day, if all values are dates and it is unambiguous."""
        if not self.dates:
            return None
        rest = self.rest
        orders = date_orders(self.distinct) if rest is None else rest.orders
        return orders[0] if len(orders) == 1 or "year-month-day" in orders else None

    def span(self, order: DateOrder) -> tuple[date, date]:
        """The first and the last day, of dates in this order."""
        days = [day for text in self.distinct if (day := read_date(text, order))]
        if rest := self.rest:
            days += [ends[order] for ends in (rest.first, rest.last) if order in ends]
        return min(days).date(), max(days).date()

    def hours(self, order: DateOrder) -> bool:
        """Whether dates in this order have a time of day other than midnight."""
        return any((day := read_date(text, order)) and day.hour for text in self.distinct)

    @property
    def boolean(self) -> bool:
        """Whether the values are true and false, however they are written."""
        return {value.lower() for value in self.distinct} == {"true", "false"}

    @property
    def names_people(self) -> bool:
        """Whether the name is one for people; yes and no under "patient" are not people, and nor
        are 1.5 workers."""
        if not self.distinct or self.fractional or not names_person(self.name):
            return False
        answer = len(self.distinct) <= 2 and not self.unique
        return not (answer and is_noun_for_person(self.name))

    @property
    def may_be_a_category_of_people(self) -> bool:
        """Whether the name is a bare noun such as "subject", and the values are few."""
        few = len(self.distinct) <= FEW_VALUES < self.rows
        return few and is_noun_for_person(self.name)

    @property
    def names_repeated_records(self) -> bool:
        """Whether the name is one for cases or stays, or just "id", and values repeat."""
        return self.repeats and not self.fractional and names_record(self.name)

    @property
    def names_identifier(self) -> bool:
        """Whether the name is one for what has a number, and no value is 1.5."""
        return names_identifier(self.name) and not self.fractional

    @property
    def names_contact(self) -> bool:
        """Whether the name is one for names or contact details, and there are many values."""
        many = len(self.distinct) > FEW_VALUES or self.unique
        return many and names_contact(self.name)

    @property
    def quantity(self) -> bool:
        """Whether the name is one for what is measured or counted, or all values are years."""
        years = self.low >= MIN_YEAR and self.high <= MAX_YEAR
        return names_quantity(self.name) or years

    @property
    def repeats(self) -> bool:
        """Whether there are many values, and some in several rows."""
        return FEW_VALUES < len(self.distinct) < self._counted

    @property
    def rows_per_value(self) -> float:
        """In how many rows a value is on average; 0 if there is none."""
        return self._counted / len(self.distinct) if self.distinct else 0.0

    @property
    def fractional(self) -> bool:
        """Whether some value is a number that is not whole."""
        return any(not value.is_integer() for value in self._numbers.values() if value == value)

    @property
    def numbers_people(self) -> bool:
        """Whether whole numbers stand for groups of rows, whatever their name: each in equally many
        rows that follow one another, as where somebody is asked every year."""
        if not (self.numeric and self.whole and self.repeats and self.rest is None):
            return False
        usual = Counter(self.counts.values()).most_common(1)[0]
        even = usual[0] > 1 and usual[1] >= MIN_EVEN_SHARE * len(self.distinct)
        return even and self.runs == len(self.distinct) and not self.quantity

    @property
    def numbers_records(self) -> bool:
        """Whether whole numbers stand for rows, whatever their name: nearly each row has its own,
        and they are spread evenly, as measured quantities are not."""
        count = len(self.distinct)
        if not (self.numeric and self.whole and count >= MIN_NUMBERED_RECORDS) or self.quantity:
            return False
        ordered = np.sort(np.fromiter(self._numbers.values(), dtype=np.float64))
        even = (ordered - ordered[0]) / max(ordered[-1] - ordered[0], 1)
        distance = float(np.abs(even - np.linspace(0, 1, count)).max())
        return (
            count >= MIN_EVEN_SHARE * self._counted
            and distance * math.sqrt(count) <= MAX_UNIFORM_DISTANCE
        )

    @property
    def _all_numbers(self) -> bool:
        return self.given > 0 and not self.words

    @property
    def _counted(self) -> int:
        """Rows that have one of the values that were counted."""
        return self.counts.total()

    @cached_property
    def _numbers(self) -> dict[str, float]:
        """The counted values as numbers; NaN for those that are not finite numbers."""
        comma, thousands = self.decimal, self.commas == "thousands"
        if _PLAIN.fullmatch("\n".join(self.distinct)):  # what else float reads has other letters
            with suppress(ValueError):
                return {
                    text: value if math.isfinite(value := float(text)) else math.nan
                    for text in self.distinct
                }
        found = {
            text: parse_number(text, decimal_comma=comma, thousands=thousands)
            for text in self.distinct
        }
        return {text: v if math.isfinite(v) else math.nan for text, v in found.items()}

    @property
    def _coded(self) -> bool:
        lengths = set(map(len, self.distinct))
        if len(lengths) > 1 or lengths == {1} or not self.whole:
            return False
        return any(text.startswith("0") for text in self.distinct)


def _commas(texts: Iterable[str], delimiter: str) -> Commas | None:
    """What the commas in a column's values are, by all that have one; None if there is no telling.

    Where 1,234 may be either, they separate thousands in a file whose fields commas separate, and
    are decimal signs in others.
    """
    marked = [text for text in texts if "," in text]
    if not marked:
        return None
    decimal = all(map(DECIMAL_COMMA.fullmatch, marked))
    if all(map(THOUSANDS.fullmatch, marked)) and (delimiter == "," or not decimal):
        return "thousands"
    return "decimal" if decimal or delimiter != "," else None


MAX_CATEGORIES = 1000
KEPT_CATEGORIES = 100
"""Categories that are kept where there are more than that."""
MIN_KEPT_SHARE = 0.5
"""Share of the rows that these have at least."""
DATE_PARTS: tuple[DatePart, ...] = ("days", "month", "weekday")
"""Of dates; and the hour, if there is a time of day."""
MAX_CLASSES = 100
MIN_CODE = 10_000
"""Numbers of equally many digits that repeat are asked about from here on: smaller ones are more
often quantities."""

EVEN_RUNS = "whole numbers, each in equally many rows that follow one another"
_COMMAS = {"thousands": "thousands separators", "decimal": "decimal signs"}


@dataclass(frozen=True)
class RoleGuess:
    """The role proposed for a column."""

    column: Column
    why: str
    doubt: str | None = None
    """What the owner should check."""


@dataclass(frozen=True)
class SchemaProposal:
    """A schema, and the reason for the role of each column."""

    schema: TableSchema
    guesses: tuple[RoleGuess, ...]
    declared: bool = False
    """Whether the classes were declared, and not taken from the table."""
    doubtful_group: str | None = None
    """The column that was guessed to be the group, if its name does not say so for certain."""

    def to_json(self) -> str:
        """The schema as a file to be edited, with what was guessed and why beside each column."""
        document = self.schema.model_dump(mode="json", exclude_none=True)
        for column, guess in zip(document["columns"], self.guesses, strict=True):
            column["why"] = guess.why
            if guess.doubt is not None:
                column["check"] = guess.doubt
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def propose_schema(
    path: Path,
    *,
    label: str,
    classes: Sequence[str] | None = None,
    bins: Sequence[float] | None = None,
    group: str | None = None,
    columns: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    keep: Sequence[str] = (),
    note: Note = warn,
    progress: Progress = ignore_progress,
) -> SchemaProposal:
    """Propose a schema with the categories, classes and ranges of a public table.

    Its values are counted in one pass and in bounded memory (`ColumnStats`). Every distinct
    value of a categorical column becomes public. `columns` names the columns of a file without a
    header. `classes` declares what the label can be, or `bins` the edges that cut its numbers into
    classes: the table need not have that column then. `group`, `ignore` and `keep` (as a feature)
    overrule the guesses; a `group` may be in the private table alone, unless it is spelled nearly
    as a column of this one. Raises DataError.
    """
    path, label = Path(path), normalize(label)
    group = None if group is None else normalize(group)
    columns = None if columns is None else list(map(normalize, columns))
    ignore, keep = list(map(normalize, ignore)), list(map(normalize, keep))
    table, unread, digest = _count_values(path, label, columns, ignore, note, progress)
    records = max(column.rows for column in table)
    wanted = [label, *ignore, *keep, *([group] if group else [])]
    names = [column.name for column in table]
    if classes is not None and bins is not None:
        raise DataError("Classes are declared either by --classes or by --bins.")
    if label not in names and classes is None and bins is None:
        raise DataError(
            f"{path} has no column {label}; it has {', '.join(names)}. If its rows have no labels, "
            "declare the classes, which become public: --classes A,B,…, or of numbers --bins."
        )
    if not records:
        raise DataError(f"{path} has no rows below its header.")
    absent = {label} - set(names)
    if group is not None and columns is None and fold(group) not in map(fold, names):
        absent.add(group)
    check_names(names, [name for name in wanted if name not in absent], str(path))
    if name := next((name for name in (label, *keep, group) if name in unread), None):
        raise DataError(
            f"{path}: column {name} holds {unread[name]}; expected numbers, text or dates."
        )
    if twice := [name for name in wanted if wanted.count(name) > 1]:
        raise DataError(f"Column {twice[0]} is named twice; it can have only one role.")
    decide: dict[str, Callable[[ColumnStats], RoleGuess]] = {
        label: partial(_label, declared=classes) if bins is None else partial(_cut, edges=bins)
    }
    for name, kind in unread.items():
        decide[name] = partial(_ignore, why=f"holds {kind}, which is not read")
    decide |= dict.fromkeys(ignore, partial(_ignore, why="as specified"))
    decide |= dict.fromkeys(keep, _feature)
    if group is not None and group not in absent:
        decide[group] = partial(_as_group, why="as specified")
    found = None
    if group is None:
        found = _group([column for column in table if column.name not in decide])
    if found is not None:
        group, decide[found.name] = found.name, _guess_group
    certain = found is None or (found.names_people and not found.may_be_a_category_of_people)
    people = None if group is None else _People.of(group, table)
    guesses = list[RoleGuess]()
    while table:  # what was counted of a column is not kept once its role is known
        column = table.pop(0)
        decided = decide.get(column.name)
        guesses.append(decided(column) if decided else _guess(column, people))
    if label in absent:
        described = Column(name=label, role="label", values=tuple(classes or ()))
        if bins is not None:
            described = Column(name=label, role="label", edges=tuple(bins))
        guesses.append(RoleGuess(described, "to be predicted; its classes were declared"))
    if group is not None and group in absent:
        why = f"as specified; {path.name} does not have it, so the private table must"
        guesses.append(RoleGuess(Column(name=group, role="group"), why))
    if not any(guess.column.role in FEATURE_ROLES for guess in guesses):
        left = [f"{g.column.name} ({g.why})" for g in guesses if g.column.role == "ignored"]
        raise DataError(
            f"{path}: no column is left to learn from. Left out: {list_names(left) or 'none'}. "
            "Use --keep COLUMN for one that counts, or write it otherwise in all files."
        )
    source = PublicSource(name=path.name, sha256=digest, records=records)
    try:
        schema = TableSchema(columns=tuple(guess.column for guess in guesses), fitted_on=source)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"{path}: {reason}.") from None
    if wrong := find_unshown(schema.names):
        raise DataError(f"{path}: {wrong}.")
    return SchemaProposal(
        schema,
        tuple(guesses),
        declared=classes is not None or bins is not None,
        doubtful_group=None if certain else group,
    )


def find_repeated_people(path: Path, schema: TableSchema) -> tuple[str, float] | None:
    """Find the column by which people have several rows, though the schema has no group.

    Of a private table: so what is returned, its name and the mean number of rows of one person, is
    for the owner alone, and is stored nowhere. None if there is no such column. Raises DataError.
    """
    features, columns = set(schema.features), [column.name for column in schema.columns]
    unused = {column.name for column in schema.columns if column.role == "ignored"}

    def may_name_people(name: str) -> bool:
        if name in features:
            return names_person(name) or names_record(name)
        return name in unused or name not in columns

    def fits(first: Sequence[str]) -> bool:
        return features <= set(first) or len(first) == len(columns)

    with open_table(path, fits=fits, digest=False) as file:
        header = file.has_header(schema)
        names = file.first if header else columns
        named = list(filter(may_name_people, names))
        if not named or len(names) != len(file.first):
            return None
        delimiter = file.delimiter or ","
        found = [
            ColumnStats(path, name, delimiter, max_counted_values(len(named))) for name in named
        ]
        rows = 0
        for batch in file.batches(names if file.delimiter else named, header):
            for column in list(found):
                try:
                    column.add(file.coded(column.name, batch.column(column.name), rows))
                except DataError:  # it is not a column of the schema, and need not be readable
                    found.remove(column)
            rows += batch.num_rows
    people = _group([column for column in found if column.rows_per_value > 1])
    return None if people is None else (people.name, people.rows_per_value)


def _count_values(
    path: Path,
    label: str,
    columns: Sequence[str] | None,
    ignore: Sequence[str],
    note: Note,
    progress: Progress,
) -> tuple[list[ColumnStats], dict[str, str], str]:
    """Count the values of all columns but those to ignore; what those hold whose types cannot be
    read; and the SHA-256 of the file."""

    def fits(first: Sequence[str]) -> bool:
        return label in first if columns is None else len(first) == len(columns)

    with open_table(path, fits=fits, note=note) as file:
        from terrine_tables.arrow_columns import unread_type

        if file.delimiter is None and columns is not None:
            raise DataError(f"{path} names its columns itself: leave out --columns.")
        if not file.first:
            raise DataError(f"{path} is empty.")
        if columns is None:
            file.check_header()
        names = file.first if columns is None else columns
        check_names(names, names, str(path))
        table = [
            ColumnStats(path, name, file.delimiter or ",", max_counted_values(len(names)))
            for name in names
        ]
        unread = {name: kind for name, each in file.types.items() if (kind := unread_type(each))}
        left = {*ignore, *unread}
        counted = [column for column in table if column.name not in left]
        if not counted:
            raise DataError(f"{path}: no column is left to learn from, of {list_names(names)}.")
        read = [column.name for column in counted] if file.delimiter is None else names
        rows = 0
        for batch in file.batches(read, columns is None, progress):
            for column in counted:
                column.add(file.coded(column.name, batch.column(column.name), rows))
            rows += batch.num_rows
        return table, unread, file.sha256


@dataclass(frozen=True)
class _People:
    """The group that was specified or found, for the other columns."""

    name: str
    repeated: int
    """How many there are in the table, if in several rows; else 0."""

    @classmethod
    def of(cls, name: str, table: Sequence[ColumnStats]) -> _People:
        named = (column for column in table if column.name == name and column.repeats)
        return cls(name, sum(len(column.distinct) for column in named))

    @property
    def as_many(self) -> str:
        """Say that another column has as many values."""
        return f"as many different values as there are of {self.name}: {self.repeated:,}"

    def suggest(self, name: str) -> str:
        """Say what to do if another column is the one that names people."""
        return (
            f"The group is {self.name}. If {name} names the person, use --group {name}; to learn "
            f"from it, --keep {name}."
        )


def _group(columns: Sequence[ColumnStats]) -> ColumnStats | None:
    """Return the column that identifies people; if several do, the one with fewest people."""
    nouns = [column for column in columns if column.names_people]
    certain = [column for column in nouns if not column.may_be_a_category_of_people]
    records = [column for column in columns if column.names_repeated_records]
    found = certain or nouns or records or [c for c in columns if c.numbers_people]
    return min(found, key=lambda column: len(column.distinct), default=None)


def _label(column: ColumnStats, declared: Sequence[str] | None = None) -> RoleGuess:
    classes = column.distinct
    if classes and all(value.endswith(".") for value in classes):  # as in UCI Adult's test part
        classes = [value[:-1] for value in classes]
    if (
        declared is None
        and column.numeric
        and (len(classes) > MAX_CLASSES or (len(classes) > FEW_VALUES and not column.whole))
    ):
        raise DataError(
            f"{column.path}: column {column.name} holds {column.different} different numbers, from "
            f"{column.low:,.12g} to {column.high:,.12g}: it is a quantity, and Terrine predicts "
            "classes. Have it cut into ranges, by edges that become public: --bins A,B,… If these "
            "numbers are names of classes, list them in a schema of your own."
        )
    if column.rest:
        raise DataError(
            f"{column.path}: column {column.name} has {column.different} different values: it "
            "names no classes."
        )
    if declared is not None:
        declared = list(map(normalize, declared))
        if unknown := [value for value in classes if value not in declared]:
            raise DataError(
                f"{column.path}: column {column.name} has {', '.join(map(repr, unknown[:5]))}, "
                f"which --classes does not declare: {', '.join(declared)}."
            )
        classes = declared
    doubts = list[str | None]()
    if len(classes) > MAX_CLASSES:
        doubts.append("Are these classes? Terrine predicts one of a few.")
    elif column.gaps:
        doubts.append(_ask_of_gaps(column))
    if len(classes) <= MAX_CATEGORIES:
        doubts.append(_ask_of_spelling(column))
    doubt = _together(*doubts)
    described = Column(name=column.name, role="label", values=tuple(classes))
    return RoleGuess(described, f"to be predicted, as specified: {len(classes):,} classes", doubt)


def _ask_of_gaps(label: ColumnStats) -> str:
    return (
        f"Without a label: {_rows(label.gaps)}. Training refuses such rows: leave them out of the "
        "file."
    )


def _cut(column: ColumnStats, edges: Sequence[float]) -> RoleGuess:
    """Describe the label whose numbers are cut into classes."""
    if column.words or not column.given:
        odd = next((repr(value) for value in column.distinct if column.is_word(value)), "nothing")
        raise DataError(
            f"{column.path}: column {column.name} holds {odd}, and --bins cuts numbers. If it has "
            "names of classes, leave --bins out."
        )
    described = Column(name=column.name, role="label", edges=tuple(edges))
    classes = described.values or ()
    rows = column.rows_between(edges)
    doubts = [_ask_of_stand_ins(column), _ask_of_gaps(column) if column.gaps else None]
    if none := [name for name, count in zip(classes, rows, strict=True) if not count]:
        doubts.append(f"No row is {' or '.join(none)}. Are these the edges, in its units?")
    counts = ", ".join(f"{name} ({count:,})" for name, count in zip(classes, rows, strict=True))
    why = f"to be predicted, as specified, cut into {len(classes):,} classes: {counts}"
    return RoleGuess(described, why, _together(*doubts))


def _guess_group(column: ColumnStats) -> RoleGuess:
    name = column.name
    if not column.names_people:
        doubt = (
            f"Does it name people? If not, use --ignore {name}, or --keep {name} to learn from it."
        )
        if column.names_repeated_records:
            return _as_group(column, "an identifier by its name, which repeats", doubt)
        return _as_group(column, EVEN_RUNS, doubt)
    doubt = f"So few people? If not, use --keep {name}."
    few = column.may_be_a_category_of_people
    return _as_group(column, "identifies people, by its name", doubt if few else None)


def _as_group(column: ColumnStats, why: str, doubt: str | None = None) -> RoleGuess:
    if column.gaps and doubt is None:
        doubt = f"Without a value: {_rows(column.gaps)}, treated as rows of one person."
    count = f"{column.different} in {_rows(column.rows)}"
    return RoleGuess(Column(name=column.name, role="group"), f"{why}: {count}", doubt)


def _ignore(column: ColumnStats, why: str, doubt: str | None = None) -> RoleGuess:
    return RoleGuess(Column(name=column.name, role="ignored"), why, doubt)


def _feature(column: ColumnStats, doubt: str | None = None) -> RoleGuess:
    """Describe the column as a feature, whatever else it might be."""
    count = len(column.distinct)
    if order := column.date_order:
        return _dates(column, order, doubt)
    if column.numeric:
        low, high = column.low, column.high
        high = high if high > low else low + 1
        why, missing = f"numbers from {low:,.12g} to {high:,.12g}", None
        if column.gaps:
            missing = column.median
            why += (
                f"; missing in {_rows(column.gaps)}: an indicator, and the median {missing:,.12g}"
            )
        declared = column.commas
        if declared == "decimal" and column.delimiter != ",":  # as in any such file
            declared = None
        elif declared is not None:
            why += f"; commas are {_COMMAS[declared]}"
        described = Column(
            name=column.name,
            role="numeric",
            low=low,
            high=high,
            missing=missing,
            commas=declared,
        )
        doubt = _together(doubt, column.ask_of_commas, _ask_of_stand_ins(column))
        return RoleGuess(described, why, doubt)
    if column.boolean:
        return RoleGuess(Column(name=column.name, role="boolean"), "true or false", doubt)
    if count <= MAX_CATEGORIES:
        doubt = _together(doubt, _ask_of_spelling(column))
    if column.prose or (count > MAX_CATEGORIES and column.rare and column.has_phrases):
        return _text(column, doubt)
    if not count or (count > MAX_CATEGORIES and column.rare):
        raise DataError(
            f"{column.path}: column {column.name} cannot be kept. It has {column.different} "
            f"different values; a categorical column has at least one, and more than "
            f"{MAX_CATEGORIES:,} only if they repeat."
        )
    if count > MAX_CATEGORIES:
        return _common(column, doubt)
    described = Column(name=column.name, role="categorical", values=tuple(column.distinct))
    return RoleGuess(described, f"{count:,} categories" if count > 1 else "one category", doubt)


def _text(column: ColumnStats, doubt: str | None = None) -> RoleGuess:
    """Describe the column as free text."""
    return RoleGuess(
        Column(name=column.name, role="text"), "free text: its words are hashed", doubt
    )


def _dates(column: ColumnStats, order: DateOrder, doubt: str | None) -> RoleGuess:
    first, last = column.span(order)
    parts = (*DATE_PARTS, "hour") if column.hours(order) else DATE_PARTS
    high = max((last - first).days, 1)
    described = Column(
        name=column.name, role="date", order=order, since=first, low=0, high=high, parts=parts
    )
    taken = "month, weekday and hour" if "hour" in parts else "month and weekday"
    why = f"dates from {first} to {last}: days since the first, {taken}"
    if days := column.stand_in_days(order):
        named = " and ".join(map(str, days))
        ask = (
            f"Does {named} stand for no date? If so, leave the field empty in all files: the range "
            "reaches that far."
        )
        doubt = _together(doubt, ask)
    return RoleGuess(described, why, doubt)


def _together(*doubts: str | None) -> str | None:
    """Several doubts as one."""
    return " ".join(each for each in doubts if each) or None


def _ask_of_stand_ins(column: ColumnStats) -> str | None:
    """Ask of numbers such as -999 among others."""
    found = column.stand_ins
    if not found:
        return None
    named = " and ".join(f"{value:.12g}" for value in found)
    return (
        f"Does {named} stand for a missing value? If so, leave the field empty in all files: the "
        "range reaches that far."
    )


def _ask_of_spelling(column: ColumnStats) -> str | None:
    """Ask of categories that are nearly equal, and of NA where it may be a name."""
    na = None
    if column.not_available and column.names_places:
        na = (
            f"NA is read as a missing value, in {_rows(column.not_available)}. If it is a place, "
            "such as Namibia or North America, write it otherwise in all files."
        )
    return _together(ask_whether_one(column.distinct), na)


def _most_common(column: ColumnStats) -> tuple[list[str], float]:
    """The most common values, and the share of the rows that have one of them."""
    counts = column.counts
    most = sorted(counts, key=lambda value: (-counts[value], value))[:KEPT_CATEGORIES]
    return most, sum(counts[value] for value in most) / column.given


def _common(column: ColumnStats, doubt: str | None = None) -> RoleGuess:
    most, share = _most_common(column)
    described = Column(name=column.name, role="categorical", values=tuple(most))
    count = f"{column.different} categories"
    why = f"the {KEPT_CATEGORIES} most common of {count}, in {share:.0%} of the rows"
    return RoleGuess(described, why, doubt)


def _guess(column: ColumnStats, people: _People | None) -> RoleGuess:
    """Guess the role of a column for which the owner specified none and that is not the
    group."""
    name, rows, count = column.name, column.rows, len(column.distinct)
    keep = f"If this is wrong, use --keep {name}"
    keep_or_group = f"{keep}, or --group {name} if it identifies people."
    if people is not None:
        keep_or_group = people.suggest(name)
    if not count:
        return _ignore(column, "empty in every row")
    if column.names_people:
        if column.may_be_a_category_of_people:
            return _feature(column, keep_or_group)
        why = "identifies people" if people is None else f"identifies people, as {people.name} does"
        return _ignore(column, why, keep_or_group)
    if column.names_contact:
        return _ignore(column, "identifies people, by its name")
    if column.date_order:
        return _feature(column)
    if column.dates:
        doubt = "To learn from dates, write them as 2020-01-31." if column.days else None
        return _ignore(column, "dates or times", doubt)
    if column.names_identifier and column.unique and rows > 2:
        return _ignore(column, "an identifier by its name, and different in every row")
    if column.numeric:
        return _guess_number(column, people, keep_or_group)
    if text := column.unread_number:
        doubt = "To learn from it, write plain digits in all files, such as 1234.5."
        return _ignore(column, f"numbers written as {text!r}", doubt)
    if column.prose and count <= FEW_VALUES:
        return _ignore(column, "free text in few rows", f"{keep}.")
    if column.prose:
        return _text(column)
    if count > FEW_VALUES and 0 < column.words * 5 <= column.given:
        doubt = "To learn from it, leave all values that are not numbers empty."
        return _ignore(column, f"numbers, except in {_rows(column.words)}", doubt)
    if column.unique and rows > FEW_VALUES:
        return _ignore(column, "different in every row", f"{keep}.")
    if column.rare:
        why = f"{column.different} different values in {_rows(rows)}: too rare to learn from"
        return _ignore(column, why, keep_or_group)
    if people is not None and count == people.repeated:
        return _ignore(column, people.as_many, keep_or_group)
    if count > MAX_CATEGORIES:
        share = _most_common(column)[1]
        if share >= MIN_KEPT_SHARE:
            return _common(column, f"If this is not a category, use --ignore {name}.")
        most = f"the {KEPT_CATEGORIES} most common in {share:.0%} of the rows"
        why = f"{column.different} different values, {most}"
        return _ignore(column, why, keep_or_group)
    doubt = f"Different in every row. If it identifies rows, use --ignore {name}."
    return _feature(column, doubt if column.unique and rows > 4 else None)


def _guess_number(column: ColumnStats, people: _People | None, keep_or_group: str) -> RoleGuess:
    name, count = column.name, len(column.distinct)
    if column.counts_rows and not column.quantity:
        return _ignore(column, "numbers the rows", keep_or_group)
    if column.nameless and column.unique:
        doubt = "If this is wrong, give it a name."
        return _ignore(column, "without a name, and different in every row", doubt)
    if column.names_identifier and count > FEW_VALUES:
        why = f"an identifier by its name: {column.different} in {_rows(column.rows)}"
        return _ignore(column, why, keep_or_group)
    if column.numbers_records:
        why = f"{column.different} whole numbers in {_rows(column.rows)}, evenly spread"
        return _ignore(column, why, keep_or_group)
    odd = column.whole and count > FEW_VALUES and not column.quantity
    if odd and people is not None and count == people.repeated:
        return _ignore(column, people.as_many, keep_or_group)
    if column.numbers_people:
        return _ignore(column, EVEN_RUNS, keep_or_group)
    doubt = f"If it is an identifier, use --ignore {name} or --group {name}."
    coded = column.uniform and column.low >= MIN_CODE
    return _feature(column, doubt if odd and (column.unique or coded) else None)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
