"""The data owner's operations, for both the HTTP routes and the command line."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from terrine_protocol import (
    EnsembleRegister,
    LogVerification,
    ProjectOpen,
    ProjectStatus,
    Role,
    SecretSpend,
    TokenCreate,
    Verification,
)
from terrine_protocol.names import find_unshown
from terrine_server.errors import CapExceeded, Conflict, InvalidTerms
from terrine_server.ledger import (
    NEIGHBOURS,
    SUMS,
    Action,
    Actor,
    EnsembleRecord,
    Ledger,
    NewProject,
    PopulationRecord,
    ProjectRecord,
    choose_population,
    connect,
    upgrade,
)
from terrine_server.ledger.revisions import has_tables
from terrine_server.ledger.verifying import Progress
from terrine_server.owner.checkpoints import attach_history, make_key_of_new_log
from terrine_server.owner.editions import refuse_forgotten_people
from terrine_server.owner.sign_in import (
    Tokens,
    load_secret_key,
    load_token_key,
    make_secret_key,
)
from terrine_server.planning.expected import DEFAULT_CONSENSUS, Consensus, Votes
from terrine_server.planning.opening import choose, small_budget_warning
from terrine_server.planning.publishing import choose_schedule
from terrine_server.privacy import (
    BoundRelease,
    Cap,
    Mechanism,
    Neighbours,
    NoisyVotes,
    ParameterError,
    SumAnswers,
    Terms,
    build_mechanism,
    build_release,
    cap,
    cap_order,
    epsilon_from_gdp,
    gdp_squared,
    quote,
)
from terrine_server.privacy.parameters import MAX_SIGMA
from terrine_server.privacy.quoting import check_publishable, split_delta
from terrine_server.settings import Settings

if TYPE_CHECKING:
    from terrine_models.teachers.manifests import Manifest


# Of further projects that are looked for: with two digits, which are easy to type.
EPSILONS = tuple(
    float(f"{digits}e{exponent}") for exponent in range(-5, 2) for digits in range(10, 100)
)

PAGE_ITEMS = 100


# The terms of a project with a budget of ε. Raises `ParameterError` if it pays for none.
Price = Callable[[float], Terms]


def price_like(mechanism: Mechanism, terms: Terms, population: PopulationRecord) -> Price:
    """Return the price of a project with the `mechanism` of these `terms`, and their release."""
    rate = terms.choice.pass_rate if terms.choice else None
    release = None if terms.release is None else terms.release.spec
    rule, delta = population.rule, terms.delta

    def terms_at(epsilon: float) -> Terms:
        budget = epsilon, delta
        return choose(mechanism, *budget, cap_rule=rule, pass_rate=rate, release=release).terms

    return terms_at


def max_fitting_epsilon(
    ensemble: EnsembleRecord, most: float | None = None, price: Price | None = None
) -> float | None:
    """Return about the largest ε of a further project, rounded down; None if the cap is full.

    It is at most `most`, and opened by `price`, by default with noisy counts at the cap's δ:
    another mechanism may take more of a cap.
    """
    population = ensemble.population
    most = population.epsilon if most is None else min(most, population.epsilon)
    facts = ensemble.facts
    size = facts.teachers, len(facts.classes)
    # With so much noise that any ε pays for a query: how many it buys is not the question.
    noisy = SumAnswers(*size) if facts.kind == SUMS else NoisyVotes(*size, MAX_SIGMA)

    def fits(epsilon: float) -> bool | None:
        """None: it pays for nothing, so it is too little, and not too much."""
        try:
            if price is None:
                delta, rule, release = population.delta, population.rule, ensemble.release_spec
                found = choose(noisy, epsilon, delta, cap_rule=rule, release=release).terms
            else:
                found = price(epsilon)
        except ParameterError:
            return None
        return (
            population.reserved + found.cap_budget <= population.cap
            and population.delta_reserved + found.delta_budget <= population.delta_cap
        )

    if fits(most):
        return most
    below = bisect_left(EPSILONS, most)
    place = bisect_left(EPSILONS, True, hi=below, key=lambda epsilon: fits(epsilon) is False)
    return EPSILONS[place - 1] if place and fits(EPSILONS[place - 1]) else None


def find_epsilon_of_sums(ensemble: EnsembleRecord, delta: float) -> float:
    """Return the ε that pays for what an ensemble of sums released.

    It is rounded up to two digits, but not beyond the ε of the cap.
    """
    squared = gdp_squared(build_release(ensemble.release_spec or {}).event)
    epsilon = epsilon_from_gdp(squared, split_delta([], delta).conversion)
    digit = 10.0 ** (math.floor(math.log10(epsilon)) - 1)
    rounded, most = float(f"{math.ceil(epsilon / digit) * digit:.2g}"), ensemble.population.epsilon
    return min(rounded, most) if epsilon <= most else rounded


def find_largest_return(
    ledger: Ledger, population: PopulationRecord
) -> tuple[ProjectRecord, float] | None:
    """Return the project that, closed, returns most to the cap, and the share of the cap."""
    unspent = (
        (record, (record.terms.cap_budget - record.cap_spent) / population.cap)
        for record in every_project(ledger)
        if record.ensemble.population.id == population.id
        and record.status is not ProjectStatus.CLOSED
    )
    best = max(unspent, key=lambda found: found[1], default=None)
    return best if best is not None and best[1] > 0 else None


def every_project(ledger: Ledger) -> Iterator[ProjectRecord]:
    """Yield all projects, by name, a page at a time."""
    last = None
    while found := ledger.projects.list(last, PAGE_ITEMS):
        yield from found
        last = found[-1].name


def suggest_room(ledger: Ledger, ensemble: EnsembleRecord, wanted: float, price: Price) -> str:
    """Say what still fits under a cap that has no room for ε, and what would make room."""
    epsilon = max_fitting_epsilon(ensemble, wanted, price)
    fits = (
        "Nothing like it fits"
        if epsilon is None
        else f"With up to about ε = {epsilon:g} it would fit"
    )
    found = find_largest_return(ledger, ensemble.population)
    if found is None:
        return f"{fits}; closing a project would give nothing back."
    record, share = found
    return (
        f"{fits}. To close {record.name}, which has spent {record.spent_share:.1%} of its budget, "
        f"would give {share:.1%} of the cap back."
    )


@contextmanager
def _with_suggestion(
    ledger: Ledger, ensemble: EnsembleRecord, mechanism: Mechanism, terms: Terms
) -> Iterator[None]:
    """Add what would make room to a `CapExceeded` that is raised within."""
    try:
        yield
    except CapExceeded as error:
        price = price_like(mechanism, terms, ensemble.population)
        why = f"{error.detail} {suggest_room(ledger, ensemble, terms.epsilon, price)}"
        raise CapExceeded(why, **error.extras) from error


# Directory in the data directory that is there while a restore is under way, or interrupted.
RESTORING = "restoring"


def check_not_restoring(settings: Settings) -> None:
    """Raise Conflict if a restore has not come to its end."""
    if (settings.data_dir / RESTORING).exists():
        raise Conflict(
            "A restore was interrupted, so ledger and files may not fit together. Run `terrine "
            "restore` with the same backup again: it does the rest."
        )


@dataclass(frozen=True)
class LocalOwner:
    """A data directory, and what its owner does there without a server."""

    settings: Settings

    @classmethod
    def of(cls, data: Path) -> LocalOwner:
        """The owner of a directory, whatever TERRINE_* variables say."""
        return cls(
            Settings(
                data_dir=data,
                database_url=f"sqlite:///{(data / 'terrine.sqlite').absolute()}",
                database_password_file=None,
                secret_key_file=data / "secret.key",
                checkpoint_key_file=data / "checkpoint.key",
                log_policy_file=None,
            )
        )

    def prepare(self) -> Ledger:
        """Make the keys and the tables, if there are none, and return the ledger."""
        make_directories(self.settings)
        engine = connect(self.settings.database)
        if not has_tables(engine):  # a ledger that is there has a key
            make_secret_key(self.settings.secret_key_path)
        upgrade(engine, load_secret_key(self.settings.secret_key_path))
        ledger = open_ledger(self.settings)
        make_key_of_new_log(ledger, self.settings)
        return ledger

    def token(self, ledger: Ledger, role: Role, label: str) -> str:
        """Return a new token, of no project."""
        tokens = Tokens(ledger, load_token_key(self.settings))
        return tokens.create(TokenCreate(role=role, label=label)).token


def make_directories(settings: Settings) -> None:
    """Make the data directory, closed to other accounts; one that is there stays as it is."""
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.ensembles_dir.mkdir(mode=0o700, exist_ok=True)


def open_ledger(settings: Settings) -> Ledger:
    """Return the ledger that the settings name. It connects on first use.

    Raises SecretKeyError without the key that it is sealed with, CheckpointError for a key of the
    log that cannot be used, and Conflict while a restore is interrupted.
    """
    check_not_restoring(settings)
    engine = connect(settings.database, settings.database_password())
    ledger = Ledger(engine, load_secret_key(settings.secret_key_path))
    attach_history(ledger, settings)
    return ledger


@dataclass(frozen=True)
class ProjectQuote:
    """What a project would be opened with, and what that would mean as of now."""

    ensemble: EnsembleRecord
    mechanism: Mechanism
    spec: Mapping[str, object]
    """The mechanism's specification, with what was chosen for it."""
    terms: Terms

    @property
    def affordable(self) -> int:
        """How many queries are certain to fit."""
        return self.terms.affordable(self.terms.start)

    @property
    def fits(self) -> bool:
        """Whether the cap has room for it."""
        of = self.ensemble.population
        return (
            of.reserved + self.terms.cap_budget <= of.cap
            and of.delta_reserved + self.terms.delta_budget <= of.delta_cap
        )

    @property
    def warning(self) -> str | None:
        """That it buys too few answers."""
        return small_budget_warning(self.terms, len(self.ensemble.facts.classes))

    def project(self, request: ProjectOpen) -> NewProject:
        """Return the project that a request asks for."""
        return NewProject(
            name=request.name,
            ensemble=self.ensemble.name,
            mechanism=self.spec,
            terms=self.terms,
            title=request.title,
            purpose=request.purpose,
        )


