"""`terrine backup` and `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from terrine_server.cli.console import (
    command_text,
    say,
)
from terrine_server.owner import backup as backups
from terrine_server.owner.backup import Backup, Restore
from terrine_server.settings import Settings


def backup(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Directory to make, which must not be there; with --keep, where one is made.",
        ),
    ],
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Make it inside DIR, named by the time, and remove all but the N newest good ones "
            "that were made so: once the new one is complete and checked.",
        ),
    ] = None,
) -> None:
    """Back up the ledger, the ensembles and the data directory's other files, while they serve.

    The ledger is one SQLite file in it, from whichever database, and verified. The secret key and
    passwords are not inside: keep a copy of the key apart from the backups.
    """
    removed: list[Path] = []
    if keep is None:
        made = backups.back_up(Settings(), directory)
    else:
        made, directory, removed = backups.back_up_beside(Settings(), directory, keep)
    say(f"Made {directory}. {_describe_contents(made)}")
    for old in removed:
        say(f"Removed {old}.")
    keys = [name for name in made.files if name.endswith(".key")]
    say(f"Keys inside: {', '.join(keys) or 'none'}. It is as private as the records are.")
    say("Not inside:")
    for what, why in made.left_out.items():
        say(f"  {what}: {why}")
    say("Keep the secret key where this backup is not: whoever has both can make tokens.")


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
    done = backups.restore(Settings(), directory, replace=replace)
    made = done.backup
    say(f"Restored the backup of {made.made_at:%Y-%m-%d %H:%M} UTC. {_describe_contents(made)}")
    say(f"Paused: {', '.join(done.projects.paused) or 'no project was active'}.")
    if done.projects.filled:
        say(f"Every account counts as spent in: {', '.join(done.projects.filled)}.")
    for where in done.aside:
        say(f"What was there is kept in {where}.")
    if done.stayed:
        say(f"Kept as they are, though the backup has others: {', '.join(done.stayed)}.")
    say("Next:")
    for number, step in enumerate(_next_steps(done), 1):
        say(f"{number}. {step}")


def _describe_contents(made: Backup) -> str:
    ensembles = ", ".join(made.ensembles) or "none"
    return f"Projects: {made.projects}, charges: {made.charges}, ensembles: {ensembles}."


def _next_steps(done: Restore) -> list[str]:
    resume = command_text("project", "resume", "NAME")
    steps = []
    if done.lost:
        steps.append(
            f"At least {done.lost} entries that were signed are lost: open new projects from what "
            "the cap has left; the old ones stay paused. `terrine ledger restored` begins a new "
            "transparency log, and asks what was spent by projects that are not there any more."
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
