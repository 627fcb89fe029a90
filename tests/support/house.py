"""A service in the test's own process, and what its owner does without HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from caller import npy
from digits import DigitsEnsemble
from fastapi import FastAPI
from in_process import InProcess
from migrated import SECRET_KEY
from visitor import Visitor

from terrine_protocol import ProjectOpen, TokenCreate
from terrine_server.ledger import Ledger
from terrine_server.owner.operations import open_project
from terrine_server.owner.tokens import Tokens

GNMAX = {"name": "gnmax", "sigma": 4.0}
CONFIDENT = {"name": "confident_gnmax", "threshold": 24, "sigma1": 12.0, "sigma2": 4.0}


@dataclass
class House:
    """A service in this process, and what its owner does without HTTP."""

    app: FastAPI
    ledger: Ledger
    send: InProcess
    digits: DigitsEnsemble
    asked: int = field(default=0)

    def token(self, role: str = "admin", project: str | None = None, **more: object) -> str:
        wanted = TokenCreate.model_validate({"role": role, "project": project, **more})
        return Tokens(self.ledger, SECRET_KEY).create(wanted).token

    def open(self, name: str, mechanism: dict[str, object] = GNMAX, epsilon: float = 2.0) -> None:
        terms = {
            "name": name,
            "ensemble": "digits",
            "mechanism": mechanism,
            "epsilon": epsilon,
            "delta": 1e-5,
        }
        open_project(self.ledger, ProjectOpen.model_validate(terms))

    def ask(self, token: str, count: int) -> None:
        """Ask new queries."""
        inputs = self.digits.public[self.asked : self.asked + count]
        self.asked += count
        headers = {"Content-Type": "application/x-npy"}
        reply = self.send(
            self.app, "POST", "/label", token, content=npy(np.asarray(inputs)), headers=headers
        )
        assert reply.status_code == 200, reply.text

    def visitor(self, role: str = "admin") -> Visitor:
        made = Visitor(self.app, self.send)
        assert made.sign_in(self.token(role)).status_code == 303
        return made

    @property
    def last_logged(self) -> tuple[str, str, str]:
        (entry,) = self.ledger.log(limit=1, newest=True)
        return entry.action, entry.subject, entry.actor
