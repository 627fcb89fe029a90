"""What the ledger, the settings and the code say about a service, gathered once.

Everything is in wire models, which name no secret, or in frozen records of this module.
"""

from __future__ import annotations

import base64
import hashlib
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from terrine_addons.dossier import words
from terrine_addons.dossier.words import FILE, DossierError, OwnerAnswers, load
from terrine_protocol import (
    Budget,
    EnsembleAccount,
    LogEntry,
    LogState,
    LogVerification,
    Outcome,
    ProjectInfo,
    Role,
    TokenInfo,
    Verification,
)
from terrine_protocol.files import read
from terrine_protocol.transparency import Policy
from terrine_server import views
from terrine_server.findings import AuditReport
from terrine_server.formats import describe_parameters
from terrine_server.ledger import Action, EnsembleRecord, Ledger, ProjectRecord
from terrine_server.owner.checkpoints import load_checkpoint_key, log_state, own_policy
from terrine_server.owner.operations import verify_log, verify_project
from terrine_server.planning.first_project import max_detection_rate, max_guess_accuracy
from terrine_server.privacy import Rule
from terrine_server.settings import Settings

PACKAGES = (
    "terrine_server",
    "terrine_addons",
    "terrine_protocol",
    "terrine_tables",
    "terrine_models",
    "terrine_client",
)
LIBRARIES = (
    "numpy",
    "scipy",
    "mpmath",
    "torch",
    "sqlalchemy",
    "psycopg",
    "cryptography",
    "fastapi",
)
"""Other code on which noise, prices, votes or the ledger rest."""


@dataclass(frozen=True)
class InstalledCode:
    """The code of this process's installation.

    `digests`: by package, the SHA-256 of lines `<SHA-256 of a file>  <path>`, by path, as
    `sha256sum` prints them. `altered`: files that are not those of the wheel; None if this is no
    installed wheel, which nothing can be compared with.
    """

    version: str
    python: str
    digests: Mapping[str, str]
    libraries: Mapping[str, str]
    altered: tuple[str, ...] | None


@cache
def running() -> InstalledCode:
    """Return what runs here: read once in a process, as its modules were."""
    installed = distribution("terrine")
    return InstalledCode(
        version=installed.version,
        python=platform.python_version(),
        digests={name: _digest(name) for name in PACKAGES if find_spec(name) is not None},
        libraries=dict(_versions()),
        altered=_find_altered(installed),
    )


def _versions() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _digest(package: str) -> str:
    spec = find_spec(package)
    assert spec is not None  # noqa: S101 - looked for before
    assert spec.submodule_search_locations is not None  # noqa: S101 - a package
    directory = Path(spec.submodule_search_locations[0])
    lines = hashlib.sha256()
    files = (path for path in directory.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: path.relative_to(directory).as_posix()):
        if "__pycache__" not in path.parts:
            name = path.relative_to(directory.parent).as_posix()
            lines.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n".encode())
    return lines.hexdigest()


def _find_altered(installed: Distribution) -> tuple[str, ...] | None:
    """Return the files that differ from the wheel's RECORD; None if it names none of ours."""
    recorded = [file for file in installed.files or () if file.hash and file.parts[0] in PACKAGES]
    if not recorded:
        return None
    found = []
    for file in recorded:
        assert file.hash is not None  # noqa: S101 - chosen above
        path = Path(str(file.locate()))
        digest = hashlib.new(file.hash.mode, path.read_bytes()).digest() if path.is_file() else b""
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            found.append(str(file))
    return tuple(found)


NOTABLE = (
    Action.KEY_CHANGED,
    Action.LEDGER_SEALED,
    Action.LEDGER_RESTORED,
    Action.LEDGER_LOST,
    Action.CAP_REDUCED,
    Action.CHARGES_LOST,
    Action.LEDGER_EXPORTED,
    Action.SPEND_SHOWN,
    Action.ACCOUNTS_FILLED,
    Action.ENSEMBLE_ADOPTED,
    Action.PROJECT_ADOPTED,
    Action.TOKEN_ADOPTED,
    Action.REQUEST_ADOPTED,
)
"""Acts that a reader should ask about: what left by another way, keys, and rows that were accepted
unverified."""
MAX_SHOWN_ACTS = 100
"""The most notable acts, newest last."""
PAGE_ENTRIES = 1000
_AUDIT = TypeAdapter(AuditReport)


