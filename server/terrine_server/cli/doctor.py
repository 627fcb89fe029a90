"""`terrine doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from terrine_server.cli.console import as_json, console, errors, print_json, with_json

if TYPE_CHECKING:
    from terrine_server.doctor import Finding

STYLES = {"ok": "green", "warning": "bold yellow", "problem": "bold red"}


@with_json
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="First close files and directories to other accounts.")
    ] = False,
) -> None:
    """Check settings, files, database, ensembles, clock and ledger, and say how to fix problems.

    Changes nothing without --fix. Exits with code 1 if there is a problem; warnings do not count.
    """
    from terrine_server.doctor import close_to_others, examine

    if fix:
        for path in close_to_others():
            errors.print(Text(f"Closed to other accounts: {path}"), soft_wrap=True)
    if not report(examine()):
        raise typer.Exit(1)


def report(examined: Iterable[Finding]) -> bool:
    """Print findings as they come; return whether there is no problem among them."""
    from terrine_server.doctor import Severity

    findings = []
    for finding in examined:
        findings.append(finding)
        if not as_json():
            _show(finding)
    problems = sum(finding.state is Severity.PROBLEM for finding in findings)
    if as_json():
        print_json({"ok": not problems, "findings": [vars(finding) for finding in findings]})
    elif problems:
        console.print(f"Problems to fix: {problems}.", style="bold red", highlight=False)
    else:
        console.print("No problems found.", highlight=False)
    return not problems


def _show(finding: Finding) -> None:
    line = Text.assemble((f"{finding.state:<8}", STYLES[finding.state]), f"{finding.check}: ")
    console.print(line.append(finding.found), soft_wrap=True, highlight=False)
    if finding.fix:
        console.print(Text(f"        → {finding.fix}"), soft_wrap=True, highlight=False)
