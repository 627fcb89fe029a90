"""`privacy.json`: what protects the people behind a student, and its check against the service.

It is written beside the student with the receipts of the answers that it learned from. Whoever has
a token of the project finds out whether the service and its transparency log say the same.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from terrine_client._receipts import ReceiptReport, Receipts
from terrine_client.client import Client
from terrine_client.errors import ClientError, ConfigurationError, NotFound
from terrine_protocol import Budget, MechanismSpec, ProjectInfo, Release, SumRelease
from terrine_protocol.base import Record, RuleInfo, Sha256, first_problem
from terrine_protocol.files import read, write_atomically
from terrine_protocol.transparency import Policy

PRIVACY_FILE = "privacy.json"
RECEIPTS_FILE = "receipts.json"
CARD_FILE = "README.md"
MAX_BYTES = 2**20


class PapersError(ClientError):
    """A student's `privacy.json` is missing or malformed; the message says what to do."""


class LedgerHead(Record):
    """The newest entry of the ledger that paid for an answer to the student."""

    charge: Annotated[int, Field(ge=1)]
    hash: Sha256


class PrivacyStatement(Record):
    """What `privacy.json` holds. All of it is public, and follows from what the service said."""

    format: Literal["terrine-privacy-1"] = "terrine-privacy-1"
    project: str
    ensemble: str
    manifest_sha256: Sha256
    """Identifies the ensemble of private records that voted."""
    opened_at: datetime
    """Of the project: names are given again, but never at the same time."""
    population: str | None = None
    """The people whom the records are about, by their owner's name; all share one cap."""
    unit: str
    """Whose contribution is hidden: one record, or all records of a person."""
    units: int
    relation: Literal["replace one"] = "replace one"
    """Neighbouring data sets differ in what one unit contributes, arbitrarily."""
    epsilon: float
    delta: float
    """The budget: all that the project ever releases, to anybody, never costs more."""
    release: Release | None = None
    """What the project began with, and the owner designed what was asked of; the budget paid."""
    margins: tuple[float, float] | None = None
    """(ε, δ) of such histograms of earlier versions, which a project of their own released."""
    epsilon_spent: float
    """Of it, when this was written; of people near many queries, at most."""
    charges: Annotated[int, Field(ge=0)]
    """Entries of the project's ledger then."""
    accounting: Literal["worst_case", "data_dependent"]
    rule: RuleInfo
    mechanism: MechanismSpec
    receipts: Annotated[int, Field(ge=0)]
    """Entries of which the student has a receipt, in `receipts.json`."""
    head: LedgerHead | None = None
    checkpoint: str | None = None
    """Of the transparency log, a signed note: the newest one then."""
    files: dict[str, Sha256]
    """The student's other files but the card."""
    versions: dict[str, str]
    written_at: datetime

    def table(self) -> str:
        """The table of the card that tells this to a reader.

        It belongs to the format: another text needs another format, or cards that were written
        before would not verify.
        """
        people = "" if self.population is None else f", of the population `{self.population}`"
        parameters = self.mechanism.model_dump(mode="json", exclude_none=True)
        name = parameters.pop("name")
        shown = ", ".join(f"{key} = {value}" for key, value in parameters.items())
        if isinstance(self.release, SumRelease):
            shown += (
                f"one release of {self.release.features + 1:,} sums for each of "
                f"{self.release.classes} classes, sigma = {self.release.sigma:g}, of features of "
                f"norm {self.release.norm:,} at most"
            )
        elif self.release is not None:
            histograms = f"{len(self.release.cells)} histograms, sigma = {self.release.sigma:g}"
            shown += f"; the project began with {histograms}, by which what was asked was designed"
        epsilon, delta, of_margins = self.epsilon, self.delta, ""
        if self.margins is not None:
            epsilon, delta = epsilon + self.margins[0], delta + self.margins[1]
            of_margins = (
                f": {self.epsilon:g} of answers, {self.margins[0]:g} of the histograms by which "
                "what was asked was designed"
            )
        rows = {
            "protects": f"{self.unit}{people}",
            "guarantee": f"(ε, δ)-differential privacy, ε = {epsilon:g}, δ = {delta:g}{of_margins}",
            "spent": f"ε = {self.epsilon_spent:.6g} after {self.charges:,} entries of the ledger",
            "relation": f"{self.relation}, by anything else",
            "mechanism": f"`{name}`" + (f", {shown}" if shown else ""),
            "accounting": f"{self.accounting.replace('_', ' ')}, rule `{self.rule.name}`",
            "project": f"`{self.project}`, on the ensemble `{self.ensemble}`, whose manifest has "
            f"the SHA-256 `{self.manifest_sha256}`",
            "receipts": f"{self.receipts:,}, in `{RECEIPTS_FILE}`",
        }
        lines = [f"| {key} | {value} |" for key, value in rows.items()]
        return "\n".join(["| | |", "|---|---|", *lines])

    def save(self, directory: Path) -> None:
        """Write `privacy.json`."""
        text = self.model_dump_json(indent=2, exclude_none=True)
        write_atomically(directory / PRIVACY_FILE, text.encode() + b"\n")

    @classmethod
    def load(cls, directory: Path) -> PrivacyStatement:
        """Read `privacy.json`. Raises PapersError."""
        path = directory / PRIVACY_FILE
        try:
            return cls.model_validate_json(read(path, MAX_BYTES))
        except (OSError, ValueError) as error:
            wrong = getattr(error, "strerror", None) or str(error)
            if isinstance(error, ValidationError):
                wrong = first_problem(error)
            raise PapersError(
                f"{path} cannot be used ({wrong}). It is written by `terrine student train`: with "
                "the same inputs and another --out, training again is free."
            ) from None


