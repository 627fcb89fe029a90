"""A service in the test's own process, and its owner."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from caller import npy
from digits import DigitsEnsemble
from fastapi import FastAPI
from in_process import InProcess
from server import Owner
from visitor import Visitor

from terrine_server.ledger import Ledger

CONFIDENT = {"name": "confident_gnmax", "threshold": 24, "sigma1": 12.0, "sigma2": 4.0}


@dataclass
class House(Owner):
    """A service in this process, and its owner."""

    app: FastAPI
    ledger: Ledger
    send: InProcess
    ensemble: DigitsEnsemble
    asked: int = field(default=0)

    def ask(self, token: str, count: int) -> None:
        """Ask new queries."""
        inputs = self.ensemble.public[self.asked : self.asked + count]
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
