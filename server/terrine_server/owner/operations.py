"""The data owner's operations, for both the HTTP routes and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from terrine_protocol import ProjectOpen
from terrine_server.errors import InvalidTerms
from terrine_server.ledger import (
    Action,
    Actor,
    EnsembleRecord,
    Ledger,
    ProjectRecord,
    SecretAccount,
    connect,
)
from terrine_server.ledger.accounts import check_name
from terrine_server.owner.tokens import load_secret_key
from terrine_server.planning.forecast import DEFAULT_CONSENSUS, Consensus, Votes
from terrine_server.planning.opening import choose, under_todays_analysis
from terrine_server.planning.proposal import propose
from terrine_server.privacy import (
    BoundRelease,
    Mechanism,
    ParameterError,
    build_mechanism,
    cap,
    cap_order,
    quote,
)
from terrine_server.privacy.budget.quoting import check_publishable, publication_z
from terrine_server.settings import Settings


def make_directories(settings: Settings) -> None:
    """Make the data directory, closed to other accounts; one that is there stays as it is."""
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.ensembles_dir.mkdir(mode=0o700, exist_ok=True)


def open_ledger(settings: Settings) -> Ledger:
    """Return the ledger that the settings name. It connects on first use.

    Raises SecretKeyError without the key that it is sealed with.
    """
    engine = connect(settings.database, settings.database_password())
    return Ledger(engine, load_secret_key(settings.secret_key_path))


def open_project(ledger: Ledger, request: ProjectOpen, by: Actor | None = None) -> ProjectRecord:
    """Price a project and reserve its budget under its ensemble's cap.

    Of the sound rules, it is opened under the one that is expected to buy the most answers.
    Raises `InvalidTerms`, `NotFound` (ensemble), `Conflict` (name taken) or `CapExceeded`.
    """
    ensemble = ledger.ensemble(request.ensemble)
    spec = under_todays_analysis(request.mechanism.model_dump(mode="json", exclude_none=True))
    try:
        mechanism = build_mechanism(
            spec, teachers=ensemble.info["teachers"], classes=len(ensemble.info["classes"])
        )
        publishing = _publishing(request, spec, mechanism, ensemble)
        budget = request.epsilon, request.delta
        if publishing is None:
            offer = choose(
                mechanism, *budget, cap_rule=ensemble.rule, pass_rate=request.expected_pass_rate
            )
            terms, spec = offer.terms, offer.specification(spec)
        else:
            terms = quote(mechanism, *budget, cap_rule=ensemble.rule, publishing=publishing)
    except ParameterError as error:
        raise InvalidTerms(str(error)) from error
    if terms.guarantee == "claimed" and not request.acknowledge_claimed:
        raise InvalidTerms(
            "This price is the one its paper claims, and it does not hold for every data set. "
            "Set acknowledge_claimed (--acknowledge-claimed) to open the project anyway, "
            'or choose pricing "honest".'
        )
    return ledger.open_project(request.name, request.ensemble, spec, terms, by)


def _publishing(
    request: ProjectOpen, spec: Mapping[str, object], mechanism: Mechanism, ensemble: EnsembleRecord
) -> tuple[BoundRelease, Sequence[int]] | None:
    """Choose how a data-dependent project publishes, or check what was requested.

    Uses the expected consensus only: no vote is looked at.
    """
    if request.accounting == "worst_case":
        return None
    check_publishable(mechanism)
    if ensemble.rdp_order is None:
        raise ParameterError(
            f"The cap of the ensemble {ensemble.name} adds up in {ensemble.rule}, where "
            "published figures do not count. data_dependent needs an ensemble registered with "
            'the rule rdp. Use accounting "worst_case" on this one.'
        )
    votes = Votes.synthetic(
        [Consensus(level.agreement, level.share) for level in request.consensus or ()]
        or DEFAULT_CONSENSUS,
        teachers=ensemble.info["teachers"],
        classes=len(ensemble.info["classes"]),
    )
    given, requested = None, request.publishing
    if requested is not None:
        z = publication_z(request.delta, len(requested.schedule))
        release = BoundRelease(ensemble.rdp_order, requested.beta, requested.sigma, z)
        given = release, requested.schedule
    return propose(
        spec,
        votes,
        epsilon=request.epsilon,
        delta=request.delta,
        order=ensemble.rdp_order,
        given=given,
    )


def register_ensemble(
    ledger: Ledger,
    settings: Settings,
    name: str,
    epsilon: float,
    delta: float,
    rule: Literal["rdp", "gdp"] = "rdp",
    order: float | None = None,
    by: Actor | None = None,
) -> EnsembleRecord:
    """Verify an ensemble of the data directory and record it in the ledger, with its cap.

    `rule`: how the cap adds up. Joint prices and published bounds hold at a Rényi order, so they
    need "rdp"; `order` is by default the best for costs in proportion to it.

    Raises `StoreError` (its files), `InvalidTerms` (the name or the cap) or `Conflict`
    (registered before).
    """
    from terrine_models.roster import verified_digest

    check_name("an ensemble", name)
    directory = settings.ensembles_dir / name
    digest = verified_digest(directory)
    records, info = _facts(directory)
    try:
        if rule == "rdp":
            limit = cap(epsilon, delta, cap_order(epsilon, delta) if order is None else order)
        elif order is None:
            limit = cap(epsilon, delta)
        else:
            raise ParameterError(
                "A cap in Gaussian DP has no order. Use the rule rdp, or no order."
            )
    except ParameterError as error:
        raise InvalidTerms(str(error)) from error
    path = str(Path("ensembles") / name)
    return ledger.register_ensemble(name, path, digest, info, records, limit, by)


def _facts(directory: Path) -> tuple[int, dict[str, Any]]:
    """Return how many records an ensemble's teachers have, and what students see of it."""
    from terrine_models.roster import is_roster, load_roster
    from terrine_models.store import load_manifest

    if is_roster(directory):
        roster = load_roster(directory)
        return roster.records, {
            "kind": "remote",
            "input": roster.input.model_dump(mode="json"),
            "classes": list(roster.classes),
            "teachers": len(roster.owners),
            "disjoint_by": roster.disjoint_by,
        }
    manifest = load_manifest(directory)
    info: dict[str, Any] = {
        "kind": manifest.kind,
        "input": manifest.input.model_dump(mode="json"),
        "classes": list(manifest.classes),
        "teachers": manifest.teachers,
    }
    if manifest.training.match_prior:
        info["matches_prior"] = True
    if manifest.encoding:
        info["encoding"] = manifest.encoding.model_dump(mode="json")
    return manifest.records, info


def secret_spend(ledger: Ledger, project: str, by: Actor | None = None) -> SecretAccount:
    """Return the actual cost of a data-dependent project's queries, and record who looked at it.

    Raises what `Ledger.secret_spend` raises.
    """
    spend = ledger.secret_spend(project)
    ledger.note(Action.SPEND_SHOWN, project, {"queries": spend.queries}, by)
    return spend


def export(ledger: Ledger, project: str, by: Actor | None = None) -> Iterator[dict[str, Any]]:
    """Record that a project's ledger is exported, and yield it. Raises NotFound."""
    record_export(ledger, project, by)
    return ledger.export(project)


def record_export(ledger: Ledger, project: str, by: Actor | None = None) -> None:
    """Record that somebody takes a copy of a project's ledger. Raises NotFound."""
    charges = ledger.project(project).charges
    ledger.note(Action.LEDGER_EXPORTED, project, {"charges": charges}, by)