@dataclass(frozen=True)
class AttackerOdds:
    """What the best attacker reaches at most, who knows all other records and sees all answers.

    `right`: how often a guess between two equally likely versions of a unit is right. `caught`: of
    how many a true suspicion is confirmed, at one false accusation in a hundred.
    """

    of: str
    epsilon: float
    delta: float
    right: float
    caught: float

    @classmethod
    def at(cls, of: str, epsilon: float, delta: float) -> AttackerOdds:
        """Compute them."""
        right, caught = max_guess_accuracy(epsilon, delta), max_detection_rate(epsilon, delta)
        return cls(of, epsilon, delta, right, caught)


@dataclass(frozen=True)
class TrainingFacts:
    """What an ensemble's manifest says of its training. `public`: what features were fitted on."""

    unit: Literal["record", "person", "teacher"]
    grouped_by: str | None
    smallest: int | None
    largest: int | None
    public: str | None


@dataclass(frozen=True)
class DossierEnsemble:
    """An ensemble with its cap; `spent` of it, by all projects that there ever were.

    `units`: how many there are, as last published. `most_units`: the most that were published.
    `wrong`: why its files are not those that were registered; None if they are, as far as they were
    read: all of them if the dossier verifies, else the manifest.
    """

    account: EnsembleAccount
    units: int
    most_units: int
    registered_at: datetime
    spent: int
    odds: AttackerOdds
    trained: TrainingFacts | None
    wrong: str | None


@dataclass(frozen=True)
class Project:
    """A project: its terms, what it released, to whose tokens, and whether its ledger is intact."""

    info: ProjectInfo
    budget: Budget
    genesis: str
    head: str
    outcomes: Mapping[Outcome, int]
    first: datetime | None
    last: datetime | None
    tokens: tuple[TokenInfo, ...]
    odds: tuple[AttackerOdds, ...]
    verification: Verification | None

    @property
    def keeps_secrets(self) -> bool:
        """Whether the database has a tally or accounts from which votes could be computed."""
        return self.info.publishing is not None or self.info.mechanism.name == "neighbours"


@dataclass(frozen=True)
class AdministrativeActs:
    """The administrative log: how many acts of each kind, and which to ask about."""

    entries: int
    counts: Mapping[str, int]
    notable: tuple[LogEntry, ...]
    actors: Mapping[str, str]
    """How people read the actors of these: a token with its label."""
    verification: LogVerification | None


class LastCheckpoint(LogState):
    """The last checkpoint, what `GET /ledger` says of it, and what comparing the tree with it
    found: `waiting` and `problems` are None if it was not compared with the ledger."""

    note: str
    waiting: int | None
    problems: tuple[str, ...] | None


@dataclass(frozen=True)
class Facts:
    """All that a dossier says, before anybody words it."""

    made_at: datetime
    only: str | None
    """The project that it is about; None if about all."""
    ensembles: tuple[DossierEnsemble, ...]
    projects: tuple[Project, ...]
    acts: AdministrativeActs
    staff: Mapping[Role, int]
    """How many tokens of auditors and admins are valid."""
    code: InstalledCode
    database: str
    issuer: bool
    """Whether people may sign in to the pages through an OpenID Connect issuer."""
    signer: str | None
    """The public key of the log, a vkey."""
    checkpoint: LastCheckpoint | None
    verified: bool
    audit: AuditReport | None
    told: OwnerAnswers

    @property
    def intact(self) -> bool:
        """Whether nothing that was verified is wrong."""
        found = [each.verification for each in self.projects] + [self.acts.verification]
        tree = None if self.checkpoint is None else self.checkpoint.problems
        return not tree and all(each is None or each.ok for each in found)

    def ensemble(self, project: Project) -> DossierEnsemble:
        """Return the ensemble of a project."""
        name = project.info.ensemble.name
        return next(each for each in self.ensembles if each.account.name == name)


