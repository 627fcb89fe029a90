"""A dossier of a real ledger: its figures, its first page, its signature, and what it asks for."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from importlib.metadata import PathDistribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Engine

import terrine_server
from support.browser import chromium
from support.data import DigitsEnsemble, build_people
from support.databases import SQLITE_BY_DAY
from support.forgeries import rewrite, rows_of
from support.ledgers import (
    COUNTED,
    PEOPLE,
    abstained,
    answered,
    counted,
    open_project,
    open_study,
    register,
    register_people,
    unguarded,
)
from support.processes import Terrine
from support.servers import (
    CAP_DELTA,
    CAP_EPSILON,
    LOG,
    Owner,
    RunningWitness,
    installed,
    policy_of,
    policy_text,
    publisher,
    witnessing,
)
from support.servers import register as register_ensemble_of
from support.wording import holds, refuses, says
from terrine_addons.dossier import assessment, folder, signing, words
from terrine_addons.dossier import facts as code
from terrine_addons.dossier import facts as registry
from terrine_addons.dossier.assessment import list_unchecked
from terrine_addons.dossier.facts import (
    Facts,
    TrainingFacts,
    _collect_training,
    gather,
    read_audit,
    what_leaves,
)
from terrine_addons.dossier.words import QUESTIONS, UNWRITTEN, DossierError
from terrine_protocol.transparency import Checkpoint, KeyKind, Note, NoteError, SignerKey
from terrine_server.errors import NotFound
from terrine_server.ledger import Ledger
from terrine_server.settings import Settings

DOCS = Path(__file__).resolve().parents[3] / "docs"
HOSTILE = '<script>alert("x")</script>'
ALWAYS = {
    "Whether anything else was ever released from these records",
    "Whether a person has several of the 1,200 records of digits",
    "Machines other than this one",
}
AUDIT: dict[str, Any] = {
    "made_at": "2026-03-01T12:00:00+00:00",
    "version": "1.0.0",
    "passed": True,
    "confidence": 0.999,
    "seed": 7,
    "seconds": 20.0,
    "findings": [
        {
            "part": part,
            "subject": subject,
            "verdict": "holds",
            "evidence": "seen",
            "passed": True,
            "unit": "μ",
            "measured": 0.697,
            "price": 0.715,
        }
        for part, subject in (("mechanisms", "gnmax"), ("service", "ledger"), ("ledger", "ledger"))
    ],
}


@dataclass
class World(Owner):
    """A data owner with the digits, a log that somebody cosigns, and a study with 3 charges."""

    settings: Settings
    ledger: Ledger
    ensemble: DigitsEnsemble
    witness: RunningWitness
    engine: Engine

    def charge(self, *proposals: Any, project: str = "study") -> None:
        self.ledger.charge(self.ledger.project(project).id, proposals)

    def publish(self) -> None:
        publisher(self.ledger, policy_of(self.witness)).round()

    def facts(self, **more: Any) -> Facts:
        given: dict[str, Any] = {"verify": True, "policy": policy_of(self.witness)}
        return gather(self.ledger, self.settings, **given | more)

    def tell(self, **answers: str) -> None:
        """Answer every question, with what is given or with its own key."""
        lines = []
        for table, of in itertools.groupby(QUESTIONS, lambda each: each.key.split(".")[0]):
            lines.append(f"[{table}]")
            for each in of:
                name = each.key.split(".")[1]
                lines.append(f"{name} = {json.dumps(answers.get(name, f'told {each.key}'))}")
        (self.settings.data_dir / words.FILE).write_text("\n".join(lines))


@pytest.fixture
def world(
    tmp_path: Path,
    database_url: str,
    digits_ensemble: DigitsEnsemble,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    monkeypatch.setattr("terrine_addons.dossier.folder.BROWSERS", ())
    settings, engine = installed(tmp_path / "data", database_url, digits_ensemble)
    settings.checkpoint_key_path.write_text(LOG.secret)
    settings.checkpoint_key_path.chmod(0o600)
    monkeypatch.setenv("TERRINE_DATABASE_URL", database_url)
    with witnessing(tmp_path / "witness") as witness:
        (tmp_path / "policy").write_text(policy_text(witness))
        made = World(
            settings,
            Ledger(engine, settings.secret_key_path.read_bytes()),
            digits_ensemble,
            witness,
            engine,
        )
        made.open_project()
        made.token("student", "study", label="Ada")
        made.charge(answered(1), answered(2), answered(3))
        made.publish()
        yield made
    engine.dispose()


def whats(facts: Facts) -> list[str]:
    return [each.what for each in list_unchecked(facts)]


class Page(HTMLParser):
    """A page's tags, attributes, and text by section."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.text, self.tags, self.links = "", set[str](), list[str]()
        self.feed(folder._page(facts))
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


