"""`terrine ledger verify` and `terrine ledger anchor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.bars import entries_bar
from terrine_server.cli.console import console, errors, fail, opened_ledger, writing

if TYPE_CHECKING:
    from terrine_server.ledger import Ledger, LogVerificationRecord, VerificationRecord
    from terrine_server.ledger.anchors import Anchor, AnchorFile, LogAnchor

Project = Annotated[str | None, typer.Argument(help="A project, or `all`.", show_default="all")]


def verify(
    project: Project = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON written by `export`, to verify instead of the ledger.",
        ),
    ] = None,
    anchor: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File written by `anchor`; the books must still match it."
        ),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ed25519 key that must have signed the anchor."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Trust the signed anchor, and check only what follows it."),
    ] = False,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Whose signatures the transparency log needs; it is verified, too, with all.",
        ),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A checkpoint of any time, which the log must continue. Repeat it."
        ),
    ] = None,
    accounts: Annotated[
        Path | None,
        typer.Option(
            metavar="INPUTS",
            help="For a project of neighbours: .npy or .npz with all inputs that students asked, "
            "such as the pool; each person's account is recomputed from the records.",
        ),
    ] = None,
) -> None:
    """Recompute every hash, number, price, balance and seal. Exits with code 1 if any is wrong.

    With `all`, also the administrative log, and requests, tokens, projects and ensembles by it.

    An older backup, a rewritten chain, or entries removed from the end together with a balance set
    back to match, are consistent in themselves: only what is kept elsewhere reveals them, an anchor
    or a checkpoint, or the cosignatures of witnesses. See docs/transparency.md.
    """
    from terrine_server.ledger.verifying.walk import verify_export

    if file is not None and project is not None:
        fail("Name a project or give --file with an export, not both.")
    if resume and public_key is None:
        fail("--resume trusts an anchor, so it must be signed: give --public-key as well.")
    if accounts is not None and (file is not None or project in (None, "all")):
        fail("--accounts goes with one project of this machine's ledger: name it.")
    if public_key is not None and anchor is None:
        fail("--public-key checks an anchor's signature: give --anchor as well.")
    if policy is not None and (file is not None or project not in (None, "all")):
        fail("--policy verifies the log of all projects: leave --file and the project out.")
    if checkpoint and policy is None:
        fail("--checkpoint is held against the log: give --policy as well.")
    read = _read(anchor, public_key)
    anchors = None if read is None else {found.project: found for found in read.anchors}
    if file is not None:
        with entries_bar(errors, file.name) as progress:
            found = verify_export(file, anchors or {}, resume, progress)
        _check_anchored(found.project, anchors)
        intact = _report(found)
    else:
        log = None if read is None else read.log
        intact = _verify_ledger(project or "all", anchors, log, resume)
        if policy is not None:
            intact = _verify_tree(policy, checkpoint or []) and intact
        if accounts is not None:
            intact = _verify_accounts(project or "all", accounts) and intact
    if not intact:
        raise typer.Exit(1)


def anchor(
    project: Project = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ed25519 key to sign with (PEM).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Verify the books, then write an anchor: where each chain stands now.

    Later, `terrine ledger verify --anchor FILE` shows whether the books still hold all entries up
    to the anchor. Keep the file, and above all the key, where nobody who can write to the database
    can reach them.

    A key:  openssl genpkey -algorithm ed25519 -out anchor.key
            openssl pkey -in anchor.key -pubout -out anchor.pub
    """
    from terrine_server.ledger.anchors import load_private_key, write_anchors
    from terrine_server.owner.verification import verify_log, verify_project

    signing = load_private_key(key) if key is not None else None
    ledger = opened_ledger()
    log = verify_log(ledger)
    if log.anchor is None:
        report_log(log)
        fail("The administrative log is not intact, so nothing can be anchored.")
    anchors = []
    for name in ledger.project_names() if project in (None, "all") else [project]:
        with entries_bar(errors, name) as progress:
            found = verify_project(ledger, name, progress=progress)
        if found.anchor is None:
            _report(found)
            fail(f"The books of {name} are not intact, so they cannot be anchored.")
        anchors.append(found.anchor)
    with writing(output) as file:
        file.write(write_anchors(anchors, signing, log.anchor))
    if output is not None:
        line = f"Wrote anchors of {len(anchors)} projects and the log to {output}"
        console.print(f"{line}{', signed' if key else ''}.", highlight=False, soft_wrap=True)


def _read(path: Path | None, public_key: Path | None) -> AnchorFile | None:
    from terrine_server.ledger.anchors import load_public_key, read_anchors

    if path is None:
        return None
    found = read_anchors(path, load_public_key(public_key) if public_key else None)
    if found.signed and public_key is None:
        errors.print(f"The signature of {path} was not checked: give --public-key.", soft_wrap=True)
    return found