def _terms(client: Client, project: ProjectInfo) -> dict[str, Any]:
    ensemble, margins = project.ensemble, None
    if ensemble.designed and ensemble.release is None:  # by an earlier version
        with np.load(io.BytesIO(client.pool()), allow_pickle=False) as pool:
            margins = tuple(pool["released"].tolist())
    return {
        "release": ensemble.release,
        "margins": margins,
        "project": project.name,
        "ensemble": ensemble.name,
        "manifest_sha256": ensemble.manifest_sha256,
        "opened_at": project.opened_at,
        "population": ensemble.population,
        "unit": ensemble.protects,
        "units": ensemble.units,
        "epsilon": project.epsilon,
        "delta": project.delta,
        "accounting": "worst_case" if project.publishing is None else "data_dependent",
        "rule": project.rule,
        "mechanism": project.mechanism,
    }


def write_privacy(
    client: Client, project: ProjectInfo, directory: Path, files: Iterable[str]
) -> PrivacyStatement:
    """Write `receipts.json` and `privacy.json` beside a student; `files` are its own."""
    budget = client.budget()
    try:
        client.receipts.checkpoint = client.checkpoint()
    except NotFound:  # the log is young, or not signed
        client.receipts.checkpoint = None
    client.receipts.save(directory / RECEIPTS_FILE)
    entries = client.receipts.entries
    names = ("numpy", "scipy", "terrine")
    statement = PrivacyStatement(
        **_terms(client, project),
        epsilon_spent=budget.epsilon_spent,
        charges=budget.charges,
        receipts=len(entries),
        head=_head(client.receipts),
        checkpoint=client.receipts.checkpoint,
        files={name: digest_of(directory / name) for name in (*files, RECEIPTS_FILE)},
        versions={name: version(name) for name in names},
        written_at=datetime.now(UTC).replace(microsecond=0),
    )
    statement.save(directory)
    return statement


def _head(receipts: Receipts) -> LedgerHead | None:
    newest = max(receipts.entries, default=None)
    if newest is None:
        return None
    return LedgerHead(charge=newest, hash=receipts.entries[newest].hash)


def digest_of(path: Path) -> str:
    """SHA-256 of a file. Raises OSError."""
    return hashlib.sha256(read(path, None)).hexdigest()


def restate_file(directory: Path, restated: str) -> list[str]:
    """State one of the student's files anew in `privacy.json`, if there is one.

    Returns the names of ONNX graphs that it stated: they have the earlier cut, so it states them no
    more. Raises PapersError if it is malformed.
    """
    if not (directory / PRIVACY_FILE).exists():
        return []
    statement = PrivacyStatement.load(directory)
    outdated = [name for name in statement.files if name.lower().endswith(".onnx")]
    files = {
        name: digest_of(directory / Path(name).name) if name == restated else digest
        for name, digest in statement.files.items()
        if name not in outdated
    }
    statement.model_copy(update={"files": files}).save(directory)
    return outdated