@pytest.mark.usefixtures("each_database_url")
@SQLITE_BY_DAY
def test_every_figure_is_the_ledgers_and_changes_with_it(world: World) -> None:
    before = world.facts()
    world.charge(answered(4), answered(5))
    world.publish()
    after = world.facts()
    for facts, answers in ((before, 3), (after, 5)):
        (project,), (ensemble,) = facts.projects, facts.ensembles
        assert dict(project.outcomes) == {"answered": answers}
        assert project.budget.charges == answers
        holds(Page(facts).text, "Released", answers)
        assert facts.checkpoint is not None
        assert facts.checkpoint.size == answers + len(world.ledger.log(0, 1000))
        assert (ensemble.account.epsilon, ensemble.account.delta) == (CAP_EPSILON, CAP_DELTA)
        written = json.loads(folder.as_json(facts))
        assert written["projects"][0]["budget"]["spent"] == project.budget.spent
        holds(json.dumps(registry.entry(facts, project)), "spent", project.budget.spent)
    spent = [facts.projects[0].budget.spent for facts in (before, after)]
    assert spent[1] == world.ledger.project("study").spent == spent[0] * 5 // 3
    assert after.ensembles[0].spent == world.ledger.project("study").cap_spent
    odds = [facts.projects[0].odds[1].right for facts in (before, after)]
    assert 0.5 < odds[0] < odds[1] < after.projects[0].odds[0].right
    assert after.projects[0].head == world.ledger.project("study").head != before.projects[0].head
    assert after.projects[0].tokens[0].label == "Ada"


def test_all_outcomes_are_counted_beyond_the_days_that_charts_show(world: World) -> None:
    register(world.ledger, "mnist")
    open_project(world.ledger, 3000, COUNTED, "counts", "mnist")
    world.charge(*(counted(n) for n in range(700)), project="counts")
    confident = {"name": "confident_gnmax", "threshold": 24, "sigma1": 12.0, "sigma2": 4.0}
    world.open_project("some", confident)
    world.charge(answered("a"), abstained("b"), abstained("c"), project="some")
    found = {each.info.name: dict(each.outcomes) for each in world.facts(verify=False).projects}
    assert found == {
        "counts": {"answered": 700},
        "some": {"answered": 1, "abstained": 2},
        "study": {"answered": 3},
    }


def test_odds_are_those_of_the_worst_case_attained() -> None:
    """By the four outcomes of the mechanism to which every (ε, δ) reduces, as an oracle."""
    from terrine_server.planning.first_project import max_detection_rate, max_guess_accuracy

    for epsilon, delta in itertools.product((0.0, 0.1, 1.0, 3.0, 8.0), (0.0, 1e-5, 0.05)):
        share = math.exp(epsilon) / (1 + math.exp(epsilon))
        true = [delta, (1 - delta) * share, (1 - delta) * (1 - share), 0.0]
        false = true[::-1]
        right = sum(max(p, q) for p, q in zip(true, false, strict=True)) / 2
        assert max_guess_accuracy(epsilon, delta) == pytest.approx(right, rel=1e-12)
        caught, left = 0.0, 0.01  # accuse on the likeliest outcomes first: Neyman and Pearson
        for p, q in zip(true, false, strict=True):
            part = min(1.0, left / q) if q else 1.0
            caught, left = caught + part * p, left - part * q
        assert max_detection_rate(epsilon, delta) == pytest.approx(caught, rel=1e-9)