def _check_anchored(project: str, anchors: dict[str, Anchor] | None) -> None:
    if anchors is not None and project not in anchors:
        fail(f"The anchor file has no anchor of project {project}.")


def _verify_ledger(
    project: str, anchors: dict[str, Anchor] | None, log: LogAnchor | None, resume: bool
) -> bool:
    from terrine_server.owner.verification import verify_log, verify_project

    ledger = opened_ledger()
    there, anchored = ledger.project_names(), anchors or {}
    if project != "all":
        _check_anchored(project, anchors)
    names = sorted({*there, *anchored}) if project == "all" else [project]
    intact = True
    for name in names:
        if name in anchored and name not in there:
            console.print(f"{name}: [bold red]NOT INTACT[/], gone", highlight=False)
            line = f"  anchor: present at {anchored[name].made_at}; an older backup was restored"
            console.print(line, highlight=False, soft_wrap=True)
            intact = False
            continue
        with entries_bar(errors, name) as progress:
            found = verify_project(ledger, name, anchored.get(name), resume, progress)
        intact = _report(found) and intact
        if found.ok:
            _say_missing(ledger, name)
    if not names:
        console.print("No project has been opened yet.")
    if project == "all":
        found_in_log = verify_log(ledger, log)
        intact = report_log(found_in_log) and intact
    return intact


def _verify_tree(path: Path, checkpoints: list[Path]) -> bool:
    from terrine_protocol.files import read
    from terrine_protocol.transparency.notes import LARGEST
    from terrine_server.owner.checkpoints import load_policy

    policy = load_policy(path)
    assert policy is not None  # noqa: S101 - there is a path
    earlier = {str(each): read(each, LARGEST).decode(errors="replace") for each in checkpoints}
    found = opened_ledger().check_tree(policy, earlier)
    verdict = "[green]intact[/]" if found.ok else "[bold red]NOT INTACT[/]"
    by = ", ".join(sorted(found.cosigned)) or "nobody"
    line = f"transparency log: {verdict}, {found.size} entries, cosigned by {by}"
    console.print(line, highlight=False, soft_wrap=True)
    if found.waiting:
        console.print(f"  {found.waiting} entries are not in it yet", highlight=False)
    for problem in found.problems:
        console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
    return found.ok


def _say_missing(ledger: Ledger, project: str) -> None:
    """Say so if a project's mechanism is of a package that is not here."""
    from terrine_server.privacy import ParameterError, build_mechanism

    record = ledger.project(project)
    facts, spec = record.ensemble.facts, record.mechanism
    if "." not in spec["name"]:
        return
    try:
        build_mechanism(spec, teachers=facts.teachers, classes=len(facts.classes))
    except ParameterError as error:
        console.print(
            f"  {error} Its prices were recomputed from the cost events on record; that they are "
            "those of the mechanism, only its package shows, and until it is installed nothing is "
            "answered.",
            highlight=False,
            soft_wrap=True,
        )


def _verify_accounts(project: str, path: Path) -> bool:
    from terrine_models.data.arrays import load_inputs
    from terrine_server.labeling.local_voters import LocalVoters
    from terrine_server.labeling.recasting import recast
    from terrine_server.settings import Settings

    settings = Settings()
    voters = LocalVoters(settings.data_dir, settings.device)
    found = recast(opened_ledger(), voters, project, load_inputs(path))
    if found.same is None:
        line = f"not recomputed: {found.unknown} of {found.queries} queries are not in {path}"
    elif found.same:
        line = f"[green]intact[/], as the records make them in {found.queries} queries"
    else:
        line = "[bold red]NOT INTACT[/], not those that the records make"
    console.print(f"{project}: accounts {line}", highlight=False, soft_wrap=True)
    return found.same is True


def report_log(found: LogVerificationRecord) -> bool:
    """Print whether the administrative log is intact, and return it."""
    verdict = "[green]intact[/]" if found.ok else "[bold red]NOT INTACT[/]"
    line = f"administrative log: {verdict}, {found.entries} entries"
    console.print(line, highlight=False, soft_wrap=True)
    console.print(f"  head {found.head}", highlight=False, soft_wrap=True)
    for problem in found.problems:
        console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
    return found.ok


def _report(found: VerificationRecord) -> bool:
    verdict = "[green]intact[/]" if found.ok else "[bold red]NOT INTACT[/]"
    vouched = f", the first {found.vouched} trusted to the anchor" if found.vouched else ""
    line = f"{found.project}: {verdict}, {found.charges} charges{vouched}"
    console.print(line, highlight=False, soft_wrap=True)
    console.print(f"  head {found.head}", highlight=False, soft_wrap=True)
    for problem in found.problems:
        console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
    return found.ok
