"""Checks of the ledger: its ensembles' files, the end of each project, and the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from terrine_server.doctor.database import CLOCK_SKEW
from terrine_server.doctor.finding import Finding, Severity
from terrine_server.errors import ConcurrentUpdate, LedgerRestored, LogNotSigned, TerrineError
from terrine_server.ledger import Ledger
from terrine_server.owner.checkpoints import CheckpointError, attach_history
from terrine_server.owner.editions import leftovers
from terrine_server.settings import Settings


def files_of(name: str, directory: Path, digest: str) -> Finding:
    """Check that an ensemble's files are those that were registered, and that we can read them."""
    from terrine_models.storage.manifests import StoreError, manifest_digest
    from terrine_models.teachers.federation import (
        federation_digest,
        is_federation,
        verified_digest,
    )
    from terrine_models.teachers.kinds import load_manifest

    check, federation = f"ensemble {name}", is_federation(directory)
    fix = f"Restore {directory} from a backup: terrine restore"
    try:
        identity = federation_digest(directory) if federation else manifest_digest(directory)
        if identity != digest:
            found = f"{directory} holds a different ensemble from the one registered."
            return Finding(check, Severity.PROBLEM, found, fix)
        if not federation:
            try:
                load_manifest(directory)
            except StoreError as error:  # nobody altered it
                other = "Serve it with the version of Terrine that made it, or make it again"
                return Finding(check, Severity.PROBLEM, str(error), other)
        verified_digest(directory)
    except StoreError as error:
        return Finding(check, Severity.PROBLEM, str(error), fix)
    return Finding(check, Severity.OK, "Its files are as registered.")


def ensembles(ledger: Ledger, settings: Settings) -> Iterator[Finding]:
    """Verify the files of every registered ensemble, and report unregistered directories."""
    registered = ledger.ensembles()
    for registration in registered:
        record = registration.current
        found = files_of(record.name, settings.data_dir / record.path, record.manifest_sha256)
        yield found
        if found.state is not Severity.OK or record.edition is None:
            continue
        if left := leftovers(settings, registration):
            named = ", ".join(path.name for path in left)
            yield Finding(
                found.check,
                Severity.PROBLEM,
                f"{named}: private records of an edition that does not serve.",
                "the command that was interrupted, once more: `terrine ensemble forget` or "
                "`terrine neighbours add`",
            )
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
        attach_history(ledger, settings).check()
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
