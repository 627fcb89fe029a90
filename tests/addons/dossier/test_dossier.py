"""A dossier of a real ledger: its figures, its findings, and what it says of each kind of vote."""

from __future__ import annotations

import itertools
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from support.data import DigitsEnsemble, build_people
from support.databases import SQLITE_BY_DAY
from support.forgeries import rewrite, rows_of
from support.ledgers import (
    COUNTED,
    abstained,
    answered,
    charge_one,
    counted,
    open_project,
    register,
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
from support.wording import holds, says
from terrine_addons.dossier.facts import Facts, gather, render
from terrine_protocol.transparency import Note
from terrine_server.errors import NotFound
from terrine_server.ledger import Ledger
from terrine_server.settings import Settings

BLOCK = "\0"
HOSTILE = '<script>alert("x")</script>'


@dataclass
class World(Owner):
    """A data owner with the digits, a log that somebody cosigns, and a study with 3 charges."""

    settings: Settings
    ledger: Ledger
    ensemble: DigitsEnsemble
    witness: RunningWitness
    engine: Engine

    def charge(self, *proposals: Any, project: str = "study") -> None:
        charge_one(self.ledger, self.ledger.projects.get(project).id, proposals)

    def publish(self) -> None:
        publisher(self.ledger, policy_of(self.witness)).round()

    def facts(self, project: str | None = None) -> Facts:
        return gather(self.ledger, self.settings, project)


@pytest.fixture
def world(
    tmp_path: Path,
    database_url: str,
    digits_ensemble: DigitsEnsemble,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    settings, engine = installed(tmp_path / "data", database_url, digits_ensemble)
    settings.checkpoint_key_path.write_text(LOG.secret)
    settings.checkpoint_key_path.chmod(0o600)
    monkeypatch.setenv("TERRINE_DATABASE_URL", database_url)
    with witnessing(tmp_path / "witness") as witness:
        (settings.data_dir / "policy").write_text(policy_text(witness))
        made = World(
            settings,
            Ledger(engine, settings.secret_key_path.read_bytes()),
            digits_ensemble,
            witness,
            engine,
        )
        made.open_project()
        made.token("student", "study", label=f"Ada {HOSTILE}")
        made.charge(answered(1), answered(2), answered(3))
        made.publish()
        yield made
    engine.dispose()


class Page(HTMLParser):
    """A page's tags, what it links to, its text, and its terms with what is said of them."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.text, self.tags, self.links = "", set[str](), list[str]()
        self.told: dict[str, str] = {}
        self._term = self._in = ""
        self.feed(render(facts))
        self.text = "\n".join(" ".join(line.split()) for line in self.text.split(BLOCK))
        self.told = {term: " ".join(said.split()) for term, said in self.told.items()}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.text += BLOCK if tag in ("li", "p", "tr", "pre", "dt", "h2") else ""
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        self._in = tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "
        if self._in == "dt":
            self._term = data
            self.told.setdefault(data, "")
        elif self._term and self._in not in ("h2", "h3"):
            self.told[self._term] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "dt":
            self._in = ""
        elif tag == "dl":
            self._term = ""


@pytest.mark.usefixtures("each_database_url")
@SQLITE_BY_DAY
def test_every_figure_is_the_ledgers_and_changes_with_it(world: World) -> None:
    before = Page(world.facts())
    world.charge(answered(4), answered(5))
    world.publish()
    after = Page(facts := world.facts())
    record = world.ledger.projects.get("study")
    terms = record.terms
    assert facts.intact
    for page, answers in ((before, 3), (after, 5)):
        holds(page.told["Released"], answers, "answered")
        holds(page.told["Spent"], f"{record.spent // 5 * answers:,}")
    holds(after.told["Spent"], f"{terms.epsilon_spent(record.spent):.4g}", record.affordable)
    holds(after.told["Budget"], "ε", f"{terms.epsilon:g}", "δ", f"{terms.delta:g}")
    holds(after.told["Rule"], f"{terms.rule.order:.3g}", f"{terms.budget:,}")
    holds(after.told["Protects"], "record", "1,200")
    holds(after.told["To whom"], "Ada")
    holds(after.text, record.head, 5)
    holds(after.text, "cap", f"{CAP_EPSILON:g}", f"{CAP_DELTA:g}")
    cap = record.ensemble.population
    holds(after.text, "people", f"{record.cap_spent / cap.cap:.1%}")
    holds(after.text, "transparency", 5 + facts.log.entries)
    holds(after.text, *(world.ledger.tree.checkpoint() or "").split())
    holds(after.text, LOG.verifier)
    assert record.head not in before.text


def test_all_outcomes_are_counted_beyond_the_days_that_charts_show(world: World) -> None:
    register(world.ledger, "mnist")
    open_project(world.ledger, 3000, COUNTED, "counts", "mnist")
    world.charge(*(counted(n) for n in range(700)), project="counts")
    confident = {"name": "confident_gnmax", "threshold": 24, "sigma1": 12.0, "sigma2": 4.0}
    world.open_project("some", confident)
    world.charge(answered("a"), abstained("b"), abstained("c"), project="some")
    facts = world.facts()
    assert {each.record.name: dict(each.outcomes) for each in facts.projects} == {
        "counts": {"answered": 700},
        "some": {"answered": 1, "abstained": 2},
        "study": {"answered": 3},
    }
    assert {each.record.name: bool(each.wrong) for each in facts.ensembles} == {
        "digits": False,
        "mnist": True,
    }, "mnist has no files"
    assert facts.intact


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


def test_what_shows_that_there_is_one_history_is_said(world: World) -> None:
    holds(Page(world.facts()).text, "checkpoint", "w", "cosigned")
    note = Note.parse(kept := world.ledger.tree.checkpoint() or "")
    alone = str(replace(note, signatures=note.signatures[:1]))
    world.ledger.tree.save_checkpoint(alone, kept)
    found = world.facts()
    assert not found.intact, "the policy asks for a witness"
    assert found.state is not None
    holds(Page(found).text, "witness", *found.state.missing)
    (world.settings.data_dir / "policy").unlink()
    assert world.facts().intact
    world.settings.checkpoint_key_path.unlink()
    unchecked = world.facts()
    assert unchecked.intact
    assert unchecked.tree is None
    holds(Page(unchecked).text, "neither", "policy", "key")


def test_what_is_wrong_comes_first_and_the_exit_code_says_so(
    world: World, terrine: Terrine, tmp_path: Path
) -> None:
    teacher = next((world.settings.ensembles_dir / "digits").glob("teachers-*"))
    data = bytearray(teacher.read_bytes())
    data[-1] ^= 1
    teacher.write_bytes(data)
    holds(world.facts().ensembles[0].wrong or "", teacher.name)
    shutil.rmtree(world.settings.ensembles_dir / "digits")
    (found,) = world.facts().ensembles
    assert found.wrong
    assert found.wrong in Page(world.facts()).text

    with unguarded(world.settings.database) as connection:
        connection.exec_driver_sql("UPDATE charges SET label = label + 1 WHERE seq = 2")
    page = Page(world.facts()).text
    wrong = page.index("the ledger of study")
    assert page.index("50 %") > wrong, "before the promise"
    done = terrine("dossier", "--out", tmp_path / "out.html")
    assert done.code == 1
    holds(done.err, "intact")
    holds((tmp_path / "out.html").read_text(), "ledger", "study", "label")


def test_a_rewritten_ledger_is_found_by_the_log(world: World) -> None:
    with unguarded(world.settings.database) as connection:
        rewrite(connection, 2, label=rows_of(connection)[1]["label"] ^ 1)
    facts = world.facts()
    holds([what for what, _ in facts.problems], "transparency")
    assert not facts.intact


def test_of_a_ledger_that_cannot_be_read_there_is_no_dossier(
    world: World, terrine: Terrine, tmp_path: Path
) -> None:
    with unguarded(world.settings.database, with_key=False) as connection:
        connection.exec_driver_sql("UPDATE projects SET spent = spent - 1")
    refused = terrine("dossier", "--out", tmp_path / "out.html").refused
    holds(refused, "account", "'study'")
    assert not (tmp_path / "out.html").exists()


def test_one_project_is_told_of_without_the_others(
    world: World, terrine: Terrine, tmp_path: Path
) -> None:
    world.open_project("other")
    file = tmp_path / "other.html"
    holds(terrine("dossier", "--project", "other", "--out", file).fine, file)
    page = file.read_text()
    facts = world.facts("other")
    made = re.compile(r"<p>Of <time.*?</time>")
    assert made.sub("", page) == made.sub("", render(facts))
    assert made.sub("", terrine("dossier", "--project", "other").fine) == made.sub("", page)
    checkpoint = facts.checkpoint
    assert checkpoint is not None
    assert "study" not in page.replace(checkpoint, ""), "letters of a signature may be any"
    assert set(facts.spent.values()) == {world.ledger.projects.get("study").cap_spent}, (
        "of the cap, all"
    )
    holds(terrine("dossier", "--project", "gone").refused, "gone")
    with pytest.raises(NotFound):
        world.facts("gone")


NEIGHBOURS = {"name": "neighbours", "sigma": 30.0, "queries": 100}
NOISY_VOTES = {"name": "noisy_votes", "sigma": 30.0}
CONFIDENT = {"name": "confident_gnmax", "threshold": 24, "sigma1": 12.0, "sigma2": 4.0}


@pytest.mark.parametrize(
    ("spec", "leaves", "not_so"),
    [
        (NEIGHBOURS, ["noisy counts", "records vote copy account project"], ["teachers", "PATE"]),
        (NOISY_VOTES, ["noisy counts", "40 teachers disjoint PATE"], ["copy", "a class leaves"]),
        (CONFIDENT, ["a class none", "40 teachers disjoint PATE"], ["noisy counts", "copy"]),
    ],
    ids=["neighbours", "noisy_votes", "confident_gnmax"],
)
def test_a_dossier_says_what_leaves_and_who_votes(
    world: World, tmp_path: Path, spec: dict[str, Any], leaves: list[str], not_so: list[str]
) -> None:
    if spec["name"] == "neighbours":
        people = build_people(tmp_path / "people", world.ensemble)
        register_ensemble_of(world.settings, world.ledger, people)
        world.ensemble = people
    world.open_project("asked", spec)
    page = Page(world.facts("asked"))
    told = page.told["What leaves"]
    for each in leaves:
        holds(told, *each.split())
    for each in not_so:
        assert not says(told, *each.split())
    assert says(page.text, "reads", "database") == (spec["name"] == "neighbours")


def test_a_page_is_readable_offline_and_holds_no_script_of_others(world: World) -> None:
    page = Page(world.facts())
    assert not page.tags & {"script", "img", "link", "iframe", "object", "form"}
    assert page.links == []
    assert HOSTILE in page.text
    assert "anonym" not in page.text.lower()
