"""A data owner's machine, whose commands run in the test's process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from books import terms
from commands import Done, Terrine
from migrated import SECRET_KEY
from postgres import SERVICE, as_owner

from terrine_protocol import Role, TokenCreate
from terrine_server.ledger import Ledger, NewProject, connect
from terrine_server.owner.sign_in import Tokens, load_secret_key

NOISY = {"name": "gnmax", "sigma": 400.0}


@dataclass(frozen=True)
class Machine:
    """A data owner's machine: its data directory, its database, its commands."""

    data: Path
    database_url: str
    run: Terrine

    @property
    def ensemble(self) -> Path:
        return self.data / "ensembles" / "digits"

    @property
    def ledger(self) -> Ledger:
        return Ledger(connect(self.database_url), SECRET_KEY)

    def init(self) -> Done:
        """Run `terrine init`: on PostgreSQL as the tables' owner, for the role that then serves."""
        owner = as_owner(self.database_url)
        role = () if owner == self.database_url else ("--service-role", SERVICE)
        return self.run("init", *role, TERRINE_DATABASE_URL=owner)

    def student(self, project: str, queries: int, ensemble: str = "digits") -> dict[str, str]:
        """Return the headers of a student whose new project pays for exactly `queries`."""
        quoted = terms(queries, NOISY, self.ledger.ensemble(ensemble).population.rule)
        self.ledger.open_project(NewProject(project, ensemble, NOISY, quoted))
        return self.bearer(Role.STUDENT, project)

    def bearer(self, role: str, project: str | None = None) -> dict[str, str]:
        """Return the headers of the holder of a new token."""
        tokens = Tokens(self.ledger, load_secret_key(self.data / "secret.key"))
        made = tokens.create(TokenCreate(role=Role(role), project=project))
        return {"Authorization": f"Bearer {made.token}"}

    def doctor(self, **variables: str) -> dict[str, Any]:
        """Return the output of `terrine --json doctor`; its exit code must agree."""
        done = self.run("--json", "doctor", **variables)
        report: dict[str, Any] = json.loads(done.out)
        assert done.code == (0 if report["ok"] else 1)
        assert done.err == ""
        return report

    def wrong(self, **variables: str) -> list[tuple[str, str, str, str]]:
        """Return all findings that are not ok, as (check, state, found, fix)."""
        findings = self.doctor(**variables)["findings"]
        for finding in findings:
            assert bool(finding["fix"]) == (finding["state"] != "ok"), finding
        return [tuple(f.values()) for f in findings if f["state"] != "ok"]


def question(number: int) -> dict[str, Any]:
    """Return a request with an input that is different for every number."""
    image = np.zeros((8, 8), dtype=np.uint8)
    image.flat[:4] = [number // 17**k % 17 for k in range(4)]
    return {"inputs": [image.tolist()]}
