"""`terrine backup`, `terrine restore` and `terrine upgrade`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli.console import as_json, command_text, console, fail, with_json

if TYPE_CHECKING:
    from terrine_server.owner.backup import Backup, Restore


def backup(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to make, which must not be there.")
    ],
) -> None:
    """Back up the ledger, the ensembles and the data directory's other files, while they serve.

    The ledger is one SQLite file in it, from whichever database, and verified. The secret key and
    passwords are not inside: keep a copy of the key apart from the backups.
    """
    from terrine_server.owner.backup import back_up
    from terrine_server.settings import Settings

    made = back_up(Settings(), directory)
    _say(f"Made {directory}. {_contents(made)}")
    keys = [name for name in made.files if name.endswith(".key")]
    _say(f"Keys inside: {', '.join(keys) or 'none'}. It is as private as the records are.")
    _say("Not inside:")
    for what, why in made.left_out.items():
        _say(f"  {what}: {why}")
    _say("Keep the secret key where this backup is not: whoever has both can make tokens.")


def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What `backup` made.")],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Though there is a ledger with entries; it is kept aside."),
    ] = False,
) -> None:
    """Put a backup in the place of what is there. Stop all servers first; the key must be there.

    It need not go into the kind of database that it came from, or of the same version. Active
    projects are paused, and in projects of `neighbours` every account counts as spent, for good:
    what was charged after the backup is not known. If this is interrupted, run it again.
    """
    from terrine_server.owner import backup as backups
    from terrine_server.settings import Settings

    done = backups.restore(Settings(), directory, replace=replace)
    made = done.backup
    _say(f"Restored the backup of {made.made_at:%Y-%m-%d %H:%M} UTC. {_contents(made)}")
    _say(f"Paused: {', '.join(done.projects.paused) or 'no project was active'}.")
    if done.projects.filled:
        _say(f"Every account counts as spent in: {', '.join(done.projects.filled)}.")
    for where in done.aside:
        _say(f"What was there is kept in {where}.")
    if done.stayed:
        _say(f"Kept as they are, though the backup has others: {', '.join(done.stayed)}.")
    _say("Next:")
    for number, step in enumerate(_next_steps(done), 1):
        _say(f"{number}. {step}")


@with_json
def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Only say what was found, and change nothing.")
    ] = False,
    service_role: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="As of `init`: the PostgreSQL role that `serve` uses."),
    ] = None,
) -> None:
    """Say whether this version will serve what is here; if so, migrate the ledger.

    It looks at settings, keys, the ledger's tables and every registered ensemble, whose files are
    read and loaded. Exits with code 1, and migrates nothing, if there is a problem. Unlike `init`,
    it never makes a new ledger.
    """
    from terrine_server.cli.doctor import report
    from terrine_server.cli.serve import init
    from terrine_server.doctor import examine_upgrade

    if as_json() and not check:
        fail("`terrine --json upgrade` needs --check.")
    if not report(examine_upgrade()):
        raise typer.Exit(1)
    if not check:
        init(service_role=service_role, origin=None)


def _contents(made: Backup) -> str:
    ensembles = ", ".join(made.ensembles) or "none"
    return f"Projects: {made.projects}, charges: {made.charges}, ensembles: {ensembles}."


def _next_steps(done: Restore) -> list[str]:
    resume = command_text("project", "resume", "NAME")
    steps = []
    if done.lost:
        steps.append(
            f"At least {done.lost} entries that were signed are lost: open new projects from what "
            "the cap has left, and close none of the old ones. `terrine ledger restored` begins a "
            "new transparency log."
        )
    else:
        steps.append(
            "If you know that nothing was answered after the backup, resume projects whose "
            f"accounts are not spent: {resume}. Else open new ones, and close none of the old."
        )
    steps.append("Forget people again who left after the backup: `terrine ensemble forget`.")
    steps.append("Revoke tokens again that were revoked after the backup: `terrine token revoke`.")
    if done.aside:
        steps.append("Remove what was kept aside once nothing is missing: it has private records.")
    steps.append("`terrine doctor`, then start the servers. docs/upkeep.md says more.")
    return steps


def _say(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
