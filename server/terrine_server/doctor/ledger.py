"""Checks of the ledger: its ensembles' files, the end of each project, and the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from terrine_server.doctor.database import CLOCK_SKEW
from terrine_server.doctor.finding import Finding, Severity
from terrine_server.errors import ConcurrentUpdate, LedgerRestored, LogNotSigned, TerrineError
from terrine_server.ledger import Ledger
from terrine_server.owner.checkpoints import CheckpointError, guard
from terrine_server.owner.editions import leftovers
from terrine_server.settings import Settings


def ensembles(ledger: Ledger, settings: Settings) -> Iterator[Finding]:
    """Verify the files of every registered ensemble, and report unregistered directories."""
    from terrine_models.storage.manifests import StoreError
    from terrine_models.teachers.federation import verified_digest

    registered = ledger.ensembles()
    for registration in registered:
        record = registration.current
        directory = settings.data_dir / record.path
        check = f"ensemble {record.name}"
        restore = f"Restore {directory} from a backup"
        try:
            same = verified_digest(directory) == record.manifest_sha256
        except StoreError as error:
            yield Finding(check, Severity.PROBLEM, str(error), restore)
            continue
        if same:
            yield Finding(check, Severity.OK, "Its files are as registered.")
            if record.edition is not None and (found_there := leftovers(settings, registration)):
                named = ", ".join(path.name for path in found_there)
                yield Finding(
                    check,
                    Severity.PROBLEM,
                    f"{named}: private records of an edition that does not serve.",
                    "the command that was interrupted, once more: `terrine ensemble forget` or "
                    "`terrine neighbours add`",
                )
        else:
            found = f"{directory} holds a different ensemble from the one registered."
            yield Finding(check, Severity.PROBLEM, found, restore)
    known = {(settings.data_dir / record.path).resolve() for record in registered}
    for directory in sorted(settings.ensembles_dir.glob("*/")):
        if directory.resolve() not in known:
            yield Finding(
                f"ensemble {directory.name}",
                Severity.WARNING,
                f"{directory} is not registered: no project can use it.",
                f"terrine ensemble register {directory.name}",
            )


def ends(ledger: Ledger) -> Iterator[Finding]:
    """Read each project's balance and its units' accounts, which must match its last entry.

    And that entry's date.
    """
    whole, newest = 0, None
    names = ledger.project_names()
    for name in names:
        try:
            project = ledger.project(name)
            last = ledger.charges(name, after_seq=max(0, project.charges - 1), limit=1)
            if project.terms.allowance is not None:
                with suppress(ConcurrentUpdate):  # a server has just read and written them
                    ledger.accounts(project)
        except TerrineError as error:
            yield Finding("books", Severity.PROBLEM, str(error), f"terrine ledger verify {name}")
            continue
        whole += 1
        newest = max(filter(None, [newest, *(entry.created_at for entry in last)]), default=None)
    text = (
        f"Projects whose last entry is as balance and accounts say: {whole} of {len(names)}. "
        "All entries: `terrine ledger verify`."
    )
    yield Finding("books", Severity.OK, text)
    yield dated(datetime.now(UTC), newest)


def log(ledger: Ledger) -> Iterator[Finding]:
    """Check the administrative log, and that what it is about is as it says."""
    found = ledger.verify_log()
    for problem in found.problems:
        yield Finding(
            "log", Severity.PROBLEM, problem, "terrine log show; docs/ledger.md, Edits by hand"
        )
    if found.ok:
        text = f"Requests, tokens, projects and ensembles are as its {found.entries} entries say."
        yield Finding("log", Severity.OK, text)


def signed(ledger: Ledger, settings: Settings) -> Finding:
    """Check that the ledger continues what was signed of it, as the data directory has it."""
    path = settings.signed_checkpoint_path
    try:
        guard(ledger, settings).check()
    except LedgerRestored as error:
        return Finding("signed", Severity.PROBLEM, str(error), "terrine ledger restored")
    except LogNotSigned as error:
        fix = f"Make {path} readable, or see docs/transparency.md"
        return Finding("signed", Severity.PROBLEM, str(error), fix)
    except CheckpointError as error:
        return Finding("signed", Severity.PROBLEM, str(error), "terrine init")
    if not path.exists():
        return Finding("signed", Severity.OK, "Nothing has been signed of the ledger yet.")
    return Finding("signed", Severity.OK, f"The ledger continues what {path} says.")


def dated(now: datetime, newest: datetime | None) -> Finding:
    """Check this machine's clock against the newest charge, which cannot be in the future."""
    if newest is None or newest <= now + CLOCK_SKEW:
        return Finding("clock", Severity.OK, "No charge is dated in the future.")
    found = f"A charge is dated {newest:%Y-%m-%d %H:%M:%S} UTC, but this machine's clock says "
    now_text = f"{now:%Y-%m-%d %H:%M:%S} UTC."
    return Finding("clock", Severity.PROBLEM, found + now_text, "timedatectl set-ntp true")
