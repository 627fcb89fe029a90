"""`terrine init` and `terrine serve`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from terrine_server.cli.console import (
    as_json,
    console,
    errors,
    explain,
    fail,
    print_json,
    with_json,
)

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from terrine_server.doctor import Finding
    from terrine_server.settings import Settings


EVERYBODY = {"*", "0.0.0.0/0", "::/0"}


def init(
    service_role: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE",
            help="PostgreSQL role that `serve` will log in as. It may add charges, never change "
            "them.",
        ),
    ] = None,
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
    from terrine_server.settings import Settings

    settings = Settings()
    prepare(settings, _say, service_role=service_role, origin=origin)


def prepare(
    settings: Settings,
    say: Callable[[str], None],
    *,
    service_role: str | None = None,
    origin: str | None = None,
) -> None:
    """Do what `terrine init` does, and `say` what was made or kept. What is wrong is printed."""
    from terrine_server.errors import NotSealed
    from terrine_server.ledger import Ledger, connect, upgrade
    from terrine_server.ledger.migrating import grant
    from terrine_server.owner.checkpoints import load_checkpoint_key, make_checkpoint_key
    from terrine_server.owner.operations import check_not_restoring, make_directories
    from terrine_server.owner.sign_in import load_secret_key, make_secret_key

    check_not_restoring(settings)
    make_directories(settings)
    made = make_secret_key(settings.secret_key_path)
    key = load_secret_key(settings.secret_key_path)
    signing = make_checkpoint_key(settings.checkpoint_key_path, origin)
    signer = load_checkpoint_key(settings.checkpoint_key_path)
    engine = connect(settings.database, settings.database_password())
    if service_role is not None and engine.dialect.name != "postgresql":
        fail("--service-role is for PostgreSQL; SQLite has no roles.")
    _check_ensembles(engine, settings)
    restored = upgrade(engine, key)
    if service_role is not None:
        grant(engine, service_role)
    say(f"{'Created' if made else 'Kept'} the secret key {settings.secret_key_path}.")
    if signer is not None:
        kept = f"{'Created' if signing else 'Kept'} the key of the transparency log"
        say(f"{kept} {settings.checkpoint_key_path}. Policies of students and auditors name it:")
        say(f"log {signer.verifier}")
    if restored:
        console.print(
            f"Restored in the ledger's tables: {'; '.join(restored)}. Nothing guarded what was "
            "written without them: run `terrine ledger verify all`.",
            style="bold yellow",
            highlight=False,
            soft_wrap=True,
        )
    try:
        Ledger(engine, key).check_sealed()
    except NotSealed as error:
        console.print(error.detail, style="bold yellow", highlight=False, soft_wrap=True)
        return
    say(f"The ledger is ready. Data directory: {settings.data_dir.absolute()}")


def _check_ensembles(engine: Engine, settings: Settings) -> None:
    """Refuse to migrate a ledger for a version that could not serve the ensembles that are here."""
    from terrine_server.errors import SchemaMismatch
    from terrine_server.ledger.copies import registrations
    from terrine_server.ledger.database import reading
    from terrine_server.ledger.migrating import missing_migrations

    try:
        with reading(engine) as connection:
            if not missing_migrations(connection):
                return
    except SchemaMismatch:  # there is none yet; or it is newer, which `upgrade` says
        return
    here = [each for each in registrations(engine) if (settings.data_dir / each.path).exists()]
    if not here:
        return
    from terrine_server.doctor import Severity, check_ensemble

    findings = [check_ensemble(each, settings) for each in here]
    wrong = [f"{each.check}: {each.found}" for each in findings if each.state is Severity.PROBLEM]
    if wrong:
        fail(
            "Nothing was migrated, because this version could not serve what is here. "
            f"{' '.join(wrong)} Go on with the version before, or repair it first: `terrine "
            "upgrade --check`, docs/upkeep.md."
        )


def _say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def serve(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = None,
) -> None:
    """Serve the HTTP API until interrupted.

    Environment variables set everything else: docs/settings.md.
    """
    with _refusing(), ExitStack() as stack:
        import structlog

        from terrine_server.serving import listening
        from terrine_server.settings import Settings

        settings = Settings() if port is None else Settings(port=port)
        sockets = listening.bind(settings.host, settings.port)  # before anything that takes time
        for own in sockets:
            stack.enter_context(own)
        _check(settings)
        from terrine_server import logs
        from terrine_server.app import create_app

        app = create_app(settings, alone=True)
        chosen = settings.log_format
        for warning in _warnings(settings, listening.allow_connections(settings.max_connections)):
            logs.say("warning", "may be a mistake", chosen=chosen, **warning)
        if not settings.checkpoint_key_path.exists():
            cause = "no key: run `terrine init`"
            logs.say("warning", "signs no checkpoints", chosen=chosen, cause=cause)
        logs.configure(settings.log_level, chosen)

        def announce(url: str) -> None:
            if logs.is_text(chosen):
                tell_addresses(url, settings)
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


def tell_addresses(url: str, settings: Settings) -> None:
    """Say at a terminal where the server is, where it keeps what, and how it is stopped."""
    from sqlalchemy import make_url

    database = make_url(settings.database)
    is_file = database.drivername.startswith("sqlite")
    told = {
        "Address, for students": url,
        "Pages for its owner": f"{url}/admin",
        "Ledger": str(database.database)
        if is_file
        else database.render_as_string(hide_password=True),
        "Data directory": str(settings.data_dir.absolute()),
    }
    wide = max(map(len, told))
    lines = ["Terrine is running.", *(f"  {what:{wide}}  {where}" for what, where in told.items())]
    lines.append("Stop it with Ctrl+C: requests that it has begun are answered first.")
    errors.print("\n".join(lines), markup=False, soft_wrap=True)


@contextmanager
def _refusing() -> Iterator[None]:
    """Write why the server cannot start as the last line of its log, and end with exit code 1."""
    try:
        yield
    except Exception as error:  # of any library; what `explain` does not know is raised again
        message = explain(error)
        if message is None or isinstance(error, ModuleNotFoundError):
            raise
        from terrine_server import logs

        chosen = os.environ.get("TERRINE_LOG_FORMAT", "auto")  # of settings that may be wrong
        for setting, cause in _causes(error, message):
            named = {"setting": setting} if setting else {}
            logs.say("error", "cannot start", chosen=chosen, cause=cause, **named)
        raise typer.Exit(1) from None


def _causes(error: Exception, message: str) -> Iterator[tuple[str | None, str]]:
    """Yield each setting that is wrong, if that is what is, and what is wrong."""
    from pydantic import ValidationError

    from terrine_server.serving.listening import CannotListen

    if isinstance(error, ValidationError):
        for found, line in zip(error.errors(), message.splitlines(), strict=True):
            yield (f"TERRINE_{found['loc'][0]}".upper() if found["loc"] else None), line
    else:
        yield (error.setting if isinstance(error, CannotListen) else None), message


def _check(settings: Settings) -> None:
    """Check what the server needs. Waits for a database that is starting."""
    from terrine_models.addons import added, added_as
    from terrine_server import doctor
    from terrine_server.ledger import connect
    from terrine_server.ledger.migrating import check_schema_once_started
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import VotersKind

    if not settings.data_dir.is_dir():
        fail(f"There is no data directory {settings.data_dir.absolute()}. Run `terrine init`.")
    engine = connect(settings.database, settings.database_password(), settings.database_seconds)
    check_schema_once_started(engine)
    engine.dispose()
    open_ledger(settings).check_sealed()
    if settings.device is not None:
        votes_on = doctor.check_device(settings.device)
        if votes_on.state is not doctor.Severity.OK:
            fail(votes_on.found)
    if settings.voters is not VotersKind.HERE and added_as("local_voters", settings.voters) is None:
        fail(
            f"TERRINE_VOTERS={settings.voters} needs the add-on `{settings.voters}`, which this "
            "installation of Terrine lacks."
        )
    if settings.oidc_issuer is not None and next(added("issuer"), None) is None:
        fail(
            "TERRINE_OIDC_ISSUER needs the add-on `oidc`, which this installation of Terrine lacks."
        )
    for check in added("start"):
        check(settings)


def _warnings(settings: Settings, most: int) -> Iterator[dict[str, str]]:
    """Yield what is probably not meant."""
    if most < settings.max_connections:
        yield {
            "setting": "TERRINE_MAX_CONNECTIONS",
            "cause": f"This process may open too few files for {settings.max_connections} "
            f"connections; it serves {most} at a time. Allow more files (`ulimit -n`).",
        }
    if EVERYBODY.intersection(settings.forwarded_allow_ips.replace(" ", "").split(",")):
        yield {
            "setting": "TERRINE_FORWARDED_ALLOW_IPS",
            "cause": "Everybody is trusted to say from which address a request comes, so nobody is "
            "limited by address. Name the proxies, unless nobody else can connect.",
        }


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
