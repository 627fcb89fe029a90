"""What the ledger, the settings and the code say about a service, gathered once.

Everything is in wire models, which name no secret, or in frozen records of this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

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
from terrine_protocol.transparency.policies import Policy
from terrine_server import views
from terrine_server.dossier.code import InstalledCode, running
from terrine_server.dossier.owner_answers import FILE, DossierError, OwnerAnswers, load
from terrine_server.findings import AuditReport
from terrine_server.ledger import Action, EnsembleRecord, Ledger, ProjectRecord
from terrine_server.owner.checkpoints import load_checkpoint_key, log_state, own_policy
from terrine_server.owner.verification import verify_log, verify_project
from terrine_server.planning.first_project import caught_at_most, right_at_most
from terrine_server.settings import Settings

NOTABLE = (
    Action.KEY_CHANGED,
    Action.LEDGER_SEALED,
    Action.LEDGER_RESTORED,
    Action.LEDGER_EXPORTED,
    Action.SPEND_SHOWN,
    Action.ACCOUNTS_FILLED,
    Action.ENSEMBLE_ADOPTED,
    Action.PROJECT_ADOPTED,
    Action.TOKEN_ADOPTED,
    Action.REQUEST_ADOPTED,
)
"""Acts that a reader should ask about: what left by another way, keys, and rows that were believed
on somebody's word."""
SHOWN = 100
"""The most notable acts, newest last."""
PAGE = 1000
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
        right, caught = right_at_most(epsilon, delta), caught_at_most(epsilon, delta)
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

    `wrong`: why its files are not those that were registered; None if they are, as far as they were
    read: all of them if the dossier verifies, else the manifest.
    """

    account: EnsembleAccount
    units: int
    registered_at: datetime
    spent: int
    odds: AttackerOdds
    trained: TrainingFacts | None
    wrong: str | None


@dataclass(frozen=True)
class Project:
    """A project: its terms, what it released, to whose tokens, and whether its books are whole."""

    info: ProjectInfo
    budget: Budget
    units: int
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
    """The last checkpoint, what `GET /ledger` says of it, and what holding the tree against it
    found: `waiting` and `problems` are None if it was not held against the ledger."""

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
            f"{path} is no report of `terrine --json audit` of this version: {where}: "
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
    """Read everything, of one project or of all. `verify`: also recompute books, log and tree.

    `policy`: whose cosignatures the log needs; by default, that of the settings, or the log's key
    alone. Raises NotFound, DossierError, CheckpointError or TerrineError.
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
    while page := ledger.projects(after, PAGE):
        yield from page
        after = page[-1].name


def _project(ledger: Ledger, record: ProjectRecord, available: bool, verify: bool) -> Project:
    history, terms = ledger.history(record.name), record.terms
    budget = views.budget(record)
    oldest = ledger.charges(record.name, limit=1)
    return Project(
        info=views.project(record, available),
        budget=budget,
        units=record.ensemble.units,
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
    from terrine_models.storage.manifests import StoreError, manifest_digest
    from terrine_models.teachers.federation import (
        federation_digest,
        is_federation,
        verified_digest,
    )
    from terrine_models.teachers.kinds import load_manifest

    directory, trained, wrong = settings.data_dir / record.current.path, None, None
    try:
        if is_federation(directory):
            identity = federation_digest
            trained = TrainingFacts("teacher", record.facts.disjoint_by, None, None, None)
        else:
            identity = manifest_digest
            trained = _trained(load_manifest(directory), record)
        digest = (verified_digest if verify else identity)(directory)
        if digest != record.current.manifest_sha256:
            wrong = "another manifest than the one that was registered"
    except (StoreError, OSError) as error:
        wrong = str(error)
    return DossierEnsemble(
        account=views.ensemble_account(record, wrong is None),
        units=record.units,
        registered_at=record.registered_at,
        spent=spent,
        odds=AttackerOdds.at("the cap", record.population.epsilon, record.population.delta),
        trained=trained,
        wrong=wrong,
    )


def _trained(manifest: Any, record: EnsembleRecord) -> TrainingFacts:
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
    while page := ledger.log(after, PAGE):
        counts.update(entry.action for entry in page)
        notable += [entry for entry in page if entry.action in NOTABLE]
        after = page[-1].seq
    shown = tuple(notable[-SHOWN:])
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
