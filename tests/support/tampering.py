"""A small ledger that has something in every column of every table, to be edited by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from books import (
    CONFIDENT,
    COUNTED,
    FACTS,
    GNMAX,
    LNMAX,
    RECORDS,
    abstained,
    answered,
    counted,
    digest,
    open_project,
    register,
    terms,
)
from logged import publisher
from migrated import SECRET_KEY, migrated
from neighbouring import PEOPLE, People, TheirVoters, many, open_study, register_people
from publishing import CAP, TEACHERS, open_published, published_terms, voted
from sqlalchemy import select

from terrine_protocol import ProjectStatus, Role, TokenCreate
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import Actor, Ledger, NewProject, ProjectRecord
from terrine_server.ledger.schema import metadata
from terrine_server.metrics import Metrics
from terrine_server.owner.sign_in import Tokens

Row = dict[str, Any]
TREE = ("tree_leaves", "tree_nodes", "tree_head")
"""They repeat what the others hold, and are believed by nobody who does not check them against a
policy: tests/transparency/test_verify.py edits them."""
TABLES = {name: table for name, table in metadata.tables.items() if name not in TREE}
ASKED = {"mechanism": GNMAX, "epsilon": 2.0, "delta": 1e-6}
ENTRIES = 8
"""Charges of `study`."""


class World:
    """A small ledger with something in every column, and what it was before its last acts.

    `study` has eight charges: three that were asked for under one key, then an abstention, two
    answers and an abstention under another, and an answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        ledger = self.prepared()
        register(ledger, "mnist", population="digits")
        thousand = FACTS.model_copy(update={"teachers": TEACHERS})
        ledger.register_ensemble(
            "thousand",
            "ensembles/thousand",
            digest("thousand").hex(),
            thousand,
            RECORDS,
            CAP,
            population="thousand",
            disjoint=True,
        )
        register(ledger, "spare", population="digits")
        study = self.open_study()
        self.prices = {str(outcome): p.cost for outcome, p in study.terms.prices.items()}
        for name in ("other", "done", "resting"):
            open_project(ledger, 3, LNMAX, name=name)
        noisy = open_project(ledger, 10, COUNTED, name="counted")
        crowd = self.open_crowd(ledger)
        ledger.open_project(NewProject("unused", "mnist", GNMAX, terms(3), "Unused", "To learn"))
        secret, schedule = open_published(ledger, "secret"), published_terms().schedule
        assert schedule is not None
        self.tokens = self._tokens(ledger)
        for id, token in (("refused", "student"), ("waiting", "student"), ("granted", "other")):
            ledger.make_request(
                id=id, token=self.id_of(token), title=id, purpose="To learn", asked=ASKED
            )
        self.ask_first(study)
        last = [abstained("a"), answered("b", 4), answered("c", 5), abstained("d")]
        ledger.charge(study.id, last)
        ledger.charge(noisy.id, [counted(1), counted(2), counted(3)])
        ledger.charge(ledger.project("other").id, [answered("other")])
        ledger.charge(secret.id, voted(secret, range(schedule.counts[0] + 1)))
        self.ask_crowd(ledger, crowd)
        ledger.make_edition("people", 2, digest("two").hex(), PEOPLE, [3])
        self.before = self.rows()
        self.ask_crowd(ledger, crowd, last=4)
        ledger.charge(study.id, [answered("last")])
        ledger.charge(secret.id, voted(secret, ["last"]))
        ledger.set_status("resting", ProjectStatus.PAUSED)
        ledger.set_status("done", ProjectStatus.CLOSED)
        ledger.revoke_token(self.id_of("revoked"))
        ledger.refuse_request("refused", "Not now", Actor("token:0", "trace"))
        more = NewProject("more", "mnist", GNMAX, terms(2), "More", "To learn")
        ledger.approve_request("granted", more)
        self.names = set(ledger.project_names())
        publisher(ledger).round()
        self.kept = {"kept": ledger.checkpoint() or ""}

    def prepared(self) -> Ledger:
        self.engine = migrated(self.url)
        return self.ledger()

    def open_study(self) -> ProjectRecord:
        return open_project(self.ledger(), 20, CONFIDENT)

    def open_crowd(self, ledger: Ledger) -> People:
        """A project whose units have accounts."""
        register_people(ledger)
        open_study(ledger, name="crowd")
        return People()

    def ask_crowd(self, ledger: Ledger, people: People, last: int = 3) -> None:
        labeling = Labeling(ledger, TheirVoters(people), Metrics(), max_batch=100)
        inputs = np.stack(many(people, last))
        labeling.answer("crowd", [labeling.check("crowd", inputs)])

    def ask_first(self, study: ProjectRecord) -> None:
        batch = [answered(1, 1), answered(2, 2), answered(3, 3)]
        self.ledger().charge_group(study.id, [batch], payers=[self.id_of("student")])

    def ledger(self, key: bytes = SECRET_KEY) -> Ledger:
        """As a server has it that has read nothing yet."""
        return Ledger(self.engine, key)

    def _tokens(self, ledger: Ledger) -> dict[str, str]:
        made = {
            label: TokenCreate(role=Role.STUDENT, project="study", label=label)
            for label in ("student", "moved", "revoked")
        }
        made["other"] = TokenCreate(role=Role.STUDENT, project="other")
        made |= {str(role): TokenCreate(role=role) for role in (Role.AUDITOR, Role.ADMIN)}
        tokens = Tokens(ledger, SECRET_KEY)
        return {label: tokens.create(request).token for label, request in made.items()}

    def id_of(self, label: str) -> str:
        return self.tokens[label].split("_")[1]

    def rows(self) -> dict[str, list[Row]]:
        with self.engine.connect() as connection:
            return {
                name: [dict(row._mapping) for row in connection.execute(in_order(name))]
                for name in TABLES
            }

    def row(self, table: str, **where: Any) -> Row:
        (row,) = (row for row in self.rows()[table] if row.items() >= where.items())
        return row


def in_order(table: str) -> Any:
    made = TABLES[table]
    return select(made).order_by(*made.primary_key)