def test_what_could_not_be_checked_comes_first(world: World, tmp_path: Path) -> None:
    world.tell()
    audit = tmp_path / "audit.json"
    audit.write_text(json.dumps(AUDIT))
    facts = world.facts(audit=read_audit(audit))
    assert facts.intact
    assert set(whats(facts)) == ALWAYS | {"Whether the code is what was released"}
    page = Page(world.facts())
    titles = [
        page.text.index(each) for each in ("Read this first", "The promise, and its odds Whatever")
    ]
    assert titles == sorted(titles)
    holds(page.text[titles[0] : titles[1]], "audit", "named")
    holds(page.text, "cosigned")

    world.ledger.save_checkpoint(
        str(
            replace(
                note := Note.parse(world.ledger.checkpoint() or ""), signatures=note.signatures[:1]
            )
        ),
        world.ledger.checkpoint(),
    )
    found = whats(world.facts())
    holds(found, "INTACT", "transparency")  # it lacks its quorum
    holds(found, "witnesses")
    alone = world.facts(policy=None)
    assert alone.intact
    holds(whats(alone), "everybody", "history")
    world.settings.checkpoint_key_path.unlink()
    found = whats(world.facts(policy=None))
    holds(found, "transparency", "entries")
    holds(whats(world.facts(verify=False)), "ledger", "files")


def test_an_altered_teacher_a_lost_one_and_a_rewritten_ledger_are_the_first_findings(
    world: World,
) -> None:
    teacher = next((world.settings.ensembles_dir / "digits").glob("teachers-*"))
    data = bytearray(teacher.read_bytes())
    data[-1] ^= 1
    teacher.write_bytes(data)
    facts = world.facts()
    assert whats(facts)[0] == "The files of digits"
    assert not facts.projects[0].info.ensemble.available
    shutil.rmtree(world.settings.ensembles_dir / "digits")
    assert whats(world.facts(verify=False))[0] == "The files of digits"

    with unguarded(world.settings.database) as connection:
        rewrite(connection, 2, label=rows_of(connection)[1]["label"] ^ 1)
    facts = world.facts()
    assert not facts.intact
    holds(whats(facts), "INTACT", "transparency")


def test_of_a_ledger_that_cannot_be_read_there_is_no_dossier(
    world: World, terrine: Terrine, tmp_path: Path
) -> None:
    with unguarded(world.settings.database, with_key=False) as connection:
        connection.exec_driver_sql("UPDATE projects SET spent = spent - 1")
    refused = terrine("dossier", "--out", tmp_path / "out").refused
    holds(refused, "account", "'study'")
    assert not (tmp_path / "out").exists()


def test_an_entry_that_was_edited_is_named_on_the_first_page(
    world: World, terrine: Terrine, tmp_path: Path
) -> None:
    with unguarded(world.settings.database) as connection:
        connection.exec_driver_sql("UPDATE charges SET label = label + 1 WHERE seq = 2")
    facts = world.facts()
    assert whats(facts)[0] == "NOT INTACT: the ledger of study"
    page = Page(facts).text
    assert page.index("Read this first") < page.index("NOT INTACT") < page.index("Take any one")
    done = terrine("dossier", "--out", tmp_path / "out")
    assert done.code == 1
    holds(done.err, "intact")
    assert (tmp_path / "out" / "dossier.html").exists()


