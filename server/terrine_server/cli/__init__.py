"""The `terrine` command. The module of a command is imported when the command runs."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from terrine_models.addons import addons
from terrine_server.cli.console import Command, ask_for_json, console, run

# By what is typed, such as `token` or `ensemble train`: the function or `typer.Typer` to import
# (empty for a group all of whose commands are listed themselves), and its line in help.
Commands = dict[str, tuple[str, str]]
HERE = "terrine_server.cli"
# The server's own commands, in the order in which help lists them.
COMMANDS: Commands = {
    "quickstart": (
        f"{HERE}.quickstart:quickstart",
        "Go from private records to a project that students can ask, with one command.",
    ),
    "init": (
        f"{HERE}.init:init",
        "Create the data directory, the keys and the tables; migrate older tables.",
    ),
    "serve": (f"{HERE}.serve:serve", "Serve the HTTP API until interrupted."),
    "doctor": (
        f"{HERE}.doctor:doctor",
        "Check settings, files, database, ensembles, clock and ledger, and say how to fix "
        "problems.",
    ),
    "backup": (
        f"{HERE}.backup:backup",
        "Back up the ledger, the ensembles and the data directory's other files, while they serve.",
    ),
    "restore": (
        f"{HERE}.backup:restore",
        "Put a backup in the place of what is there. Stop all servers first; the key must be "
        "there.",
    ),
    "upgrade": (
        f"{HERE}.upgrade:upgrade",
        "Say whether this version will serve what is here; if so, migrate the ledger.",
    ),
    "plan": (
        f"{HERE}.plan:plan",
        "Plan a project: how many answers are right, for which ε?",
    ),
    "parameters": (
        f"{HERE}.parameters:parameters",
        "List mechanisms and kinds with their parameters; those in brackets may be left out.",
    ),
    "ensemble": ("", "Make, show, verify and register ensembles."),
    "ensemble train": (
        f"{HERE}.ensemble:train",
        "Make an ensemble: train teachers on parts of private data, place neighbours, or add up.",
    ),
    "ensemble add": (
        f"{HERE}.ensemble:add",
        "Let people join, while the service runs: they vote from the next query on.",
    ),
    "ensemble show": (
        f"{HERE}.ensemble:show",
        "Show an ensemble's manifest; or list registered ensembles, with caps and what is "
        "reserved.",
    ),
    "ensemble register": (
        f"{HERE}.ensemble:register",
        "Allow projects on an ensemble, under the cap of the people whom its records are about.",
    ),
    "ensemble forget": (
        f"{HERE}.ensemble:forget",
        "Forget people in every ensemble of their population, for good, while the service runs.",
    ),
    "ensemble schema": (
        f"{HERE}.ensemble:schema",
        "Propose a schema for a public table, explain it, and write it to a file you can edit.",
    ),
    "project": (f"{HERE}.project:app", "Open, show, pause and close projects."),
    "token": (f"{HERE}.token:app", "Create, list and revoke tokens."),
    "ledger": (f"{HERE}.ledger:app", "Show, verify and export the ledger."),
    "student": (
        f"{HERE}.student:app",
        "Request labels from a server and train on them.\n\n"
        "The options of the connection come before the command.",
    ),
    "student train": (
        f"{HERE}.student:train",
        "Buy labels in rounds and train a student, until the budget is spent or all inputs are "
        "sent.",
    ),
    "student label": (
        f"{HERE}.student:label",
        "Request labels for inputs and save them, in the order of the inputs.",
    ),
    "student predict": (
        f"{HERE}.student:predict",
        "Predict the classes of inputs with a trained student. Needs no server and costs nothing.",
    ),
    "student calibrate": (
        f"{HERE}.student:calibrate",
        "Let a student say each class as often as its project released, among real inputs.",
    ),
    "student verify": (
        f"{HERE}.student:verify",
        "Compare a student's privacy.json with its files, its card, the service and the log.",
    ),
    "student budget": (f"{HERE}.student:budget", "Show the account of the token's project."),
}


@cache
def list_commands() -> Commands:
    """Return all commands: the server's own, and after them those of add-ons."""
    found = dict(COMMANDS)
    for addon in addons().values():
        found |= addon.commands
    return found


class LazyCommand(TyperCommand):
    """A command or group that is not imported yet, as help lists it."""

    def __init__(self, path: str, target: str, line: str) -> None:
        super().__init__(path.rpartition(" ")[2], help=line, rich_markup_mode="rich")
        self.path = path
        self.target = target

    def load(self) -> Any:
        """Import it, and return the command or the group."""
        found = resolve_name(self.target) if self.target else typer.Typer()
        within = typer.Typer(add_completion=False, rich_markup_mode="rich")
        if not isinstance(found, typer.Typer):
            within.command(cls=Command)(found)
            return typer.main.get_command(within)
        for command in found.registered_commands:
            command.cls = Command
        within.add_typer(
            found, name=self.path, cls=CommandGroup, help=self.help, no_args_is_help=True
        )
        return cast(TyperGroup, typer.main.get_command(within)).commands[self.path]


class CommandGroup(TyperGroup):
    """A group whose commands are imported when they are run, and not when they are listed."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for path, (target, line) in list_commands().items():
            above, _, name = path.rpartition(" ")
            if above == (self.name or ""):
                self.commands[name] = LazyCommand(path, target, line)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is named, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and isinstance(command, LazyCommand):
            command = self.commands[name] = command.load()
        return name, command, rest


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Serve noisy votes of private records within a privacy budget, or learn from them.",
)


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
