"""`terrine dossier`: what an ethics board or a data-protection officer files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from terrine_protocol.base import quantity
from terrine_server.cli.console import console, fail

if TYPE_CHECKING:
    from terrine_protocol.transparency import VerifierKey


def dossier(
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory to write, new or empty.")
    ] = None,
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this project, and its ensemble.")
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The newest report of `terrine --json audit`."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Whose signatures the transparency log needs; by default, that of the settings.",
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Check signature and files of a dossier, and do no more."),
    ] = None,
) -> None:
    """Write a signed dossier from the live ledger, which it verifies: HTML, JSON and PDF.

    A registry entry, the hazards of NIST SP 800-226, pages for an impact assessment, and the
    evidence. What could not be checked comes first. What only the owner can say is asked for in
    dossier.toml in the data directory, and marked until it is given. See docs/addons/dossier.md.

    Exits with code 1 if the ledger or its log is not intact; the dossier is written, and says so.

    [bold]Examples[/bold]

      terrine dossier --project cough --audit audit.json --out cough-dossier

      terrine dossier --check cough-dossier --policy policy
    """
    if (out is None) == (check is None):
        fail("Name a directory to write with --out, or a dossier to check with --check.")
    if check is not None:
        if project is not None or audit is not None:
            fail("--check goes with --policy alone.")
        _check(check, policy)
    elif out is not None:
        _write(out, project, audit, policy)


def _write(out: Path, project: str | None, audit: Path | None, policy: Path | None) -> None:
    from terrine_addons.dossier import folder, words
    from terrine_addons.dossier.assessment import list_unchecked
    from terrine_addons.dossier.facts import gather, read_audit
    from terrine_protocol.files import read
    from terrine_server.cli.ledger import open_current_ledger
    from terrine_server.owner.checkpoints import load_checkpoint_key, load_policy
    from terrine_server.settings import Settings

    settings = Settings()
    key = load_checkpoint_key(settings.checkpoint_key_path)
    if key is None:
        fail(
            f"There is no key to sign with, {settings.checkpoint_key_path}: a dossier is signed by "
            "the transparency log's key. `terrine init` makes one."
        )
    report = None if audit is None else read_audit(audit)
    facts = gather(
        open_current_ledger(),
        settings,
        project=project,
        policy=load_policy(policy),
        audit=report,
        verify=True,
    )
    missing = folder.write(facts, out, key, audit=None if audit is None else read(audit))
    asked = settings.data_dir / words.FILE
    if not asked.exists():
        asked.write_text(words.template(), "utf-8")
        console.print(f"Wrote questions to {asked}.", highlight=False, soft_wrap=True)
    console.print("Could not be checked:", highlight=False)
    for each in list_unchecked(facts):
        line = f"  [bold]{escape(each.what)}[/]: {escape(each.why)}"
        console.print(line, highlight=False, soft_wrap=True)
    if missing is not None:
        console.print(f"No PDF: {missing}.", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Wrote {out}/{folder.PAGE} and more.", highlight=False, soft_wrap=True)
    if not facts.intact:
        fail("Ledger or log are not intact: see the first page.")


def _check(directory: Path, policy: Path | None) -> None:
    from terrine_addons.dossier.signing import check

    found = check(directory, _own_keys() if policy is None else _keys(policy))
    line = f"{directory}: [green]as signed[/] by {found.signer}, made {found.made_at:%Y-%m-%d}"
    console.print(f"{line}, {quantity(len(found.files), 'file')}", highlight=False, soft_wrap=True)


def _keys(policy: Path) -> list[VerifierKey]:
    """Return the keys of a policy's logs: as `load_policy`, where nothing else is installed."""
    from terrine_protocol.files import read
    from terrine_protocol.transparency import MAX_NOTE_BYTES, NoteError, Policy

    try:
        return [party.key for party in Policy.parse(read(policy, MAX_NOTE_BYTES)).logs]
    except NoteError as error:
        fail(f"{policy} is not a policy: {error}. See docs/ledger.md.")


def _own_keys() -> list[VerifierKey]:
    """Return the key of this machine's log."""
    from terrine_server.owner.checkpoints import load_checkpoint_key
    from terrine_server.settings import Settings

    own = load_checkpoint_key(Settings().checkpoint_key_path)
    if own is None:
        fail("Name a policy with the log's key with --policy: the owner tells its line.")
    return [own.verifier]
