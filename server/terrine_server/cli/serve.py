"""`terrine init`, `serve`, `doctor`, `backup`, `restore` and `upgrade`: run a service."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import structlog
import typer
from pydantic import ValidationError
from rich.text import Text
from sqlalchemy import Engine, make_url

from terrine_models.addons import load_added, load_added_as
from terrine_server import doctor as health
from terrine_server import logs
from terrine_server.app import create_app
from terrine_server.cli.console import (
    as_json,
    as_typed,
    command_text,
    console,
    errors,
    explain,
    fail,
    print_json,
    say,
    with_json,
)
from terrine_server.doctor import Finding, Severity
from terrine_server.errors import NotSealed, SchemaMismatch
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger import upgrade as migrate
from terrine_server.ledger.copies import registrations
from terrine_server.ledger.database import reading
from terrine_server.ledger.migrating import (
    check_schema_once_started,
    grant,
    has_tables,
    missing_migrations,
)
from terrine_server.owner import backup as backups
from terrine_server.owner.backup import Backup, Restore
from terrine_server.owner.checkpoints import (
    CheckpointError,
    load_checkpoint_key,
    make_key_of_new_log,
    signed_entries,
)
from terrine_server.owner.operations import check_not_restoring, make_directories, open_ledger
from terrine_server.owner.sign_in import load_secret_key, make_secret_key
from terrine_server.serving import listening
from terrine_server.serving.listening import CannotListen
from terrine_server.settings import Settings, VotersKind

ANY_ADDRESS = {"*", "0.0.0.0/0", "::/0"}


ServiceRole = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE",
        help="PostgreSQL role that `serve` logs in as. It may add charges, never change them.",
    ),
]


def init(
    service_role: ServiceRole = None,
    origin: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the transparency log is called, such as labels.example.org; by default, a "
            "name that nobody else has. It is fixed with the log's key.",
        ),
    ] = None,
) -> None:
    """Create the data directory, the keys and the tables; migrate older tables.

    Safe to repeat: existing files and data are kept. Tables are not migrated if an ensemble that is
    here could not be served by this version (`terrine upgrade --check`).
    """
    prepare(Settings(), say, service_role=service_role, origin=origin)


def prepare(
    settings: Settings,
    say: Callable[[str], None],
    *,
    service_role: str | None = None,
    origin: str | None = None,
) -> None:
    """Do what `terrine init` does, and `say` what was made or kept. What is wrong is printed."""
    check_not_restoring(settings)
    engine = connect(settings.database, settings.database_password())
    _check_not_lost(engine, settings)
    make_directories(settings)
    engine = connect(settings.database, settings.database_password())
    # A ledger that is there has a key, and a new one would not open it.
    made = not has_tables(engine) and make_secret_key(settings.secret_key_path)
    key = load_secret_key(settings.secret_key_path)
    load_checkpoint_key(settings.checkpoint_key_path)  # refused before anything is migrated
    if service_role is not None and engine.dialect.name != "postgresql":
        fail("--service-role is for PostgreSQL; SQLite has no roles.")
    _check_ensembles(engine, settings)
    restored = migrate(engine, key)
    if service_role is not None:
        grant(engine, service_role)
    ledger = Ledger(engine, key)
    try:
        signing = make_key_of_new_log(ledger, settings, origin)
    except CheckpointError as error:
        signing = False
        _warn(str(error))
    signer = load_checkpoint_key(settings.checkpoint_key_path)
    say(f"{'Created' if made else 'Kept'} the secret key {settings.secret_key_path}.")
    if signer is not None:
        kept = f"{'Created' if signing else 'Kept'} the key of the transparency log"
        say(f"{kept} {settings.checkpoint_key_path}. Policies of students and auditors name it:")
        say(f"log {signer.verifier}")
    if restored:
        _warn(
            f"Restored in the ledger's tables: {'; '.join(restored)}. Nothing guarded what was "
            "written without them: run `terrine ledger verify all`."
        )
    try:
        ledger.log.check_sealed()
    except NotSealed as error:
        _warn(error.detail)
        return
    say(f"The ledger is ready. Data directory: {settings.data_dir.absolute()}")


def _check_not_lost(engine: Engine, settings: Settings) -> None:
    """Refuse to make a ledger where one was that is lost: its budgets would be there again."""
    signed = signed_entries(settings)
    if signed and not has_tables(engine):
        fail(
            f"The database is empty, but {signed} entries of a ledger were signed here, as "
            f"{settings.signed_checkpoint_path} says: a new ledger would spend its budgets again. "
            "Is TERRINE_DATABASE_URL right? If the database is lost, restore a backup: `terrine "
            "restore DIR`. If there is none, `terrine ledger restored` makes a new ledger in which "
            "what was spent stays spent."
        )


def _check_ensembles(engine: Engine, settings: Settings) -> None:
    """Refuse to migrate a ledger for a version that could not serve the ensembles that are here."""
    try:
        with reading(engine) as connection:
            if not missing_migrations(connection):
                return
    except SchemaMismatch:  # there is none yet; or it is newer, which `upgrade` says
        return
    here = [each for each in registrations(engine) if (settings.data_dir / each.path).exists()]
    findings = [health.check_ensemble(each, settings) for each in here]
    wrong = [f"{each.check}: {each.found}" for each in findings if each.state is Severity.PROBLEM]
    if wrong:
        fail(
            "Nothing was migrated, because this version could not serve what is here. "
            f"{' '.join(wrong)} Go on with the version before, or repair it first: `terrine "
            "upgrade --check`, docs/upkeep.md."
        )


def _warn(text: str) -> None:
    say(text, style="bold yellow")


def serve(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = None,
) -> None:
    """Serve the HTTP API until interrupted.

    Environment variables set everything else: docs/settings.md.
    """
    with _log_refusal(), ExitStack() as stack:
        settings = Settings() if port is None else Settings(port=port)
        sockets = listening.bind(settings.host, settings.port)  # before anything that takes time
        for own in sockets:
            stack.enter_context(own)
        _check_prerequisites(settings)
        app = create_app(settings, alone=True)
        chosen = settings.log_format
        for warning in _find_mistakes(
            settings, listening.allow_connections(settings.max_connections)
        ):
            logs.write_early("warning", "may be a mistake", chosen=chosen, **warning)
        if not settings.checkpoint_key_path.exists():
            cause = as_typed("no key: `terrine init` makes one, or says which to put back")
            logs.write_early("warning", "signs no checkpoints", chosen=chosen, cause=cause)
        logs.configure(settings.log_level, chosen)

        def announce(url: str) -> None:
            if logs.is_text(chosen):
                show_addresses(url, settings)
                return
            structlog.get_logger("terrine").info(
                f"Terrine running on {url} (pages for its owner: {url}/admin)"
            )

        listening.serve(
            app,
            sockets,
            settings.limits,
            proxies=settings.forwarded_allow_ips,
            announce=announce,
        )


def show_addresses(url: str, settings: Settings) -> None:
    """Print where the server is, where it keeps what, and how it is stopped."""
    database = make_url(settings.database)
    is_file = database.drivername.startswith("sqlite")
    addresses = {
        "Address, for students": url,
        "Pages for its owner": f"{url}/admin",
        "Ledger": str(database.database)
        if is_file
        else database.render_as_string(hide_password=True),
        "Data directory": str(settings.data_dir.absolute()),
    }
    width = max(map(len, addresses))
    lines = [f"  {what:{width}}  {where}" for what, where in addresses.items()]
    stop = "Stop it with Ctrl+C: requests that it has begun are answered first."
    say("\n".join(["Terrine is running.", *lines, stop]), to=errors)


@contextmanager
def _log_refusal() -> Iterator[None]:
    """Write why the server cannot start as the last line of its log, and end with exit code 1."""
    try:
        yield
    except Exception as error:  # of any library; what `explain` does not know is raised again
        message = explain(error)
        if message is None or isinstance(error, ModuleNotFoundError):
            raise
        chosen = os.environ.get("TERRINE_LOG_FORMAT", "auto")  # of settings that may be wrong
        for setting, cause in _find_causes(error, message):
            named = {"setting": setting} if setting else {}
            logs.write_early("error", "cannot start", chosen=chosen, cause=as_typed(cause), **named)
        raise typer.Exit(1) from None


def _find_causes(error: Exception, message: str) -> Iterator[tuple[str | None, str]]:
    """Yield each setting that is wrong, if that is what is, and what is wrong."""
    if isinstance(error, ValidationError):
        for found, line in zip(error.errors(), message.splitlines(), strict=True):
            yield (f"TERRINE_{found['loc'][0]}".upper() if found["loc"] else None), line
    else:
        yield (error.setting if isinstance(error, CannotListen) else None), message


def _check_prerequisites(settings: Settings) -> None:
    """Check what the server needs. Waits for a database that is starting."""
    if not settings.data_dir.is_dir():
        fail(f"There is no data directory {settings.data_dir.absolute()}. Run `terrine init`.")
    engine = connect(settings.database, settings.database_password(), settings.database_seconds)
    check_schema_once_started(engine)
    engine.dispose()
    open_ledger(settings).log.check_sealed()
    if settings.device is not None:
        votes_on = health.check_device(settings.device)
        if votes_on.state is not Severity.OK:
            fail(votes_on.found)
    if (
        settings.voters is not VotersKind.HERE
        and load_added_as("local_voters", settings.voters) is None
    ):
        fail(
            f"TERRINE_VOTERS={settings.voters} needs the add-on `{settings.voters}`, which this "
            "installation of Terrine lacks."
        )
    if settings.oidc_issuer is not None and next(load_added("issuer"), None) is None:
        fail(
            "TERRINE_OIDC_ISSUER needs the add-on `oidc`, which this installation of Terrine lacks."
        )
    for check in load_added("start"):
        check(settings)


def _find_mistakes(settings: Settings, most: int) -> Iterator[dict[str, str]]:
    """Yield what is probably not meant."""
    if most < settings.max_connections:
        yield {
            "setting": "TERRINE_MAX_CONNECTIONS",
            "cause": f"This process may open too few files for {settings.max_connections} "
            f"connections; it serves {most} at a time. Allow more files (`ulimit -n`).",
        }
    if ANY_ADDRESS.intersection(settings.forwarded_allow_ips.replace(" ", "").split(",")):
        yield {
            "setting": "TERRINE_FORWARDED_ALLOW_IPS",
            "cause": "Everybody is trusted to say from which address a request comes, so nobody is "
            "limited by address. Name the proxies, unless nobody else can connect.",
        }


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


@with_json
def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Only say what was found, and change nothing.")
    ] = False,
    service_role: ServiceRole = None,
) -> None:
    """Say whether this version will serve what is here; if so, migrate the ledger.

    It looks at settings, keys, the ledger's tables and every registered ensemble, whose files are
    read and loaded. Exits with code 1, and migrates nothing, if there is a problem. Unlike `init`,
    it never makes a new ledger.
    """
    if as_json() and not check:
        fail("`terrine --json upgrade` needs --check.")
    if not show_findings(health.examine_upgrade()):
        raise typer.Exit(1)
    if not check:
        init(service_role=service_role, origin=None)


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