def test_a_dossier_is_signed_and_its_check_finds_every_change(
    world: World, terrine: Terrine, tmp_path: Path
) -> None:
    out, policy = tmp_path / "out", tmp_path / "policy"
    audit = tmp_path / "audit.json"
    audit.write_text(json.dumps(AUDIT))
    said = terrine("dossier", "--out", out, "--audit", audit, "--policy", policy).fine
    holds(said, "PDF", "PATH")
    holds(said, "Wrote", "questions")
    names = {"dossier.html", "dossier.json", "registry-study.json", "checkpoint", "audit.json"}
    assert {path.name for path in out.iterdir()} == names | {"dossier.note"}
    assert (out / "audit.json").read_bytes() == audit.read_bytes()
    assert (out / "checkpoint").read_text() == world.ledger.checkpoint()
    holds(terrine("dossier", "--check", out).fine, LOG.verifier)
    assert "5 files" in terrine("dossier", "--check", out, "--policy", policy).fine
    sums = ["sha256sum", "--check", "--quiet", "dossier.note"]
    subprocess.run(sums, cwd=out, check=True, capture_output=True)
    with pytest.raises(NoteError):
        Checkpoint.parse(Note.parse((out / "dossier.note").read_text()).text)

    holds(terrine("dossier", "--out", out).refused, "empty")
    for name in sorted(names):
        copy = tmp_path / f"altered-{name}"
        shutil.copytree(out, copy)
        with (copy / name).open("ab") as file:
            file.write(b" ")
        holds(terrine("dossier", "--check", copy).refused, name, "altered")
        (copy / name).unlink()
        holds(terrine("dossier", "--check", copy).refused, name, "missing")
        (copy / name).symlink_to(out / name)
        holds(terrine("dossier", "--check", copy).refused, name, "link")
        (copy / name).unlink()
        (copy / name).mkdir()
        holds(terrine("dossier", "--check", copy).refused, name, "altered")
    (out / "more").mkdir()
    holds(terrine("dossier", "--check", out).refused, "added")
    (out / "more").rmdir()
    (out / "dossier.note").rename(tmp_path / "elsewhere")
    (out / "dossier.note").symlink_to(tmp_path / "elsewhere")
    holds(terrine("dossier", "--check", out).refused, "dossier.note", "link")
    (tmp_path / "elsewhere").replace(out / "dossier.note")
    note = (out / "dossier.note").read_text()
    (out / "dossier.note").write_text(note.replace("2", "3", 1))
    holds(terrine("dossier", "--check", out).refused, "signature", "log.example/1")
    other = SignerKey("log.example/2", KeyKind.ED25519, bytes(32))
    policy.write_text(f"log {other.verifier}\nquorum none\n")
    (out / "dossier.note").write_text(note)
    refused = terrine("dossier", "--check", out, "--policy", policy).refused
    holds(refused, "log.example/2")
    checkpoint = Note.parse(world.ledger.checkpoint() or "")
    (out / "dossier.note").write_text(str(checkpoint))
    holds(terrine("dossier", "--check", out).refused, "terrine-dossier/1")


def test_the_command_says_what_it_needs(world: World, terrine: Terrine, tmp_path: Path) -> None:
    holds(terrine("dossier").refused, "--out")
    out = tmp_path / "out"
    holds(terrine("dossier", "--out", out, "--check", out).refused, "--out")
    holds(terrine("dossier", "--check", out, "--project", "x").refused, "--policy")
    holds(terrine("dossier", "--out", out, "--project", "gone").refused, "gone")
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    holds(terrine("dossier", "--out", out, "--audit", bad).refused, "report")
    assert not out.exists()
    world.settings.checkpoint_key_path.unlink()
    holds(terrine("dossier", "--out", out).refused, "init`")
    holds(terrine("dossier", "--check", out).refused, "policy")


def test_one_project_is_told_of_without_the_others(world: World) -> None:
    world.open_project("other")
    facts = world.facts(project="other")
    assert [each.info.name for each in facts.projects] == ["other"]
    assert facts.checkpoint is not None
    page, signed = Page(facts).text, " ".join(facts.checkpoint.note.split())
    assert signed in page
    assert "study" not in page.replace(signed, ""), "letters of a signature may be any"
    assert facts.ensembles[0].spent == world.ledger.project("study").cap_spent, "of the cap, all"
    with pytest.raises(NotFound):
        world.facts(project="gone")