def read_audit(path: Path) -> AuditReport:
    """Read the report of an audit. Raises DossierError, or OSError."""
    try:
        return _AUDIT.validate_json(read(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise DossierError(
            f"{path} is not a report of `terrine --json audit` of this version: {where}: "
            f"{first['msg']}. Run the audit again."
        ) from None


def gather(
    ledger: Ledger,
    settings: Settings,
    *,
    project: str | None = None,
    policy: Policy | None = None,
    audit: AuditReport | None = None,
    verify: bool,
) -> Facts:
    """Read everything, of one project or of all. `verify`: also recompute ledger, log and tree.

    `policy`: whose cosignatures the log needs; by default, that of the settings, or the log's key
    alone. Raises NotFound, DossierError, CheckpointError or ServiceError.
    """
    signer = load_checkpoint_key(settings.checkpoint_key_path)
    records = [ledger.project(project)] if project else list(_every_project(ledger))
    wanted = {record.ensemble.name for record in records} if project else None
    spent = ledger.spent_of_caps()
    ensembles = {
        record.name: _ensemble(record, spent.get(record.population.id, 0), settings, verify)
        for record in ledger.ensembles()
        if wanted is None or record.name in wanted
    }
    now = datetime.now(UTC)
    staff: Counter[Role] = Counter(
        token.role
        for token in ledger.list_tokens()
        if token.role is not Role.STUDENT and token.revoked_at is None and token.expires_at > now
    )
    return Facts(
        made_at=now,
        only=project,
        ensembles=tuple(ensembles.values()),
        projects=tuple(
            _project(ledger, record, ensembles[record.ensemble.name].wrong is None, verify)
            for record in records
        ),
        acts=_acts(ledger, verify),
        staff=dict(staff),
        code=running(),
        database="SQLite" if settings.database.startswith("sqlite") else "PostgreSQL",
        issuer=settings.oidc_issuer is not None,
        signer=None if signer is None else str(signer.verifier),
        checkpoint=_checkpoint(ledger, policy or own_policy(settings), verify),
        verified=verify,
        audit=audit,
        told=load(settings.data_dir / FILE),
    )


def _every_project(ledger: Ledger) -> Iterator[ProjectRecord]:
    after = None
    while page := ledger.projects(after, PAGE_ENTRIES):
        yield from page
        after = page[-1].name


def _project(ledger: Ledger, record: ProjectRecord, available: bool, verify: bool) -> Project:
    history, terms = ledger.history(record.name), record.terms
    budget = views.budget(record)
    oldest = ledger.charges(record.name, limit=1)
    return Project(
        info=views.project(record, available),
        budget=budget,
        genesis=record.genesis,
        head=record.head,
        outcomes=history.outcomes,
        first=oldest[0].created_at if oldest else None,
        last=history.reached[-1].at if history.reached else None,
        tokens=tuple(TokenInfo.model_validate(token) for token in ledger.list_tokens(record.name)),
        odds=(
            AttackerOdds.at("its budget, if all of it is spent", terms.epsilon, terms.delta),
            AttackerOdds.at(
                "what it spent so far (for information: the budget is the guarantee)",
                budget.epsilon_spent,
                terms.delta,
            ),
        ),
        verification=verify_project(ledger, record.name) if verify else None,
    )


def _ensemble(
    record: EnsembleRecord, spent: int, settings: Settings, verify: bool
) -> DossierEnsemble:
    from terrine_models.storage.manifests import StoreError
    from terrine_models.teachers.kinds import ensemble_format, load_manifest

    directory, trained, wrong = settings.data_dir / record.current.path, None, None
    try:
        held = ensemble_format(directory)
        if held.has_manifest:
            trained = _collect_training(load_manifest(directory), record)
        else:
            trained = TrainingFacts("teacher", record.facts.disjoint_by, None, None, None)
        if verify:
            held.verify(directory)
        if held.digest(directory) != record.current.manifest_sha256:
            wrong = "another manifest than the one that was registered"
    except (StoreError, OSError) as error:
        wrong = str(error)
    return DossierEnsemble(
        account=views.ensemble_account(record, wrong is None),
        units=record.published_units,
        most_units=record.most_units,
        registered_at=record.registered_at,
        spent=spent,
        odds=AttackerOdds.at("the cap", record.population.epsilon, record.population.delta),
        trained=trained,
        wrong=wrong,
    )


def _collect_training(manifest: Any, record: EnsembleRecord) -> TrainingFacts:
    features = getattr(manifest.teacher, "features", None)
    fitted = getattr(features, "fitted_on", None)
    public = None if fitted is None else f"{fitted.name}, {fitted.records:,} records"
    parts = manifest.partition
    if parts is None and record.facts.disjoint_by is not None:
        return TrainingFacts("teacher", record.facts.disjoint_by, None, None, public)
    if parts is None:
        return TrainingFacts("record", None, None, None, public)
    unit: Literal["person", "record"] = "person" if parts.recipe == "groups" else "record"
    return TrainingFacts(unit, parts.group_column, parts.smallest, parts.largest, public)


def _acts(ledger: Ledger, verify: bool) -> AdministrativeActs:
    counts: Counter[str] = Counter()
    notable: list[LogEntry] = []
    after = 0
    while page := ledger.log(after, PAGE_ENTRIES):
        counts.update(entry.action for entry in page)
        notable += [entry for entry in page if entry.action in NOTABLE]
        after = page[-1].seq
    shown = tuple(notable[-MAX_SHOWN_ACTS:])
    return AdministrativeActs(
        entries=after,
        counts=dict(sorted(counts.items())),
        notable=shown,
        actors=views.actors(ledger, (entry.actor for entry in shown)),
        verification=verify_log(ledger) if verify else None,
    )


def _checkpoint(ledger: Ledger, policy: Policy | None, verify: bool) -> LastCheckpoint | None:
    note = ledger.checkpoint()
    state = log_state(note, policy)
    if note is None or state is None:
        return None
    check = ledger.check_tree(policy, {}) if verify and policy is not None else None
    return LastCheckpoint(
        **state.model_dump(),
        note=note,
        waiting=None if check is None else check.waiting,
        problems=None if check is None else tuple(check.problems),
    )


Entry = Mapping[str, Any]

MARGINS = "margins"
"""The kind of an ensemble whose people say in which cells one of their rows lies."""
CENTRAL = "The owner holds the records and what votes for them, and adds the noise."
MODELS = {
    "remote": "The owners keep their teachers, which vote on their machines; the service sees the "
    "votes, and adds the noise.",
}
UNITS = {"record": "Record-level", "person": "Person-level", "teacher": "Teacher-level"}
COMPOSITION = {
    "gdp": "Adaptive composition in Gaussian DP: a query is admitted while the sum of μ² of all "
    "queries stays within the budget (Smith and Thakurta 2022; Koskela, Tobaben and Honkela)",
    "rdp": "Adaptive composition of Rényi divergences at one order that was fixed beforehand "
    "(Feldman and Zrnic 2021), converted to (ε, δ) by Canonne, Kamath and Steinke 2020, Prop. 12",
}


def entry(facts: Facts, project: Project) -> Entry:
    """Return the registry's entry of a project, as plain values."""
    told, info, ensemble = facts.told, project.info, facts.ensemble(project)
    return {
        "url_slug": info.name,
        "deployment": {
            "basic": {
                "name": info.title or info.name,
                "data_curators": [
                    {
                        "data_curator_name": told["curator.name"],
                        "data_curator_type": told["curator.type"],
                    }
                ],
                "description": f"{what_leaves(info, ensemble)} {told['use.description']}",
                "intended_use": info.purpose or told["use.intended"],
                "data_product_type": "Interactive API",
                "data_product_region": told["data.region"],
                "data_product_sector": told["data.sector"],
                "publication_date": f"{project.first or info.opened_at:%Y-%m-%d}",
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"{told['data.content']} As inputs: "
                f"{' × '.join(map(str, info.ensemble.input.shape))} numbers "
                f"({info.ensemble.input.dtype}, {info.ensemble.input.low:g} to "
                f"{info.ensemble.input.high:g}), with one of {len(info.ensemble.classes)} classes.",
                "unprotected_quantities": _explain_unprotected(ensemble),
            },
            "privacy_loss": {
                "privacy_unit": UNITS[ensemble.trained.unit] if ensemble.trained else "Unknown",
                "privacy_unit_details": unit_details(ensemble),
                "number_of_privacy_units": ensemble.units,
                "privacy_parameters": {"epsilon": info.epsilon, "delta": info.delta},
                "privacy_parameters_details": _parameters(project, ensemble),
            },
            "deployment_model": {
                "model_name": "Federated" if info.ensemble.kind in MODELS else "Central",
                "model_name_details": MODELS.get(info.ensemble.kind, CENTRAL),
                "trust_assumptions": "The data owner is trusted with the records, and not needed "
                "to be trusted with history, as far as witnesses cosign the ledger's log. Students "
                "are not trusted: they may collude, adapt and know all other records. "
                f"{told['people.students']}",
                "actors": f"{told['people.roles']} Students with tokens: "
                f"{len(project.tokens)} so far. Valid tokens of auditors and admins: "
                f"{sum(facts.staff.values())}.",
                "release_type": "Many releases",
                "release_type_details": f"{sum(project.outcomes.values()):,} ledger entries so "
                "far. The budget is never renewed: when it is spent, the service refuses. The "
                "project was "
                + (
                    f"closed on {info.closed_at:%Y-%m-%d}." if info.closed_at else "not closed yet."
                ),
                "data_source_type": "Static",
                "data_source_type_details": "The records are those of the registration. If people "
                "left or came since, the administrative log says when, and the number of units is "
                "the one that was last published. Another ensemble of the "
                "same people shares the cap.",
                "access_type": "Interactive",
                "access_type_details": "The budget belongs to the project, whose students share "
                "it. Non-collusion is not assumed: all projects of an ensemble together stay "
                f"within its cap of ε = {ensemble.account.epsilon:g}, "
                f"δ = {ensemble.account.delta:g}.",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _features(ensemble)
                + told["choices.tuning"],
                "mechanisms": _mechanisms(facts, project),
                "composition": f"{COMPOSITION[info.rule.name]}. Each query pays the "
                "price of the outcome that it got, known before it ran; refusals depend on what "
                "students know already. What is sent again is answered from the record, free.",
                "post_processing": "Answers that were given are repeated as they are. Whatever a "
                "student computes from answers, such as a model, is post-processing.",
                "justification": told["choices.budget"],
                "utility": told["choices.utility"],
                "additional_information": f"Ledger: {facts.database}, genesis {project.genesis}, "
                f"head {project.head}. {words.PROMISE[1]}",
            },
            "administrative": {
                "evidence_sources": {
                    "dossier": {
                        "evidence_source_type": "Authorized organizational attestation",
                        "misc": {"title": "Dossier", "note": told["registry.sources"]},
                    }
                },
                "status": "Draft",
                "registry_authors": [told["registry.authors"]],
                "tier": 3,
            },
        },
    }


def flat(value: Any, above: str = "") -> Sequence[tuple[str, Any]]:
    """Return the fields of an entry in a table: their paths, and plain values."""
    if isinstance(value, Mapping):
        items = [(f"{above}.{name}".lstrip("."), each) for name, each in value.items()]
    elif isinstance(value, list):
        items = [(above, each) for each in value]
    else:
        return [(above, value)]
    return [row for path, each in items for row in flat(each, path)]


def what_leaves(info: ProjectInfo, ensemble: DossierEnsemble) -> str:
    """Say what students get for an input, and who votes; and what the project began with."""
    release = info.ensemble.release
    answers = _what_answers_tell(info, ensemble)
    if release is None:
        return answers
    return (
        f"First, once, {len(release.cells)} histograms leave: of one row of each unit, how many "
        "are in which cell of each column, with random noise on every number; the rows that are "
        f"asked are made of them, and published. {answers}"
    )


def _what_answers_tell(info: ProjectInfo, ensemble: DossierEnsemble) -> str:
    units = f"{ensemble.units:,}"
    teachers = (
        f"{info.ensemble.teachers:,} teachers, each trained on a disjoint part of the records"
    )
    match info.mechanism.name:
        case "neighbours":
            of = "people" if ensemble.trained and ensemble.trained.unit == "person" else "records"
            return (
                "For each input that a student sends, noisy counts leave: one number for each "
                "class, of the votes for it with random noise, and the class with the largest. The "
                f"{units} {of} vote themselves, where they are near the input; "
                "an account of each limits what its votes tell in this project; of all projects "
                "together, the cap is the limit. No model is trained; the service's directory "
                "holds a copy of every record, as coordinates with its label."
            )
        case "noisy_votes" if info.ensemble.kind == MARGINS:
            return (
                "Histograms leave: of one row of each unit, how many are in which cell of each "
                "column, with random noise on every number. Rows that students ask about are made "
                f"of them. No model is trained; the service's directory holds the cells of {units} "
                "rows."
            )
        case "noisy_votes":
            return (
                "For each input that a student sends, noisy counts leave: one number for each "
                "class, of the votes for it with random noise, and the class with the largest. "
                f"Votes are cast by {teachers} (PATE)."
            )
        case name:
            counts = "" if "." in name else " No count of votes leaves."  # of another package
            return (
                "For each input that a student sends, a class leaves, or that there is none: the "
                f"outcome of a vote, with random noise, of {teachers} (PATE).{counts}"
            )


def unit_details(ensemble: DossierEnsemble) -> str:
    """Say what neighbouring data sets are."""
    trained = ensemble.trained
    if trained is None:
        return "Unknown: the ensemble's manifest cannot be read."
    what = {
        "record": "one record",
        "person": f"one person, who is all rows with the same {trained.grouped_by},",
        "teacher": f"all that one teacher was trained on (disjoint by: {trained.grouped_by})",
    }[trained.unit]
    begins = (
        ""
        if ensemble.account.release is None
        else " Of the histograms that a project begins with, one unit of each may move to another "
        "cell."
    )
    changes = (
        "The votes of this unit alone may change, within its account in each project."
        if ensemble.account.kind == "neighbours"
        else "One vote of each histogram may move from one cell to another."
        if ensemble.account.kind == MARGINS
        else f"Exactly one of {ensemble.account.teachers:,} teachers may change, and one vote with "
        "it."
    )
    return (
        f"Data sets are neighbours if they differ in {what} replaced in place by anything else "
        f"(bounded DP: the number, {ensemble.units:,}, is public). {changes}{begins}"
    )


def _explain_unprotected(ensemble: DossierEnsemble) -> str:
    account = ensemble.account
    schema = " The table's schema." if account.encoding else ""
    prior = (
        " Teachers match their own records' share of classes on public rows."
        if account.matches_prior and account.kind != "neighbours"
        else ""
    )
    by_units = account.kind == "neighbours"
    teachers = "" if by_units else f" and of teachers ({account.teachers:,})"
    time = ", which grow with the number of records," if by_units else ","
    return (
        f"Public by declaration, the same for all neighbours: the number of units "
        f"({ensemble.units:,}){teachers}, the classes ({', '.join(account.classes[:30])}), the "
        f"format of inputs, all settings, and a salted digest of the ensemble's files."
        f"{schema}{prior} Response times{time} and that a request fails because something was slow "
        "or crashed, are not covered."
    )


def _parameters(project: Project, ensemble: DossierEnsemble) -> str:
    info, split, spent = project.info, project.info.delta_split, project.budget
    return (
        f"Of δ, {split.conversion:g} converts the spend into ε, {split.stability:g} is for tests "
        f"of stability, {split.publication:g} for published bounds and {split.sampler:g} for the "
        f"sampler. {Rule(**info.rule.model_dump())}: budget {spent.budget}, spent {spent.spent} "
        f"(units of 1e-12), so far ε = {spent.epsilon_spent:.6g} at the same δ. "
        f"All projects of the ensemble together: ε = {ensemble.account.epsilon:g}, "
        f"δ = {ensemble.account.delta:g}."
    )


def _features(ensemble: DossierEnsemble) -> str:
    trained = ensemble.trained
    if trained is None or trained.public is None:
        return ""
    return (
        f"Features were fitted on public data alone ({trained.public}), by declaration of the "
        "owner; this costs no privacy. "
    )


def _mechanisms(facts: Facts, project: Project) -> str:
    info, code = project.info, facts.code
    spec = info.mechanism.model_dump(mode="json")
    release = info.ensemble.release
    first = (
        ""
        if release is None
        else f"{release.kind} ({len(release.cells)}, sigma = {release.sigma:g}; "
        "docs/privacy/margins.md); then "
    )
    return (
        f"{first}{spec['name']} ({describe_parameters(spec)}); docs/privacy/{spec['name']}.md has "
        f"algorithm, proof and tests. Own implementation: Terrine {code.version}, Python "
        f"{code.python}. Noise is discrete, sampled exactly by inversion from 256 bits of the "
        "operating system's randomness, so there is no floating-point noise. "
        f"Timing: {words.SIDE_CHANNELS[0]} Platform: {words.SIDE_CHANNELS[1]} Security: bearer "
        "tokens by role, kept as keyed hashes; records, their copies and teachers stay on the "
        "owner's machine; each answer is paid in a hash-chained ledger before it is sent. Code: "
        f"SHA-256 of terrine_server {code.digests['terrine_server']}."
    )