def quote_project(ledger: Ledger, request: ProjectOpen) -> ProjectQuote:
    """Price a project, and do nothing else.

    Of the sound rules, it takes the one that is expected to buy the most answers. Raises
    `InvalidTerms` or `NotFound` (ensemble).
    """
    ensemble = ledger.ensembles.get(request.ensemble)
    spec = request.mechanism.model_dump(mode="json", exclude_none=True)
    try:
        mechanism = build_mechanism(
            spec, teachers=ensemble.facts.teachers, classes=len(ensemble.facts.classes)
        )
        _check_neighbours(ensemble, mechanism)
        publishing = _publishing(request, spec, mechanism, ensemble)
        budget = request.epsilon, request.delta
        if publishing is None:
            quoted = choose(
                mechanism,
                *budget,
                cap_rule=ensemble.population.rule,
                pass_rate=request.expected_pass_rate,
                release=ensemble.release_spec,
            )
            terms, spec = quoted.terms, quoted.specification(spec)
            mechanism = quoted.mechanism
        else:
            terms = quote(
                mechanism,
                *budget,
                cap_rule=ensemble.population.rule,
                publishing=publishing,
                release=ensemble.release_spec,
            )
    except ParameterError as error:
        raise InvalidTerms(str(error)) from error
    return ProjectQuote(ensemble, mechanism, spec, terms)