def test_the_owner_is_asked_once_and_marked_until_she_answers(
    world: World, terrine: Terrine, tmp_path: Path
) -> None:
    terrine("dossier", "--out", tmp_path / "first").fine  # noqa: B018
    asked = world.settings.data_dir / words.FILE
    assert asked.read_text() == words.template()
    for question in QUESTIONS:
        assert question.asks in asked.read_text()
    html = (tmp_path / "first" / "dossier.html").read_text()
    assert html.count(f"<mark>[{UNWRITTEN}") > len(QUESTIONS)
    world.tell(subjects=f"Patients of 2019 {HOSTILE}\nand 2020")
    assert "questions" not in terrine("dossier", "--out", tmp_path / "second").fine
    html = (tmp_path / "second" / "dossier.html").read_text()
    assert UNWRITTEN not in html
    assert HOSTILE not in html
    page = Page(world.facts())
    assert "script" not in page.tags
    assert HOSTILE in page.text
    entry = (tmp_path / "second" / "registry-study.json").read_text()
    assert UNWRITTEN not in entry
    for key in ("curator.name", "data.region", "choices.budget", "registry.authors"):
        holds(entry, "told", key)
    for question in QUESTIONS:
        if not question.key.startswith(("registry", "data.subjects")):
            holds(html, "told", question.key)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[data", "TOML"),
        ('[data]\nsubject = "x"', "data.subject curator.name"),
        ("subjects = 3", "subjects"),
        ("[data]\nsubjects = 3", "data.subjects text"),
        (f'[data]\nsubjects = "{"x" * 20_001}"', "20,000"),
    ],
)
def test_answers_that_cannot_be_read_are_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / words.FILE
    path.write_text(text)
    with refuses(DossierError, *why.split()):
        words.load(path)


def test_a_unit_is_what_the_manifest_says(world: World) -> None:
    manifest, record = world.ensemble.manifest, world.ledger.ensemble("digits")
    assert manifest.partition is not None
    grouped = {"recipe": "groups", "group_column": "patient"}
    people = manifest.model_copy(
        update={"partition": manifest.partition.model_copy(update=grouped)}
    )
    facts = world.facts(verify=False)

    def having(trained: TrainingFacts) -> Facts:
        return replace(facts, ensembles=(replace(facts.ensembles[0], trained=trained),))

    found = having(_collect_training(people, record))
    details = registry.unit_details(found.ensembles[0])
    holds(details, "person", "patient")
    states = {each.hazard: each.state.value for each in assessment.assess(found)}
    assert states["A unit that is smaller than a person"] == "met"
    entry = registry.entry(found, found.projects[0])
    assert entry["deployment"]["privacy_loss"]["privacy_unit"] == "Person-level"
    owners = having(TrainingFacts("teacher", "one hospital each", None, None, None))
    holds(registry.unit_details(owners.ensembles[0]), "hospital")

    directory = world.settings.ensembles_dir / "digits"
    shutil.rmtree(directory)
    directory.mkdir()
    elsewhere = pytest.importorskip("terrine_addons.federation.federations")
    two = tuple(
        elsewhere.Owner(name=name, url="http://localhost:1", model=name) for name in ("a", "b")
    )
    elsewhere.save_federation(
        directory,
        elsewhere.Federation(
            name="digits",
            input=manifest.input,
            classes=manifest.classes,
            owners=two,
            units=20,
            disjoint_by="one hospital each",
            quorum=2,
            salt="0" * 64,
        ),
    )
    (ensemble,) = world.facts().ensembles
    assert ensemble.trained == replace(
        owners.ensembles[0].trained or TrainingFacts("teacher", None, None, None, None),
        grouped_by=None,
    ), "what the ledger says, not the file"
    assert ensemble.wrong == "another manifest than the one that was registered"
    what = "Whether no person's data trained two teachers of digits"
    assert what in whats(world.facts(verify=False))


