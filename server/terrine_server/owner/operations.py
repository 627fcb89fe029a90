"""The data owner's operations, for both the HTTP routes and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from terrine_protocol import ProjectOpen
from terrine_server.errors import InvalidTerms
from terrine_server.ledger import EnsembleRecord, Ledger, ProjectRecord, connect
from terrine_server.ledger.accounts import check_name
from terrine_server.planning.forecast import Consensus, Votes
from terrine_server.planning.proposal import DEFAULT_CONSENSUS, propose
from terrine_server.privacy import (
    BoundRelease,
    Mechanism,
    ParameterError,
    build_mechanism,
    cap,
    quote,
)
from terrine_server.privacy.budget.quoting import check_publishable, publication_z
from terrine_server.settings import Settings


def open_ledger(settings: Settings) -> Ledger:
    """Return the ledger that the settings name. It connects on first use."""
    return Ledger(connect(settings.database, settings.database_password()))


def open_project(ledger: Ledger, request: ProjectOpen) -> ProjectRecord:
    """Price a project and reserve its budget under its ensemble's cap.

    Raises `InvalidTerms`, `NotFound` (ensemble), `Conflict` (name taken) or `CapExceeded`.
    """
    ensemble = ledger.ensemble(request.ensemble)
    spec = request.mechanism.model_dump(mode="json", exclude_none=True)
    try:
        mechanism = build_mechanism(
            spec, teachers=ensemble.info["teachers"], classes=len(ensemble.info["classes"])
        )
        terms = quote(
            mechanism,
            request.epsilon,
            request.delta,
            cap_rule=ensemble.rule,
            publishing=_publishing(request, spec, mechanism, ensemble),
        )
    except ParameterError as error:
        raise InvalidTerms(str(error)) from error
    if terms.guarantee == "claimed" and not request.acknowledge_claimed:
        raise InvalidTerms(
            "This price is the one its paper claims, and it does not hold for every data set. "
            "Set acknowledge_claimed (--acknowledge-claimed) to open the project anyway, "
            'or choose pricing "honest".'
        )
    return ledger.open_project(request.name, request.ensemble, spec, terms)


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
            '`terrine ensemble register --order ORDER`. Use accounting "worst_case" on this one.'
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
    order: float | None = None,
) -> EnsembleRecord:
    """Verify an ensemble of the data directory and record it in the ledger, with its cap.

    `order`: the Rényi order of the cap; data-dependent projects need one.

    Raises `StoreError` (its files), `InvalidTerms` (the name or the cap) or `Conflict`
    (registered before).
    """
    from terrine_models.store import load_manifest, manifest_digest, verify

    check_name("an ensemble", name)
    directory = settings.ensembles_dir / name
    digest = manifest_digest(directory)
    verify(directory)
    manifest = load_manifest(directory)
    try:
        limit = cap(epsilon, delta, order)
    except ParameterError as error:
        raise InvalidTerms(str(error)) from error
    info = {
        "kind": manifest.kind,
        "input": manifest.input.model_dump(mode="json"),
        "classes": list(manifest.classes),
        "teachers": manifest.teachers,
    }
    path = str(Path("ensembles") / name)
    return ledger.register_ensemble(name, path, digest, info, manifest.records, limit)
