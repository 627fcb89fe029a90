"""A data owner's machine, whose commands run in the test's process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import Terrine


@dataclass(frozen=True)
class Machine:
    """A data owner's machine: its data directory, its database, its commands."""

    data: Path
    database_url: str
    run: Terrine

    @property
    def ensemble(self) -> Path:
        return self.data / "ensembles" / "digits"

    def doctor(self, **variables: str) -> dict[str, Any]:
        """Return the output of `terrine --json doctor`; its exit code must agree."""
        done = self.run("--json", "doctor", **variables)
        report: dict[str, Any] = json.loads(done.out)
        assert done.code == (0 if report["ok"] else 1)
        assert done.err == ""
        return report

    def wrong(self, **variables: str) -> list[tuple[str, str, str, str]]:
        """Return all findings that are not ok, as (check, state, found, fix).

        Leaves out the warning about rights: tests log in as the tables' owner, who has more rights
        than a service should.
        """
        findings = self.doctor(**variables)["findings"]
        findings = [f for f in findings if (f["check"], f["state"]) != ("rights", "warning")]
        for finding in findings:
            assert bool(finding["fix"]) == (finding["state"] != "ok"), finding
        return [tuple(f.values()) for f in findings if f["state"] != "ok"]