@pytest.mark.parametrize(
    ("spec", "leaves", "not_so"),
    [
        (
            {"name": "neighbours", "sigma": 30.0, "queries": 100},
            [
                *("noisy counts", "records vote themselves", "copy of every record", "account"),
                "in this project; of all projects together, the cap is the limit",
            ],
            ["tell in all", "teachers, each", "(PATE)", "one vote with it", "Teachers match"],
        ),
        (
            {"name": "noisy_votes", "sigma": 30.0},
            ["noisy counts", "40 teachers, each trained on a disjoint part"],
            ["copy of every record", "No count of votes leaves"],
        ),
        (
            {"name": "confident_gnmax", "threshold": 24, "sigma1": 12.0, "sigma2": 4.0},
            ["a class leaves, or that there is none", "No count of votes leaves", "40 teachers"],
            ["noisy counts leave", "copy of every record"],
        ),
    ],
    ids=lambda given: given["name"] if isinstance(given, dict) else "",
)
def test_a_dossier_says_what_leaves_and_who_votes(
    world: World, tmp_path: Path, spec: dict[str, Any], leaves: list[str], not_so: list[str]
) -> None:
    if spec["name"] == "neighbours":
        people = build_people(tmp_path / "people", world.ensemble)
        register_ensemble_of(world.settings, world.ledger, people)
        world.ensemble = people
    world.open_project("asked", spec)
    facts = world.facts(project="asked", verify=False)
    page = Page(facts).text
    told = page.partition("What leaves")[2].partition("Budget")[0]
    entry = json.dumps(registry.entry(facts, facts.projects[0]))
    for each in leaves:
        assert each in told
        assert each in entry
    names_it = "asked." in page.partition(words.TO_WHOM)[2][:40]
    assert names_it == (spec["name"] == "neighbours")
    for each in not_so:
        assert each not in told
        assert each not in entry


def test_the_number_of_people_is_the_one_that_was_last_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """δ is judged by the most people that were published, whether others came or left since."""
    ledger = world.ledger
    register_people(ledger)
    open_study(ledger, name="asked")
    registered = ledger.ensemble("people").units
    for month, left, published, most in (
        (1, 0, PEOPLE, registered),  # others come, which is not published yet
        (2, 9, 90_000, 90_000),
        (3, 50_000, 89_991, 89_991),
        (4, 50_000, 40_000, registered),
    ):
        at = datetime(2031, month, 1, tzinfo=UTC)
        monkeypatch.setattr("terrine_server.ledger.ledger.now", lambda at=at: at)
        number = ledger.editions("people")[-1].number + 1
        ledger.make_edition("people", number, "22" * 32, 90_000, range(left))
        facts = world.facts(project="asked", verify=False)
        (ensemble,), (project,) = facts.ensembles, facts.projects
        deployment = registry.entry(facts, project)["deployment"]
        assert deployment["privacy_loss"]["number_of_privacy_units"] == published
        unprotected = deployment["dp_variant"]["unprotected_quantities"]
        assert f"({published:,})" in unprotected
        holds(what_leaves(project.info, ensemble), f"{published:,}")
        for factor, state in ((0.9, "met"), (1.1, "partly met")):
            account = ensemble.account.model_copy(update={"delta": factor / most**2})
            changed = replace(facts, ensembles=(replace(ensemble, account=account),))
            judged = {each.hazard: each for each in assessment.assess(changed)}
            delta = judged["δ so large that a failure is likely"]
            assert delta.state.value == state
            assert f"{most:,} units" in delta.by


def test_a_dossier_says_that_histograms_leave_first() -> None:
    def leaves(kind: str, release: object) -> str:
        info: Any = SimpleNamespace(
            mechanism=SimpleNamespace(name="noisy_votes"),
            ensemble=SimpleNamespace(kind=kind, teachers=50, release=release),
        )
        return what_leaves(info, cast("Any", SimpleNamespace(units=500)))

    said = leaves("heads", SimpleNamespace(cells=(40, 5, 2)))
    holds(said, "First", 3, "histograms", "teachers", 50)
    assert said.endswith(leaves("heads", None))
    # As earlier versions kept them.
    of_people = leaves("margins", None)
    holds(of_people, "Histograms", "leave", 500)
    assert "teachers" not in of_people
    (designed,) = (each for each in words.STORED if "designed" in each.what)
    holds(f"{designed.says} {designed.until}", "begins", "promise", "leaves")