def open_project(ledger: Ledger, request: ProjectOpen, by: Actor | None = None) -> ProjectRecord:
    """Price a project and reserve its budget under its ensemble's cap; see `quote_project`.

    Also raises `Conflict` (name taken) and `CapExceeded`.
    """
    quoted = quote_project(ledger, request)
    with _with_suggestion(ledger, quoted.ensemble, quoted.mechanism, quoted.terms):
        return ledger.projects.open(quoted.project(request), by)


def _check_neighbours(ensemble: EnsembleRecord, mechanism: Mechanism) -> None:
    """Raise `ParameterError` unless units vote exactly where an ensemble has units that can."""
    if isinstance(mechanism, SumAnswers) or ensemble.facts.kind == SUMS:
        return  # `quote` compares them with what projects begin with
    if (ensemble.facts.kind == NEIGHBOURS) == isinstance(mechanism, Neighbours):
        return
    if isinstance(mechanism, Neighbours):
        raise ParameterError(
            f"neighbours asks every person, and {ensemble.name} has trained teachers: it is of the "
            f"kind {ensemble.facts.kind}. Use another mechanism, or an ensemble of the kind "
            "neighbours."
        )
    raise ParameterError(
        f"{mechanism.name} needs a vote of each teacher, and in {ensemble.name} people near a "
        "query vote, as far as their accounts allow. Use the mechanism neighbours."
    )


