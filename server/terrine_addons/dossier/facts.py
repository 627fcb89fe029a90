"""What the ledger says about a service, verified, and the page that is made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined

from terrine_protocol import LogEntry, LogState, LogVerification, Outcome, Role, Verification
from terrine_server.formats import FILTERS, format_share, show_value
from terrine_server.ledger import (
    EnsembleRecord,
    Ledger,
    PopulationRecord,
    ProjectRecord,
    TokenRecord,
)
from terrine_server.ledger.transparency import LogCheck
from terrine_server.owner.checkpoints import log_state, own_policy
from terrine_server.owner.operations import verify_log, verify_project
from terrine_server.planning.first_project import max_detection_rate, max_guess_accuracy
from terrine_server.settings import Settings

# A page with its style inside, and nothing else to load.
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Projects, or acts, that are read at a time.
PAGE_ENTRIES = 1000


@dataclass(frozen=True)
class ProjectFacts:
    """A project: its account, what it released and when, to whose tokens; and whether it holds."""

    record: ProjectRecord
    outcomes: Mapping[Outcome, int]
    first: datetime | None
    last: datetime | None
    tokens: Sequence[TokenRecord]
    verification: Verification


@dataclass(frozen=True)
class EnsembleFacts:
    """An ensemble, and why its files are not those that were registered; None if they are."""

    record: EnsembleRecord
    wrong: str | None


@dataclass(frozen=True)
class Facts:
    """All that a dossier says. `only`: the project that it is about; None if about all."""

    made_at: datetime
    version: str
    database: str
    only: str | None
    projects: Sequence[ProjectFacts]
    ensembles: Sequence[EnsembleFacts]
    spent: Mapping[PopulationRecord, int]
    """What of the cap of each population was spent, by all projects that there ever were."""
    staff: Mapping[Role, int]
    """How many tokens of auditors and admins are valid."""
    acts: Mapping[str, int]
    """How many entries of each kind the administrative log has."""
    log: LogVerification
    checkpoint: str | None
    """The last one of the transparency log, with its cosignatures."""
    state: LogState | None
    """What that says."""
    tree: LogCheck | None
    """What comparing the ledger with it found; None without a key or a policy to check it by."""
    keys: Sequence[str]
    """The keys of the log that are known here."""

    @property
    def problems(self) -> list[tuple[str, str]]:
        """What was verified and is wrong, and in what, the first finding first."""
        found = [(f"the ledger of {each.record.name}", each.verification) for each in self.projects]
        return [
            *((what, problem) for what, verified in found for problem in verified.problems),
            *(("the administrative log", problem) for problem in self.log.problems),
            *(("the transparency log", each) for each in (self.tree.problems if self.tree else ())),
        ]

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong with the ledger and its log."""
        return not self.problems


def gather(ledger: Ledger, settings: Settings, project: str | None = None) -> Facts:
    """Read everything, of one project or of all, and then verify what was read.

    Raises NotFound, CheckpointError, OSError, or another ServiceError for what cannot be read.
    """
    policy, now = own_policy(settings), datetime.now(UTC)
    records = [ledger.projects.get(project)] if project else list(_every_project(ledger))
    read = [
        (record, ledger.entries.history(record.name), ledger.entries.list(record.name, limit=1))
        for record in records
    ]
    wanted = {record.ensemble.name for record in records} if project else None
    ensembles = [each for each in ledger.ensembles.list() if wanted is None or each.name in wanted]
    spent = ledger.projects.spent_of_caps()
    acts = Counter(entry.action for entry in _every_act(ledger))
    checkpoint = ledger.tree.checkpoint()
    return Facts(
        made_at=now,
        version=version("terrine"),
        database="SQLite" if settings.database.startswith("sqlite") else "PostgreSQL",
        only=project,
        projects=[
            ProjectFacts(
                record,
                history.outcomes,
                oldest[0].created_at if oldest else None,
                history.reached[-1].at if history.reached else None,
                ledger.tokens.list(record.name),
                verify_project(ledger, record.name),
            )
            for record, history, oldest in read
        ],
        ensembles=[EnsembleFacts(each, _find_wrong_files(each, settings)) for each in ensembles],
        spent={each.population: spent.get(each.population.id, 0) for each in ensembles},
        staff=Counter(
            token.role
            for token in ledger.tokens.list()
            if token.revoked_at is None and token.expires_at > now
        ),
        acts=dict(sorted(acts.items())),
        log=verify_log(ledger),
        checkpoint=checkpoint,
        state=log_state(checkpoint, policy),
        tree=ledger.tree.check(policy, {}) if checkpoint and policy else None,
        keys=[str(party.key) for party in policy.logs] if policy else [],
    )


def _every_project(ledger: Ledger) -> Iterator[ProjectRecord]:
    after = None
    while page := ledger.projects.list(after, PAGE_ENTRIES):
        yield from page
        after = page[-1].name


def _every_act(ledger: Ledger) -> Iterator[LogEntry]:
    after = 0
    while page := ledger.log.list(after, PAGE_ENTRIES):
        yield from page
        after = page[-1].seq


def _find_wrong_files(record: EnsembleRecord, settings: Settings) -> str | None:
    from terrine_models.storage.manifests import StoreError
    from terrine_models.teachers.kinds import verify_ensemble

    held = record.current
    try:
        if verify_ensemble(settings.data_dir / held.path) != held.manifest_sha256:
            return "another manifest than the one that was registered"
    except (StoreError, OSError) as error:
        return str(error)
    return None


def render(facts: Facts) -> str:
    """Return the page: HTML with its style inside, which loads nothing."""
    templates = Environment(
        loader=PackageLoader("terrine_addons.dossier"),
        autoescape=True,
        finalize=show_value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= FILTERS
    templates.globals |= {
        "share": format_share,
        "right": max_guess_accuracy,
        "caught": max_detection_rate,
    }
    return templates.get_template("dossier.html").render(facts=facts, policy=CONTENT_POLICY)