FIELDS = {
    "basic": {
        "name", "data_curators", "description", "intended_use", "data_product_type",
        "data_product_region", "data_product_sector", "publication_date",
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        "privacy_unit", "privacy_unit_details", "number_of_privacy_units", "privacy_parameters",
        "privacy_parameters_details",
    },
    "deployment_model": {
        "model_name", "model_name_details", "trust_assumptions", "actors", "release_type",
        "release_type_details", "data_source_type", "data_source_type_details", "access_type",
        "access_type_details",
    },
    "implementation": {
        "preprocessing_and_hyperparameter_tuning", "mechanisms", "composition", "post_processing",
        "justification", "utility", "additional_information",
    },
    "administrative": {"evidence_sources", "status", "registry_authors", "tier"},
}  # fmt: skip
"""All fields of the registry's schema, which allows no others."""


def test_a_registry_entry_has_the_fields_of_the_third_tier(world: World) -> None:
    world.tell(type="Nonprofit", sector="Healthcare")
    facts = world.facts()
    entry: Any = json.loads(json.dumps(registry.entry(facts, facts.projects[0])))
    assert set(entry) == {"url_slug", "deployment"}
    deployment = entry["deployment"]
    assert {name: set(fields) for name, fields in deployment.items()} == FIELDS
    for name, fields in FIELDS.items():
        for field in fields:
            assert deployment[name][field], f"{name}.{field}"
    assert deployment["basic"]["data_product_type"] == "Interactive API"
    assert deployment["basic"]["publication_date"] == f"{facts.projects[0].first:%Y-%m-%d}"
    assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
    loss = deployment["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 5.0, "delta": 1e-5}
    assert loss["number_of_privacy_units"] == 1200
    assert loss["privacy_unit"] == "Record-level"
    assert deployment["deployment_model"]["model_name"] == "Central"
    assert "gnmax (sigma 4.0)" in deployment["implementation"]["mechanisms"]
    paths = dict(registry.flat(entry))
    assert paths["deployment.privacy_loss.privacy_parameters.epsilon"] == 5.0


def test_hazards_are_judged_by_the_facts(world: World, tmp_path: Path) -> None:
    def states(facts: Facts) -> dict[str, str]:
        return {each.hazard: each.state.value for each in assessment.assess(facts)}

    facts = world.facts()
    blocks = list(dict.fromkeys(each.block for each in assessment.assess(facts)))
    assert [block.rpartition(" (")[0] for block in blocks] == [
        "Privacy parameters", "Unit of privacy", "Algorithms and correctness", "Utility", "Bias",
        "Query model", "Trust model", "Side channels", "Access control", "Data collection exposure",
    ]  # fmt: skip
    first = "ε so large that it protects nobody"
    assert states(facts)[first] == "not met", "a cap of 50"
    assert states(facts)["δ so large that a failure is likely"] == "not met", "5e-4"
    assert states(facts)["Audits taken for proofs"] == "not met"
    (ensemble,) = facts.ensembles
    for epsilon, state in ((1.0, "met"), (4.0, "partly met"), (4.1, "not met")):
        account = ensemble.account.model_copy(update={"epsilon": epsilon, "delta": 1e-7})
        found = states(replace(facts, ensembles=(replace(ensemble, account=account),)))
        assert found[first] == state
        assert found["δ so large that a failure is likely"] == "met"
    audit = tmp_path / "audit.json"
    audit.write_text(json.dumps(AUDIT))
    assert states(world.facts(audit=read_audit(audit)))["Audits taken for proofs"] == "met"
    exceeded = [each | {"verdict": "exceeded"} for each in AUDIT["findings"]]
    audit.write_text(json.dumps(AUDIT | {"findings": exceeded, "version": "0.9"}))
    failed = world.facts(audit=read_audit(audit))
    assert states(failed)["Audits taken for proofs"] == "not met"
    assert {"FAILED: the audit", "Whether the audit is of this code"} <= set(whats(failed))


def test_a_page_is_readable_offline_and_claims_nothing_to_be_anonymous(world: World) -> None:
    facts = world.facts()
    page = Page(facts)
    assert not page.tags & {"script", "img", "link", "iframe", "object"}
    assert all(link.startswith("#") for link in page.links)
    written = page.text + folder.as_json(facts).decode()
    around = re.findall(r".{30}anonym.{3}", written, re.IGNORECASE)
    assert around
    assert all(says(each, "nobody", "anonymous") for each in around), around


def plain(text: str) -> str:
    """Markdown without its marks, in one line."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[*`]", "", text).split())


def test_words_are_those_of_the_documentation() -> None:
    privacy, adoption, threats = (
        (DOCS / name).read_text()
        for name in ("privacy/README.md", "adoption.md", "privacy/threat-model.md")
    )
    for each in words.PROMISE:
        assert each in plain(privacy)
    assert words.IN_ONE_SENTENCE in plain(adoption)
    assert words.TO_WHOM in plain(threats)
    bullets = plain(adoption.partition("## What is not promised")[2].partition("## ")[0])
    assert bullets == " ".join(f"- {each}" for each in words.NOT_PROMISED)
    assert words.RULE_OF_THUMB in plain(adoption)
    table = threats.partition("## Who sees what")[2].partition("\nVotes exist")[0]
    rows = [
        [plain(cell) for cell in line.strip("|").split("|")]
        for line in table.strip().splitlines()[2:]
    ]
    assert rows == [list(row) for row in words.WHO_SEES]


def test_code_is_digested_as_sha256sum_would_and_held_against_its_wheel(tmp_path: Path) -> None:
    package = Path(terrine_server.__file__).parent
    lines = ""
    for path in sorted(package.rglob("*"), key=lambda each: each.relative_to(package).as_posix()):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(package.parent).as_posix()
            lines += f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n"
    digest = hashlib.sha256(lines.encode()).hexdigest()
    assert code.running().digests["terrine_server"] == digest
    assert code.running().altered is None, "tests run in a checkout"

    info, kept = tmp_path / "terrine-1.dist-info", tmp_path / "terrine_server" / "noise.py"
    for directory in (info, kept.parent):
        directory.mkdir()
    kept.write_bytes(b"noise = 1\n")
    recorded = base64.urlsafe_b64encode(hashlib.sha256(kept.read_bytes()).digest()).rstrip(b"=")
    (info / "RECORD").write_text(f"terrine_server/noise.py,sha256={recorded.decode()},10\n")
    assert code._find_altered(PathDistribution(info)) == ()
    kept.write_bytes(b"noise = 0\n")
    assert code._find_altered(PathDistribution(info)) == ("terrine_server/noise.py",)
    kept.unlink()
    assert code._find_altered(PathDistribution(info)) == ("terrine_server/noise.py",)


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="NO BROWSER: no PDF is printed here")
def test_a_browser_prints_the_page(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(folder, "BROWSERS", (str(chromium()),))
    assert folder.write(world.facts(verify=False), tmp_path / "out", LOG) is None
    pdf = (tmp_path / "out" / "dossier.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 3
    found = signing.check(tmp_path / "out", [LOG.verifier])
    assert "dossier.pdf" in found.files
    assert abs((found.made_at - datetime.now(UTC)).total_seconds()) < 3600

    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(folder, "BROWSERS", (str(broken),))
    why = folder.write(world.facts(verify=False), tmp_path / "other", LOG)
    assert why == f"{broken} failed: no display"
    assert not (tmp_path / "other" / "dossier.pdf").exists()
