"""`terrine doctor`: what is wrong on this machine, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

from terrine_server import doctor as health
from terrine_server.cli.console import (
    as_json,
    as_typed,
    console,
    errors,
    print_json,
    say,
    with_json,
)
from terrine_server.doctor import Finding, Severity

SEVERITY_STYLES = {"ok": "green", "warning": "bold yellow", "problem": "bold red"}


@with_json
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="First close files and directories to other accounts.")
    ] = False,
) -> None:
    """Check settings, files, database, ensembles, clock and ledger, and say how to fix problems.

    Changes nothing without --fix. Exits with code 1 if there is a problem; warnings do not count.
    """
    if fix:
        for path in health.close_to_others():
            say(f"Closed to other accounts: {path}", to=errors)
    if not show_findings(health.examine()):
        raise typer.Exit(1)


def show_findings(examined: Iterable[Finding]) -> bool:
    """Print findings as they come; return whether there is no problem among them."""
    findings = []
    for each in examined:
        finding = replace(each, found=as_typed(each.found), fix=as_typed(each.fix))
        findings.append(finding)
        if not as_json():
            _show(finding)
    problems = sum(finding.state is Severity.PROBLEM for finding in findings)
    if as_json():
        print_json({"ok": not problems, "findings": [vars(finding) for finding in findings]})
    elif problems:
        say(f"Problems to fix: {problems}.", style="bold red")
    else:
        say("No problems found.")
    return not problems


def _show(finding: Finding) -> None:
    severity = (f"{finding.state:<8}", SEVERITY_STYLES[finding.state])
    console.print(Text.assemble(severity, f"{finding.check}: {finding.found}"), soft_wrap=True)
    if finding.fix:
        say(f"        → {finding.fix}")
