"""Ledger records → wire models."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import TypeAdapter

from terrine_protocol import (
    Budget,
    Charge,
    DeltaSplit,
    EnsembleAccount,
    EnsembleInfo,
    Estimate,
    InputSpec,
    LabelResponse,
    LabelResult,
    MechanismSpec,
    Outcome,
    Price,
    ProjectInfo,
    Published,
    PublishingTerms,
    Rule,
    SecretSpend,
    TokenInfo,
    Verification,
)
from terrine_server import ledger

MECHANISM: TypeAdapter[MechanismSpec] = TypeAdapter(MechanismSpec)


def budget(project: ledger.ProjectRecord) -> Budget:
    """Return the project's public account."""
    terms = project.terms
    return Budget(
        project=project.name,
        status=project.status,
        guarantee=project.guarantee,
        epsilon=terms.epsilon,
        delta=terms.delta,
        rule=Rule(**asdict(terms.rule)),
        budget=terms.budget,
        spent=project.spent,
        delta_budget=terms.delta_budget,
        delta_spent=project.delta_spent,
        epsilon_spent=terms.epsilon_spent(project.spent),
        charges=project.charges,
        publications=[
            Published(charge=p.seq, queries=p.queries, figure=p.figure) for p in project.published
        ],
        affordable=project.affordable,
    )


def estimate(project: ledger.ProjectRecord, queries: int) -> Estimate:
    """Return the worst-case price of that many new queries."""
    terms = project.terms
    cost, delta = queries * terms.worst.cost, queries * terms.worst.delta
    return Estimate(
        queries=queries,
        cost=cost,
        delta_cost=delta,
        fits=queries <= project.affordable,
        epsilon_after=terms.epsilon_spent(project.spent + cost),
        prices=prices(project),
        opening=_opening(project),
        budget=budget(project),
    )


def prices(project: ledger.ProjectRecord) -> dict[Outcome, Price]:
    """Return what each outcome debits."""
    return {
        Outcome(outcome): Price(cost=price.cost, delta=price.delta)
        for outcome, price in project.terms.prices.items()
    }


def receipt(receipt: ledger.Receipt) -> LabelResponse:
    """Return the answers to a batch."""
    results = [
        LabelResult(
            outcome=result.outcome, label=result.label, charge=result.seq, replayed=result.replayed
        )
        for result in receipt.results
    ]
    return LabelResponse(results=results, budget=budget(receipt.project))


def ensemble(record: ledger.EnsembleRecord, available: bool) -> EnsembleInfo:
    """Return an ensemble as students may know it."""
    return EnsembleInfo(
        name=record.name,
        manifest_sha256=record.manifest_sha256,
        kind=record.info["kind"],
        input=InputSpec.model_validate(record.info["input"]),
        classes=record.info["classes"],
        teachers=record.info["teachers"],
        available=available,
    )


def ensemble_account(record: ledger.EnsembleRecord, available: bool) -> EnsembleAccount:
    """Return an ensemble as its owner sees it."""
    return EnsembleAccount(
        **ensemble(record, available).model_dump(),
        guarantee=record.guarantee,
        epsilon=record.epsilon,
        delta=record.delta,
        rule=Rule(**asdict(record.rule)),
        cap=record.cap,
        reserved=record.reserved,
        delta_cap=record.delta_cap,
        delta_reserved=record.delta_reserved,
    )


def project(record: ledger.ProjectRecord, available: bool) -> ProjectInfo:
    """Return a project's terms."""
    return ProjectInfo(
        name=record.name,
        status=record.status,
        guarantee=record.guarantee,
        ensemble=ensemble(record.ensemble, available),
        mechanism=MECHANISM.validate_python(record.mechanism),
        epsilon=record.terms.epsilon,
        delta=record.terms.delta,
        delta_split=DeltaSplit(**asdict(record.terms.split)),
        rule=Rule(**asdict(record.terms.rule)),
        prices=prices(record),
        opening=_opening(record),
        publishing=_publishing(record),
        opened_at=record.opened_at,
        closed_at=record.closed_at,
    )


def _opening(record: ledger.ProjectRecord) -> Price | None:
    price = record.terms.opening
    return None if price is None else Price(cost=price.cost, delta=price.delta)


def _publishing(record: ledger.ProjectRecord) -> PublishingTerms | None:
    schedule = record.terms.schedule
    if schedule is None:
        return None
    price = Price(cost=schedule.price.cost, delta=schedule.price.delta)
    return PublishingTerms(
        **asdict(schedule.publication), schedule=list(schedule.counts), price=price
    )


def secret_spend(project: str, record: ledger.SecretAccount) -> SecretSpend:
    """Return a secret spend, for its owner."""
    return SecretSpend(project=project, **asdict(record))


def charge(record: ledger.ChargeRecord) -> Charge:
    """Return one entry of the ledger."""
    return Charge(
        project=record.project,
        seq=record.seq,
        created_at=record.created_at,
        outcome=record.outcome,
        label=record.label,
        figure=record.figure,
        cost=record.cost,
        delta=record.delta,
        guarantee=record.guarantee,
        mechanism=MECHANISM.validate_python(record.mechanism),
        event=dict(record.event),
        query_digest=record.query_digest,
        hash=record.hash,
    )


def verification(found: ledger.Verification) -> Verification:
    """Return whether a project's books are whole."""
    return Verification(
        project=found.project,
        ok=found.ok,
        charges=found.charges,
        head=found.head,
        problems=list(found.problems),
    )


def token(record: ledger.TokenRecord) -> TokenInfo:
    """Return a token as it is remembered, without its hash."""
    return TokenInfo(
        id=record.id,
        role=record.role,
        project=record.project,
        label=record.label,
        created_at=record.created_at,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
    )