def _publishing(
    request: ProjectOpen, spec: Mapping[str, object], mechanism: Mechanism, ensemble: EnsembleRecord
) -> tuple[BoundRelease, Sequence[int]] | None:
    """Choose how a data-dependent project publishes.

    Uses the expected consensus only: no vote is looked at.
    """
    if request.accounting == "worst_case":
        return None
    check_publishable(mechanism)
    population = ensemble.population
    if population.rdp_order is None:
        raise ParameterError(
            f"The cap of the population {population.name} adds up in {population.rule}, where "
            "published figures do not count. data_dependent needs a cap that was declared with "
            'the rule rdp. Use accounting "worst_case" on this one.'
        )
    votes = Votes.synthetic(
        [Consensus(level.agreement, level.share) for level in request.consensus or ()]
        or DEFAULT_CONSENSUS,
        teachers=ensemble.facts.teachers,
        classes=len(ensemble.facts.classes),
    )
    budget = {"epsilon": request.epsilon, "delta": request.delta}
    return choose_schedule(spec, votes, **budget, order=population.rdp_order)


def register_ensemble(
    ledger: Ledger, settings: Settings, wanted: EnsembleRegister
) -> EnsembleRecord:
    """Verify an ensemble of the data directory and record it in the ledger, in its population.

    Raises `StoreError` (its files), `InvalidTerms` (the name or the cap), `NotFound` (the
    population) or `Conflict` (it, or one of its imported teachers, is registered already; another
    cap or unit than the population's; somebody in it was forgotten in the population).
    """
    from terrine_models.teachers.kinds import ensemble_format, load_manifest

    name, directory = wanted.name, settings.ensembles_dir / wanted.name
    held = ensemble_format(directory)
    held.verify(directory)
    digest = held.digest(directory)
    joined = choose_population(
        ledger.ensembles.list_populations(), wanted.population, disjoint=wanted.disjoint
    )
    limit = _find_wanted_cap(wanted, joined)
    if held.has_manifest:
        manifest = load_manifest(directory)
        _refuse_teachers_of_others(ledger, settings, name, manifest)
        if joined is not None:
            refuse_forgotten_people(ledger, settings, joined, directory)
        manifest.teacher.inspect(directory, manifest)
    units, facts = held.facts(directory)
    if facts.designed and facts.release is None:
        raise Conflict(
            f"An earlier version designed what {name} is asked, and does not say by which release. "
            f"Remove {directory}, and make it anew: `terrine quickstart`."
        )
    encoded = () if facts.encoding is None else facts.encoding.names
    if wrong := find_unshown((*facts.classes, *encoded)):
        raise InvalidTerms(f"{name}: {wrong}.")
    path = str(Path("ensembles") / name)
    return ledger.ensembles.register(
        name,
        path,
        digest,
        facts,
        units,
        limit,
        population=wanted.population,
        disjoint=wanted.disjoint,
    )


