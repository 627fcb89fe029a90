"""What columns are taken for: by name, by form, by how often values repeat; and what is said."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path

import pandas as pd
import pytest

from support.tables import stays
from support.wording import holds, refuses, says
from terrine_models.data.arrays import DataError
from terrine_models.tables import statistics
from terrine_models.tables.loading import load_table
from terrine_models.tables.proposal import find_repeated_people, propose_schema
from terrine_models.tables.roles import RoleGuess
from terrine_tables.columns import check_names

ROWS = 200
REPEATED = [i // 4 for i in range(ROWS)]
"""Fifty values, four times each."""
UNEVEN = [i * i % 97 + i % 3 for i in range(ROWS)]
"""Some sixty values, each now and then."""


def guess(tmp_path: Path, name: str, values: Sequence[object], delimiter: str = ",") -> RoleGuess:
    """What a column is taken for, beside one that is certainly a feature."""
    rows = [
        delimiter.join((f'"{value}"', f"{i % 7}.5", "ny"[i % 2])) for i, value in enumerate(values)
    ]
    path = tmp_path / "public.csv"
    path.write_text("\n".join([delimiter.join((name, "dose", "ill")), *rows, ""]))
    proposal = propose_schema(path, label="ill")
    assert proposal.schema.columns == tuple(found.column for found in proposal.guesses)
    assert proposal.guesses[1].column.role == "numeric"
    return proposal.guesses[0]


def test_a_yes_or_no_under_the_name_of_people_is_a_feature(tmp_path: Path) -> None:
    assert guess(tmp_path, "patient", ["yes", "no"] * 100).column.role == "categorical"
    assert guess(tmp_path, "patient", ["p1", "p2"]).column.role == "group"
    assert guess(tmp_path, "patient_id", ["p1", "p2"] * 100).column.role == "group"
    assert guess(tmp_path, "patient_id", ["", "?"]).column.role == "ignored"
    few = guess(tmp_path, "subject", ["maths", "music", "art", "latin"] * 50)
    assert few.column.role == "group"
    holds(few.doubt or "", "people", "--keep", "subject")


PEOPLE = """
Personalnummer personnel_no worker customerNo EmployeeID user-id subject_code client_key Kundennr.
Pat.-Nr. Versichertennummer Mitarbeiter-ID Schülernummer Matrikelnummer numéro_patient id_client
NumeroAssuré matricule id_paciente código_cliente nro_empleado numero_utente codice_paziente
klantnummer persoons_id lidnummer household_id patient patient_id PatientID patient-number PATIENT
mrn person subject_id id_patient Patientennummer Patienten-ID pat_id customer_id user pid
patient_id_hash
"""
RECORDS = """
idcode nr Nr. no id ID idnr case_no lfd_Nr Fall-ID recordKey row_id no_dossier
"""
OTHERS = """
store_id Vertragsnummer house_number doctorNo id_product Produktkennung
"""
"""Names of what has a number, and is neither a person nor a record."""
QUANTITIES = """
yearVeh flipper_length_mm body_mass_g width idle number_of_rooms nrooms n_workers weight age week_no
visit_number household_size patients Kunden Körpergewicht Geburtsjahr Anzahl Baujahr poids_kg precio
edad prezzo jaar hours_per_week numberOfVisits distance income paid covid acid keyboard grid nose
video number_of_patients Nordwind patient_age n_patients contact_person_role no_of_visits bmi_index
"""
"""What is measured or counted, or only sounds like an identifier."""


@pytest.mark.parametrize("name", [*PEOPLE.split(), "Patient No.", "member number"])
def test_a_number_of_a_person_is_never_a_feature(tmp_path: Path, name: str) -> None:
    codes = [f"P{i:04d}" for i in REPEATED]
    for values in (UNEVEN, codes, range(5000, 5000 + 3 * ROWS, 3)):
        found = guess(tmp_path, name, values)
        assert found.column.role == "group"
        holds(found.why, "identifies", "people")
        assert found.doubt is None
    fractions = guess(tmp_path, name, [i / 7 for i in range(ROWS)])
    assert fractions.column.role == "numeric", "nobody has the number 1.5"


@pytest.mark.parametrize("name", RECORDS.split())
def test_a_number_of_a_record_is_the_group_in_doubt_or_ignored(tmp_path: Path, name: str) -> None:
    found = guess(tmp_path, name, UNEVEN)
    assert found.column.role == "group"
    holds(found.doubt or "", "people", "--ignore", "--keep", name)
    assert guess(tmp_path, name, range(5000, 5000 + 3 * ROWS, 3)).column.role == "ignored"


@pytest.mark.parametrize("name", OTHERS.split())
def test_a_number_of_something_else_is_ignored_and_asked_about(tmp_path: Path, name: str) -> None:
    found = guess(tmp_path, name, UNEVEN)
    assert found.column.role == "ignored"
    holds(found.doubt or "", "--keep", "--group", name)


@pytest.mark.parametrize("name", QUANTITIES.split())
def test_a_quantity_is_a_feature_and_not_asked_about(tmp_path: Path, name: str) -> None:
    found = guess(tmp_path, name, UNEVEN)
    assert (found.column.role, found.doubt) == ("numeric", None)


@pytest.mark.parametrize("name", ["body_mass_g", "einkommen", "Kilometerstand_km", "price"])
def test_whole_quantities_that_differ_in_every_row_are_features(tmp_path: Path, name: str) -> None:
    for values in (range(5000, 5000 + 3 * ROWS, 3), REPEATED):
        found = guess(tmp_path, name, values)
        assert (found.column.role, found.doubt) == ("numeric", None)


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_numbers_of_some_rows_of_a_data_frame_are_left_out(tmp_path: Path, name: str) -> None:
    found = guess(tmp_path, name, [3 * i for i in range(ROWS)])
    assert (found.column.role, found.why) == (
        "ignored",
        "without a name, and different in every row",
    )
    assert guess(tmp_path, name, [i % 7 for i in range(ROWS)]).column.role == "numeric"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (range(1, ROWS + 1), "numbers rows"),
        ([uuid.uuid5(uuid.NAMESPACE_URL, str(i)) for i in range(ROWS)], "different every row"),
        ([uuid.uuid5(uuid.NAMESPACE_URL, str(i)) for i in REPEATED], "50 different values 200"),
        ([f"AB-{1000 + i}" for i in REPEATED], "50 different values 200 rare"),
        ([f"{i:06d}" for i in REPEATED], "50 different values 200 rare"),
        ([f"drug {i % 150}" for i in range(ROWS)], "150 different values 200 rare"),
        ([f"a long remark about case {i}" for i in range(4)], "free text"),
        ([*(i / 7 for i in range(ROWS - 1)), "12 kg"], "numbers, 1 row"),
        ([*(i / 7 for i in range(ROWS - 11)), *["many"] * 11], "numbers, 11 rows"),
        ([f"{i} 500" for i in range(ROWS)], "numbers written"),
        (["", "?", "NA", "NaN"] * 5, "empty every row"),
        ([f"w{i % 1500}" for i in range(3000)], "1,500 different values 3,000 rare"),
    ],
)
def test_what_cannot_be_learned_from_is_ignored_and_it_is_said_why(
    tmp_path: Path, values: Sequence[object], said: str
) -> None:
    found = guess(tmp_path, "x", values)
    assert found.column.role == "ignored"
    holds(found.why, *said.split())


@pytest.mark.parametrize(
    "form", ["2024-03-{:02d} 08:15", "2024/03/{:02d}", "2024-03-{:02d}T08:15:30.123+01:00"]
)
def test_dates_of_one_order_become_numbers(tmp_path: Path, form: str) -> None:
    for rows in (30, 300):
        found = guess(tmp_path, "x", [form.format(1 + i % 28) for i in range(rows)])
        holds(found.why, "2024-03-01", "2024-03-28", "days")
        column = found.column
        assert (column.role, column.since, column.high) == ("date", date(2024, 3, 1), 27)


@pytest.mark.parametrize(
    ("form", "doubt"),
    [
        ("{:02d}.03.24", True),
        ("{:d}-Mar-2024", True),
        ("{:d}. März 2024", True),
        ("Mar {:d}, 2024", True),
        ("08:{:02d}", False),
    ],
)
def test_other_dates_and_times_are_ignored(tmp_path: Path, form: str, doubt: bool) -> None:
    for rows in (30, 300):
        found = guess(tmp_path, "x", [form.format(1 + i % 28) for i in range(rows)])
        assert (found.column.role, found.why) == ("ignored", "dates or times")
        assert says(found.doubt or "", "2020-01-31") == doubt


@pytest.mark.parametrize(
    ("values", "role"),
    [
        ([f"I{10 + i % 40}.{i % 2}" for i in range(ROWS)], "categorical"),
        ([f"{i % 30:03d}" for i in range(ROWS)], "categorical"),
        (["1:20", "1:40", "1:80", "1:160"] * 50, "categorical"),
        (["1", "2", "3", "4", "5+"] * 40, "categorical"),
        (["never in my life until now", "once or twice in my life"] * 100, "categorical"),
        ([f"ward {i}" for i in range(20)] * 2, "categorical"),
        (["a", "b", "c"], "categorical"),
        ([20_000 + 17 * i % 80_000 for i in UNEVEN], "numeric"),
        ([i % 50 for i in range(ROWS)], "numeric"),
        ([1900 + i for i in REPEATED], "numeric"),
        ([i**3 for i in range(ROWS)], "numeric"),
        ([i / 7 for i in range(ROWS)], "numeric"),
        ([1990 + i % 30 for i in range(ROWS)], "numeric"),
        ([0, 1] * 100, "numeric"),
        ([5] * 100, "numeric"),
    ],
)
def test_what_can_be_learned_from_is_kept(
    tmp_path: Path, values: Sequence[object], role: str
) -> None:
    assert guess(tmp_path, "x", values).column.role == role


SEVENTHS = [i / 7 for i in range(ROWS)]
DAYS = [str(date(2024, 1, 1) + timedelta(days=i)) for i in range(ROWS)]


@pytest.mark.parametrize(
    ("values", "strays", "role", "doubt"),
    [
        (SEVENTHS, ["unknown"] * 3 + ["-"] * 2, "numeric", "5 rows 'unknown', '-' missing"),
        (SEVENTHS, ["unknown", "N/A"] * 50, "numeric", "100 rows 'N/A', 'unknown'"),
        (SEVENTHS, ["see, note", "90+", "<5", "a", "a"], "numeric", "5 rows 'a', '90+', '<5' 1"),
        (SEVENTHS, ["many"] * 10, "numeric", "10 rows 'many'"),
        (SEVENTHS, ["?", "NA", ""], "numeric", None),
        ([1000 + i % 90 for i in range(ROWS)], ["x"], "numeric", "1 row 'x'"),
        ([i % 9 for i in range(ROWS)], ["unknown"] * 3, "categorical", None),
        ([i % 9 for i in range(ROWS)], [*"abcdefghijklm"], "categorical", None),
        ([f"{i % 30:05d}" for i in range(ROWS)], ["n/a"] * 3, "categorical", None),
        (["true", "false"] * 100, ["unknown"] * 3, "categorical", None),
        (DAYS, ["unknown"] * 3 + ["0000-00-00"], "date", "4 rows 'unknown', '0000-00-00'"),
        (DAYS, ["2024-31-01"] * 11, "ignored", "2020-01-31"),
        (DAYS, ["01.02.24"], "ignored", "2020-01-31"),
        (DAYS, ["01.02.2024"], "ignored", "2020-01-31"),
    ],
)
@pytest.mark.parametrize("most", [statistics.MAX_VALUES, 120])
def test_a_few_values_that_are_no_numbers_are_missing_values(
    tmp_path: Path,
    values: list[object],
    strays: list[str],
    role: str,
    doubt: str | None,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "MAX_VALUES", most)
    column = [*strays, *values[len(strays) :]]
    found = guess(tmp_path, "x", column)
    assert found.column.role == role
    if doubt is None:
        assert found.doubt is None
    else:
        holds(found.doubt or "", *doubt.split())
    if role == "numeric":
        holds(found.why, "missing", len(strays), "median")
        numbers = [float(each) for each in column if isinstance(each, int | float)]
        assert (found.column.low, found.column.high) == pytest.approx((min(numbers), max(numbers)))
        assert found.column.missing is not None
    schema = propose_schema(tmp_path / "public.csv", label="ill").schema
    notes = list[str]()
    load_table(tmp_path / "public.csv", schema, notes.append)
    if role == "numeric":
        holds(notes, "x", len(strays), ROWS, "missing")


def test_values_beyond_those_that_are_counted_may_be_no_numbers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MAX_VALUES", 50)
    for strays, role in ((["x", "y"], "numeric"), (["12 kg"], "ignored"), (["x"] * 11, "ignored")):
        found = guess(tmp_path, "x", [*SEVENTHS[: -len(strays)], *strays])
        assert found.column.role == role
    for strays, role in ((["x", "y"], "date"), (["1.2.24"], "ignored"), (["x"] * 11, "ignored")):
        found = guess(tmp_path, "x", [*DAYS[: -len(strays)], *strays])
        assert found.column.role == role


def test_names_with_a_long_tail_keep_their_common_values(tmp_path: Path) -> None:
    def tailed(common: int, rare: int, each: int = 12) -> list[str]:
        return [f"town {i % common}" for i in range(common * each)] + [
            f"hamlet {chr(97 + i % 26)}{i}" for i in range(rare)
        ]

    found = guess(tmp_path, "residence", tailed(20, 900))
    assert found.column.role == "categorical"
    assert sorted(found.column.values or ()) == sorted(f"town {i}" for i in range(20))
    holds(found.why, 20, 920, "21%")
    holds(found.doubt or "", "--ignore", "--group", "residence")
    many = guess(tmp_path, "residence", tailed(150, 1200, each=14))
    assert len(many.column.values or ()) == 100
    schema = propose_schema(tmp_path / "public.csv", label="ill").schema
    x = load_table(tmp_path / "public.csv", schema).inputs[:, :101]
    assert (x.sum(axis=1) == 1).all()
    assert x[:, 100].sum() == 50 * 14 + 1200, "the rest count as other"
    for values in (
        tailed(20, 900, each=9),  # none is in ten rows
        tailed(5, 900),  # they are in few rows
        [f"P-{i % 20:05d}" for i in range(240)] + [f"P-{i:05d}" for i in range(20, 900)],
        [f"hamlet {i}" for i in range(900)],
    ):
        assert guess(tmp_path, "residence", values).column.role == "ignored"
    for name in ("patient name", "order id"):
        assert guess(tmp_path, name, tailed(20, 900)).column.role == "ignored"
    assert guess(tmp_path, "patient", tailed(20, 900)).column.role == "group"


def test_whole_numbers_by_whose_nature_nothing_is_measured_are_no_features(tmp_path: Path) -> None:
    spread = [(7919 * i) % 100_003 for i in range(ROWS)]
    for values in ([3 * i for i in range(ROWS)], spread, [*spread[:-9], *spread[:9]]):
        found = guess(tmp_path, "kennwert", values)
        assert found.column.role == "ignored"
        holds(found.doubt or "", "--keep", "--group", "kennwert")
    found = guess(tmp_path, "kennwert", [30_000 + i for i in REPEATED])
    assert found.column.role == "group"
    holds(found.doubt or "", "people", "--ignore", "--keep", "kennwert")


def test_whole_numbers_that_may_be_identifiers_are_kept_in_doubt(tmp_path: Path) -> None:
    for values in ([i**3 for i in range(ROWS)], [30_000 + i for i in UNEVEN]):
        found = guess(tmp_path, "kennwert", values)
        assert found.column.role == "numeric"
        holds(found.doubt or "", "--ignore", "--group", "kennwert")


def test_names_and_addresses_are_ignored_even_where_they_repeat(tmp_path: Path) -> None:
    for name in ("name", "patient_name", "Nachname", "e-mail", "phone number", "address"):
        found = guess(tmp_path, name, [f"Miller {i % 30}" for i in range(ROWS)])
        assert (found.column.role, found.why) == ("ignored", "identifies people, by its name")
    assert guess(tmp_path, "name", ["aspirin", "ibuprofen"] * 100).column.role == "categorical"


def test_decimal_commas_make_numbers_where_semicolons_separate(tmp_path: Path) -> None:
    found = guess(tmp_path, "x", [f"{1 + i},250" for i in range(ROWS)], delimiter=";")
    assert (found.column.low, found.column.high) == (1.25, 200.25)
    holds(found.doubt or "", "thousands", "1,250", "1.25")


def test_the_owner_overrules_every_guess(tmp_path: Path) -> None:
    path = tmp_path / "stays.csv"
    path.write_text(stays(997, 479), newline="")
    proposal = propose_schema(
        path, label="readmitted", group="stay_id", ignore=["ward"], keep=["admitted"]
    )
    found = {g.column.name: g for g in proposal.guesses}
    assert found["stay_id"].column.role == "group"
    assert found["ward"].column.role == "ignored"
    assert found["admitted"].column.role == "date"
    assert found["patient_id"].column.role == "ignored", "no feature, whoever is the group"
    assert found["patient_id"].why == "identifies people, as stay_id does"


def test_words_that_never_repeat_are_no_categories_and_no_text(tmp_path: Path) -> None:
    path = tmp_path / "words.csv"
    path.write_text("\n".join(["x,z,y", *(f"w{i},{i % 7},{'ab'[i % 2]}" for i in range(1200))]))
    with refuses(DataError, "x", "1,200"):
        propose_schema(path, label="y", keep=["x"])


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"group": "Patient_ID"}, "Patient_ID 'patient_id'"),
        ({"group": "nobody", "ignore": ["nobody"]}, "nobody twice"),
        ({"group": "nobody", "columns": [*"abcdefghijk", "readmitted"]}, "nobody"),
        ({"ignore": ["nobody"]}, "nobody"),
        ({"keep": ["ward"], "ignore": ["ward"]}, "ward twice"),
        ({"group": "readmitted"}, "readmitted twice"),
        ({"columns": ["a", "readmitted"]}, "1 12 2"),
    ],
)
def test_impossible_choices_are_refused(
    tmp_path: Path, choices: dict[str, list[str]], said: str
) -> None:
    path = tmp_path / "stays.csv"
    path.write_text(stays(1200, 479), newline="")
    with refuses(DataError, *said.split()):
        propose_schema(path, label="readmitted", **choices)  # type: ignore[arg-type]


def test_a_group_may_be_in_the_private_table_alone(tmp_path: Path) -> None:
    path, private = tmp_path / "public.csv", tmp_path / "private.csv"
    path.write_text("age,ill\n1,n\n2,y\n90,n\n")
    private.write_text("Personalnummer,ill,age\nP007,y,4\nP007,n,50\nP9,y,3\n")
    proposal = propose_schema(path, label="ill", group="Personalnummer")
    holds(proposal.guesses[-1].why, "public.csv", "private")
    schema = proposal.schema
    assert [column.role for column in schema.columns] == ["numeric", "label", "group"]
    assert "P007" not in proposal.to_json()
    held = load_table(private, schema)
    assert held.groups is not None
    assert held.groups.tolist() == [0, 0, 1]
    with refuses(DataError, "Personalnummer"):
        load_table(path, schema)
    public = load_table(path, schema, public=True)
    assert (public.groups, public.group_column) == (None, None)
    for bare in ("1,n\n2,y\n90,n\n", "1,n,A\n2,y,A\n90,n,B\n"):
        path.write_text(bare)
        groups = load_table(path, schema, public=True).groups
        assert (groups is None) == ("A" not in bare), "without a header the width decides"


def test_repeated_people_are_found_in_a_private_table(tmp_path: Path) -> None:
    path, private = tmp_path / "public.csv", tmp_path / "private.csv"
    path.write_text("age,nr,ill\n1,7,n\n2,9,y\n90,11,n\n")
    schema = propose_schema(path, label="ill").schema
    rows = [f"{i},{i // 7},{'ny'[i % 2]},{i % 5}" for i in range(350)]
    for header, found in (
        ("age,nr,ill,ward", ("nr", 7)),
        ("age,Mitarbeiter,ill,ward", ("Mitarbeiter", 7)),
        ("age,chick,ill,ward", ("chick", 7)),  # by nature
        ("id,age,ill,ward", None),
        ("age,week,ill,ward", None),
    ):
        private.write_text("\n".join([header, *rows]))
        assert find_repeated_people(private, schema) == found, header
    lists = pd.DataFrame({"age": 3, "seen": [["a", "b"]] * ROWS, "nr": REPEATED})
    lists.to_parquet(tmp_path / "private.parquet")
    readable = find_repeated_people(tmp_path / "private.parquet", schema)
    assert readable == ("nr", 4), "columns that nobody needs need not be readable"
    private.write_text("\n".join(row.rpartition(",")[0] for row in rows))
    assert find_repeated_people(private, schema) == ("nr", 7), "in the schema's order"


def test_of_two_columns_of_people_the_coarser_is_the_group(tmp_path: Path) -> None:
    path = tmp_path / "public.csv"
    rows = [f"{i},{i // 2},{'ny'[i % 2]},{i % 9}" for i in range(100)]
    path.write_text("\n".join(["mrn,patient_id,ill,dose", *rows]))
    found = propose_schema(path, label="ill").guesses
    assert [g.column.role for g in found] == ["ignored", "group", "label", "numeric"]
    assert found[0].why == "identifies people, as patient_id does"
    holds(found[0].doubt or "", "patient_id", "--keep", "--group", "mrn")


def test_a_second_number_of_people_is_said(tmp_path: Path) -> None:
    path = tmp_path / "public.csv"
    header = "idcode,nr,worker,subject,code,called,ill,dose"
    rows = [
        f"{i // 4},{i // 8},{9000 + i // 4},{'abc'[i % 3]},{7 * (i // 4)},w{i // 4},"
        f"{'ny'[i % 2]},{i % 9}.5"
        for i in range(ROWS)
    ]
    path.write_text("\n".join([header, *rows]))
    proposal = propose_schema(path, label="ill")
    found = {guess.column.name: guess for guess in proposal.guesses}
    assert found["worker"].column.role == "group", "the one whose name says it"
    assert proposal.doubtful_group is None
    for other in ("idcode", "nr", "code", "called"):
        assert found[other].column.role == "ignored", other
        holds(found[other].doubt or "", "worker", "--group", "--keep", other)
    holds(found["code"].why, "worker", 50)
    holds(found["called"].why, "worker", 50)
    assert found["subject"].column.role == "categorical", "somebody else is the person"
    holds(found["subject"].doubt or "", "worker", "--group", "subject")
    proposal = propose_schema(path, label="ill", ignore=["worker", "subject"])
    assert proposal.doubtful_group == "nr"


def test_gaps_are_reported_where_they_matter(tmp_path: Path) -> None:
    path = tmp_path / "public.csv"
    path.write_text("patient,ill,dose\n1,n,1\n,y,2\n2,,3\n3,n,4\n3,y,\n")
    found = propose_schema(path, label="ill").guesses
    holds(found[0].doubt or "", "value", 1, "one")
    holds(found[1].doubt or "", "label", 1, "refuses")
    assert found[2].doubt is None


class CountedNames(list[str]):
    """Names, and how often all of them were gone through."""

    passes = 0

    def count(self, value: str) -> int:
        self.passes += 1
        return super().count(value)

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return super().__iter__()


@pytest.mark.parametrize("columns", [10, 1000])
def test_names_of_columns_are_gone_through_as_often_however_many_there_are(columns: int) -> None:
    names = CountedNames(f"c{k}" for k in range(columns))
    check_names(names, list(names), "A table")
    assert names.passes <= 4
    with refuses(DataError, "c7"):
        check_names([*names, "c7"], ["c1", "c7"], "A table")


def test_the_form_of_numbers_is_looked_at_until_two_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, form_of = list[str](), statistics.form_of

    def note_form(value: str) -> str:
        seen.append(value)
        return form_of(value)

    monkeypatch.setattr(statistics, "form_of", note_form)
    values = [f"{k / 7:.3f}" for k in range(-600, 600)]
    (tmp_path / "t.csv").write_text(
        "\n".join(["dose,ill", *(f"{v},{v[0] == '-'}" for v in values)])
    )
    propose_schema(tmp_path / "t.csv", label="ill")
    assert len(seen) < len(values) / 10
