"""The `terrine` command. Each command imports heavy modules only when it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Annotated, cast

import typer
from typer.core import TyperGroup

from terrine_models.addons import addons
from terrine_server.cli import console as mechanism
from terrine_server.cli import ensemble, ledger, plan, project, quickstart, serve, student
from terrine_server.cli.console import Command, ask_for_json, console, run

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Serve noisy votes of private records within a privacy budget, or learn from them.",
)

app.command()(quickstart.quickstart)
app.command()(serve.init)
app.command()(serve.serve)
app.command()(serve.doctor)
app.command()(ledger.backup)
app.command()(ledger.restore)
app.command()(ledger.upgrade)
app.command()(plan.plan)
app.add_typer(ensemble.app, name="ensemble")
app.add_typer(ensemble.neighbours_app, name="neighbours")
app.add_typer(project.app, name="project")
app.add_typer(project.tokens_app, name="token")
app.command()(mechanism.mechanisms)
app.add_typer(project.requests_app, name="request")
app.add_typer(ledger.app, name="ledger")
app.add_typer(ledger.log_app, name="log")
app.add_typer(student.app, name="student")


def _add(name: str, command: Callable[..., None] | typer.Typer) -> None:
    """Add a command of an add-on, to the group that its name begins with."""
    *within, last = name.split()
    into = app
    for group in app.registered_groups:
        if within == [group.name] and group.typer_instance is not None:
            into = group.typer_instance
    if isinstance(command, typer.Typer):
        into.add_typer(command, name=last)
    else:
        into.command(last)(command)


for _addon in addons().values():
    for _name, _reference in _addon.commands.items():
        _add(_name, resolve_name(_reference))


def _use_one_class(group: typer.Typer) -> None:
    """Let every command decide by its mark whether it takes `--json`."""
    for command in group.registered_commands:
        command.cls = Command
    for below in group.registered_groups:
        if below.typer_instance is not None:
            _use_one_class(below.typer_instance)


_use_one_class(app)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"terrine {version('terrine')}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
    data_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Data directory for the server's commands; same as TERRINE_DATA_DIR.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, of a command that shows something.")
    ] = False,
) -> None:
    if as_json:
        ask_for_json(context)
    if data_dir is not None:
        os.environ["TERRINE_DATA_DIR"] = data_dir


@cache
def command_line() -> TyperGroup:
    """All commands; whoever runs several in one process need not build them again."""
    return cast(TyperGroup, typer.main.get_command(app))


def main() -> None:
    """Run the command line. What it makes is closed to other accounts from the first byte."""
    os.umask(0o077)
    run(lambda: command_line()())