def keep_earlier_receipts(receipts: Receipts, directory: Path) -> None:
    """Add the receipts that an interrupted run left in a student's directory."""
    path = directory / RECEIPTS_FILE
    if path.exists():
        earlier = Receipts.load(path)
        for number, receipt in earlier.entries.items():
            kept = receipts.entries.setdefault(number, receipt)
            if kept.hash != receipt.hash:
                receipts.contradicted.add(number)
        receipts.contradicted |= earlier.contradicted
        receipts.protects = receipts.protects or earlier.protects


@dataclass(frozen=True)
class PapersReport:
    """What a student's papers were compared with.

    log: what the transparency log shows of the receipts; None if it was not asked.
    problems: everything that is wrong, as text, also what is wrong in the log.
    """

    statement: PrivacyStatement
    log: ReceiptReport | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_papers(
    client: Client, directory: Path, policy: Policy | Path | str | bytes | None = None
) -> PapersReport:
    """Compare a student's papers with its files, with the project of a token, and with its log.

    policy: whose signatures the log needs (`Client.verify_receipts`); without one, who signed it is
    not checked. Raises PapersError if there are no papers, and what the client raises.
    """
    statement = PrivacyStatement.load(directory)
    problems = [*_compare_files(statement, directory), *_compare_card(statement, directory)]
    project = client.project()
    if (project.name, project.opened_at) != (statement.project, statement.opened_at):
        problems.append(
            f"The token is of the project {project.name}, opened at {project.opened_at}; the "
            f"student is of {statement.project}, opened at {statement.opened_at}. Verify it with a "
            "token of that one."
        )
        return PapersReport(statement, None, tuple(problems))
    problems += _compare_terms(statement, _terms(client, project))
    problems += _compare_budgets(statement, client.budget())
    try:
        receipts = Receipts.load(directory / RECEIPTS_FILE)
    except (OSError, ConfigurationError):
        receipts = Receipts()  # that its file is missing or altered was said
    problems += _compare_receipts(statement, receipts)
    client.receipts = receipts
    log = client.verify_receipts(policy)
    problems += [f"Entry {number} of the ledger is not in the log." for number in log.missing]
    return PapersReport(statement, log, (*problems, *log.problems))


def _compare_files(statement: PrivacyStatement, directory: Path) -> Iterator[str]:
    for name, digest in sorted(statement.files.items()):
        try:
            found = digest_of(directory / Path(name).name)
        except OSError as error:
            yield f"{name} cannot be read: {error.strerror}."
            continue
        if found != digest:
            yield f"{name} was altered: its SHA-256 is {found}, {PRIVACY_FILE} says {digest}."


def _compare_card(statement: PrivacyStatement, directory: Path) -> Iterator[str]:
    """The rest of the card is the owner's to edit."""
    try:
        card = read(directory / CARD_FILE, MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        yield f"{CARD_FILE} cannot be read: {error.strerror}."
        return
    if statement.table() not in card:
        yield (
            f"{CARD_FILE} lacks the table that says what {PRIVACY_FILE} says, or has another one:\n"
            f"{statement.table()}"
        )


def _compare_terms(statement: PrivacyStatement, terms: Mapping[str, Any]) -> Iterator[str]:
    for name, found in terms.items():
        stated = getattr(statement, name)
        if stated != found:
            yield f"{PRIVACY_FILE} states {name} as {stated}; the service says {found}."


def _compare_budgets(statement: PrivacyStatement, budget: Budget) -> Iterator[str]:
    stated, found = ((each.charges, each.epsilon_spent) for each in (statement, budget))
    if found[0] < stated[0]:
        yield (
            f"{PRIVACY_FILE} states {stated[0]:,} entries of the ledger, and the service has "
            f"{found[0]:,}. A ledger only grows: an older one was restored, or the file was edited."
        )
    elif found[0] == stated[0] and found[1] != stated[1]:
        yield (
            f"{PRIVACY_FILE} states that ε = {stated[1]:.6g} was spent by {stated[0]:,} entries; "
            f"the service says {found[1]:.6g}."
        )


def _compare_receipts(statement: PrivacyStatement, receipts: Receipts) -> Iterator[str]:
    stated = (statement.receipts, statement.head, statement.checkpoint)
    if (len(receipts.entries), _head(receipts), receipts.checkpoint) != stated:
        yield (
            f"{PRIVACY_FILE} states other receipts, another head or another checkpoint than "
            f"{RECEIPTS_FILE} holds."
        )