def _find_wanted_cap(wanted: EnsembleRegister, joined: PopulationRecord | None) -> Cap | None:
    """Return the cap that an owner gives; None if that of the population is to be shared."""
    if wanted.epsilon is None or wanted.delta is None:
        return None
    rule, order = wanted.rule, wanted.order
    if rule is None and order is None and joined is not None:
        rule, order = ("gdp" if joined.rdp_order is None else "rdp"), joined.rdp_order
    budget = wanted.epsilon, wanted.delta
    try:
        if rule != "gdp":
            return cap(*budget, cap_order(*budget) if order is None else order)
        if order is None:
            return cap(*budget)
    except ParameterError as error:
        raise InvalidTerms(str(error)) from error
    raise InvalidTerms("A cap in Gaussian DP has no order. Use the rule rdp, or no order.")


def _refuse_teachers_of_others(
    ledger: Ledger, settings: Settings, name: str, manifest: Manifest
) -> None:
    """Raise Conflict if an imported teacher is in another ensemble: both caps would be for it."""
    from terrine_models.storage.manifests import StoreError
    from terrine_models.teachers.kinds import load_manifest

    if manifest.teacher.salted:
        return
    teachers = {manifest.files[file] for file in manifest.teacher_files}
    for other in ledger.ensembles.list():
        if other.name == name or other.facts.kind != manifest.kind:
            continue
        try:
            shared = teachers & set(load_manifest(settings.data_dir / other.path).files.values())
        except StoreError:
            continue  # without its files it answers nothing
        if shared:
            raise Conflict(
                f"{len(shared)} of these teachers are in the ensemble {other.name} as well. Open "
                "projects on that one, so that they share its cap."
            )


def secret_spend(ledger: Ledger, project: str) -> SecretSpend:
    """Return the actual cost of a data-dependent project's queries, and record who looked at it.

    Raises what `Projects.secret_spend` raises.
    """
    spend = ledger.projects.secret_spend(project)
    ledger.log.record(Action.SPEND_SHOWN, project, {"queries": spend.queries})
    return spend


def export(ledger: Ledger, project: str) -> Iterator[dict[str, Any]]:
    """Record that a project's ledger is exported, and yield it. Raises NotFound."""
    record_export(ledger, project)
    return _with_leaf_key(ledger, project, ledger.exports.export_project(project))


def export_log(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield the administrative log, as `Exports.export_log` does, with its leaf key."""
    return _with_leaf_key(ledger, None, ledger.exports.export_log())


def _with_leaf_key(
    ledger: Ledger, project: str | None, lines: Iterator[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Add to the first line what finds the entries in the transparency log."""
    key = ledger.tree.leaf_key(project)
    for number, line in enumerate(lines):
        yield line if number else {**line, "leaf_key": None if key is None else key.hex()}


def record_export(ledger: Ledger, project: str, by: Actor | None = None) -> None:
    """Record that somebody takes a copy of a project's ledger. Raises NotFound."""
    charges = ledger.projects.get(project).charges
    ledger.log.record(Action.LEDGER_EXPORTED, project, {"charges": charges}, by)


def verify_project(ledger: Ledger, project: str, progress: Progress | None = None) -> Verification:
    """As `Verifier.verify_project`; nothing is intact in a schema that is not Terrine's."""
    found = ledger.verifier.verify_project(project, progress)
    return found.model_copy(
        update={"problems": [*found.problems, *ledger.verifier.verify_schema()]}
    )


def verify_log(ledger: Ledger) -> LogVerification:
    """As `Verifier.verify_log`; nothing is intact in a schema that is not Terrine's."""
    found = ledger.verifier.verify_log()
    return found.model_copy(
        update={"problems": [*found.problems, *ledger.verifier.verify_schema()]}
    )
